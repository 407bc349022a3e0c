"""Turns a modality's table into a named array; vocabularies and levels come from the training units only."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from ovo_clinic.tables import CodesTable, ModalityTable, SequenceTable, SummariesTable, VectorTable, Vocabulary

Role = Literal["numeric", "binary", "count"]
BLANK = "(blank)"


@dataclass(frozen=True)
class Column:
    """One feature.

    Attributes:
        name: as exported.
        role: `numeric` = a measurement, NaN where missing; `binary` = 0/1; `count` = a number that is 0 where nothing
            was seen, never NaN.
        group: columns of one group are missing together and share one missing-value indicator.
    """

    name: str
    role: Role
    group: str


@dataclass(frozen=True)
class ModalityArray:
    """A modality's values for all units.

    Attributes:
        columns: F features, in order.
        values: (N,F), or (steps,F) for a sequence; float32 with NaN = missing, or uint8 for codes. Rows of units in
            which the modality is absent hold no information.
        present: (N,) bool, True where the table has a row of the unit.
        offsets: for a sequence, (N+1,) int64: unit i owns the steps offsets[i] to offsets[i+1].
    """

    columns: list[Column]
    values: npt.NDArray[Any]
    present: npt.NDArray[np.bool_]
    offsets: npt.NDArray[np.int64] | None = None

    def describe(self) -> list[dict[str, str]]:
        """Columns as plain values for the manifest."""
        return [asdict(column) for column in self.columns]

    def write(self, folder: Path, name: str) -> None:
        """Writes `<name>.npy`, `<name>.present.npy` and, for a sequence, `<name>.offsets.npy`."""
        np.save(folder / f"{name}.npy", self.values, allow_pickle=False)
        np.save(folder / f"{name}.present.npy", self.present, allow_pickle=False)
        if self.offsets is not None:
            np.save(folder / f"{name}.offsets.npy", self.offsets, allow_pickle=False)


def build(table: ModalityTable, units: pl.Series, training: npt.NDArray[np.bool_]) -> ModalityArray:
    """The array of one modality.

    Args:
        table: from the pipeline; rows of units outside the cohort are left out.
        units: (N,) unit ids of the cohort, in the order of the arrays' rows.
        training: (N,) bool, True for training units.
    """
    position = pl.DataFrame({"unit_id": units, "_row": np.arange(units.len()), "_training": training})
    frame = table.frame.join(position, on="unit_id", how="inner")
    present = np.zeros(units.len(), dtype=np.bool_)
    present[frame["_row"].to_numpy()] = True
    match table:
        case VectorTable():
            columns, values = _vector(frame, units.len())
        case CodesTable():
            columns, values = _codes(frame, table.vocabulary, training, present)
        case SummariesTable():
            columns, values = _summaries(frame, table, training, present)
        case SequenceTable():
            columns, values, offsets = _sequence(frame, table.vocabulary, training, present)
            return ModalityArray(columns, values, present, offsets)
    return ModalityArray(columns, values, present)


def _vector(frame: pl.DataFrame, rows: int) -> tuple[list[Column], npt.NDArray[Any]]:
    assert frame["_row"].n_unique() == frame.height, "a vector table has two rows of one unit"
    columns: list[Column] = []
    parts: list[pl.Series] = []
    for name, dtype in frame.schema.items():
        if name in ("unit_id", "_row", "_training"):
            continue
        if dtype == pl.String:
            filled = frame[name].fill_null(BLANK)
            for level in sorted(filled.filter(frame["_training"]).unique()):
                columns.append(Column(f"{name}={level}", "binary", name))
                parts.append((filled == level).cast(pl.Float32))
        else:
            columns.append(Column(name, "binary" if dtype == pl.Boolean else "numeric", name))
            parts.append(frame[name].cast(pl.Float32))
    values = np.full((rows, len(columns)), np.nan, dtype=np.float32)
    if parts:
        values[frame["_row"].to_numpy()] = np.column_stack([part.fill_null(np.nan).to_numpy() for part in parts])
    return columns, values


def _kept(
    frame: pl.DataFrame,
    column: str,
    vocabulary: Vocabulary,
    training: npt.NDArray[np.bool_],
    present: npt.NDArray[np.bool_],
) -> list[str]:
    """Codes or variables that enough training units have, sorted."""
    total = int((training & present).sum() if vocabulary.of == "present" else training.sum())
    counts = frame.filter("_training").group_by(column).agg(pl.col("_row").n_unique().alias("units"))
    return sorted(counts.filter(pl.col("units") >= vocabulary.least(total))[column])


def _index(frame: pl.DataFrame, column: str, kept: Sequence[str]) -> pl.DataFrame:
    """The rows whose code is kept, with its position as `_column`."""
    schema = {column: pl.String, "_column": pl.Int64}
    return frame.join(pl.DataFrame({column: list(kept), "_column": range(len(kept))}, schema), on=column, how="inner")


def _codes(
    frame: pl.DataFrame, vocabulary: Vocabulary, training: npt.NDArray[np.bool_], present: npt.NDArray[np.bool_]
) -> tuple[list[Column], npt.NDArray[Any]]:
    kept = _kept(frame, "code", vocabulary, training, present)
    values = np.zeros((training.size, len(kept)), dtype=np.uint8)
    found = _index(frame, "code", kept)
    values[found["_row"].to_numpy(), found["_column"].to_numpy()] = 1
    return [Column(code, "binary", code) for code in kept], values


def _summaries(
    frame: pl.DataFrame, table: SummariesTable, training: npt.NDArray[np.bool_], present: npt.NDArray[np.bool_]
) -> tuple[list[Column], npt.NDArray[Any]]:
    kept = _kept(frame, "variable", table.vocabulary, training, present)
    statistics = [name for name in table.frame.columns if name not in ("unit_id", "variable")]
    columns = [
        Column(f"{variable}|{name}", "count" if name in table.zero_filled else "numeric", variable)
        for variable in kept
        for name in statistics
    ]
    empty = np.array([0 if name in table.zero_filled else np.nan for name in statistics], dtype=np.float32)
    values = np.tile(empty, (training.size, len(kept)))
    found = _index(frame, "variable", kept)
    cells = found["_row"] * len(kept) + found["_column"]
    assert cells.n_unique() == found.height, "a summaries table has two rows of one unit and variable"
    rows, first = found["_row"].to_numpy(), found["_column"].to_numpy() * len(statistics)
    for position, name in enumerate(statistics):
        filled = found[name].cast(pl.Float32).fill_null(float(empty[position]))
        values[rows, first + position] = filled.to_numpy()
    return columns, values


def _sequence(
    frame: pl.DataFrame, vocabulary: Vocabulary, training: npt.NDArray[np.bool_], present: npt.NDArray[np.bool_]
) -> tuple[list[Column], npt.NDArray[Any], npt.NDArray[np.int64]]:
    kept = _kept(frame, "variable", vocabulary, training, present)
    steps = frame.select("_row", "hours").unique().sort("_row", "hours").with_row_index("_step")
    found = _index(frame, "variable", kept).join(steps, on=["_row", "hours"], how="inner")
    cells = found["_step"].cast(pl.Int64) * len(kept) + found["_column"]
    assert cells.n_unique() == found.height, "a sequence table has two values of one unit, time and variable"
    values = np.full((steps.height, len(kept) + 1), np.nan, dtype=np.float32)
    values[:, 0] = steps["hours"].cast(pl.Float32).to_numpy()
    values[found["_step"].to_numpy(), found["_column"].to_numpy() + 1] = found["value"].cast(pl.Float32).to_numpy()
    lengths = np.bincount(steps["_row"].to_numpy(), minlength=training.size)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    columns = [Column("hours", "numeric", "hours"), *(Column(name, "numeric", name) for name in kept)]
    return columns, values, offsets
