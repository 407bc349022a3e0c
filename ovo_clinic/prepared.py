"""A prepared data set on disk: what training, evaluation and export read, and all that they may read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ovo_clinic.arrays import ModalityArray
from ovo_clinic.errors import UserError
from ovo_clinic.spec import TaskSpec

TASK_FIELDS = ("title", "kind", "target", "classes", "groups", "leaky")
"""What of a task's spec stands in the manifest."""


@dataclass(frozen=True)
class Prepared:
    """A prepared data set on disk.

    Attributes:
        folder: where it lies.
        manifest: everything about it but the rows: task, columns, splits, hashes, attrition, notes.
    """

    folder: Path
    manifest: Mapping[str, Any]

    @classmethod
    def open(cls, folder: Path) -> "Prepared":
        """Opens a finished folder."""
        return cls(folder, json.loads((folder / "manifest.json").read_text(encoding="utf-8")))

    @cached_property
    def cohort(self) -> pl.DataFrame:
        """unit_id, patient_id, labels and further columns, sorted by unit_id: row i of every array."""
        return pl.read_parquet(self.folder / "cohort.parquet")

    @cached_property
    def split(self) -> npt.NDArray[np.str_]:
        """(N,) `train`, `validation` or `test`, or `unlisted` where published lists split and leave the patient out."""
        return pl.read_parquet(self.folder / "split.parquet")["split"].to_numpy().astype("<U10")

    @property
    def task(self) -> TaskSpec:
        """The task, as far as training and evaluation need it."""
        return TaskSpec(**{name: self.manifest[name] for name in TASK_FIELDS})

    @property
    def modalities(self) -> list[str]:
        """Names in the spec's order."""
        return list(self.manifest["modalities"])

    def chosen(self, modalities: Sequence[str] | None) -> list[str]:
        """The named modalities (None = all) in the spec's order.

        Raises:
            UserError: one that the data set does not have, or that has no feature in it.
        """
        unknown = sorted(set(modalities or []) - set(self.modalities))
        if unknown:
            raise UserError(f"modalities: {', '.join(unknown)}: not in the data set; valid: {self.modalities}")
        chosen = [name for name in self.modalities if modalities is None or name in modalities]
        empty = [name for name in chosen if self._is_empty(name)]
        if empty:
            rest = ",".join(name for name in chosen if name not in empty)
            raise UserError(
                f"modalities: {', '.join(empty)} has no feature in this data set (no training unit has it, or no code "
                f"is frequent enough); leave it out: modalities=[{rest}]"
            )
        return chosen

    def _is_empty(self, name: str) -> bool:
        entry = self.manifest["modalities"][name]
        # New data have no training part, and the columns that were found in training.
        return entry["present"].get("train") == 0 if entry["kind"] in ("image", "text") else not entry["columns"]

    def rows(self, split: str) -> npt.NDArray[np.int64]:
        """Rows of one split whose label is known, ascending."""
        labelled = ~np.isnan(self.target).reshape(len(self.target), -1).all(axis=1)
        return np.flatnonzero((self.split == split) & labelled)

    @cached_property
    def target(self) -> npt.NDArray[np.float32]:
        """(N,) or (N,K) labels, NaN = not labelled."""
        columns = self.manifest["target"]
        values = self.cohort.select(pl.col(columns).cast(pl.Float32).fill_null(np.nan)).to_numpy()
        return np.array(values[:, 0] if len(columns) == 1 else values, dtype=np.float32)

    def array(self, modality: str) -> ModalityArray:
        """A modality's array, memory-mapped; of a text there is none before an encoder's tokenizer has made it."""
        entry = self.manifest["modalities"][modality]
        assert entry["kind"] != "text", f"modality {modality} is a text: see `texts`"
        return ModalityArray.read(self.folder, modality, entry)

    def texts(self, modality: str) -> pl.Series:
        """(N,) the texts of a modality, null where it is absent."""
        found = pl.read_parquet(self.folder / f"{modality}.parquet")
        units = self.cohort.select("unit_id")
        return units.join(found, on="unit_id", how="left", maintain_order="left")["text"]

    def latest(self, modality: str) -> npt.NDArray[np.float64] | None:
        """(N,) hours from the index time to the last record used, NaN where there is none; None = not recorded."""
        file = self.folder / f"{modality}.latest.npy"
        return np.load(file, allow_pickle=False) if file.is_file() else None

    def image_index(self, modality: str) -> pl.DataFrame:
        """unit_id, file (inside its download) and what else the pipeline knows of each decoded image."""
        return pl.read_parquet(self.folder / f"{modality}.index.parquet")

    def present(self, modality: str) -> npt.NDArray[np.bool_]:
        """(N,) True where the unit has the modality."""
        if self.manifest["modalities"][modality]["kind"] == "text":
            return self.texts(modality).is_not_null().to_numpy()
        return self.array(modality).present
