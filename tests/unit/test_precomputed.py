"""Embeddings from a file, by unit id."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from ovo_clinic import experiment as experiments
from ovo_clinic import runs, training
from ovo_clinic.data import DataModule, model_inputs
from ovo_clinic.encoders.precomputed import embeddings
from ovo_clinic.errors import UserError
from ovo_clinic.experiment import Experiment
from ovo_clinic.prepare import prepare_task
from tests.small_notes import notes_config

UNITS = pl.Series("unit_id", [11, 12, 13, 14])
VALUES = np.arange(12, dtype=np.float64).reshape(4, 3)
ORDER = [14, 99, 12, 11]  # 99 is no unit of the cohort, 13 has no embedding


def npz(path: Path, units: Any, values: Any, **other: Any) -> Path:
    np.savez(path, unit_id=units, values=values, **other)
    return path


def as_lists(path: Path) -> None:
    pl.DataFrame({"unit_id": ORDER, "embedding": VALUES.tolist()}).write_parquet(path)


def as_columns(path: Path) -> None:
    pl.DataFrame({"unit_id": ORDER, **{f"e{i}": VALUES[:, i] for i in range(3)}}).write_parquet(path)


WRITERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "npz": ("e.npz", lambda path: npz(path, ORDER, VALUES)),
    "lists": ("e.parquet", as_lists),
    "columns": ("e.parquet", as_columns),
    "text-ids": ("e.npz", lambda path: npz(path, [str(unit) for unit in ORDER], VALUES)),
}


@pytest.mark.parametrize("layout", list(WRITERS))
def test_every_layout_is_matched_by_unit_id_and_a_missing_unit_is_absent(tmp_path: Path, layout: str) -> None:
    name, write = WRITERS[layout]
    write(tmp_path / name)
    found = embeddings(tmp_path / name, UNITS)
    assert found.kind == "vector" and found.present.tolist() == [True, True, False, True]
    np.testing.assert_array_equal(found.values[found.present], VALUES[[3, 2, 0]])


def test_several_rows_of_a_unit_are_its_tokens_in_the_order_of_the_file(tmp_path: Path) -> None:
    found = embeddings(npz(tmp_path / "e.npz", [12, 14, 12, 14, 11], np.c_[[0.0, 1.0, 2.0, 3.0, 4.0]]), UNITS)
    assert found.kind == "sequence" and found.offsets is not None
    assert found.offsets.tolist() == [0, 1, 3, 3, 5] and found.values[:, 0].tolist() == [4, 0, 2, 1, 3]
    assert found.present.tolist() == [True, True, False, True]


def test_ids_may_be_text_in_the_cohort(tmp_path: Path) -> None:
    found = embeddings(npz(tmp_path / "e.npz", [12, 11], [[5.0], [6.0]]), UNITS.cast(pl.String))
    assert found.values[:2, 0].tolist() == [6, 5]


def broken(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04 not a zip")


FAULTS: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "absent": ("e.npz", lambda path: None, "does not exist"),
    "suffix": ("e.csv", lambda path: path.write_text("unit_id\n"), "ends in neither .npz nor .parquet"),
    "damaged-npz": ("e.npz", broken, "cannot be read"),
    "damaged-parquet": ("e.parquet", broken, "cannot be read"),
    "pickled": ("e.npz", lambda path: npz(path, np.array([11, None], dtype=object), VALUES[:2]), "cannot be read"),
    "names": ("e.npz", lambda path: np.savez(path, ids=[1], x=[[1.0]]), r"holds \['ids', 'x'\]"),
    "shape": ("e.npz", lambda path: npz(path, [11], VALUES), r"unit_id is \(1,\) and values \(4, 3\)"),
    "no-unit": ("e.parquet", lambda path: pl.DataFrame({"a": [1.0]}).write_parquet(path), "there is no unit_id"),
    "words": (
        "e.parquet",
        lambda path: pl.DataFrame({"unit_id": [1000], "a": ["x"]}).write_parquet(path),
        "column a holds no numbers",
    ),
    "ragged": (
        "e.parquet",
        lambda path: pl.DataFrame({"unit_id": [1000, 1001], "a": [[1.0], [1.0, 2.0]]}).write_parquet(path),
        "lists of column a differ in length",
    ),
    "others": ("e.npz", lambda path: npz(path, [1, 2], VALUES[:2]), "none of its 2 rows is of the cohort"),
    "not-finite": ("e.npz", lambda path: npz(path, [1000], [[np.nan]]), "not finite"),
    "ids": ("e.npz", lambda path: npz(path, ["a"], [[1.0]]), "unit_id holds String, the cohort's ids are Int64"),
}


def load(config: str, file: Path) -> Experiment:
    encoder = json.dumps({"name": "precomputed", "file": str(file)})
    settings = ("model.dim=8", "training.epochs=8", "training.batch_size=16", "training.learning_rate=0.01")
    return experiments.load(config, [*settings, f"model.encoders.note={encoder}"])


@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_file_that_does_not_serve_gives_one_line(tmp_path: Path, home: Path, fault: str) -> None:
    name, write, message = FAULTS[fault]
    write(tmp_path / name)
    experiment = load(notes_config(tmp_path / "private"), tmp_path / name)
    with pytest.raises(UserError, match=message) as caught:
        model_inputs(prepare_task(experiment, None), ["note"], experiment.model)
    assert "\n" not in str(caught.value) and str(tmp_path / name) in str(caught.value)


def test_other_embeddings_at_the_same_place_make_another_run(tmp_path: Path, home: Path) -> None:
    experiment = load(notes_config(tmp_path / "private"), tmp_path / "e.npz")
    prepared = prepare_task(experiment, None)
    units = prepared.cohort["unit_id"].to_numpy()
    folders = []
    for seed in (1, 2, 1):
        npz(tmp_path / "e.npz", units, np.random.default_rng(seed).normal(size=(90, 5)))
        folders.append(runs.run_folder(experiment, prepared))
    assert folders[0] == folders[2] != folders[1]


def test_embeddings_take_the_place_of_the_notes_in_training(tmp_path: Path, home: Path) -> None:
    experiment = load(notes_config(tmp_path / "private"), tmp_path / "e.npz")
    prepared = prepare_task(experiment, None)
    label = prepared.target
    units = prepared.cohort["unit_id"].to_numpy()
    noise = np.random.default_rng(1).normal(size=(90, 5))
    npz(tmp_path / "e.npz", units[5:], (noise + 2 * label[:, None])[5:])
    arrays = model_inputs(prepared, prepared.chosen(None), experiment.model)
    data = DataModule(prepared, None, batch_size=16, seed=0, arrays=arrays)
    assert [(found.kind, found.features) for found in data.modalities] == [("vector", 1), ("vector", 5)]
    assert data.dataset[np.arange(90)].masks["note"][:, 0].tolist() == [False] * 5 + [True] * 85
    result = training.train(experiment, prepared, tmp_path / "run")
    assert result["metrics"]["test"]["auroc"] > 0.85
