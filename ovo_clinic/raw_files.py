"""One raw file, csv, csv.gz or parquet: looked at before it is read, and its faults explained in one line."""

import csv
import difflib
import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from ovo_clinic.errors import UserError
from ovo_clinic.spec import TableSpec

_GZIP_MAGIC = b"\x1f\x8b"
_SAMPLE_BYTES = 1 << 16
_HEADER_BYTES = 1 << 20  # at most; one of 2,000 columns may take 100 KB
_SAMPLE_ROWS = 1000
_HASHED_BYTES = 1 << 20
_SHOWN = 8  # names in a message, at most
_SHOWN_CHARACTERS = 40  # of each
_PLAIN_INTEGER = re.compile(r"[+-]?\d+")
AGAIN = "copy or download the file again"


@dataclass(frozen=True)
class RawFile:
    """A file whose head was looked at.

    Attributes:
        path: where it lies.
        headers: the file's own name of each declared column; an optional one that it lacks is not in it.
        decorated: integer columns not seen as plain integers in the head (`123.0`, as pandas writes them, or blank).
        missing: texts that mean a missing value.
    """

    path: Path
    headers: Mapping[str, str]
    decorated: frozenset[str]
    missing: tuple[str, ...]


def inspect(path: Path, name: str, tables: Mapping[str, TableSpec]) -> RawFile:
    """Looks at the header, the first rows and the end of the file of table `name`.

    Raises:
        UserError: it is empty, has no rows, is no CSV, is cut off, lacks a column, or holds another of the tables.
    """
    table = tables[name]
    header, *rows = _parquet_head(path) if is_parquet(path) else _head(path)
    names = [column.strip().lower() for column in header]
    headers = _headers(path, name, tables, dict(zip(names, header, strict=True)))
    if twice := [column for column, own in headers.items() if names.count(own.strip().lower()) > 1]:
        raise UserError(f"{path}: has two columns '{_shown(twice[0])}'; rename or remove one")
    if not rows:
        raise UserError(f"{path}: has a header but no rows; {AGAIN}")
    wrong = next((number for number, row in enumerate(rows, start=2) if len(row) != len(header)), None)
    if wrong is not None:
        raise UserError(
            f"{path}: record {wrong} has {len(rows[wrong - 2])} fields where the header has {len(header)}; "
            f"quote text that holds commas, or {AGAIN}"
        )
    if not is_parquet(path) and _ends_early(path, len(header)):
        raise UserError(f"{path}: is cut off in its last row; {AGAIN}")
    decorated = [
        column
        for column, own in headers.items()
        if table.all_columns[column] == "integer" and not _plain([row[header.index(own)] for row in rows])
    ]
    return RawFile(path, headers, frozenset(decorated), ("", *table.missing))


def _headers(path: Path, name: str, tables: Mapping[str, TableSpec], found: Mapping[str, str]) -> dict[str, str]:
    """The file's own name of each declared column that it has; `found` holds them by lower-case name."""
    table = tables[name]
    accepted = {column: [column, *table.renamed.get(column, [])] for column in table.all_columns}
    headers = {
        column: next(found[other] for other in others if other in found)
        for column, others in accepted.items()
        if any(other in found for other in others)
    }
    missing = [column for column in table.columns if column not in headers]
    if not missing:
        return headers
    for other, another in tables.items():
        if other != name and another.columns and set(another.columns) <= set(found):
            raise UserError(f"{path}: holds the columns of table '{other}', not of '{name}'; put the right file there")
    near = difflib.get_close_matches(missing[0], list(found), n=1, cutoff=0.7)
    hint = f" (its column '{_shown(near[0])}' is near '{missing[0]}')" if near else ""
    first = next(iter(found))
    if len(found) == 1 and (separator := re.search(r"[;\t|]", first)):
        hint = f" (columns are separated by {separator.group()!r}, not by a comma)"
    raise UserError(
        f"{path}: has no column {shown_names(missing)}{hint}; rename the columns, or put the right file there"
    )


