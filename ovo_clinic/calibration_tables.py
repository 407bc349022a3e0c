"""Calibration, recalibration and clinical usefulness of every head of a study, as tables of aggregates.

A recalibration is fitted on the validation units of each seed, and judged on the test units. Nothing here speaks of
fewer than `disclosure.SMALLEST` units.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ovo_clinic import calibration, disclosure, statistics
from ovo_clinic.outcomes import Outcome, resamples

Floats = NDArray[np.float64]

METRICS = ("brier", "log_loss", "ece", "slope", "intercept")
METHODS: Mapping[str, Callable[..., calibration.Temperature | calibration.Isotonic] | None] = {
    "none": None,
    "temperature": calibration.Temperature.fit,
    "isotonic": calibration.Isotonic.fit,
}
"""Recalibration -> how it is fitted; `none` leaves the probabilities as they are."""
THRESHOLDS = 60


def recalibrated(outcome: Outcome, head: str, method: str) -> Floats:
    """(S,N) probabilities of the test units, each seed recalibrated on its own validation units."""
    fit = METHODS[method]
    test = outcome.predictions["test"][head]
    if fit is None:
        return test
    validation, target = outcome.predictions["validation"][head], outcome.target["validation"]
    return np.stack([fit(p, target).apply(own) for p, own in zip(validation, test, strict=True)])


def _every(found: Sequence[Outcome]) -> list[tuple[Outcome, dict[tuple[str, str], Floats]]]:
    """The outcomes with enough units of both classes, each with (head, method) -> (S,N)."""
    every = []
    for outcome in found:
        if not outcome.has_classes:
            continue
        heads = outcome.predictions["test"]
        fits = len(np.unique(outcome.target["validation"])) == 2
        methods = [method for method in METHODS if fits or method == "none"]
        every.append((outcome, {(h, method): recalibrated(outcome, h, method) for h in heads for method in methods}))
    return every


def metrics_table(found: Sequence[Outcome]) -> pd.DataFrame:
    """Calibration metrics on the test units.

    Returns:
        One row per outcome, head, recalibration and metric of METRICS: outcome, model, recalibration, metric, mean over
        seeds, and its bounds low and high over patients.
    """
    lines = []
    for outcome, every in _every(found):
        named = {"\n".join(key): p for key, p in every.items()}
        bootstrap = statistics.bootstrap_by_patient(
            named,
            outcome.target["test"],
            outcome.patients["test"],
            METRICS,
            resamples=resamples(len(found)),
            jackknife_groups=0,
        )
        for name in named:
            head, method = name.split("\n")
            for metric in METRICS:
                own = bootstrap.interval(name, metric)
                line = {"outcome": outcome.name, "model": head, "recalibration": method, "metric": metric}
                lines.append({**line, "mean": own.estimate, "low": own.low, "high": own.high})
    return pd.DataFrame(lines, columns=None if lines else ["outcome", "model", "recalibration", "metric"])


def reliability_table(found: Sequence[Outcome]) -> pd.DataFrame:
    """Predicted against observed on the test units, the seeds' predictions pooled, in bins of equal mass.

    Returns:
        One row per outcome, head, recalibration and bin: outcome, model, recalibration, units (mean over seeds),
        predicted (mean probability), observed (share of positives) and its bounds low and high over patients. A bin of
        few units is left out.
    """
    lines = []
    for outcome, every in _every(found):
        y, patients = outcome.target["test"], outcome.patients["test"]
        weights = _weights(patients, resamples(len(found)))
        for (head, method), p in every.items():
            bins = min(calibration.BINS, max(1, y.size // (2 * disclosure.SMALLEST)))
            member = calibration.equal_mass(p.ravel(), bins).reshape(p.shape)
            for index in range(member.max() + 1):
                inside = (member == index).sum(axis=0).astype(np.float64)  # (N,) in how many seeds
                if np.count_nonzero(inside) < disclosure.SMALLEST:
                    continue
                low, high = _bounds((inside * y) @ weights, inside @ weights)
                shares = {"predicted": p[member == index].mean(), "observed": inside @ y / inside.sum()}
                line = {"outcome": outcome.name, "model": head, "recalibration": method}
                lines.append({**line, "units": inside.sum() / len(p), **shares, "low": low, "high": high})
    return pd.DataFrame(lines, columns=None if lines else ["outcome", "model", "recalibration", "units"])


def decision_table(found: Sequence[Outcome]) -> pd.DataFrame:
    """Net benefit per unit at thresholds around the prevalence, with intervals over patients.

    Returns:
        One row per outcome, model and threshold: outcome, model (a head, or `treat everyone`), threshold, net_benefit
        (mean over seeds), low, high. Treating no one has a net benefit of 0.
    """
    lines = []
    for outcome in (own for own in found if own.has_classes):
        y = outcome.target["test"]
        at = np.linspace(0.01, np.clip(2.5 * y.mean(), 0.2, 0.95), THRESHOLDS)
        weights = _weights(outcome.patients["test"], resamples(len(found)))
        actions = {
            head: np.array([(p >= t).mean(axis=0) for t in at]) for head, p in outcome.predictions["test"].items()
        }
        for model, acted in {**actions, "treat everyone": np.ones((at.size, y.size))}.items():
            gain = acted * (y - (at / (1 - at))[:, None] * (1 - y))  # (T,N)
            samples = gain @ weights / weights.sum(axis=0)
            low, high = np.quantile(samples, [0.025, 0.975], axis=1)
            lines.append(
                pd.DataFrame(
                    {
                        "outcome": outcome.name,
                        "model": model,
                        "threshold": at,
                        "net_benefit": gain.mean(axis=1),
                        "low": low,
                        "high": high,
                    }
                )
            )
    return pd.concat(lines, ignore_index=True) if lines else pd.DataFrame(columns=["outcome", "model", "threshold"])


def _weights(patients: NDArray[np.int64], size: int) -> Floats:
    """(N,R) how often each unit is drawn."""
    patient = np.unique(patients, return_inverse=True)[1]
    return np.hstack(list(statistics.resampled(patient, size, 0, size)))


def _bounds(above: Floats, below: Floats) -> tuple[float, float]:
    """2.5 % and 97.5 % quantiles of above / below over the resamples that reach the bin."""
    reached = below > 0
    low, high = np.quantile(above[reached] / below[reached], [0.025, 0.975])
    return float(low), float(high)
