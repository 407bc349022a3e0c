"""What the checks look at: a prepared data set with its spec, and the runs that were trained on it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from ovo_clinic import resources, runs
from ovo_clinic.arrays import Column, ModalityArray
from ovo_clinic.prepared import Prepared
from ovo_clinic.spec import DatasetSpec, TaskSpec
from ovo_clinic.splitting import SPLITS
from ovo_clinic.tabular import summarised

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

_BLOCK = 64


@dataclass(frozen=True)
class Subject:
    """What is audited.

    Attributes:
        prepared: the data set.
        spec: of it, as it is now.
        task: of the spec.
        folders: of the finished runs that were trained on these data.
    """

    prepared: Prepared
    spec: DatasetSpec
    task: TaskSpec
    folders: tuple[Path, ...] = ()

    @property
    def leaky(self) -> str | None:
        """The task's reason why its features know the outcome."""
        return self.task.leaky

    @property
    def cut_apart(self) -> str | None:
        """The task's reason why one person may stand in several parts; None = nobody may."""
        return None if self.prepared.manifest["split"].get("whole_patients", True) else self.leaky

    @property
    def divided(self) -> str | None:
        """By what the parts were told to differ, such as a site; None = they were drawn alike, patient by patient."""
        split = self.prepared.manifest["split"]
        if split.get("lists"):
            return f"the parts are those of {', '.join(split['lists'])}"
        if split.get("column"):
            return f"the parts are those of the column '{split['column']}'"
        return None if split.get("by", "patient_id") == "patient_id" else f"whole groups of '{split['by']}' were drawn"

    @property
    def split(self) -> npt.NDArray[np.str_]:
        """(N,) the part of every unit."""
        return self.prepared.split

    @cached_property
    def in_parts(self) -> Bools:
        """(N,) True where the unit is in training, validation or test, and not on no published list."""
        return np.isin(self.split, SPLITS)

    @property
    def prediction_hours(self) -> float | None:
        """Hours from the index time to the prediction; None where the task names no such time."""
        hours = self.prepared.manifest["options"].get("prediction_hours")
        return None if hours is None else float(hours)

    def of_kind(self, *kinds: str) -> list[str]:
        """Names of the modalities of some kinds."""
        return [name for name, entry in self.prepared.manifest["modalities"].items() if entry["kind"] in kinds]

    @cached_property
    def _summaries(self) -> Mapping[str, ModalityArray]:
        return {name: summarised(self.prepared.array(name)) for name in self.of_kind("sequence")}

    def unit_features(self) -> Iterator[tuple[str, ModalityArray]]:
        """Modalities of numbers with one row a unit: of a sequence the last, mean, least and largest values."""
        for name in self.of_kind("vector", "sequence"):
            yield name, self._summaries[name] if name in self._summaries else self.prepared.array(name)

    def declared(self, column: str) -> str | None:
        """The task's reason why a column may tell the outcome; None = it gives none."""
        return self.task.kept_on_purpose.get(column) or self.leaky

    def crossing(self, keys: pl.Series) -> int:
        """How many keys stand in more than one part; null is no key."""
        table = pl.DataFrame({"key": keys, "part": pl.Series(self.split)}).filter(pl.Series(self.in_parts)).drop_nulls()
        return table.group_by("key").agg(pl.col("part").n_unique()).filter(pl.col("part") > 1).height

    def twins(self, first: Rows, second: Rows) -> int:
        """How many units of validation and test have a twin in another part, given pairs of rows of the cohort."""
        apart = (self.split[first] != self.split[second]) & self.in_parts[first] & self.in_parts[second]
        concerned = np.concatenate([first[apart], second[apart]])
        return int(np.unique(concerned[self.split[concerned] != "train"]).size)


def columns(array: ModalityArray, rows: Rows) -> Iterator[tuple[Column, Floats]]:
    """Each column with its values (n,) of some rows, read from disk a block of columns at a time."""
    for start in range(0, len(array.columns), _BLOCK):
        block = np.asarray(array.values[rows, start : start + _BLOCK], dtype=np.float64)
        yield from zip(array.columns[start : start + _BLOCK], block.T, strict=True)


def trained_on(prepared: Prepared) -> tuple[Path, ...]:
    """Folders of the finished runs of a prepared data set that keep a fitted preprocessing."""
    files = sorted((resources.home() / "runs").glob("*/preprocessing.json"))
    finished = [file.parent for file in files if runs.is_finished(file.parent)]
    return tuple(
        folder for folder in finished if runs.read_result(folder)["digests"]["data"] == prepared.manifest["key"]
    )
