"""Looks at the flat files of a private data set and guesses which column plays which part."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from ovo_clinic.errors import UserError
from ovo_clinic.raw import RawFolder
from ovo_clinic.spec import ColumnType, TableSpec

SUFFIX = re.compile(r"\.(csv\.gz|csv|parquet)$", re.IGNORECASE)
ID = re.compile(r"id$|(^|_)(mrn|key|no|nr)$")
_LABEL = re.compile(r"(^|_)(label|target|outcome|died|death|dead|deceased|mortality|expired)(_|$)")
_OUTCOME = re.compile(r"outcome|died|death|dead|deceased|dod$|mortality|expire|surviv|discharge|readmi")
_PATIENT = re.compile(r"(^|_)(patient|subject|person)(_?(id|no|nr|number|key))?$|mrn$|pid$")


@dataclass(frozen=True)
class ColumnFacts:
    """What a scan told: the type, whether every cell is filled, whether filled ones are 0 or 1, how many values."""

    type: ColumnType
    full: bool
    zero_one: bool
    distinct: int


@dataclass(frozen=True)
class FlatFile:
    """A file, its name in the spec, and its columns by lower-case name."""

    path: Path
    table: str
    rows: int
    columns: dict[str, ColumnFacts]

    def unique(self, column: str) -> bool:
        """Whether every row has a value of its own."""
        return self.columns[column].distinct == self.rows


@dataclass(frozen=True)
class Wishes:
    """What the user said; see `new_dataset`."""

    unit: str | None = None
    patient: str | None = None
    label: str | None = None
    classes: tuple[str, ...] = ()
    prediction_hours: float | None = None


@dataclass(frozen=True)
class Parts:
    """Which column plays which part.

    Attributes:
        cohort: the file with the label.
        unit, patient, label: columns of it.
        banned: columns of any file that look as if they stated the outcome.
    """

    cohort: FlatFile
    unit: str
    patient: str
    label: str
    banned: list[str]

    @property
    def never(self) -> set[str]:
        """Columns that may not become features."""
        return {self.unit, self.patient, self.label, *self.banned}


def look(files: Sequence[Path]) -> list[FlatFile]:
    """Scans every file once.

    Raises:
        UserError: a file is absent, damaged or of another sort, or the files lie in different folders.
    """
    if len({path.resolve().parent for path in files}) != 1:
        raise UserError("--csv: give at least one file, and all from one folder, which becomes --raw")
    by_table: dict[str, Path] = {}
    for path in files:
        if not path.is_file() or not SUFFIX.search(path.name):
            raise UserError(f"--csv: {path} should be a file named .csv, .csv.gz or .parquet")
        table = re.sub(r"\W+", "_", SUFFIX.sub("", path.name).lower())
        if table in by_table:
            raise UserError(f"--csv: {path} and {by_table[table]} would both be table '{table}'; rename one")
        by_table[table] = path
    return [_scan(path, table) for table, path in by_table.items()]


def _header(path: Path) -> list[str]:
    schema = pl.scan_parquet(path) if path.suffix.lower() == ".parquet" else pl.scan_csv(path, infer_schema=False)
    return [name.strip().lower() for name in schema.collect_schema().names()]


def _scan(path: Path, table: str) -> FlatFile:
    """Reads a whole file once, as text, so that no type is guessed from its first rows alone."""
    stem, folders = SUFFIX.sub("", path.name), {"": path.parent}
    RawFolder(folders, {table: TableSpec(file=stem, columns={})})  # refuses what is no table
    header = _header(path)
    raw = RawFolder(folders, {table: TableSpec(file=stem, columns=dict.fromkeys(header, "text"))})
    measures = [pl.len().alias("rows")]
    for name in header:
        column = pl.col(name)
        kinds = {
            "filled": column.count(),
            "integers": column.str.contains(r"^[+-]?\d{1,18}$").sum(),
            "padded": column.str.contains(r"^[+-]?0\d").sum(),  # codes such as 0389, which a number would shorten
            "numbers": column.cast(pl.Float64, strict=False).count(),
            "zero_one": column.is_in(["0", "1"]).sum(),
            "distinct": column.drop_nulls().n_unique(),
        }
        measures += [measure.alias(f"{kind} {name}") for kind, measure in kinds.items()]
    found = raw.collect(raw.scan(table).select(measures), table).row(0, named=True)
    columns = {}
    for name in header:
        filled = found[f"filled {name}"]
        is_number = filled == found[f"numbers {name}"] > 0 == found[f"padded {name}"]
        is_integer = is_number and filled == found[f"integers {name}"]
        columns[name] = ColumnFacts(
            type="integer" if is_integer else "number" if is_number else "text",
            full=filled == found["rows"],
            zero_one=filled == found[f"zero_one {name}"],
            distinct=found[f"distinct {name}"],
        )
    return FlatFile(path, table, found["rows"], columns)


def find(files: Sequence[FlatFile], wishes: Wishes) -> Parts:
    """Settles which column plays which part.

    Raises:
        UserError: something is not clear from names and values; the message names the option and the candidates.
    """
    cohort, label = _label(files, wishes)
    unit = _unit(files, cohort, label, wishes)
    patient = _patient(cohort, unit, label, wishes)
    column = cohort.columns[label]
    if not (column.zero_one and column.distinct == 2) and column.distinct != len(wishes.classes):
        raise UserError(
            f"--classes: column '{label}' of {cohort.path.name} has {column.distinct} different values, not just 0 and "
            "1; list them in order, the negative one first"
        )
    outcomes = {name for file in files for name in file.columns if _OUTCOME.search(name)}
    return Parts(cohort, unit, patient, label, sorted(outcomes - {unit, patient, label}))


def _label(files: Sequence[FlatFile], wishes: Wishes) -> tuple[FlatFile, str]:
    if wishes.label is not None:
        found = [(file, wishes.label.lower()) for file in files if wishes.label.lower() in file.columns]
    else:
        found = [
            (file, name)
            for file in files
            for name, column in file.columns.items()
            if _LABEL.search(name) and 2 <= column.distinct <= 10
        ]
    if len(found) == 1:
        return found[0]
    listed = found or [(file, name) for file in files for name, column in file.columns.items() if column.distinct == 2]
    candidates = ", ".join(f"'{name}' of {file.path.name}" for file, name in listed) or "none"
    raise UserError(
        f"--label: {'no column' if not found else 'more than one column'} is clearly the one to predict; "
        f"candidates: {candidates}"
    )


def _unit(files: Sequence[FlatFile], cohort: FlatFile, label: str, wishes: Wishes) -> str:
    shared = [name for name in cohort.columns if name != label and all(name in file.columns for file in files)]
    if wishes.unit is not None and wishes.unit.lower() not in shared:
        raise UserError(
            f"--unit: '{wishes.unit}' is not a column of every file; these are: {', '.join(shared) or 'none'}"
        )
    keys = [wishes.unit.lower()] if wishes.unit else shared
    found = [name for name in keys if cohort.unique(name) and cohort.columns[name].type != "number"]
    named = [name for name in found if ID.search(name)]
    if len(named or found) != 1:
        raise UserError(
            f"--unit: the column that names the unit should be in every file and have no value twice in "
            f"{cohort.path.name}, which holds the label; candidates: {', '.join(found) or 'none'}"
        )
    return (named or found)[0]


def _patient(cohort: FlatFile, unit: str, label: str, wishes: Wishes) -> str:
    if wishes.patient is not None:
        if wishes.patient.lower() not in cohort.columns:
            raise UserError(
                f"--patient: {cohort.path.name} has no column '{wishes.patient}'; it has {', '.join(cohort.columns)}"
            )
        return wishes.patient.lower()
    found = [name for name in cohort.columns if _PATIENT.search(name) and name not in (unit, label)]
    if len(found) > 1:
        raise UserError(f"--patient: more than one column of {cohort.path.name} names a person: {', '.join(found)}")
    return found[0] if found else unit
