"""What a model's training data looked like, and in what way new data are other ones: columns, units, vocabulary."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ovo_clinic.arrays import Column, ModalityArray
from ovo_clinic.disclosure import SMALLEST
from ovo_clinic.prepared import Prepared

INNER = (0.05, 0.95)
"""The quantiles between which nine in ten training values lie."""
LEAST_VALUES = 20
"""Fewer new values, or fewer units in which a feature was to be expected, tell nothing."""
UNKNOWN_SHARE = 0.1
"""The share of units whose category, or of what is recorded as codes, may be one that training did not know."""
_BLOCK = 64  # columns looked at together, so that memory stays at a fraction of the array


@dataclass(frozen=True)
class Profile:
    """One modality in the training rows; aggregates only.

    Attributes:
        kind: as in `types.Modality`.
        columns: F, in order, as the model takes them; none for a text.
        share: (F,) share of the training units (of a sequence: steps) with a value, or with a 1.
        low, high: (F,) the quantiles `INNER` of numeric values; None for the other columns, and for one that fewer than
            `disclosure.SMALLEST` training units have, whose quantiles are values of persons.
        size, recipe: of an image, how a file becomes one (see `images`).
    """

    kind: str
    columns: list[Column]
    share: list[float]
    low: list[float | None]
    high: list[float | None]
    size: int = 0
    recipe: str = ""


def profiles(prepared: Prepared, names: Sequence[str], rows: npt.NDArray[np.int64]) -> dict[str, Profile]:
    """The profile of each modality in the given rows of the cohort, the training ones."""
    found = {}
    for name in names:
        entry = prepared.manifest["modalities"][name]
        match entry["kind"]:
            case "text":
                found[name] = Profile("text", [], [], [], [])
            case "image":
                columns = [Column(**column) for column in entry["columns"]]
                found[name] = Profile("image", columns, [1.0], [None], [None], entry["size"], entry["recipe"])
            case _:
                found[name] = _profile(prepared.array(name), rows)
    return found


def _profile(array: ModalityArray, rows: npt.NDArray[np.int64]) -> Profile:
    places, firsts = value_rows(array, rows), _firsts(array, rows)
    share = np.zeros(len(array.columns))
    inner = np.full((2, len(array.columns)), np.nan)
    for block in np.array_split(np.arange(len(array.columns)), max(1, -(-len(array.columns) // _BLOCK))):
        if places.size and block.size:
            values = np.asarray(array.values[np.ix_(places, block)], dtype=np.float64)
            share[block] = _seen(array, block, values)
            units = np.logical_or.reduceat(~np.isnan(values), firsts, axis=0).sum(axis=0)
            measured = np.array([array.columns[index].role == "numeric" for index in block]) & (units >= SMALLEST)
            inner[:, block[measured]] = np.nanquantile(values[:, measured], INNER, axis=0)
    low, high = ([None if np.isnan(value) else float(value) for value in row] for row in inner)
    return Profile(array.kind, array.columns, share.tolist(), low, high)


def value_rows(array: ModalityArray, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The rows of a vector's or a sequence's values that belong to the units in which the modality is present."""
    rows = rows[array.present[rows]]
    if array.offsets is None:
        return rows
    starts, ends = array.offsets[rows], array.offsets[rows + 1]
    return np.concatenate([np.arange(a, b) for a, b in zip(starts, ends, strict=True)] or [rows[:0]])


