"""Irregular events in equal time steps: right-closed bins, the last value of a bin, values carried forward."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
_EDGE = 1e-6


def bin_counts(hours: Floats, step_hours: float) -> Integers:
    """(N,) number of steps that cover so many hours; the last one may be partial, and there is at least one."""
    return np.maximum(np.floor(hours / step_hours + 1 - _EDGE), 1).astype(np.int64)


def bin_of(hours: Floats, step_hours: float) -> Integers:
    """(E,) step of each event: step i is (i, i+1] times `step_hours`, and the first one has time 0 too.

    Source: YerevaNN/mimic3-benchmarks, the discretizer with `start_time='zero'`.
    """
    return np.trunc(hours / step_hours - _EDGE).astype(np.int64)


def last_in_bin(steps: Integers, columns: Integers, values: Floats, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    """(S,F) the last value of each step and column, NaN where there is none.

    Args:
        steps: (E,) row of each event.
        columns: (E,) column of each event.
        values: (E,) of each event, not NaN; events of one step and column stand together, in the order of time.
        shape: (S,F).
    """
    cells = steps * shape[1] + columns
    last = np.append(cells[1:] != cells[:-1], True)[: len(cells)]
    grid = np.full(shape[0] * shape[1], np.nan, dtype=np.float32)
    grid[cells[last]] = values[last]
    assert np.count_nonzero(~np.isnan(grid)) == last.sum(), "events of one step and column stand apart, or one is NaN"
    return grid.reshape(shape)


def carry_forward(grid: npt.NDArray[np.floating], starts: Integers) -> npt.NDArray[np.floating]:
    """(S,F) each NaN replaced by the last value above it in the same unit; NaN stays where there is none.

    Args:
        grid: (S,F) steps of all units, one unit after the other.
        starts: (N,) the first row of each unit, ascending, the first one 0.
    """
    rows = np.arange(len(grid))
    first = np.zeros(len(grid), dtype=np.int64)
    first[starts] = starts
    first = np.maximum.accumulate(first)
    carried = np.empty_like(grid)
    for column in range(grid.shape[1]):  # one by one: the indices of all columns would take twice the grid's memory
        values = grid[:, column]
        source = np.maximum.accumulate(np.where(np.isnan(values), -1, rows))
        carried[:, column] = np.where(source >= first, values[source], np.nan)
    return carried
