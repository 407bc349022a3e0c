"""Writes a modality of a prepared data set, of whatever kind, as the files of its name."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ovo_clinic import arrays
from ovo_clinic.arrays import Column, ModalityArray, TabularTable
from ovo_clinic.raw import RawFolder
from ovo_clinic.tables import CodesTable, ImageTable, ModalityTable, SequenceTable, SummariesTable, TextTable

INTENSITY = Column("intensity", "numeric", "intensity")
"""The one channel of a grey image."""


@dataclass(frozen=True)
class Written:
    """What was written.

    Attributes:
        entry: of the manifest.
        present: (N,) bool, True where the unit has the modality.
        array: None for a text.
        notes: counts worth telling.
        watched: of images, where each file lies that decides what they hold: source, file, bytes (null = absent).
    """

    entry: dict[str, Any]
    present: npt.NDArray[np.bool_]
    array: ModalityArray | None = None
    notes: Mapping[str, int] = field(default_factory=dict)
    watched: pl.DataFrame | None = None


def write(
    name: str,
    table: ModalityTable,
    units: pl.Series,
    training: npt.NDArray[np.bool_],
    folder: Path,
    raw: RawFolder,
) -> Written:
    """Writes the files of one modality.

    Args:
        name: of the modality.
        table: from the pipeline; rows of units outside the cohort are left out.
        units: (N,) unit ids of the cohort, in the order of the arrays' rows.
        training: (N,) bool, True for training units.
        folder: of the prepared data set.
        raw: where image files lie, and where half-decoded ones are kept.
    """
    _write_latest(folder / f"{name}.latest.npy", table, units)
    match table:
        case TextTable():
            return _write_texts(name, table, units, folder)
        case ImageTable():
            return _write_images(name, table, units, folder, raw)
        case _:
            array = arrays.build(table, units, training)
            array.write(folder, name)
            return Written(array.describe() | _kept_by(table, units.filter(training)), array.present, array)


def _write_latest(path: Path, table: ModalityTable, units: pl.Series) -> None:
    """(N,) hours from the index time to the last record of each unit, NaN where it has none."""
    if table.latest is None:
        return
    hours = table.latest.select("unit_id", pl.col("hours").cast(pl.Float64))
    assert hours["unit_id"].n_unique() == hours.height, "a table of times has two rows of one unit"
    joined = units.to_frame("unit_id").join(hours, on="unit_id", how="left", maintain_order="left")
    np.save(path, joined["hours"].fill_null(np.nan).to_numpy(), allow_pickle=False)


def _kept_by(table: TabularTable, training: pl.Series) -> dict[str, Any]:
    """The rule by which codes or variables became columns, for the manifest.

    Also how many of the training units have a variable, but with nothing that an array would show.
    """
    if not isinstance(table, CodesTable | SummariesTable | SequenceTable):
        return {}
    rule = {name: value for name, value in asdict(table.vocabulary).items() if value is not None}
    if isinstance(table, CodesTable):
        return {"kept_by": rule}
    zero = table.zero_filled if isinstance(table, SummariesTable) else frozenset()
    values = [name for name in table.frame.columns if name not in ("unit_id", "hours", "variable")]
    blank = pl.all_horizontal(
        (pl.col(name).fill_null(0) == 0) if name in zero else pl.col(name).is_null() for name in values
    )
    owned = table.frame.filter(pl.col("unit_id").is_in(training.implode()))
    pairs = owned.filter(blank).select("unit_id", "variable").unique()
    never = pairs.join(owned.filter(~blank), on=["unit_id", "variable"], how="anti") if pairs.height else pairs
    return {"kept_by": rule, "without_value": dict(never.group_by("variable").len().sort("variable").iter_rows())}


def _of_units(frame: pl.DataFrame, units: pl.Series) -> tuple[pl.DataFrame, npt.NDArray[np.int64]]:
    """The rows of the cohort's units in its order, and the row of the arrays that each belongs to."""
    position = pl.DataFrame({"unit_id": units, "_row": np.arange(units.len())})
    joined = frame.join(position, on="unit_id", how="inner").sort("_row")
    assert joined["_row"].n_unique() == joined.height, "a table of images or texts has two rows of one unit"
    return joined.drop("_row"), joined["_row"].to_numpy()


def _write_texts(name: str, table: TextTable, units: pl.Series, folder: Path) -> Written:
    frame, rows = _of_units(table.frame.select("unit_id", "text"), units)
    assert not (frame["text"].is_null() | (frame["text"].str.strip_chars() == "")).any(), (
        "a text table has a blank text"
    )
    frame.write_parquet(folder / f"{name}.parquet")
    present = np.zeros(units.len(), dtype=np.bool_)
    present[rows] = True
    return Written({"kind": "text", "columns": []}, present)


def _write_images(name: str, table: ImageTable, units: pl.Series, folder: Path, raw: RawFolder) -> Written:
    from ovo_clinic.images import decode_images

    frame, rows = _of_units(table.frame, units)
    paths = [Path(path) for path in frame["path"]]
    pixels = raw.working / f"{name}.npy"
    reasons = decode_images(paths, table.size, table.recipe, pixels, None)
    decoded = np.array([reason is None for reason in reasons], dtype=np.bool_)
    index = np.full(units.len(), -1, dtype=np.int64)
    index[rows[decoded]] = np.flatnonzero(decoded)
    places = [raw.place(path) for path in paths]
    described = frame.drop("path").with_columns(file=pl.Series([file for _, file in places], dtype=pl.String))
    described.filter(pl.Series(decoded)).write_parquet(folder / f"{name}.index.parquet")
    _write_skipped(folder / f"{name}.skipped.csv", [file for _, file in places], reasons)
    array = ModalityArray([INTENSITY], np.load(pixels, mmap_mode="r"), index >= 0, kind="image", index=index)
    array.write_parts(folder, name)
    entry = array.describe() | {"size": table.size, "recipe": table.recipe}
    notes = {f"{name}: files that cannot be decoded": int((~decoded).sum())}
    return Written(entry, array.present, array, notes, _watched(paths, table.absent, raw))


def take_images(raw: RawFolder, folder: Path, entries: Mapping[str, Any]) -> None:
    """Moves decoded images to the other files; comes late, as a killed run decodes them again once they are moved."""
    for name, entry in entries.items():
        if entry["kind"] == "image":
            (raw.working / f"{name}.npy").replace(folder / f"{name}.npy")


def _write_skipped(path: Path, files: Sequence[str], reasons: Sequence[str | None]) -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["file", "reason"])
        writer.writerows((file, reason) for file, reason in zip(files, reasons, strict=True) if reason is not None)


def _watched(paths: Sequence[Path], absent: Sequence[str], raw: RawFolder) -> pl.DataFrame:
    sizes = [*(path.stat().st_size for path in paths), *(None for _ in absent)]
    places = [raw.place(path) for path in (*paths, *map(Path, absent))]
    columns = {"source": [source for source, _ in places], "file": [file for _, file in places], "bytes": sizes}
    schema = {"source": pl.String, "file": pl.String, "bytes": pl.Int64}
    return pl.DataFrame(columns, schema).unique().sort("source", "file")


def unchanged(watched: pl.DataFrame, raw: RawFolder) -> bool:
    """Whether image files are as they were when a data set was prepared: each of its size, or still absent."""
    return all(_size(raw, source, file) == size for source, file, size in watched.iter_rows())


def _size(raw: RawFolder, source: str, file: str) -> int | None:
    folder = raw.folder(source)
    try:
        return None if folder is None else (folder / file).stat().st_size
    except FileNotFoundError:
        return None
