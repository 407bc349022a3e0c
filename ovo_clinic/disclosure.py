"""Small cells: counts of 1 to 10 people are not shown, nor what they would follow from."""

from collections.abc import Mapping
from typing import Any

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


def cell(count: int, hide: bool, text: str) -> str:
    """The text of a count, or that it is hidden: a small one, or one that a small one would follow from."""
    if not hide:
        return text
    return "hidden" if count >= SMALLEST else HIDDEN


def parts(counts: Mapping[str, int]) -> dict[str, str]:
    """The texts of counts whose total is shown beside them."""
    hide = hidden([list(counts.values())])[0]
    return {
        name: cell(count, mark, f"{count:,}") for (name, count), mark in zip(counts.items(), hide.tolist(), strict=True)
    }


def pooled(levels: ArrayLike, patients: ArrayLike, most: int) -> tuple[list[Any], list[Any]]:
    """Levels that are shown, of SMALLEST people each, and those that are put together, of SMALLEST people in all.

    Of so few people that this cannot be, all levels are put together.

    Args:
        levels: (N,) of the units.
        patients: (N,) whose unit it is.
        most: how many levels are shown.

    Returns:
        (shown, put together), each from the level of most units to the rarest.
    """
    names, level, units = np.unique(np.asarray(levels), return_inverse=True, return_counts=True)
    who = np.unique(np.asarray(patients), return_inverse=True)[1]
    people = np.bincount(np.unique(level * who.size + who) // max(1, who.size), minlength=names.size)
    order = np.argsort(-units, kind="stable").tolist()
    shown = [index for index in order if people[index] >= SMALLEST][:most]
    rest = [index for index in order if index not in shown]
    while rest and shown and np.unique(who[np.isin(level, rest)]).size < SMALLEST:
        rest.insert(0, shown.pop())
    return [names.tolist()[index] for index in shown], [names.tolist()[index] for index in rest]
