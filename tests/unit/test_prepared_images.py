"""Images from files to batches, and when data with images are prepared anew; a killed `prepare` goes on."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from PIL import Image

from ovo_clinic import experiment, preprocessing
from ovo_clinic.data import DataModule, model_inputs
from ovo_clinic.export import export
from ovo_clinic.prepare import prepare
from ovo_clinic.prepared import Prepared
from ovo_clinic.settings import ModelConfig

UNITS, SIZE, BROKEN, ABSENT = 40, 6, 3, 4

# Keeps what it has read of each quarter of the rows, and notes each quarter that it really read.
PIPELINE = """
import time
from pathlib import Path

import polars as pl

from ovo_clinic.tables import ImageTable, Step, StepsTable, Tables, TextTable, VectorTable


def part(raw, number: int, seconds: float) -> pl.DataFrame:
    kept = raw.working / f"part{number}.parquet"
    if not kept.is_file():
        time.sleep(seconds)
        rows = raw.collect(raw.scan("films").filter(pl.col("unit") % 4 == number), "films")
        rows.write_parquet(kept.with_suffix(".partial"))
        kept.with_suffix(".partial").rename(kept)
        with Path(__file__).with_name("parts.log").open("a") as log:
            log.write(f"{number}\\n")
    return pl.read_parquet(kept)


def tables(raw, spec, *, seconds: float = 0.0) -> Tables:
    rows = pl.concat([part(raw, number, seconds) for number in range(4)])
    unit = pl.col("unit").alias("unit_id")
    cohort = rows.select(unit, pl.col("unit").alias("patient_id"), "label")
    paths = [str(raw.folder() / "files" / name) for name in rows["film"]]
    there = [Path(path).is_file() for path in paths]
    films = rows.select(unit, "hours").with_columns(path=pl.Series(paths)).filter(pl.Series(there))
    absent = tuple(path for path, found in zip(paths, there, strict=True) if not found)
    tables = {
        "age": VectorTable(rows.select(unit, "hours")),
        "film": ImageTable(films, 6, "squash", absent),
        "letter": TextTable(rows.select(unit, pl.col("film").alias("text"))),
        "series": StepsTable(rows.select(unit, "hours", (pl.col("unit") * 1.5).alias("value"))),
    }
    return Tables(cohort, tables, [Step("all", rows.height, rows.height)])
"""
SPEC = """
name: films
title: Films
pipeline: films.py
tables:
  films: {file: films, columns: {unit: integer, label: integer, film: text, hours: number}}
