"""A prepared data set as one table of features, for models that take nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import Field

from ovo_clinic import preprocessing
from ovo_clinic.arrays import Column, ModalityArray
from ovo_clinic.errors import UserError
from ovo_clinic.prepared import Prepared
from ovo_clinic.preprocessing import Scaling

Count = Annotated[int, Field(ge=1)]
Floats = npt.NDArray[np.float32]
Setting = dict[str, int | float]
"""Arguments of a classifier."""
Arrays = dict[str, npt.NDArray[Any]]
"""What is kept of a fitted classifier, by name."""

STATISTICS = ("last", "mean", "min", "max")


@dataclass(frozen=True)
class Sample:
    """Units with known labels.

    Attributes:
        x: (N,F), finite.
        y: (N,) class index.
    """

    x: Floats
    y: npt.NDArray[np.int64]


class Classifier(Protocol):
    """As scikit-learn's."""

    @property
    def classes_(self) -> npt.NDArray[np.int64]:
        """(C,) class indices that training had."""
        ...

    def predict_proba(self, x: Floats) -> npt.NDArray[np.float64]:
        """x (N,F) -> (N,C)."""
        ...


class Baseline(Protocol):
    """`__init__(self, *, budget, options)`; a registered class.

    Attributes:
        settings: that are tried, `budget` in number, the same for every seed.
    """

    settings: Sequence[Setting]

    def fit(self, setting: Setting, train: Sample, validation: Sample, seed: int) -> Any:
        """A `Classifier`; `train` has at least two classes."""
        ...

    def costs(self, fitted: Any) -> dict[str, int]:
        """`parameters` and `macs_total` per sample, where these mean anything."""
        ...

    def arrays(self, fitted: Any) -> Arrays:
        """All but its classes that makes a classifier answer as it does: what is kept of it in a file."""
        ...

    def restored(self, classes: npt.NDArray[np.int64], arrays: Arrays) -> Classifier:
        """The classifier of those arrays."""
        ...


@dataclass(frozen=True)
class FeatureTable:
    """Features of all units.

    Attributes:
        values: (N,F) by cohort row, finite.
        names: (F,).
        scalings: by modality, as fitted on the training rows.
        left_out: modalities that have no such features: images and texts.
    """

    values: Floats
    names: list[str]
    scalings: dict[str, Scaling]
    left_out: list[str]


def feature_table(prepared: Prepared, names: Sequence[str]) -> FeatureTable:
    """The features that the networks get, imputed and scaled alike, side by side.

    Of a sequence there are the last, mean, least and largest value of every variable. A modality that is absent counts
    as one whose values are all missing, and `<modality> present` says whether it is there.

    Args:
        prepared: the data.
        names: modalities, in the spec's order.

    Raises:
        UserError: no modality has features.
    """
    entries = prepared.manifest["modalities"]
    tabular = [name for name in names if entries[name]["kind"] in ("vector", "sequence")]
    if not tabular:
        raise UserError(f"compare.baselines: take numbers, and {', '.join(names)} are images or texts; leave them out")
    arrays = {name: summarised(prepared.array(name)) for name in tabular}
    training = prepared.rows("train")
    scalings = {name: preprocessing.fit(array, training) for name, array in arrays.items()}
    columns = [
        column
        for name in tabular
        for column in (*(f"{name}: {feature}" for feature in scalings[name].features), f"{name} present")
    ]
    return FeatureTable(features(arrays, scalings), columns, scalings, [n for n in names if n not in tabular])


def features(arrays: Mapping[str, ModalityArray], scalings: Mapping[str, Scaling]) -> Floats:
    """(N,F) features of all units, side by side, finite.

    Args:
        arrays: modalities as prepared, or `summarised` already.
        scalings: of those that are used, in their order, as they were fitted in training.
    """
    parts: list[Floats] = []
    for name, scaling in scalings.items():
        array = summarised(arrays[name])
        values = np.where(array.present[:, None], array.values, np.float32(np.nan))
        parts += [scaling.apply(values), array.present[:, None].astype(np.float32)]
    return np.concatenate(parts, axis=1)


def summarised(array: ModalityArray) -> ModalityArray:
    """A sequence as a vector: STATISTICS of each variable over the steps where it was measured; a vector as it is."""
    if array.offsets is None:
        return array
    units = np.flatnonzero(np.diff(array.offsets))
    starts = array.offsets[units]
    values = np.full((len(array.present), len(STATISTICS) * len(array.columns)), np.nan, dtype=np.float32)
    for index in range(len(array.columns)):
        place = slice(len(STATISTICS) * index, len(STATISTICS) * (index + 1))
        values[units, place] = _statistics(np.asarray(array.values[:, index], dtype=np.float32), starts)
    columns = [
        Column(f"{column.name}|{statistic}", "numeric", column.group)
        for column in array.columns
        for statistic in STATISTICS
    ]
    return replace(array, columns=columns, values=values, offsets=None, kind="vector", hours=None)


def _statistics(values: Floats, starts: npt.NDArray[np.int64]) -> Floats:
    """(units, STATISTICS) of each unit's steps, NaN where it has no value; unit i's steps end where i + 1's begin."""
    if starts.size == 0:
        return np.empty((0, len(STATISTICS)), dtype=np.float32)
    measured = ~np.isnan(values)
    count = np.add.reduceat(measured, starts, dtype=np.int64)
    total = np.add.reduceat(np.where(measured, values, 0), starts, dtype=np.float64)
    position = np.maximum.reduceat(np.where(measured, np.arange(values.size), 0), starts)
    some = count > 0
    last = np.where(some, values[position], np.nan)
    mean = np.where(some, total / np.maximum(count, 1), np.nan)
    extremes = (np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts))
    return np.column_stack([last, mean, *extremes]).astype(np.float32)
