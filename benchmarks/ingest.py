"""CPU time and peak memory of preparing a large raw folder, against a bare scan of its largest file in the same run.

    python benchmarks/ingest.py eicu --rows 10e6

Each measurement runs in a process of its own; CPU time is user + system over all its threads, the interpreter's start
included. The raw folder is synthetic, written to a temporary place and removed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

LAB_ROWS_PER_STAY = 195  # eICU 2.0: 39.1 million rows, 200,859 stays
STAYS_PER_PATIENT = 1.37
TARGET_RATIO, TARGET_GIB = 2.0, 1.5


@dataclass(frozen=True)
class Usage:
    """What a process used."""

    cpu_seconds: float
    peak_gib: float


def bare_eicu(folder: Path) -> None:
    """The least that any tool must do: scan, filter to the window, aggregate by stay and test."""
    import polars as pl

    result, minute, revised = pl.col("labresult"), pl.col("labresultoffset"), pl.col("labresultrevisedoffset")
    (
        pl.scan_csv(folder / "lab.csv.gz", schema_overrides={"labresult": pl.Float64})
        .filter((minute >= -360) & (minute < 1440) & (revised < 1440) & result.is_not_null())
        .group_by("patientunitstayid", "labname")
        .agg(
            result.last().alias("last"),
            result.min().alias("min"),
            result.max().alias("max"),
            result.mean().alias("mean"),
            pl.len().alias("count"),
        )
        .collect(engine="streaming")
    )


def prepare_eicu(folder: Path) -> None:
    """`ovo-clinic prepare eicu_mortality_24h`: six tables, split, vocabularies and arrays."""
    from ovo_clinic import prepare, spec
    from ovo_clinic.experiment import DataRequest

    task = "eicu_mortality_24h"
    dataset, path = spec.load("eicu")
    options = spec.task_options(dataset, task, {}, path)
    prepare.prepare(DataRequest(dataset, path, task, options, dataset.task(task).split), {"": folder})


MEASUREMENTS = {"bare": bare_eicu, "prepare": prepare_eicu}


def measure(name: str, folder: Path, home: Path) -> Usage:
    """Runs one measurement in a fresh process."""
    command = [sys.executable, __file__, "eicu", "--measure", name, "--folder", str(folder)]
    process = subprocess.Popen(command, env=os.environ | {"OVO_CLINIC_HOME": str(home)})
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{name}: the process ended with exit code {process.returncode}")
    return Usage(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20)


def compare(rows: int) -> None:
    """Writes the raw folder, measures and prints the table."""
    from ovo_clinic.registry import SYNTHETIC

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "raw"
        patients = max(100, round(rows / LAB_ROWS_PER_STAY / STAYS_PER_PATIENT))
        report = SYNTHETIC.get("eicu")(folder, patients=patients, seed=0, lab_rows_per_stay=LAB_ROWS_PER_STAY)
        rows_of = report["counts"]["rows"]
        print(f"eicu: {rows_of['lab']:,} laboratory rows, {rows_of['patient']:,} stays")
        usages = {name: measure(name, folder, Path(temporary) / "home") for name in MEASUREMENTS}
    print(f"{'':10} {'CPU s':>8} {'peak GiB':>9}")
    for name, usage in usages.items():
        print(f"{name:10} {usage.cpu_seconds:8.1f} {usage.peak_gib:9.2f}")
    ratio = usages["prepare"].cpu_seconds / usages["bare"].cpu_seconds
    print(f"ratio {ratio:.2f}, at most {TARGET_RATIO:g} wanted; peak at most {TARGET_GIB:g} GiB wanted")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=["eicu"])
    parser.add_argument("--rows", type=float, default=10e6, help="about how many laboratory rows (default: 10 million)")
    parser.add_argument("--measure", choices=list(MEASUREMENTS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        MEASUREMENTS[arguments.measure](arguments.folder)
    else:
        compare(round(arguments.rows))


if __name__ == "__main__":
    main()
