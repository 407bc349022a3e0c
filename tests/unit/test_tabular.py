"""The table of features for classical models: sequences in numbers, absent modalities, what is left out."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.typing import NDArray

from ovo_clinic.arrays import Column, ModalityArray
from ovo_clinic.errors import UserError
from ovo_clinic.prepared import Prepared
from ovo_clinic.tabular import FeatureTable, feature_table, summarised

UNITS, STEPS = 30, 7
SPLIT = np.array(["train"] * 20 + ["validation"] * 4 + ["test"] * 6)


def ragged(seed: int = 0) -> tuple[ModalityArray, pd.DataFrame]:
    """Steps of three variables with holes; some units have no step, some no value of a variable."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, STEPS, UNITS)
    lengths[[0, 5, UNITS - 1]] = 0
    values = rng.normal(size=(lengths.sum(), 3)).astype(np.float32)
    values[rng.random(values.shape) < 0.5] = np.nan
    frame = pd.DataFrame(values, columns=["a", "b", "c"]).assign(unit=np.repeat(np.arange(UNITS), lengths))
    columns = [Column(name, "numeric", name) for name in "abc"]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return ModalityArray(columns, values, lengths > 0, offsets, kind="sequence"), frame


def vector(values: NDArray[np.float32], present: NDArray[np.bool_]) -> ModalityArray:
    return ModalityArray([Column("x", "numeric", "x"), Column("y", "binary", "y")], values, present)


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    rng = np.random.default_rng(1)
    present = rng.random(UNITS) < 0.7
    values = np.column_stack([rng.normal(5, 2, UNITS), rng.random(UNITS) < 0.5]).astype(np.float32)
    values[2, 0] = np.nan
    present[:3] = True
    arrays = {"notes": None, "stay": vector(values, present), "series": ragged()[0]}
    entries = {"notes": {"kind": "text", "columns": [], "present": {"train": 3}}}
    for name, array in arrays.items():
        if array is not None:
            array.write(tmp_path, name)
            entries[name] = array.describe()
    cohort = pl.DataFrame({"unit_id": range(UNITS), "patient_id": range(UNITS), "died": [0, 1] * (UNITS // 2)})
    cohort.write_parquet(tmp_path / "cohort.parquet")
    pl.DataFrame({"split": SPLIT}).write_parquet(tmp_path / "split.parquet")
    (tmp_path / "manifest.json").write_text(json.dumps({"modalities": entries, "target": ["died"]}))
    return Prepared.open(tmp_path)


def test_sequences_are_summarised_as_pandas_does_it() -> None:
    array, frame = ragged()
    found = summarised(array)
    assert [column.name for column in found.columns][:5] == ["a|last", "a|mean", "a|min", "a|max", "b|last"]
    assert [column.group for column in found.columns] == ["a"] * 4 + ["b"] * 4 + ["c"] * 4
    expected = frame.groupby("unit").agg(["last", "mean", "min", "max"]).reindex(range(UNITS))
    np.testing.assert_allclose(found.values, expected.to_numpy(), rtol=1e-6)
    assert np.isnan(found.values[found.present]).any() and np.isnan(found.values[~found.present]).all()
    assert found.kind == "vector" and np.array_equal(found.present, array.present)


def test_sequences_of_nobody_have_no_numbers() -> None:
    empty = ModalityArray(
        [Column("a", "numeric", "a")],
        np.empty((0, 1), np.float32),
        np.zeros(3, np.bool_),
        np.zeros(4, np.int64),
        kind="sequence",
    )
    assert np.isnan(summarised(empty).values).all() and summarised(empty).values.shape == (3, 4)


def columns(table: FeatureTable) -> pd.DataFrame:
    return pd.DataFrame(table.values, columns=table.names)


def test_an_absent_modality_is_imputed_and_flagged(prepared: Prepared) -> None:
    found = columns(feature_table(prepared, ["stay", "series"]))
    assert list(found)[:4] == ["stay: x", "stay: y", "stay: x missing", "stay present"]
    stay, series = prepared.array("stay"), prepared.array("series")
    assert np.array_equal(found["stay present"], stay.present) and not stay.present.all()
    assert np.array_equal(found["series present"], series.present)
    fitted = stay.values[(SPLIT == "train") & stay.present, 0].astype(np.float64)
    median = np.nanmedian(fitted)
    filled = np.where(np.isnan(fitted), median, fitted)
    known = stay.present & ~np.isnan(stay.values[:, 0])
    expected = (np.where(known, stay.values[:, 0], median) - filled.mean()) / filled.std()
    np.testing.assert_allclose(found["stay: x"], expected, rtol=1e-5)
    assert np.array_equal(found["stay: x missing"] == 1, ~known)
    assert np.array_equal(found["stay: y"], np.where(stay.present, stay.values[:, 1], 0))
    assert np.isfinite(found.to_numpy()).all()


def test_what_stands_in_the_rows_of_an_absent_modality_is_not_read(prepared: Prepared) -> None:
    first = feature_table(prepared, ["stay"])
    stay = prepared.array("stay")
    values = np.where(stay.present[:, None], stay.values, np.float32(1e6))
    vector(values, stay.present).write(prepared.folder, "stay")
    assert np.array_equal(feature_table(prepared, ["stay"]).values, first.values)


def test_nothing_is_fitted_on_validation_and_test_units(prepared: Prepared) -> None:
    first = feature_table(prepared, ["stay"])
    stay = prepared.array("stay")
    values = np.where((SPLIT == "train")[:, None], stay.values, stay.values + np.float32(100))
    vector(values, stay.present).write(prepared.folder, "stay")
    assert np.array_equal(feature_table(prepared, ["stay"]).values[:20], first.values[:20])


def test_texts_are_left_out_and_alone_refused(prepared: Prepared) -> None:
    assert feature_table(prepared, ["notes", "stay"]).left_out == ["notes"]
    with pytest.raises(UserError, match=r"compare\.baselines: take numbers, and notes are images or texts; leave"):
        feature_table(prepared, ["notes"])
