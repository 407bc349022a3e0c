"""CPU time and peak memory of preparing a large raw folder, and of a bare scan of its largest file in the same run.

    python benchmarks/ingest.py eicu --rows 10e6
    python benchmarks/ingest.py tadpole
    python benchmarks/ingest.py mimic
    python benchmarks/ingest.py chartevents

Each measurement runs in a process of its own; CPU time is user + system over all its threads, the interpreter's start
included. The raw folder is synthetic, or for `mimic` the open demo many times over; it is written to a temporary place
and removed. `mimic` and `chartevents` need ../shared.
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
DEMO_CHART_ROWS = 257_474
SHARED = Path(__file__).resolve().parents[2] / "shared"


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


def write_mimic(folder: Path, rows: int) -> None:
    """The MIMIC-IV demo so many times over that it has about so many chart rows."""
    script, demo = SHARED / "bench" / "replicate_mimic.py", SHARED / "data" / "mimic-iv-demo"
    copies = str(max(1, round(rows / DEMO_CHART_ROWS)))
    subprocess.run([sys.executable, str(script), str(demo), str(folder), copies], check=True)


def write_chartevents(folder: Path, rows: int) -> None:
    """A synthetic chartevents with a cohort of 20,000 stays and 60 items."""
    script = SHARED / "bench" / "gen_chartevents.py"
    command = [sys.executable, str(script), str(folder), str(rows)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


def wanted_items(folder: Path) -> list[int]:
    """The items that are filtered for."""
    return [int(line) for line in (folder / "itemids.txt").read_text().split()]


def bare_chartevents(folder: Path) -> None:
    """The least that any tool must do: scan, filter to the items, write; nothing is joined or computed."""
    import polars as pl

    columns = ["stay_id", "charttime", "itemid", "value", "valuenum"]
    scan = pl.scan_csv(folder / "chartevents.csv.gz", schema_overrides={"valuenum": pl.Float64}).select(columns)
    scan.filter(pl.col("itemid").is_in(wanted_items(folder))).sink_parquet(folder / "bare.parquet")


def stage_chartevents(folder: Path) -> None:
    """The ingest's own step: filtered, joined to the stays, times made seconds, cut to the window, written by parts."""
    from dataclasses import replace

    import polars as pl

    from ovo_clinic import spec
    from ovo_clinic.raw import RawFolder
    from ovo_clinic.resources import load_pipeline

    described = spec.load("mimic")[0]
    channels = load_pipeline("mimic_channels").Channels.of(described, medfuse=False)
    pulse = next(item for item in channels.items if item.channel == "Heart Rate")
    items = [pulse.model_copy(update={"itemid": itemid}) for itemid in wanted_items(folder)]
    cohort = pl.read_csv(folder / "cohort.csv", try_parse_dates=True)
    start, last = pl.col("intime").cast(pl.Datetime("ms")), pl.lit(60 * 86_400, pl.Int32)
    windows = cohort.with_row_index("unit").with_columns(
        part=pl.col("unit").cast(pl.Int32) // 2000, start=start, last=last
    )
    raw = RawFolder({"": folder}, {"chartevents": described.tables["chartevents"]}).working_in(folder / "work")
    load_pipeline("mimic_events").stage_clean(raw, "chartevents", windows, replace(channels, items=items))


@dataclass(frozen=True)
class Case:
    """One data set's measurements.

    Attributes:
        write: writes the raw folder of about so many rows.
        rows: so many by default.
        measured: by name; `prepare` is ours.
        targets: what is wanted of `prepare`, in words.
    """

    write: Callable[[Path, int], None]
    rows: int
    measured: Mapping[str, Callable[[Path], None]]
    targets: str


CASES = {
    "eicu": Case(
        write_eicu,
        10_000_000,
        {"bare": bare_eicu, "prepare": partial(prepare_task, "eicu_mortality_24h", "eicu")},
        "at most 2 times the bare scan's CPU time and 1.5 GiB",
    ),
    "tadpole": Case(
        write_tadpole,
        1,
        {"prepare": partial(prepare_task, "tadpole_clean", "tadpole")},
        "at most 10 s and 1.5 GB (1.40 GiB)",
    ),
    "mimic": Case(
        write_mimic,
        50 * DEMO_CHART_ROWS,
        {"prepare": partial(prepare_task, "mimic_phenotyping", "mimic")},
        "at most 25 CPU-seconds and 1.5 GB (1.40 GiB)",
    ),
    "chartevents": Case(
        write_chartevents,
        30_000_000,
        {"bare": bare_chartevents, "prepare": stage_chartevents},
        "at most 1.5 times the bare scan's CPU time and 1 GB (0.93 GiB)",
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
    parser.add_argument("--rows", type=float, help="about how many rows of the largest table")
    parser.add_argument("--write", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        CASES[arguments.dataset].write(arguments.folder, round(arguments.rows))
    elif arguments.measure:
        CASES[arguments.dataset].measured[arguments.measure](arguments.folder)
    else:
        compare(arguments.dataset, round(arguments.rows or CASES[arguments.dataset].rows))


if __name__ == "__main__":
    main()
