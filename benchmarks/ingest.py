"""CPU time and peak memory of preparing a large raw folder, and of a bare scan of its largest file in the same run.

    python benchmarks/ingest.py eicu --rows 10e6
    python benchmarks/ingest.py tadpole

Each measurement runs in a process of its own; CPU time is user + system over all its threads, the interpreter's start
included. The raw folder is synthetic, written to a temporary place and removed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

LAB_ROWS_PER_STAY = 195  # eICU 2.0: 39.1 million rows, 200,859 stays
STAYS_PER_PATIENT = 1.37


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


def prepare_task(task: str, dataset: str, folder: Path) -> None:
    """`ovo-clinic prepare TASK`: tables, split, vocabularies and arrays."""
    from ovo_clinic import prepare, spec
    from ovo_clinic.experiment import DataRequest

    described, path = spec.load(dataset)
    options = spec.task_options(described, task, {}, path)
    prepare.prepare(DataRequest(described, path, task, options, described.task(task).split), {"": folder})


def write_eicu(folder: Path, rows: int) -> None:
    """About so many laboratory rows."""
    from ovo_clinic.registry import SYNTHETIC

    patients = max(100, round(rows / LAB_ROWS_PER_STAY / STAYS_PER_PATIENT))
    report = SYNTHETIC.get("eicu")(folder, patients=patients, seed=0, lab_rows_per_stay=LAB_ROWS_PER_STAY)
    written = report["counts"]["rows"]
    print(f"eicu: {written['lab']:,} laboratory rows, {written['patient']:,} stays", flush=True)


def write_tadpole(folder: Path, rows: int) -> None:
    """The file of the challenge's size, whatever the number of rows asked for."""
    from ovo_clinic.registry import SYNTHETIC

    SYNTHETIC.get("tadpole")(folder, seed=0)


@dataclass(frozen=True)
class Case:
    """One data set's measurements.

    Attributes:
        write: writes the raw folder of about so many rows.
        measured: by name; `prepare` is ours.
        targets: what is wanted of `prepare`, in words.
    """

    write: Callable[[Path, int], None]
    measured: Mapping[str, Callable[[Path], None]]
    targets: str


CASES = {
    "eicu": Case(
        write_eicu,
        {"bare": bare_eicu, "prepare": partial(prepare_task, "eicu_mortality_24h", "eicu")},
        "at most 2 times the bare scan's CPU time and 1.5 GiB",
    ),
    "tadpole": Case(
        write_tadpole,
        {"prepare": partial(prepare_task, "tadpole_clean", "tadpole")},
        "at most 10 s and 1.5 GB (1.40 GiB)",
    ),
}


def measure(dataset: str, name: str, folder: Path, home: Path) -> Usage:
    """Runs one measurement in a fresh process."""
    command = [sys.executable, __file__, dataset, "--measure", name, "--folder", str(folder)]
    process = subprocess.Popen(command, env=os.environ | {"OVO_CLINIC_HOME": str(home)})
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{name}: the process ended with exit code {process.returncode}")
    return Usage(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20)


def compare(dataset: str, rows: int) -> None:
    """Writes the raw folder, measures and prints the table."""
    case = CASES[dataset]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "raw"
        # A process of its own: a child's peak memory starts at that of the process that started it.
        command = [sys.executable, __file__, dataset, "--rows", str(rows), "--write", "--folder", str(folder)]
        subprocess.run(command, check=True)
        usages = {name: measure(dataset, name, folder, Path(temporary) / "home") for name in case.measured}
    print(f"{'':10} {'CPU s':>8} {'peak GiB':>9}")
    for name, usage in usages.items():
        print(f"{name:10} {usage.cpu_seconds:8.1f} {usage.peak_gib:9.2f}")
    if "bare" in usages:
        print(f"ratio {usages['prepare'].cpu_seconds / usages['bare'].cpu_seconds:.2f}")
    print(f"wanted: {case.targets}")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=list(CASES))
    parser.add_argument("--rows", type=float, default=10e6, help="about how many rows of the largest table")
    parser.add_argument("--write", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        CASES[arguments.dataset].write(arguments.folder, round(arguments.rows))
    elif arguments.measure:
        CASES[arguments.dataset].measured[arguments.measure](arguments.folder)
    else:
        compare(arguments.dataset, round(arguments.rows))


if __name__ == "__main__":
    main()
