"""Small cells are hidden, and cannot be worked out from the totals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovo_clinic import disclosure


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([[20, 30], [40, 50]], [[0, 0], [0, 0]]),
        ([[0, 30], [40, 50]], [[0, 0], [0, 0]]),
        ([[10, 30], [40, 50]], [[1, 1], [1, 1]]),
        ([[5, 30, 20], [40, 50, 60], [12, 70, 80]], [[1, 0, 1], [0, 0, 0], [1, 0, 1]]),
        ([[4], [90], [15]], [[1], [0], [1]]),
        ([[4], [3], [15]], [[1], [1], [0]]),
        ([[4], [0], [15]], [[1], [0], [1]]),
        ([[4, 0]], [[1, 1]]),
        ([[4]], [[1]]),
    ],
)
def test_hidden_cells(counts: list[list[int]], expected: list[list[int]]) -> None:
    assert disclosure.hidden(counts).astype(int).tolist() == expected


@given(st.lists(st.lists(st.integers(0, 40), min_size=3, max_size=3), min_size=2, max_size=5))
def test_no_row_or_column_hides_a_single_cell(counts: list[list[int]]) -> None:
    hide = disclosure.hidden(counts)
    table = np.array(counts)
    assert hide[(table >= 1) & (table <= 10)].all()
    assert not (hide.sum(axis=0) == 1).any() and not (hide.sum(axis=1) == 1).any()


@pytest.mark.parametrize(
    ("counts", "most", "shown", "rest"),
    [
        ({"a": 50, "b": 11, "c": 0}, 8, ["a", "b"], []),
        ({"a": 50, "b": 30, "c": 6, "d": 5}, 8, ["a", "b"], ["c", "d"]),
        ({"a": 50, "b": 30, "c": 6}, 8, ["a"], ["b", "c"]),
        ({"a": 50, "b": 30, "c": 20, "d": 12}, 2, ["a", "b"], ["c", "d"]),
        ({"a": 4, "b": 5}, 8, [], ["b", "a"]),
    ],
)
def test_small_levels_are_put_together(counts: dict[str, int], most: int, shown: list[str], rest: list[str]) -> None:
    assert disclosure.pooled(counts, most) == (shown, rest)
