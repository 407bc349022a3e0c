"""Arrays from tables: positions, missing values, and what may be learned from whom."""

import math
from decimal import Decimal

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovo_clinic.arrays import ModalityArray, build
from ovo_clinic.tables import CodesTable, SequenceTable, SummariesTable, VectorTable, Vocabulary

UNITS = pl.Series([10, 11, 12, 13, 14, 15])
TRAINING = np.array([True, True, True, True, False, False])
ALL = Vocabulary(0.0)


def names(array: ModalityArray) -> list[str]:
    return [column.name for column in array.columns]


@given(percent=st.integers(1, 10_000), total=st.integers(1, 200_000))
def test_shares_are_exact_in_decimal(percent: int, total: int) -> None:
    share = percent / 10_000
    exact = Decimal(percent).scaleb(-4) * total
    assert Vocabulary(share).least(total) == max(1, math.ceil(exact))
    assert Vocabulary(share, strictly_more=True).least(total) == math.floor(exact) + 1


def test_seven_percent_of_a_hundred_is_seven() -> None:
    assert 0.07 * 100 > 7
    assert Vocabulary(0.07).least(100) == 7
    assert Vocabulary(0.07, strictly_more=True).least(100) == 8


def test_vector_positions_levels_and_absence() -> None:
    frame = pl.DataFrame(
        {
            "unit_id": [14, 10, 12, 99],
            "age": [1.5, None, 3.5, 9.0],
            "male": [True, False, True, True],
            "ward": ["only in test", None, "b", "other cohort"],
        }
    )
    array = build(VectorTable(frame), UNITS, TRAINING)
    assert [(column.name, column.role, column.group) for column in array.columns] == [
        ("age", "numeric", "age"),
        ("male", "binary", "male"),
        ("ward=(blank)", "binary", "ward"),
        ("ward=b", "binary", "ward"),
    ]
    assert array.present.tolist() == [True, False, True, False, True, False]
    expected = [[np.nan, 0, 1, 0], [3.5, 1, 0, 1], [1.5, 1, 0, 0]]
    np.testing.assert_array_equal(array.values[array.present], expected)


def test_codes_are_counted_on_training_units() -> None:
    pairs = [(10, "a"), (10, "b"), (11, "a"), (12, "b"), (14, "c"), (15, "c"), (15, "a"), (99, "c")]
    frame = pl.DataFrame(pairs, schema=["unit_id", "code"], orient="row")
    array = build(CodesTable(frame, ALL), UNITS, TRAINING)
    assert names(array) == ["a", "b"]
    np.testing.assert_array_equal(array.values, [[1, 1], [1, 0], [0, 1], [0, 0], [0, 0], [1, 0]])
    assert array.present.tolist() == [True, True, True, False, True, True]


def test_shares_of_units_and_of_present_units() -> None:
    pairs = [(10, "a"), (10, "b"), (11, "a"), (12, "b"), (10, "b")]
    frame = pl.DataFrame(pairs, schema=["unit_id", "code"], orient="row")
    for vocabulary, kept in [
        (Vocabulary(0.5), ["a", "b"]),  # 2 of 4 training units
        (Vocabulary(0.51), []),
        (Vocabulary(0.6, of="present"), ["a", "b"]),  # 2 of 3 that have the table
        (Vocabulary(0.5, strictly_more=True), []),
    ]:
        assert names(build(CodesTable(frame, vocabulary), UNITS, TRAINING)) == kept


def test_an_empty_vocabulary_gives_no_columns() -> None:
    frame = pl.DataFrame({"unit_id": [14], "code": ["x"]})
    array = build(CodesTable(frame, ALL), UNITS, TRAINING)
    assert array.values.shape == (6, 0) and array.present.sum() == 1


def test_summaries() -> None:
    rows = [(10, "na", 1.0, 2), (11, "k", 2.0, 1), (14, "na", None, 1), (14, "only in test", 5.0, 1)]
    frame = pl.DataFrame(rows, schema=["unit_id", "variable", "mean", "count"], orient="row")
    array = build(SummariesTable(frame, ALL), UNITS, TRAINING)
    assert [(column.name, column.role, column.group) for column in array.columns] == [
        ("k|mean", "numeric", "k"),
        ("k|count", "count", "k"),
        ("na|mean", "numeric", "na"),
        ("na|count", "count", "na"),
    ]
    expected = [[np.nan, 0, 1, 2], [2, 1, np.nan, 0], [np.nan, 0, np.nan, 1]]
    np.testing.assert_array_equal(array.values[array.present], expected)


def test_sequences_are_sorted_and_ragged() -> None:
    rows = [
        (14, 2.0, "na", 7.0),
        (10, 3.0, "na", 3.0),
        (10, 1.0, "k", 1.0),
        (10, 3.0, "k", 4.0),
        (11, 0.5, "na", None),
        (14, 2.5, "only in test", 1.0),
    ]
    frame = pl.DataFrame(rows, schema=["unit_id", "hours", "variable", "value"], orient="row")
    array = build(SequenceTable(frame, ALL), UNITS, TRAINING)
    assert names(array) == ["hours", "k", "na"]
    assert array.offsets is not None and array.offsets.tolist() == [0, 2, 3, 3, 3, 5, 5]
    none = np.nan
    expected = [[1, 1, none], [3, 4, 3], [0.5, none, none], [2, none, 7], [2.5, none, none]]
    np.testing.assert_array_equal(array.values, expected)
    shuffled = build(SequenceTable(frame[[5, 3, 1, 0, 4, 2]], ALL), UNITS, TRAINING)
    np.testing.assert_array_equal(array.values, shuffled.values)


def test_broken_promises_of_a_pipeline_are_noticed() -> None:
    repeated = pl.DataFrame({"unit_id": [10, 10], "age": [1.0, 2.0]})
    with pytest.raises(AssertionError, match="two rows of one unit"):
        build(VectorTable(repeated), UNITS, TRAINING)
    summary = pl.DataFrame({"unit_id": [10, 10], "variable": ["na", "na"], "mean": [1.0, 2.0]})
    with pytest.raises(AssertionError, match="two rows of one unit and variable"):
        build(SummariesTable(summary, ALL), UNITS, TRAINING)
    series = pl.DataFrame({"unit_id": [10, 10], "hours": [1.0, 1.0], "variable": ["na", "na"], "value": [1.0, 2.0]})
    with pytest.raises(AssertionError, match="two values of one unit, time and variable"):
        build(SequenceTable(series, ALL), UNITS, TRAINING)
