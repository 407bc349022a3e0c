"""Small cells: counts of 1 to 10 people are not shown, nor what they would follow from."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

SMALLEST = 11
"""The smallest count that is shown, 0 apart; the usual threshold of clinical data custodians."""

HIDDEN = f"<{SMALLEST}"


def hidden(counts: ArrayLike) -> NDArray[np.bool_]:
    """Which cells of a table to hide whose row and column totals are shown.

    A small cell is hidden; where one alone is hidden of a row or a column, it would follow from the total, so the
    next smallest one is hidden with it.

    Args:
        counts: (L,C); a row or column of a single cell has no total beside it.

    Returns:
        (L,C), True = hide.
    """
    table = np.asarray(counts)
    mask: NDArray[np.bool_] = (table > 0) & (table < SMALLEST)
    while any([_hide_second(table, mask), _hide_second(table.T, mask.T)]):
        pass
    return mask


def _hide_second(table: NDArray[np.int64], mask: NDArray[np.bool_]) -> bool:
    """Hides a second cell in rows where one is hidden, in `mask` itself; whether there was such a row."""
    found = False
    for cells, marks in zip(table, mask, strict=True):
        if cells.size > 1 and marks.sum() == 1:
            # Best in a column where something is hidden already; then the smallest, a 0 last of all.
            order = np.lexsort((cells, cells == 0, mask.sum(axis=0) == 0, marks))
            marks[order[0]] = True
            found = True
    return found


def pooled(counts: Mapping[str, int], most: int) -> tuple[list[str], list[str]]:
    """Levels that are shown, and those that are put together; the latter have SMALLEST units in all, or none.

    Args:
        counts: level -> units.
        most: how many levels are shown.

    Returns:
        (shown, put together), each from the most frequent level to the rarest.
    """
    levels = sorted((level for level in counts if counts[level]), key=lambda level: -counts[level])
    shown = [level for level in levels if counts[level] >= SMALLEST][:most]
    rest = [level for level in levels if level not in shown]
    while rest and shown and sum(counts[level] for level in rest) < SMALLEST:
        rest.insert(0, shown.pop())
    return shown, rest