def shown_names(names: Sequence[str]) -> str:
    """Names for a message: the first few, each at a bounded length, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(_shown(name) for name in names[:_SHOWN]) + more


def _shown(name: str) -> str:
    line = " ".join(name.split())
    return line if len(line) <= _SHOWN_CHARACTERS else f"{line[:_SHOWN_CHARACTERS]}..."


def is_parquet(path: Path) -> bool:
    """By its name."""
    return path.suffix.lower() == ".parquet"


def _parquet_head(path: Path) -> list[list[str]]:
    """The header and the first rows of a parquet file, as text."""
    try:
        frame = pl.scan_parquet(path).head(_SAMPLE_ROWS).cast(pl.String).collect()
    except (pl.exceptions.PolarsError, OSError):
        raise UserError(f"{path}: is cut off, damaged, or no parquet table of plain columns; {AGAIN}") from None
    return [frame.columns, *([cell or "" for cell in row] for row in frame.iter_rows())]


def _head(path: Path) -> list[list[str]]:
    """The header and the first complete records of a file."""
    try:
        with path.open("rb") as file:
            header, start = file.readline(_HEADER_BYTES), file.read(_SAMPLE_BYTES)
        if header.startswith(_GZIP_MAGIC):
            with gzip.open(path) as file:
                header, start = file.readline(_HEADER_BYTES), file.read(_SAMPLE_BYTES)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise UserError(f"{path}: is cut off or damaged; {AGAIN}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); put a readable file there") from None
    if b"\r" in header.removesuffix(b"\n").removesuffix(b"\r"):
        raise UserError(f"{path}: its lines end in carriage returns alone; save it with line feeds, as other CSV files")
    complete, start = len(start) < _SAMPLE_BYTES, header + start
    if b"\0" in start or start.startswith(b"PK"):
        raise UserError(f"{path}: is not CSV text (an archive or a spreadsheet?); unpack it, or save it as CSV")
    text = start.decode("utf-8-sig", errors="replace")
    if text.lstrip().startswith("<"):
        raise UserError(f"{path}: is a web page, not CSV (a log-in page saved by mistake?); download the file again")
    try:
        records = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    except csv.Error:  # a cell that is longer than any should be
        raise _broken(path) from None
    if not records:
        raise UserError(f"{path}: is empty; {AGAIN}")
    return records if complete or len(records) == 1 else records[:-1]


def _ends_early(path: Path, fields: int) -> bool:
    """Whether the last row of a plain file stops short; gzip has a checksum of its own."""
    with path.open("rb") as file:
        gzipped = file.read(2) == _GZIP_MAGIC
        file.seek(max(0, path.stat().st_size - _SAMPLE_BYTES))
        last = file.read().rpartition(b"\n")[2]
    return bool(last) and not gzipped and b'"' not in last and last.count(b",") + 1 < fields


def _plain(cells: list[str]) -> bool:
    filled = [cell for cell in cells if cell]
    return bool(filled) and all(_PLAIN_INTEGER.fullmatch(cell) for cell in filled)


def content_hash(path: Path) -> str:
    """sha256 of the file; of a gzip file its first, middle and last mebibyte, which end with its own checksum."""
    size = path.stat().st_size
    digest = hashlib.sha256()
    with path.open("rb") as file:
        if file.read(2) != _GZIP_MAGIC:
            file.seek(0)
            return hashlib.file_digest(file, "sha256").hexdigest()
        for start in sorted({0, max(0, (size - _HASHED_BYTES) // 2), max(0, size - _HASHED_BYTES)}):
            file.seek(start)
            digest.update(file.read(_HASHED_BYTES))
    return digest.hexdigest()


def explained(error: Exception, file: RawFile) -> Exception:
    """The user's mistake behind an error of polars; the error itself where it is a fault of the program."""
    message = str(error)
    if _is_damaged(file.path):
        return UserError(f"{file.path}: is cut off or damaged (its checksum fails); {AGAIN}")
    patterns = (
        r"could not parse `.*?` as dtype `(?P<type>[if]64)` at column '(?P<column>.*?)'",
        r"conversion from `\w+` to `(?P<type>[if]64)` failed in column '(?P<column>.*?)'",
    )
    for pattern in patterns:
        if found := re.search(pattern, message, re.DOTALL):
            return _not_numeric(file, found["column"], whole=found["type"] == "i64")
    lost = isinstance(error, pl.exceptions.ColumnNotFoundError) and re.search('unable to find column "(.*?)"', message)
    if lost and lost[1] in file.headers.values():  # quotes in the header, which two readers take differently
        return _broken(file.path)
    if re.search("found more fields|CSV malformed|as dtype `str`", message):
        return _broken(file.path)
    if isinstance(error, OSError):
        return UserError(f"{file.path}: cannot be read ({' '.join(message.split())}); {AGAIN}")
    return error


def _not_numeric(file: RawFile, column: str, whole: bool) -> UserError:
    """What stands in the cells is not told: it may be a patient's."""
    where, kind = f"{file.path}: column '{_shown(column)}'", "a whole number" if whole else "a number"
    places = _places(file, column, whole)
    if places is None:
        return _broken(file.path)
    return UserError(f"{where} should be {kind} and is not in {places}; correct it, or {AGAIN}")


def _broken(path: Path) -> UserError:
    return UserError(f"{path}: its rows or quotes are broken; quote text that holds commas, or {AGAIN}")


def _places(file: RawFile, column: str, whole: bool) -> str | None:
    """How many cells are no numbers, and where the first one stands; None where the file cannot be read as texts."""
    if is_parquet(file.path):
        table = pl.scan_parquet(file.path)
    else:
        table = pl.scan_csv(file.path, infer_schema=False, encoding="utf8-lossy")
    given = pl.col(file.headers.get(column, column)).cast(pl.String)
    if column.strip().lower() in file.decorated:
        given = given.str.strip_suffix(".0")
    number = given.cast(pl.Int64 if whole else pl.Float64, strict=False)
    wrong = number.is_null() & ~given.is_in(file.missing)
    try:
        count, first = table.select(wrong.sum(), first=wrong.arg_max()).collect(engine="streaming").row(0)
    except (pl.exceptions.PolarsError, OSError):
        return None
    return f"{count} rows, the first of them record {first + 2}" if count else None


def _is_damaged(path: Path) -> bool:
    """Whether a gzip file fails its own checksum; read in full, so only asked once something is wrong."""
    try:
        with path.open("rb") as file:
            if file.read(2) != _GZIP_MAGIC:
                return False
        with gzip.open(path) as stream:
            while stream.read(_HASHED_BYTES):
                pass
    except (EOFError, zlib.error, OSError):
        return True
    return False
