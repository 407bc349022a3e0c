"""What scrub finds and removes under a home, and what it leaves."""

from pathlib import Path

import polars as pl
import pytest

from ovo_clinic import scrub
from ovo_clinic.locks import locked

KEY = "0123456789abcdef" * 2
ROWS = {
    f"cache/eicu/{KEY}/cohort.parquet": "prepared data set",
    f"cache/eicu/{KEY}/derived/feed/array.npy": "prepared data set",
    f"cache/mimic/{KEY}-89abcdef/image.skipped.csv": "prepared data set",
    "cache/eicu/fedcba9876543210fedcba9876543210.partial/work/lab.parquet": "unfinished preparation",
    "runs/r1/predictions.parquet": "predictions of a run",
    "predictions/eicu_mortality_24h-1.csv": "predictions on new data",
    "predict-x1/data/cohort.parquet": "left by a predict that was killed",
    "demo/eicu-200/patient.csv.gz": "synthetic raw files",
    "for_r/cohort.csv.gz": "table put there by hand (an export, raw files)",
    "runs/r1/more.parquet": "table put there by hand (an export, raw files)",
    ".out.csv.4711.partial": "table put there by hand (an export, raw files)",
    "out/.mine.parquet.12.partial": "table put there by hand (an export, raw files)",
    "demo2/lab.csv.gz.partial": "table put there by hand (an export, raw files)",
    "raw/patient.csv.zst": "table put there by hand (an export, raw files)",
    "raw/lab.csv.xz": "table put there by hand (an export, raw files)",
    "raw/lab.TSV.gz": "table put there by hand (an export, raw files)",
    "reports/p10/s1.txt": "table put there by hand (an export, raw files)",
    "raw/vitals.csv.bz2": "table put there by hand (an export, raw files)",
    "raw/film.png": "table put there by hand (an export, raw files)",
    "raw/film.jpeg": "table put there by hand (an export, raw files)",
}
AGGREGATES = [
    "runs/r1/result.json",
    "runs/r1/model.safetensors",
    "runs/r1/labels.csv",
    "runs/r1/config.yaml",
    "studies/s1/table.csv",
    "studies/s1/report.html",
    "trials/t1/0/result.json",
    "tuning/t1/trials.csv",
    "costs/simulation/heads.csv",
    "mlflow_artifacts/1/tables/table.csv",
    "runs/r1/result.json.partial",
    "tuned.yaml.partial",
    "studies/s1/roc.png",
    "costs/simulation/macs.png",
    "bert/vocab.txt",
    "bert/model.safetensors",
    "raw/SHA256SUMS.txt",
    "studies/s1/table.csv.partial",
    "mlflow_artifacts/1/model/requirements.txt",
    "mlflow_artifacts/1/model/code/ovo_clinic/notes.txt",
    "mlflow.db",
    "tuning.db",
]


@pytest.fixture
def filled(home: Path) -> Path:
    for name in [*ROWS, *AGGREGATES, f"cache/eicu/{KEY}/manifest.json"]:
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x" * 10)
    for name, pointed in {f"{'a' * 32}": KEY, f"{'b' * 32}": "another"}.items():
        (home / "cache" / "eicu" / f"{name}.latest").write_text(pointed + "\n")
    return home


def files(home: Path) -> set[str]:
    return {path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file()}


def test_every_kind_is_found_with_its_size(filled: Path) -> None:
    found = scrub.holdings()
    for name, kind in ROWS.items():
        (item,) = [item for item in found if (filled / name).is_relative_to(item.path)]
        assert item.kind == kind, name
    for name in AGGREGATES:
        assert not any((filled / name).is_relative_to(item.path) for item in found), name
    (prepared,) = [item for item in found if item.path.name == KEY]
    assert (prepared.files, prepared.size) == (3, 30)


def test_rows_are_removed_and_nothing_else(filled: Path) -> None:
    assert scrub.remove(scrub.holdings()) == []
    pointer = f"cache/eicu/{'b' * 32}.latest"
    assert {name for name in files(filled) if not name.endswith("lock")} == {*AGGREGATES, pointer}
    assert scrub.holdings() == []


def test_what_is_in_use_is_left(filled: Path) -> None:
    run = filled / "runs" / "r1"
    predicting = filled / "predict-x1"
    with locked(filled / "cache" / "eicu" / f"{KEY}.lock"), locked(run / "lock"), locked(predicting / "lock"):
        left = {item.path for item in scrub.remove(scrub.holdings())}
    assert left == {filled / "cache" / "eicu" / KEY, run / "predictions.parquet", predicting}
    assert all(path.exists() for path in left)
    assert not (filled / "predictions" / "eicu_mortality_24h-1.csv").exists()


def test_a_link_is_removed_and_not_what_it_leads_to(home: Path, tmp_path: Path) -> None:
    outside = tmp_path / "raw" / "patient.csv"
    outside.parent.mkdir()
    pl.DataFrame({"id": [1]}).write_csv(outside)
    (home / "demo").mkdir(parents=True)
    (home / "demo" / "mine").symlink_to(outside.parent)
    scrub.remove(scrub.holdings())
    assert outside.is_file() and not (home / "demo" / "mine").exists()


def test_what_was_removed_is_made_again_and_alike(home: Path) -> None:
    from ovo_clinic import experiment, study
    from ovo_clinic.prepare import prepare_task
    from ovo_clinic.registry import Choice
    from tests.small_data import SIMULATION
    from tests.small_jobs import InThisProcess

    settings = experiment.load("simulation", [*SIMULATION, "training.accelerator=cpu"])

    def compare() -> tuple[object, bytes]:
        heads = [Choice(name="concat")]
        found = study.compare(settings, prepare_task(settings, None), heads, 1, scheduler=InThisProcess())
        (run,) = found.run_folders["concat"]
        return found.results["concat"][0]["metrics"], (run / "predictions.parquet").read_bytes()

    before = compare()
    kinds = [item.kind for item in scrub.holdings()]
    assert sorted(kinds) == ["predictions of a run", "prepared data set"]
    assert scrub.remove(scrub.holdings()) == []
    assert compare() == before
