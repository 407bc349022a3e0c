"""Turns a modality's table into a named array; vocabularies and levels come from the training units only."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from ovo_clinic.tables import CodesTable, SequenceTable, StepsTable, SummariesTable, VectorTable, Vocabulary

if TYPE_CHECKING:
    from ovo_clinic.types import ModalityKind  # its module loads torch

Role = Literal["numeric", "binary", "count"]
BLANK = "(blank)"
_PARTS = ("present", "offsets", "hours", "index")


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
    """A modality's values for all units; a memory-mapped one goes to another process as the name of its file.

    Attributes:
        columns: F features, in order; of an image its channels, of token ids none.
        values: (N,F), or (steps,F) for a sequence; float32 with NaN = missing, or uint8 for codes. Rows of units in
            which the modality is absent hold no information. For images (n,1,H,W) uint8, for texts token ids (tokens,).
        present: (N,) bool, True where the table has a row of the unit.
        offsets: for a sequence or a text, (N+1,) int64: unit i owns the steps offsets[i] to offsets[i+1].
        kind: as in `types.Modality`.
        hours: (steps,) float64, the time of each step where no column holds it; for `export`.
        index: for images, (N,) int64: the unit's row of `values`, -1 = absent.
        vocabulary: for token ids, how many there are.
    """

    columns: list[Column]
    values: npt.NDArray[Any]
    present: npt.NDArray[np.bool_]
    offsets: npt.NDArray[np.int64] | None = None
    kind: "ModalityKind" = "vector"
    hours: npt.NDArray[np.float64] | None = None
    index: npt.NDArray[np.int64] | None = None
    vocabulary: int = 0

    def __post_init__(self) -> None:
        assert (self.offsets is not None) == (self.kind in ("sequence", "text")), self.kind
        assert (self.index is not None) == (self.kind == "image"), self.kind
        assert self.kind != "text" or self.vocabulary > 0

    def describe(self) -> dict[str, Any]:
        """All but the arrays as plain values, for the manifest."""
        described = {"kind": self.kind, "columns": [asdict(column) for column in self.columns]}
        return described | ({"vocabulary": self.vocabulary} if self.vocabulary else {})

    def write(self, folder: Path, name: str) -> None:
        """Writes `<name>.npy`, and `<name>.present.npy` and the like for what goes with the values."""
        np.save(folder / f"{name}.npy", self.values, allow_pickle=False)
        self.write_parts(folder, name)

    def write_parts(self, folder: Path, name: str) -> None:
        """Writes all but the values."""
        for part in _PARTS:
            if (array := getattr(self, part)) is not None:
                np.save(folder / f"{name}.{part}.npy", array, allow_pickle=False)

    @classmethod
    def read(cls, folder: Path, name: str, described: Mapping[str, Any]) -> "ModalityArray":
        """What `write` wrote, the values memory-mapped; `described` is what `describe` gave."""
        files = {part: folder / f"{name}.{part}.npy" for part in _PARTS}
        parts = {part: np.load(file, allow_pickle=False) for part, file in files.items() if file.is_file()}
        return cls(
            columns=[Column(**column) for column in described["columns"]],
            values=_mapped(folder / f"{name}.npy"),
            kind=described["kind"],
            vocabulary=described.get("vocabulary", 0),
            **parts,
        )

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if isinstance(self.values, np.memmap):
            state["values"] = str(self.values.filename)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        values = state["values"]
        self.__dict__.update(state | {"values": values if isinstance(values, np.ndarray) else _mapped(Path(values))})


def _mapped(file: Path) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
    return values


TabularTable = VectorTable | CodesTable | SummariesTable | SequenceTable | StepsTable


def build(table: TabularTable, units: pl.Series, training: npt.NDArray[np.bool_]) -> ModalityArray:
    """The array of one modality; those of images and texts are made elsewhere.

    Args:
        table: from the pipeline; rows of units outside the cohort are left out.
        units: (N,) unit ids of the cohort, in the order of the arrays' rows.
        training: (N,) bool, True for training units.
    """
    position = pl.DataFrame({"unit_id": units, "_row": np.arange(units.len()), "_training": training})
    if isinstance(table, StepsTable):
        return _steps(table.frame, position)
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
            return ModalityArray(columns, values, present, offsets, kind="sequence")
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
    """Codes or variables that enough training units have, sorted; or those that the vocabulary fixes."""
    if vocabulary.fixed is not None:
        return list(vocabulary.fixed)
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
    columns = [Column("hours", "numeric", "hours"), *(Column(name, "numeric", name) for name in kept)]
    return columns, values, _offsets(steps["_row"].to_numpy(), training.size)


def _steps(frame: pl.DataFrame, position: pl.DataFrame) -> ModalityArray:
    """Only the order of the rows is sorted, and columns are copied one by one: the frame may be large."""
    keys = frame.select("unit_id", "hours").with_row_index("_place")
    keys = keys.join(position, on="unit_id", how="inner").sort("_row", "hours")
    assert not keys.select("_row", "hours").is_duplicated().any(), "a steps table has two rows of one unit and time"
    names = [name for name in frame.columns if name not in ("unit_id", "hours")]
    values = np.empty((keys.height, len(names)), dtype=np.float32)
    for place, name in enumerate(names):
        values[:, place] = frame[name].gather(keys["_place"]).cast(pl.Float32).fill_null(np.nan).to_numpy()
    rows = keys["_row"].to_numpy()
    present = np.zeros(position.height, dtype=np.bool_)
    present[rows] = True
    return ModalityArray(
        columns=[Column(name, "binary" if frame[name].dtype == pl.Boolean else "numeric", name) for name in names],
        values=values,
        present=present,
        offsets=_offsets(rows, position.height),
        kind="sequence",
        hours=keys["hours"].to_numpy(),
    )


def _offsets(rows: npt.NDArray[np.int64], units: int) -> npt.NDArray[np.int64]:
    """(N+1,) where each unit's steps begin; `rows` names the unit of each step, ascending."""
    return np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=units))]).astype(np.int64)
