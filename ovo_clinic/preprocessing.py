"""Imputation, missing-value indicators and scaling, fitted on training rows only and saved with the run."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ovo_clinic.arrays import Column, ModalityArray

# A measurement further than this from the training mean carries no more than "extreme".
CLIP_SD = 10.0
# Values further from the median than this many interquartile ranges (a 999999 for "missing") do not set the scale.
SPREADS = 10.0
_LEAST_DEVIATION = 1e-30
_BLOCK = 64  # columns fitted at once, so that memory stays at a fraction of the array


@dataclass(frozen=True)
class Scaling:
    """How one modality's raw columns become input features.

    Attributes:
        columns: names of the raw columns the scaling was fitted for, checked when it is applied to other data.
        fill: value put where a number is missing (median of the training rows).
        center, scale: mean and standard deviation of the training rows after filling; 0 and 1 for 0/1 columns.
        indicators: for each group of columns with a missing value in the training rows, one of its columns: whether
            that column is missing is an input feature of its own.
    """

    columns: list[str]
    fill: list[float]
    center: list[float]
    scale: list[float]
    indicators: list[int]

    @property
    def features(self) -> list[str]:
        """Names of the input features, F in number."""
        return [*self.columns, *(f"{self.columns[index]} missing" for index in self.indicators)]

    def apply(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Raw rows (N, columns) -> input features (N,F), finite."""
        width = len(self.columns)
        features = np.empty((len(values), width + len(self.indicators)), dtype=np.float32)
        scaled = features[:, :width]
        scaled[...] = values
        missing = np.isnan(scaled)
        np.copyto(scaled, _row(self.fill), where=missing)
        scaled -= _row(self.center)
        scaled /= _row(self.scale)
        np.clip(scaled, -CLIP_SD, CLIP_SD, out=scaled)
        features[:, width:] = missing[:, self.indicators]
        return features


def _row(values: Sequence[float]) -> npt.NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def fit(array: ModalityArray, training: npt.NDArray[np.int64]) -> Scaling:
    """The scaling of one modality: of every feature by itself, of an image by its pixels; token ids have none.

    Args:
        array: as prepared, or as an encoder's `inputs` gives it.
        training: training rows; only those in which the modality is present are read.
    """
    rows = training[array.present[training]]
    if array.index is not None:
        return _fit_pixels(array, array.index[rows])
    if array.kind == "text":
        return Scaling([], [], [], [], [])
    if array.offsets is not None:
        starts, ends = array.offsets[rows], array.offsets[rows + 1]
        rows = np.concatenate([np.arange(a, b) for a, b in zip(starts, ends, strict=True)] or [rows[:0]])
    width = len(array.columns)
    fill, center, scale = np.zeros(width), np.zeros(width), np.ones(width)
    seen_missing = np.zeros(width, dtype=np.bool_)
    measured = np.flatnonzero([column.role != "binary" for column in array.columns])
    for block in np.array_split(measured, max(1, -(-measured.size // _BLOCK))):
        if rows.size == 0 or block.size == 0:
            continue
        values = array.values[np.ix_(rows, block)].astype(np.float64)
        missing = np.isnan(values)
        seen_missing[block] = missing.any(axis=0)
        empty = missing.all(axis=0)
        values[:, empty] = 0.0
        fill[block] = np.nanmedian(values, axis=0)
        filled = np.where(missing, fill[block], values)
        filled = _without_outliers(values, filled, fill[block])
        center[block], deviation = filled.mean(axis=0), filled.std(axis=0)
        # Relative, as a unit may make all values tiny; a deviation that float32 would round to 0 divides nothing.
        varies = deviation > np.maximum(_LEAST_DEVIATION, 1e-8 * np.abs(center[block]))
        scale[block] = np.where(varies, deviation, 1.0)
    return Scaling(
        columns=[column.name for column in array.columns],
        fill=fill.tolist(),
        center=center.tolist(),
        scale=scale.tolist(),
        indicators=_indicator_columns(array.columns, seen_missing),
    )


def _fit_pixels(array: ModalityArray, images: npt.NDArray[np.int64]) -> Scaling:
    """From counts of the 256 intensities: exact, whatever the number of images."""
    counts = np.zeros(256, dtype=np.int64)
    for image in np.sort(images):
        counts += np.bincount(array.values[image].ravel(), minlength=256)
    total, intensities = max(1, int(counts.sum())), np.arange(256)
    mean = float(counts @ intensities) / total
    deviation = float(np.sqrt(counts @ (intensities - mean) ** 2 / total))
    return Scaling([column.name for column in array.columns], [0.0], [mean], [deviation or 1.0], [])


def _without_outliers(
    values: npt.NDArray[np.float64], filled: npt.NDArray[np.float64], median: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """The filled values, cut off far outside the middle half of the measured ones; a column without spread as it is."""
    low, high = np.nanquantile(values, [0.25, 0.75], axis=0)
    reach = np.where(high > low, SPREADS * (high - low), np.inf)
    return np.clip(filled, median - reach, median + reach)


def _indicator_columns(columns: Sequence[Column], missing: npt.NDArray[np.bool_]) -> list[int]:
    """The first numeric column of every group that is missing somewhere in the training rows."""
    first: dict[str, int] = {}
    for index, column in enumerate(columns):
        if column.role == "numeric" and missing[index]:
            first.setdefault(column.group, index)
    return sorted(first.values())


def save(scalings: Mapping[str, Scaling], path: Path) -> None:
    """Writes the scalings of all modalities as JSON (aggregates of training rows, no rows)."""
    path.write_text(json.dumps({name: asdict(value) for name, value in scalings.items()}) + "\n", encoding="utf-8")


def load(path: Path) -> dict[str, Scaling]:
    """Reads what `save` wrote."""
    return {name: Scaling(**value) for name, value in json.loads(path.read_text(encoding="utf-8")).items()}
