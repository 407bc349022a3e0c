"""Steps and texts from the pipeline's tables to the arrays, the export and the batches of a model."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from torch import Tensor, nn

from ovo_clinic import experiment
from ovo_clinic.arrays import ModalityArray, build
from ovo_clinic.data import DataModule, model_inputs
from ovo_clinic.derived import cached, files_digest
from ovo_clinic.errors import UserError
from ovo_clinic.export import export
from ovo_clinic.prepare import prepare
from ovo_clinic.prepared import Prepared
from ovo_clinic.registry import ENCODERS
from ovo_clinic.settings import ModelConfig
from ovo_clinic.tables import StepsTable
from ovo_clinic.types import Tokens

UNITS = 40

# Unit u has u % 4 steps an hour apart, given in a jumbled order, and a text of u words unless 5 divides u.
PIPELINE = """
import polars as pl

from ovo_clinic.tables import StepsTable, Step, Tables, TextTable


def tables(raw, spec) -> Tables:
    units = pl.int_range(0, 40, eager=True).alias("unit_id")
    cohort = pl.DataFrame({"unit_id": units, "patient_id": units, "label": units // 2 % 2})
    rows = [(u, float(h), None if h == 1 else 10.0 * u + h, h % 2 == 0) for u in units for h in range(u % 4)]
    steps = pl.DataFrame(rows, ["unit_id", "hours", "pulse", "seen"], orient="row").sample(
        fraction=1, shuffle=True, seed=1
    )
    said = units.filter((units % 5 > 0) & (units > 0))
    texts = pl.DataFrame({"unit_id": said, "text": [" ".join(["word"] * u) for u in said]}).reverse()
    tables = {"series": StepsTable(steps), "letter": TextTable(texts)}
    return Tables(cohort, tables, [Step("all", 40, 40)])
"""
SPEC = """
name: steps
title: Steps
pipeline: steps.py
raw: false
modalities: {series: measured, letter: written}
tasks: {steps: {title: Steps, target: [label]}}
"""


@pytest.fixture
def prepared(tmp_path: Path, home: Path) -> Prepared:
    folder = tmp_path / "private"
    folder.mkdir()
    (folder / "steps.py").write_text(PIPELINE)
    (folder / "steps.spec.yaml").write_text(SPEC)
    (folder / "steps.yaml").write_text("dataset: steps.spec.yaml\n")
    return prepare(experiment.load(str(folder / "steps.yaml")).data_request(), {})


def test_steps_are_in_order_with_hours_beside_them(prepared: Prepared) -> None:
    array = prepared.array("series")
    assert array.kind == "sequence" and array.offsets is not None and array.hours is not None
    assert [(column.name, column.role) for column in array.columns] == [("pulse", "numeric"), ("seen", "binary")]
    expected = [(u, h) for u in range(UNITS) for h in range(u % 4)]
    np.testing.assert_array_equal(np.diff(array.offsets), [u % 4 for u in range(UNITS)])
    np.testing.assert_array_equal(array.hours, [h for _, h in expected])
    np.testing.assert_array_equal(array.values[:, 0], [np.nan if h == 1 else 10 * u + h for u, h in expected])
    np.testing.assert_array_equal(array.values[:, 1], [h % 2 == 0 for _, h in expected])
    np.testing.assert_array_equal(array.present, [u % 4 > 0 for u in range(UNITS)])


def test_two_rows_of_one_step_are_a_fault() -> None:
    frame = pl.DataFrame({"unit_id": [1, 1], "hours": [0.0, 0.0], "pulse": [1.0, 2.0]})
    with pytest.raises(AssertionError, match="two rows of one unit and time"):
        build(StepsTable(frame), pl.Series([1]), np.array([True]))


def test_texts_are_kept_for_the_owner_and_leave_only_their_length(prepared: Prepared, tmp_path: Path) -> None:
    expected = [" ".join(["word"] * u) if u % 5 else None for u in range(UNITS)]
    assert prepared.texts("letter").to_list() == expected
    np.testing.assert_array_equal(prepared.present("letter"), [text is not None for text in expected])
    assert {path.stat().st_mode & 0o777 for path in prepared.folder.iterdir()} == {0o600}
    assert "word" not in json.dumps(prepared.manifest)

    export(prepared, tmp_path / "out")
    letters = pd.read_csv(tmp_path / "out" / "letter.csv.gz", index_col="unit_id")
    assert letters["characters"].to_dict() == {u: 5 * u - 1 for u in range(UNITS) if u % 5}
    presence = pd.read_csv(tmp_path / "out" / "presence.csv.gz", index_col="unit_id")
    assert presence["letter"].tolist() == [int(u % 5 > 0) for u in range(UNITS)]
    series = pd.read_csv(tmp_path / "out" / "series.csv.gz")
    pulse = series[(series["unit_id"] == 7) & (series["variable"] == "pulse")]
    assert pulse[["hours", "value"]].to_numpy().tolist() == [[0, 70], [2, 72]]


class Words(nn.Module):
    """Counts words as token ids; stands in for an encoder with a tokenizer."""

    takes_text = True

    def __init__(self, modality: Any, dim: int, *, least: int = 1) -> None:
        super().__init__()
        self.table = nn.Embedding(modality.features, dim)

    @classmethod
    def inputs(cls, name: str, prepared: Prepared, options: Mapping[str, Any]) -> ModalityArray:
        def make() -> ModalityArray:
            made.append(name)
            words = [text.split() if text else [] for text in prepared.texts(name)]
            offsets = np.concatenate([[0], np.cumsum([len(found) for found in words])])
            ids = np.arange(offsets[-1], dtype=np.int32) % 7 + options["least"]
            return ModalityArray([], ids, prepared.present(name), offsets, kind="text", vocabulary=9)

        return cached(prepared, name, options, make)

    def forward(self, x: Tensor, mask: Tensor) -> Tokens:
        return Tokens(self.table(x).masked_fill(~mask[..., None], 0), mask)


made: list[str] = []


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> None:
    made.clear()
    ENCODERS.get("mlp")
    monkeypatch.setitem(ENCODERS._entries, "words", Words)


def settings(**encoders: Any) -> ModelConfig:
    return ModelConfig.model_validate({"encoders": {"default": "mlp", **encoders}})


def test_an_encoder_says_what_it_is_fed_and_it_is_made_once(prepared: Prepared, words: None) -> None:
    arrays = model_inputs(prepared, prepared.chosen(None), settings(letter="words"))
    again = model_inputs(prepared, ["letter"], settings(letter="words"))["letter"]
    other = model_inputs(prepared, ["letter"], settings(letter={"name": "words", "least": 2}))["letter"]
    assert made == ["letter", "letter"]
    np.testing.assert_array_equal(again.values, arrays["letter"].values)
    np.testing.assert_array_equal(other.values, arrays["letter"].values + 1)
    files = [path for path in (prepared.folder / "derived").rglob("*") if path.is_file()]
    assert files and {path.stat().st_mode & 0o777 for path in files} == {0o600}

    data = DataModule(prepared, None, batch_size=4, seed=0, arrays=arrays)
    assert [(found.kind, found.features) for found in data.modalities] == [("sequence", 3), ("text", 9)]
    batch = data.dataset[np.array([5, 3, 1])]
    start = sum(u for u in range(3) if u % 5)
    ids, mask = batch.inputs["letter"], batch.masks["letter"]
    assert ids.dtype == torch.int64 and mask.tolist() == [[False] * 3, [True] * 3, [True, False, False]]
    assert ids.tolist() == [[0] * 3, [(start + i) % 7 + 1 for i in range(3)], [1, 0, 0]]


def test_batches_of_texts_and_of_long_series_are_no_larger_than_there_is_room_for(
    prepared: Prepared, words: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = model_inputs(prepared, prepared.chosen(None), settings(letter="words"))
    series = DataModule(prepared, ["series"], batch_size=4, seed=0, arrays=arrays)
    assert series.evaluation_batch == 1024 and series.longest() == {"series": 3}
    assert DataModule(prepared, ["series"], batch_size=4, seed=0, exact_batches=True).evaluation_batch == 4
    monkeypatch.setattr("ovo_clinic.data.EVALUATION_VALUES", 10 * 3 * 3)  # ten units of three steps and features
    assert series.evaluation_batch == 10
    assert DataModule(prepared, None, batch_size=4, seed=0, arrays=arrays).evaluation_batch == 4


def test_costs_are_counted_on_units_that_have_everything(prepared: Prepared, words: None) -> None:
    arrays = model_inputs(prepared, prepared.chosen(None), settings(letter="words"))
    data = DataModule(prepared, None, batch_size=4, seed=0, arrays=arrays)
    rows, there = data.split_rows["train"], np.sum([array.present for array in arrays.values()], axis=0)
    expected = sorted(rows, key=lambda row: (-there[row], row))[:3]
    assert data.reference(3).rows.tolist() != rows[:3].tolist() and data.reference(3).rows.tolist() == expected


def test_a_text_needs_an_encoder_that_takes_it(prepared: Prepared, words: None) -> None:
    with pytest.raises(UserError, match="model.encoders.letter: 'mlp' takes no text; choose ") as caught:
        model_inputs(prepared, prepared.chosen(None), settings())
    assert "\n" not in str(caught.value)


def test_an_array_goes_to_another_process_as_the_name_of_its_file(prepared: Prepared) -> None:
    import pickle

    array = prepared.array("series")
    sent = pickle.dumps(array)
    assert str(array.values.filename).encode() in sent  # type: ignore[attr-defined]
    np.testing.assert_array_equal(pickle.loads(sent).values, array.values)
    data = DataModule(prepared, ["series"], batch_size=4, seed=0)
    received = pickle.loads(pickle.dumps(data))
    rows = np.arange(UNITS)
    assert torch.equal(received.dataset[rows].inputs["series"], data.dataset[rows].inputs["series"])


def test_units_of_like_length_share_a_batch(prepared: Prepared) -> None:
    def epoch(buckets: bool, number: int) -> list[Any]:
        data = DataModule(prepared, ["series"], batch_size=4, seed=3, length_buckets=buckets)
        loader = data.train_dataloader()
        loader.sampler.set_epoch(number)  # type: ignore[attr-defined]
        return list(loader)

    plain, bucketed = epoch(False, 0), epoch(True, 0)
    lengths = [{int(mask.sum()) for mask in batch.masks["series"]} for batch in bucketed]
    assert max(map(len, lengths)) <= 2
    assert sum(batch.masks["series"].numel() for batch in bucketed) < sum(
        batch.masks["series"].numel() for batch in plain
    )
    rows = torch.cat([batch.rows for batch in bucketed])
    assert sorted(rows.tolist()) == sorted(torch.cat([batch.rows for batch in plain]).tolist())
    assert rows.tolist() != torch.cat([batch.rows for batch in epoch(True, 1)]).tolist()
    assert rows.tolist() == torch.cat([batch.rows for batch in epoch(True, 0)]).tolist()


def test_the_digest_of_a_checkpoint_is_that_of_its_files(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        (folder / "inner").mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "inner" / "weights").write_bytes(bytes(1000))
    assert files_digest(first) == files_digest(second)
    (second / "inner" / "weights").write_bytes(bytes(999) + b"\1")
    changed = files_digest(second)
    (second / "inner" / "weights").rename(second / "weights")
    assert len({files_digest(first), changed, files_digest(second), files_digest(first / "config.json")}) == 4
