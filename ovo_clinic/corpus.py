"""Texts to pretrain on: those of a folder, or of a prepared task's training units; a part is held out."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from ovo_clinic.errors import UserError
from ovo_clinic.prepared import Prepared
from ovo_clinic.raw import RawFolder
from ovo_clinic.registry import suggest
from ovo_clinic.spec import TableSpec

_TABLES = (".csv", ".csv.gz", ".parquet")


@dataclass(frozen=True)
class Texts:
    """Texts, each once.

    Attributes:
        frame: text (String, not blank) and owner: texts of one owner are held out together.
        origin: what is told of them: a task with its data's digests, or the number of files.
    """

    frame: pl.DataFrame
    origin: Mapping[str, str | int]

    def digest(self) -> str:
        """sha256 of the texts, whatever their order."""
        digest = hashlib.sha256()
        for text in self.frame["text"].sort():
            digest.update(hashlib.sha256(text.encode()).digest())
        return digest.hexdigest()

    def split(self, held_out: float, seed: int) -> tuple[pl.Series, pl.Series]:
        """Texts to train on, and those held out.

        Args:
            held_out: share of the owners; at least one.
            seed: of the draw.

        Raises:
            UserError: all texts are of one owner.
        """
        owners = self.frame["owner"].unique().sort()
        if owners.len() < 2:
            raise UserError("pretrain-text: all texts are of one person, so that none can be held out; add others")
        drawn = np.random.default_rng(seed).permutation(owners.len())
        count = min(owners.len() - 1, max(1, round(held_out * owners.len())))
        apart = pl.col("owner").is_in(owners.gather(drawn[:count]).implode())
        return self.frame.filter(~apart)["text"], self.frame.filter(apart)["text"]


def of_folder(folder: Path, column: str = "text") -> Texts:
    """The texts of a folder: whole .txt files, at any depth, and a column of its csv, csv.gz and parquet files.

    Args:
        folder: a folder, or a single file of these kinds.
        column: of the tables; every row is a text of its own.

    Raises:
        UserError: no such folder, no text in it, or a file that cannot be read or lacks the column.
    """
    files = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.is_file())
    tables = [path for path in files if path.name.lower().endswith(_TABLES)]
    plain = [path for path in files if path.suffix.lower() == ".txt"]
    parts = [_rows(path, column) for path in tables] + [pl.Series("text", map(_text, plain), pl.String)]
    frame = pl.concat(part.to_frame() for part in parts)
    frame = _each_once(frame.with_row_index("owner"))
    if frame.is_empty():
        raise UserError(f"--texts: {folder} has no text in .txt, .csv, .csv.gz or .parquet files; name another")
    return Texts(frame, {"files": len(tables) + len(plain)})


def of_task(prepared: Prepared, modality: str | None = None) -> Texts:
    """The texts of a prepared task's training units; those of validation and test units are never looked at.

    Args:
        prepared: the task's data; a patient's texts are held out together.
        modality: which one, where there are several of texts.

    Raises:
        UserError: no such modality of texts, or no training unit has one.
    """
    names = [name for name in prepared.modalities if prepared.manifest["modalities"][name]["kind"] == "text"]
    if modality is None and len(names) != 1:
        told = f"several ({', '.join(names)}); choose one" if names else "none; take another task, or --texts FOLDER"
        raise UserError(f"--modality: of texts task '{prepared.manifest['task']}' has {told}")
    name = modality or names[0]
    if name not in names:
        raise UserError(f"--modality: '{name}' is no modality of texts{suggest(name, names)}")
    training = pl.Series(prepared.split == "train")
    found = prepared.cohort.select(owner="patient_id").with_columns(text=prepared.texts(name)).filter(training)
    frame = _each_once(found.drop_nulls("text"))
    if frame.is_empty():
        raise UserError(f"--modality: no training unit of task '{prepared.manifest['task']}' has '{name}'")
    manifest = prepared.manifest
    data = {"dataset": manifest["dataset"], "data": manifest["key"], "split": manifest["digests"]["split"]}
    return Texts(frame, {"task": manifest["task"], "modality": name, **data})


def _each_once(frame: pl.DataFrame) -> pl.DataFrame:
    """Without blank and repeated texts: one that stood on both sides would be no test."""
    return frame.filter(pl.col("text").str.strip_chars() != "").unique("text", keep="first", maintain_order=True)


def _rows(path: Path, column: str) -> pl.Series:
    """The texts of one table."""
    name = path.name[: -len(next(ending for ending in _TABLES if path.name.lower().endswith(ending)))]
    spec = TableSpec(file=name, columns={column.lower(): "text"})
    rows = RawFolder({"": path.parent}, {name: spec}).read(name)
    return rows.to_series(0).alias("text").drop_nulls()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8 text; convert it, or take it away") from None
