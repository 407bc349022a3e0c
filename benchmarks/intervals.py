"""Time of the statistics over patients: bootstrap intervals, percentile and BCa, and DeLong's test.

    python benchmarks/intervals.py

Simulated predictions for 20,000 units of about 11,000 patients; AUROC and AUPRC of one model, on one core. For BCa,
patients are left out in groups, and for comparison one by one.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ovo_clinic.statistics import bootstrap_by_patient, delong_test
from ovo_clinic.statistics.bootstrap import JACKKNIFE_GROUPS

TARGET_SECONDS = 60
METRICS = ("auroc", "auprc")


def seconds(work: Callable[[], Any]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=20_000)
    parser.add_argument("--resamples", type=int, default=1000)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    patients = rng.integers(0, round(0.75 * given.units), given.units)
    target = (rng.random(given.units) < 0.1).astype(float)
    a, b = 0.5 * target + rng.normal(size=(2, given.units))

    def intervals(groups: int) -> Callable[[], Any]:
        return lambda: bootstrap_by_patient(
            {"a": a}, target, patients, METRICS, resamples=given.resamples, jackknife_groups=groups
        )

    measurements = {
        "percentile": intervals(0),
        f"BCa, {JACKKNIFE_GROUPS} groups of patients": intervals(JACKKNIFE_GROUPS),
        "BCa, patients one by one": intervals(given.units),
        "DeLong, two models": lambda: delong_test(a, b, target, patients),
    }
    intervals(1)()  # what is slow only once
    print(f"{given.units:,} units, {len(METRICS)} metrics, {given.resamples:,} resamples; seconds")
    for name, work in measurements.items():
        print(f"{name:28} {seconds(work):8.2f}")
    print(f"BCa in groups: at most {TARGET_SECONDS} seconds wanted")


if __name__ == "__main__":
    main()
