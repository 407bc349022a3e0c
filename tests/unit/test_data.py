"""Batches against the raw arrays, scaled by formulas written out here."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from ovo_clinic import preprocessing
from ovo_clinic.arrays import build
from ovo_clinic.data import BatchSampler, ClinicalDataset, Source
from ovo_clinic.tables import CodesTable, SequenceTable, SummariesTable, VectorTable, Vocabulary

UNITS = pl.Series("unit_id", [10, 11, 12, 13, 14])
TRAINING = np.array([True, True, True, False, False])
ROWS = np.flatnonzero(TRAINING)
EVERYTHING = Vocabulary(share=0.0)


def vector_table() -> VectorTable:
    return VectorTable(
        pl.DataFrame(
            {
                "unit_id": [14, 12, 10, 11],  # 13 is absent
                "age": [90.0, None, 40.0, 60.0],
                "height": [1.0, 2.0, 3.0, 4.0],
                "sex": ["b", None, "a", "a"],
                "flag": [True, False, True, False],
            }
        )
    )


def test_vector_is_filled_with_the_training_median_scaled_and_flagged() -> None:
    array = build(vector_table(), UNITS, TRAINING)
    assert [column.name for column in array.columns] == ["age", "height", "sex=(blank)", "sex=a", "flag"]
    scaling = preprocessing.fit(array, ROWS)
    assert scaling.features == [*(column.name for column in array.columns), "age missing"]
    age = np.array([40.0, 60.0, 50.0])  # units 10, 11, 12; 12 is filled with the median of 40 and 60
    height = np.array([3.0, 4.0, 2.0])
    inputs, mask = Source.of("v", array, scaling, budget=1 << 20).slice(np.array([2, 4, 3]))
    expected_12 = [(50 - age.mean()) / age.std(), (2 - height.mean()) / height.std(), 1, 0, 0, 1]
    expected_14 = [(90 - age.mean()) / age.std(), (1 - height.mean()) / height.std(), 0, 0, 1, 0]  # level b: unseen
    np.testing.assert_allclose(inputs[0], expected_12, rtol=1e-6)
    np.testing.assert_allclose(inputs[1], expected_14, rtol=1e-6)
    assert inputs[2].eq(0).all()
    assert mask.tolist() == [[True], [True], [False]]


def test_values_outside_training_rows_change_no_scaling() -> None:
    changed = vector_table().frame.with_columns(age=pl.when(pl.col("unit_id") == 14).then(1e6).otherwise("age"))
    first = preprocessing.fit(build(vector_table(), UNITS, TRAINING), ROWS)
    assert preprocessing.fit(build(VectorTable(changed), UNITS, TRAINING), ROWS) == first


def test_an_extreme_value_is_bounded_and_a_constant_or_empty_column_is_finite() -> None:
    columns = {"a": [1.0, 2.0, 3.0, 1e9], "b": [7.0] * 4, "c": [None] * 3 + [5.0]}
    frame = pl.DataFrame({"unit_id": [10, 11, 12, 13], **columns})
    array = build(VectorTable(frame), UNITS, TRAINING)
    inputs, _ = Source.of("v", array, preprocessing.fit(array, ROWS), budget=0).slice(np.array([0, 3]))
    assert inputs[1, 0] == preprocessing.CLIP_SD
    assert inputs[:, 1].eq(0).all()
    assert torch.isfinite(inputs).all()


@pytest.mark.parametrize("unit", [1e-12, 1e-6, 1e9])
def test_the_unit_of_a_measurement_makes_no_difference(unit: float) -> None:
    values = np.random.default_rng(0).normal(3, 1, len(UNITS))
    rows = np.arange(len(UNITS))
    expected = (values - values[ROWS].mean()) / values[ROWS].std()
    table = VectorTable(pl.DataFrame({"unit_id": UNITS, "drug": values * unit}))
    array = build(table, UNITS, TRAINING)
    inputs, _ = Source.of("v", array, preprocessing.fit(array, ROWS), budget=0).slice(rows)
    np.testing.assert_allclose(inputs[:, 0], expected, atol=1e-4)


def test_summaries_share_one_indicator_per_variable_and_counts_are_zero() -> None:
    frame = pl.DataFrame(
        {"unit_id": [10, 11, 10], "variable": ["k", "k", "na"], "last": [4.0, 5.0, 140.0], "count": [2, 1, 1]}
    )
    array = build(SummariesTable(frame, EVERYTHING), UNITS, TRAINING)
    assert [column.name for column in array.columns] == ["k|last", "k|count", "na|last", "na|count"]
    np.testing.assert_array_equal(array.values[1], np.array([5, 1, np.nan, 0], dtype=np.float32))
    assert preprocessing.fit(array, ROWS).features[4:] == ["na|last missing"]


def test_codes_outside_the_training_vocabulary_leave_a_present_zero_vector() -> None:
    frame = pl.DataFrame({"unit_id": [10, 11, 14, 14], "code": ["x", "x", "y", "y"]})
    array = build(CodesTable(frame, EVERYTHING), UNITS, TRAINING)
    assert [column.name for column in array.columns] == ["x"]
    assert array.values[:, 0].tolist() == [1, 1, 0, 0, 0]
    assert array.present.tolist() == [True, True, False, False, True]


def sequence() -> SequenceTable:
    return SequenceTable(
        pl.DataFrame(
            {
                "unit_id": [10, 10, 10, 12, 11],
                "hours": [2.0, 1.0, 2.0, 5.0, 3.0],
                "variable": ["hr", "hr", "bp", "hr", "bp"],
                "value": [80.0, 70.0, 120.0, 90.0, 110.0],
            }
        ),
        EVERYTHING,
    )


def test_sequence_is_ragged_and_padded_under_a_mask() -> None:
    array = build(sequence(), UNITS, TRAINING)
    assert array.offsets is not None and array.offsets.tolist() == [0, 2, 3, 4, 4, 4]
    scaling = preprocessing.fit(array, ROWS)
    inputs, mask = Source.of("s", array, scaling, budget=1 << 20).slice(np.array([0, 2, 3]))
    assert mask.tolist() == [[True, True], [True, False], [False, False]]
    assert inputs[~mask].eq(0).all()
    heart_rate = np.array([70.0, 80.0, 80.0, 90.0])  # steps of 10, 10, 11 (filled with the median), 12
    column = scaling.columns.index("hr")
    np.testing.assert_allclose(inputs[0, :, column], (heart_rate[:2] - heart_rate.mean()) / heart_rate.std(), rtol=1e-6)
    assert inputs[0, :, scaling.features.index("bp missing")].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("table", [vector_table(), sequence()])
def test_slicing_from_disk_equals_slicing_from_memory(table: VectorTable | SequenceTable) -> None:
    array = build(table, UNITS, TRAINING)
    scaling = preprocessing.fit(array, ROWS)
    rows = np.array([4, 0, 2])
    for one, other in zip(
        Source.of("x", array, scaling, budget=0).slice(rows),
        Source.of("x", array, scaling, budget=1 << 20).slice(rows),
        strict=True,
    ):
        assert torch.equal(one, other)


def test_scalings_survive_saving(tmp_path: Path) -> None:
    scalings = {"v": preprocessing.fit(build(vector_table(), UNITS, TRAINING), ROWS)}
    preprocessing.save(scalings, tmp_path / "preprocessing.json")
    assert preprocessing.load(tmp_path / "preprocessing.json") == scalings


def test_a_batch_holds_the_rows_it_was_asked_for() -> None:
    array = build(vector_table(), UNITS, TRAINING)
    source = Source.of("v", array, preprocessing.fit(array, ROWS), budget=0)
    batch = ClinicalDataset([source], np.array([0, 1, np.nan, 1, 0], dtype=np.float32))[np.array([3, 2])]
    assert batch.rows.tolist() == [3, 2]
    assert batch.target[0] == 1 and batch.target[1].isnan()


def test_sampler_shuffles_by_seed_and_epoch_and_visits_every_row_once() -> None:
    rows = np.arange(100, 123)
    sampler = BatchSampler(rows, 5, seed=3)
    first = np.concatenate(list(sampler))
    assert sorted(first) == rows.tolist() and len(list(sampler)) == len(sampler) == 5
    sampler.set_epoch(1)
    second = np.concatenate(list(sampler))
    assert (first != second).any()
    again = BatchSampler(rows, 5, seed=3)
    again.set_epoch(1)
    np.testing.assert_array_equal(np.concatenate(list(again)), second)
    assert np.concatenate(list(BatchSampler(rows, 5))).tolist() == rows.tolist()


def test_sampler_gives_every_rank_as_many_batches_and_all_rows_together() -> None:
    rows = np.arange(23)
    parts = [list(BatchSampler(rows, 4, seed=0, rank=rank, ranks=3)) for rank in range(3)]
    assert {len(part) for part in parts} == {2}
    assert set(np.concatenate([np.concatenate(part) for part in parts])) == set(rows)


def test_weighted_sampler_draws_classes_equally_often() -> None:
    rows = np.arange(10_000)
    positive = rows < 500
    weights = np.where(positive, 1 / 500, 1 / 9500)
    drawn = np.concatenate(list(BatchSampler(rows, 256, seed=0, weights=weights)))
    assert abs((drawn < 500).mean() - 0.5) < 0.02  # 4 standard errors


def test_a_sentinel_in_a_few_cells_does_not_set_the_scale() -> None:
    units = pl.Series("unit_id", range(1000))
    values = np.random.default_rng(0).normal(5, 2, 1000)
    with_sentinels = values.copy()
    with_sentinels[:3] = 999_999
    scalings = [
        preprocessing.fit(
            build(VectorTable(pl.DataFrame({"unit_id": units, "x": x})), units, np.ones(1000, bool)), np.arange(1000)
        )
        for x in (values, with_sentinels)
    ]
    assert scalings[0].scale[0] == pytest.approx(values.std(), rel=1e-6)
    assert scalings[1].scale[0] == pytest.approx(values.std(), rel=0.5)
    assert scalings[1].center[0] == pytest.approx(values.mean(), abs=0.2)