def _firsts(array: ModalityArray, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where the values of each unit that has any begin in `value_rows`."""
    rows = rows[array.present[rows]]
    if array.offsets is None:
        return np.arange(len(rows))
    lengths = array.offsets[rows + 1] - array.offsets[rows]
    lengths = lengths[lengths > 0]
    firsts: npt.NDArray[np.int64] = np.cumsum(lengths) - lengths
    return firsts


def _seen(
    array: ModalityArray, block: npt.NDArray[np.int64], values: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """(columns of the block,) share of the rows with a measurement, or other than 0."""
    numeric = np.array([array.columns[index].role == "numeric" for index in block])
    share: npt.NDArray[np.float64] = np.where(numeric, ~np.isnan(values), np.nan_to_num(values) != 0).mean(axis=0)
    return share


def differences(name: str, trained: Profile, array: ModalityArray) -> list[str]:
    """How a modality of new data, brought to the trained columns, is unlike the one that a model was trained on.

    Args:
        name: of the modality.
        trained: its profile in the training rows.
        array: of the new data.
    """
    if array.kind in ("image", "text"):
        return []
    rows = value_rows(array, np.arange(len(array.present)))
    new = _profile(array, np.arange(len(array.present)))
    found = [
        f"{name}: half of the {column.name} values are {side} {bound:.4g}, beyond which 1 in 20 was in training; "
        "is the unit another one"
        for index, column in enumerate(trained.columns)
        if new.share[index] * rows.size >= LEAST_VALUES
        for side, bound in _beyond(array.values[rows, index], trained.low[index], trained.high[index])
    ]
    return [*found, *_vanished(name, trained, new, rows.size), *_unknown_levels(name, trained, new, rows.size)]


def _beyond(values: npt.NDArray[Any], low: float | None, high: float | None) -> list[tuple[str, float]]:
    """On which side of the inner training values the middle of the new ones lies, where it does."""
    if low is None or high is None:
        return []
    median = float(np.nanmedian(values))
    # Stored numbers are float32; a value that equals a bound is inside.
    reach = 1e-5 * max(abs(low), abs(high))
    if median < low - reach:
        return [("below", low)]
    return [("above", high)] if median > high + reach else []


def _vanished(name: str, trained: Profile, new: Profile, size: int) -> list[str]:
    """Features that are in none of the new rows, although so many should have them."""
    lost = [
        index
        for index, (column, share) in enumerate(zip(trained.columns, trained.share, strict=True))
        if share * size >= LEAST_VALUES and not new.share[index] and not _is_level(column)
    ]
    groups = list(dict.fromkeys(trained.columns[index].group for index in lost))
    measured = any(trained.columns[index].role != "binary" for index in lost)
    weight = sum(trained.share[index] for index in lost)
    # A drug may be out of use; a laboratory test that none has goes by another name.
    if not lost or (not measured and weight <= UNKNOWN_SHARE * sum(trained.share)):
        return []
    shown = ", ".join(groups[:3]) + (f" and {len(groups) - 3} more" if len(groups) > 3 else "")
    return [f"{name}: none of {size} new rows has {shown}; look for another name there"]


def _is_level(column: Column) -> bool:
    """Whether a column is one of a category's values."""
    return column.role == "binary" and column.name.startswith(f"{column.group}=")


def _unknown_levels(name: str, trained: Profile, new: Profile, size: int) -> list[str]:
    """Categories whose values are, too often, none of those that training knew."""
    found = []
    levels: dict[str, list[int]] = {}
    for index, column in enumerate(trained.columns):
        if _is_level(column):
            levels.setdefault(column.group, []).append(index)
    for group, indices in levels.items():
        unknown = 1 - sum(new.share[index] for index in indices)
        if size >= LEAST_VALUES and unknown > UNKNOWN_SHARE:
            found.append(f"{name}: {group} is in {100 * unknown:.0f} % of {size} new rows a value not seen in training")
    return found


def save(found: Mapping[str, Profile], path: Path) -> None:
    """Writes the profiles of all modalities as JSON."""
    path.write_text(json.dumps({name: asdict(value) for name, value in found.items()}) + "\n", encoding="utf-8")


def load(path: Path) -> dict[str, Profile]:
    """Reads what `save` wrote."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return {
        name: Profile(**{**value, "columns": [Column(**column) for column in value["columns"]]})
        for name, value in content.items()
    }
