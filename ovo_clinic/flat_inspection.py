"""Looks at the flat files of a private data set: what each column holds, counted over the whole file."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from ovo_clinic.errors import UserError
from ovo_clinic.raw import RawFolder
from ovo_clinic.spec import ColumnType, TableSpec

SUFFIX = re.compile(r"\.(csv\.gz|csv|parquet)$", re.IGNORECASE)
NOT_AVAILABLE = ["NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "."]
_UNNAMED = re.compile(r"|unnamed: \d+|__index_level_\d+__")  # what pandas calls the row numbers that it writes
_FEW_LEVELS = 10


@dataclass(frozen=True)
class ColumnFacts:
    """What a scan told of a column; cells such as NA count as empty.

    Attributes:
        words: the column's name with its words in lower case and joined by _ (`patientId` -> `patient_id`).
        type: `text` unless every filled cell is a number, written without leading zeros.
        rows, filled, distinct: cells, filled ones, different values (without blanks around them).
        numbers: cells that are numbers; 0 where some have leading zeros, as codes have.
        zero_one: whether every filled cell is 0 or 1.
        consecutive: whether the values are whole numbers without a gap, each once.
        dates: whether it holds calendar dates.
        not_utf8: cells that are not UTF-8 text.
        not_available: words such as NA that occur.
    """

    words: str
    type: ColumnType
    rows: int
    filled: int
    distinct: int
    numbers: int
    zero_one: bool
    consecutive: bool
    dates: bool
    not_utf8: int
    not_available: tuple[str, ...]

    @property
    def mixed(self) -> bool:
        """Whether these are numbers with other texts among them, as in `hemolyzed`."""
        return self.type == "text" and self.numbers * 2 >= self.filled > 0 and self.distinct > _FEW_LEVELS

    @property
    def numeric(self) -> bool:
        """Whether it can be read as numbers, once the other texts of a mixed column are declared missing."""
        return self.type != "text" or self.mixed


# One query over the measures of hundreds of columns takes polars minutes and gigabytes.
_COLUMNS_AT_ONCE = 64


@dataclass(frozen=True)
class FlatFile:
    """A file, its name in the spec, its columns by lower-case name, and those that pandas made of row numbers."""

    path: Path
    table: str
    columns: dict[str, ColumnFacts]
    unnamed: list[str]

    def unique(self, column: str) -> bool:
        """Whether every row has a value of its own."""
        return self.columns[column].distinct == self.columns[column].rows


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


def words(name: str) -> str:
    """A column's name with its words in lower case and joined by _."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return re.sub(r"[\W_]+", "_", parted).strip("_").lower()


def _header(path: Path) -> list[str]:
    schema = pl.scan_parquet(path) if path.suffix.lower() == ".parquet" else pl.scan_csv(path, infer_schema=False)
    return [name.strip() for name in schema.collect_schema().names()]


def _scan(path: Path, table: str) -> FlatFile:
    """Reads a whole file once, as text, so that no type is guessed from its first rows alone."""
    stem, folders = SUFFIX.sub("", path.name), {"": path.parent}
    RawFolder(folders, {table: TableSpec(file=stem, columns={})})  # refuses what is no table
    header = {name.lower(): name for name in _header(path)}
    unnamed = [name for name in header if _UNNAMED.fullmatch(name)]
    names = [name for name in header if name not in unnamed]
    raw = RawFolder(folders, {table: TableSpec(file=stem, columns=dict.fromkeys(names, "text"))})
    columns: dict[str, ColumnFacts] = {}
    for start in range(0, len(names), _COLUMNS_AT_ONCE):
        read = raw.collect(raw.scan(table).select(names[start : start + _COLUMNS_AT_ONCE]), table)
        for name in read.columns:
            columns[name] = _facts(words(header[name]), read.select(**_measures(name)).row(0, named=True))
    return FlatFile(path, table, columns, unnamed)


def _measures(name: str) -> dict[str, pl.Expr]:
    given = pl.col(name)
    column = given.replace(NOT_AVAILABLE, None)
    whole = column.str.to_integer(strict=False)
    return {
        "rows": pl.len(),
        "filled": column.count(),
        "integers": column.str.contains(r"^[+-]?\d{1,18}$").sum(),
        "padded": column.str.contains(r"^[+-]?0\d").sum(),  # codes such as 0389, which a number would shorten
        "numbers": column.cast(pl.Float64, strict=False).count(),
        "zero_one": column.is_in(["0", "1"]).sum(),
        "distinct": column.str.strip_chars().drop_nulls().n_unique(),
        "low": whole.min(),
        "high": whole.max(),
        "dates": column.str.contains(r"^\s*(\d{4}-\d\d?-\d\d?|\d\d?[./-]\d\d?[./-]\d{4})").sum(),
        "not_utf8": column.str.contains("\ufffd").sum(),
        "not_available": given.filter(given.is_in(NOT_AVAILABLE)).unique().sort().implode(),
    }


def _facts(name: str, found: dict[str, Any]) -> ColumnFacts:
    filled, distinct = found["filled"], found["distinct"]
    numbers = found["numbers"] if found["padded"] == 0 else 0
    is_number = filled == numbers > 0
    is_integer = is_number and filled == found["integers"]
    return ColumnFacts(
        words=name,
        type="integer" if is_integer else "number" if is_number else "text",
        rows=found["rows"],
        filled=filled,
        distinct=distinct,
        numbers=numbers,
        zero_one=is_integer and filled == found["zero_one"],
        consecutive=is_integer and distinct == found["rows"] == found["high"] - found["low"] + 1,
        dates=found["dates"] * 2 > filled,
        not_utf8=found["not_utf8"],
        not_available=tuple(found["not_available"]),
    )