modalities: {age: a, film: b, letter: c, series: d}
tasks: {films: {title: Films, target: [label]}}
"""


def picture(unit: int) -> np.ndarray:
    return np.random.default_rng(unit).integers(0, 256, (SIZE, SIZE), dtype=np.uint8)


@pytest.fixture
def config(tmp_path: Path, home: Path) -> Path:
    """A private data set with a film of each unit, in files of the size that is asked for: nothing is resampled."""
    folder = tmp_path / "private"
    folder.mkdir()
    (folder / "films.py").write_text(PIPELINE)
    (folder / "films.spec.yaml").write_text(SPEC)
    (folder / "films.yaml").write_text("dataset: films.spec.yaml\n")
    files = tmp_path / "raw" / "files"
    files.mkdir(parents=True)
    for unit in range(UNITS):
        Image.fromarray(picture(unit)).save(files / f"{unit}.png")
    (files / f"{BROKEN}.png").write_bytes(b"no picture at all")
    (files / f"{ABSENT}.png").rename(tmp_path / "later.png")
    films = pd.DataFrame({"unit": range(UNITS)})
    films = films.assign(label=films["unit"] % 2, film=films["unit"].astype(str) + ".png", hours=films["unit"] / 2)
    films.to_csv(tmp_path / "raw" / "films.csv", index=False)
    return folder / "films.yaml"


def run(config: Path, raw: Path, *overrides: str) -> Prepared:
    return prepare(experiment.load(str(config), overrides).data_request(), {"": raw})


GOOD = [unit for unit in range(UNITS) if unit not in (BROKEN, ABSENT)]


def test_pixels_are_those_of_the_files_and_what_is_damaged_or_absent_is_masked(config: Path, tmp_path: Path) -> None:
    prepared = run(config, tmp_path / "raw")
    array = prepared.array("film")
    assert np.flatnonzero(array.present).tolist() == GOOD and array.index is not None
    for unit in GOOD:
        np.testing.assert_array_equal(array.values[array.index[unit], 0], picture(unit))
    entry = prepared.manifest["modalities"]["film"]
    assert (entry["kind"], entry["size"]) == ("image", SIZE) and sum(entry["present"].values()) == len(GOOD)
    assert prepared.manifest["notes"]["film: files that cannot be decoded"] == 1
    skipped = pd.read_csv(prepared.folder / "film.skipped.csv")
    assert skipped["file"].tolist() == [f"files/{BROKEN}.png"] and skipped["reason"].str.len().gt(0).all()
    assert {path.stat().st_mode & 0o777 for path in prepared.folder.iterdir()} == {0o600}
    assert str(tmp_path) not in (prepared.folder / "manifest.json").read_text()

    export(prepared, tmp_path / "out")
    exported = pd.read_csv(tmp_path / "out" / "film.csv.gz")
    assert list(exported.columns) == ["unit_id", "hours"] and exported["unit_id"].tolist() == GOOD
    np.testing.assert_array_equal(exported["hours"], np.array(GOOD) / 2)


def test_batches_are_scaled_by_the_training_pixels(config: Path, tmp_path: Path) -> None:
    prepared = run(config, tmp_path / "raw")
    names = ["age", "film"]
    settings = ModelConfig.model_validate({"encoders": {"default": "mlp"}})
    data = DataModule(prepared, names, batch_size=4, seed=0, arrays=model_inputs(prepared, names, settings))
    film = data.modalities[1]
    assert (film.kind, film.features, film.size) == ("image", 1, (SIZE, SIZE))
    training = np.stack([picture(unit) for unit in prepared.rows("train") if unit in GOOD]).astype(np.float64)
    batch = data.dataset[np.array([7, ABSENT, 2])]
    expected = (np.stack([picture(7), picture(2)]) - training.mean()) / training.std()
    np.testing.assert_allclose(batch.inputs["film"][[0, 2], 0], expected, rtol=1e-5, atol=1e-6)
    assert batch.inputs["film"].dtype == torch.float32 and not batch.inputs["film"][1].any()
    assert batch.masks["film"].tolist() == [[True], [False], [True]]
    saved = tmp_path / "preprocessing.json"
    preprocessing.save(data.scalings, saved)
    assert preprocessing.load(saved) == data.scalings


def test_an_image_that_comes_or_changes_makes_new_data(config: Path, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    first = run(config, raw)
    copy = tmp_path / "copy"
    shutil.copytree(raw, copy)
    assert run(config, copy).folder == first.folder
    (tmp_path / "later.png").rename(raw / "files" / f"{ABSENT}.png")
    second = run(config, raw)
    assert second.folder != first.folder and second.array("film").present[ABSENT]
    assert run(config, copy).folder == first.folder and run(config, raw).folder == second.folder
    Image.fromarray(picture(BROKEN)).save(raw / "files" / f"{BROKEN}.png")
    third = run(config, raw)
    assert third.array("film").present.all() and third.manifest["key"] == third.folder.name
    assert len({first.folder, second.folder, third.folder}) == 3


def test_steps_of_a_killed_run_are_taken_up_and_wait_while_other_data_are_prepared(
    config: Path, tmp_path: Path, home: Path
) -> None:
    raw, log = tmp_path / "raw", config.with_name("parts.log")
    with start(config, raw, home, seconds=2) as process:
        wait_for(lambda: log.is_file() and len(log.read_text().split()) >= 2)
        process.send_signal(signal.SIGKILL)
    run(config, raw)
    assert log.read_text().split()[:2] == ["0", "1"]
    before = len(log.read_text().split())
    run(config, raw, "data.seconds=2")
    assert len(log.read_text().split()) - before in (1, 2)
    assert not list(home.glob("cache/films/*.partial")) and not list(home.glob("cache/films/*/work"))


def start(config: Path, raw: Path, home: Path, seconds: float) -> "subprocess.Popen[bytes]":
    script = Path(sys.executable).with_name("ovo-clinic")
    command = [script, "prepare", str(config), f"data.seconds={seconds}", "--raw", str(raw)]
    environment = os.environ | {"OVO_CLINIC_HOME": str(home), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


def wait_for(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.005)


def content(home: Path) -> dict[str, str]:
    """sha256 of every prepared file by its place; locks hold nothing."""
    files = [path for path in (home / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {path.relative_to(home).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.slow
def test_killed_at_any_moment_it_completes_to_the_same_bytes(config: Path, tmp_path: Path) -> None:
    raw, undisturbed = tmp_path / "raw", tmp_path / "undisturbed"
    started = time.monotonic()
    with start(config, raw, undisturbed, seconds=0.2) as process:
        wait_for(lambda: list(undisturbed.glob("cache/films/*.partial")))
        began = time.monotonic() - started
        assert process.wait() == 0
    took = time.monotonic() - started - began
    expected = content(undisturbed)
    assert len(expected) > 15
    for fraction in (0.05, 0.3, 0.55, 0.8, 0.95):
        home = tmp_path / f"home{fraction}"
        with start(config, raw, home, seconds=0.2) as process:
            wait_for(lambda home=home: list(home.glob("cache/films/*.partial")))
            time.sleep(fraction * took)
            process.send_signal(signal.SIGKILL)
        with start(config, raw, home, seconds=0.2) as process:
            assert process.wait() == 0
        assert content(home) == expected, fraction
    assert pl.read_parquet(next(undisturbed.glob("cache/films/*/cohort.parquet"))).height == UNITS
