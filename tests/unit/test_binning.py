"""Time steps: edges of the bins, the last value of a bin, values carried forward."""

import numpy as np
import pandas as pd
import pytest

from ovo_clinic import binning


@pytest.mark.parametrize(
    ("hours", "step", "bins"), [(1.5, 1, 2), (1, 1, 1), (0.2, 1, 1), (48, 1, 48), (48, 2, 24), (3, 2, 2)]
)
def test_number_of_bins(hours: float, step: float, bins: int) -> None:
    assert binning.bin_counts(np.array([hours]), step).tolist() == [bins]


def test_bins_are_closed_on_the_right_and_the_first_has_time_zero() -> None:
    los = 1.5
    hours = np.array([0, 1.0, 1.0 + 1e-3, los, 2.0])
    assert binning.bin_of(hours, 1.0).tolist() == [0, 0, 1, 1, 1]
    assert binning.bin_of(hours, 0.5).tolist() == [0, 1, 2, 2, 3]


def test_the_last_value_of_a_bin() -> None:
    steps, columns = np.array([0, 0, 2, 1]), np.array([0, 0, 0, 1])
    grid = binning.last_in_bin(steps, columns, np.array([5.0, 3, 7, 1]), (3, 2))
    np.testing.assert_array_equal(grid, np.array([[3, np.nan], [np.nan, 1], [7, np.nan]], dtype=np.float32))
    assert np.isnan(binning.last_in_bin(steps[:0], columns[:0], np.zeros(0), (1, 2))).all()


def test_values_are_carried_forward_within_a_unit_as_pandas_does_it() -> None:
    random = np.random.default_rng(0)
    grid = np.where(random.random((200, 5)) < 0.6, np.nan, random.normal(size=(200, 5)))
    units = np.sort(random.integers(0, 20, 200))
    starts = np.unique(units, return_index=True)[1]
    wanted = pd.DataFrame(grid).groupby(units).ffill().to_numpy()
    np.testing.assert_array_equal(binning.carry_forward(grid, starts), wanted)
