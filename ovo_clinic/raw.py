"""Raw folders of csv, csv.gz or parquet files: checked early, read streaming, with one-line errors."""

import csv
import difflib
import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from ovo_clinic.errors import UserError
from ovo_clinic.spec import TableSpec

_DTYPES = {"integer": pl.Int64, "number": pl.Float64, "text": pl.String}
_GZIP_MAGIC = b"\x1f\x8b"
_SAMPLE_BYTES = 1 << 16
_HEADER_BYTES = 1 << 20  # at most; one of 2,000 columns may take 100 KB
_SAMPLE_ROWS = 1000
_HASHED_BYTES = 1 << 20
_PLAIN_INTEGER = re.compile(r"[+-]?\d+")
_AGAIN = "copy or download the file again"


@dataclass(frozen=True)
class _File:
    """A file whose head was looked at.

    Attributes:
        path: where it lies.
        headers: the file's own name of each declared column.
        decorated: integer columns not seen as plain integers in the head (`123.0`, as pandas writes them, or blank).
    """

    path: Path
    headers: Mapping[str, str]
    decorated: frozenset[str]


class RawFolder:
    """The raw files of one data set.

    Every file's name, header and first rows are checked on construction: a mistake shows before hours are spent.
    Not noticed: a row with too few fields, beyond the first 64 KiB, reads as if its last fields were blank;
    `check_fields` looks for that.

    Args:
        folders: folder of each source; "" stands for every source that is not named.
        tables: what the files hold, by the name the pipeline uses.

    Raises:
        UserError: a folder, file or column is missing; a file is empty, has no rows, is no CSV or another table.
    """

    def __init__(self, folders: Mapping[str, Path], tables: Mapping[str, TableSpec]) -> None:
        self._tables = tables
        self._files = {name: self._open(name, _folder(folders, table)) for name, table in tables.items()}

    def path(self, table: str) -> Path | None:
        """The table's file; None only for an optional one that is absent."""
        file = self._files[table]
        return None if file is None else file.path

    def scan(self, table: str) -> pl.LazyFrame:
        """The declared columns by lower-case name: Int64, Float64 (null unless finite) or String (null where blank)."""
        file, columns = self._file(table), self._tables[table].columns
        missing = ["", *self._tables[table].missing]
        text = {file.headers[name] for name in file.decorated}
        dtypes = {
            header: pl.String() if header in text else _DTYPES[columns[name]]() for name, header in file.headers.items()
        }
        if _is_parquet(file.path):
            blanked = pl.scan_parquet(file.path).with_columns(pl.col(pl.String).replace(missing, None))
            frame = blanked.select(pl.col(name).cast(dtype) for name, dtype in dtypes.items())
        else:
            frame = pl.scan_csv(
                file.path,
                schema_overrides=dtypes,
                infer_schema=False,
                null_values=missing,
                encoding="utf8-lossy",  # free text of old systems must not stop the reading
            )
        return frame.select(_column(name, kind, file) for name, kind in columns.items())

    def check_fields(self, table: str) -> None:
        """Looks at every row of an unquoted csv file; a parquet file, or one with quotes, is left alone.

        Raises:
            UserError: a row has not as many fields as the header.
        """
        path = self._file(table).path
        if _is_parquet(path):
            return
        # A separator that no text holds makes every line one field.
        lines = pl.scan_csv(
            path,
            has_header=False,
            schema={"line": pl.String},
            separator="\x1f",
            quote_char=None,
            encoding="utf8-lossy",
        )
        fields = pl.col("line").str.count_matches(",", literal=True) + 1
        counts = self.collect(
            lines.drop_nulls().select(fields, quoted=pl.col("line").str.contains('"', literal=True)), table
        )
        wrong = counts.filter(pl.col("line") != pl.col("line").first()).height
        if wrong and not counts["quoted"].any():
            raise UserError(f"{path}: {wrong} rows have not the header's {counts['line'][0]} fields; {_AGAIN}")

    def collect(self, query: pl.LazyFrame, table: str) -> pl.DataFrame:
        """Runs a query on `scan(table)` with the streaming engine.

        Raises:
            UserError: the file is cut off or damaged, or holds text in a numeric column.
        """
        try:
            return query.collect(engine="streaming")
        except (pl.exceptions.PolarsError, OSError) as error:
            raise _explained(error, self._file(table)) from None

    def batches(self, query: pl.LazyFrame, table: str) -> Iterator[pl.DataFrame]:
        """The result of a query on `scan(table)`, piece by piece in any order, for files larger than memory.

        Raises:
            UserError: as `collect`.
        """
        try:
            yield from query.collect_batches(engine="streaming", maintain_order=False)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise _explained(error, self._file(table)) from None

    def read(self, table: str) -> pl.DataFrame:
        """A small table whole, with its `unique` column checked.

        Raises:
            UserError: as `collect`; or the unique column is blank or holds a value twice.
        """
        frame, unique = self.collect(self.scan(table), table), self._tables[table].unique
        if unique is None:
            return frame
        path, blank = self.path(table), frame[unique].null_count()
        if blank:
            raise UserError(f"{path}: column '{unique}' is blank in {blank} rows; remove them, or {_AGAIN}")
        twice = frame.height - frame[unique].n_unique()
        if twice:
            raise UserError(
                f"{path}: column '{unique}' holds {twice} values more than once; it should be unique: remove the "
                f"repeated rows, or {_AGAIN}"
            )
        return frame

    def fingerprint(self) -> list[dict[str, Any]]:
        """Name, size and content hash of each file; its date and folder make no difference."""
        return [
            {
                "table": table,
                "file": file.path.name,
                "bytes": file.path.stat().st_size,
                "sha256": _content_hash(file.path),
            }
            for table, file in self._files.items()
            if file is not None
        ]

    def _file(self, table: str) -> _File:
        file = self._files[table]
        assert file is not None, f"optional table {table} is absent: ask path() first"
        return file

    def _open(self, name: str, folder: Path) -> _File | None:
        table = self._tables[name]
        names = [f"{table.file}{suffix}".lower() for suffix in (".csv.gz", ".csv", ".parquet")]
        found = {path.name.lower(): path for path in folder.iterdir()}
        path = next((found[wanted] for wanted in names if wanted in found), None)
        if path is None and table.required:
            near = difflib.get_close_matches(names[0], list(found), n=1)
            hint = f"; '{found[near[0]].name}' is there, is it the one?" if near else ""
            raise UserError(
                f"{folder}: has no file {table.file}.csv or {table.file}.csv.gz{hint}; give the folder that has"
            )
        return None if path is None else self._inspect(name, path)

    def _inspect(self, name: str, path: Path) -> _File:
        header, *rows = _parquet_head(path) if _is_parquet(path) else _head(path)
        columns = {column.strip().lower(): column for column in header}
        self._check_columns(name, path, list(columns))
        names = [column.strip().lower() for column in header]
        if twice := [column for column in self._tables[name].columns if names.count(column) > 1]:
            raise UserError(f"{path}: has two columns '{twice[0]}'; rename or remove one")
        if not rows:
            raise UserError(f"{path}: has a header but no rows; {_AGAIN}")
        wrong = next((number for number, row in enumerate(rows, start=2) if len(row) != len(header)), None)
        if wrong is not None:
            raise UserError(
                f"{path}: record {wrong} has {len(rows[wrong - 2])} fields where the header has {len(header)}; "
                f"quote text that holds commas, or {_AGAIN}"
            )
        if not _is_parquet(path) and _ends_early(path, len(header)):
            raise UserError(f"{path}: is cut off in its last row; {_AGAIN}")
        headers = {column: columns[column] for column in self._tables[name].columns}
        decorated = [
            column
            for column, kind in self._tables[name].columns.items()
            if kind == "integer" and not _plain([row[header.index(headers[column])] for row in rows])
        ]
        return _File(path, headers, frozenset(decorated))

    def _check_columns(self, name: str, path: Path, header: list[str]) -> None:
        missing = [column for column in self._tables[name].columns if column not in header]
        if not missing:
            return
        for other, table in self._tables.items():
            if other != name and set(table.columns) <= set(header):
                raise UserError(
                    f"{path}: holds the columns of table '{other}', not of '{name}'; put the right file there"
                )
        near = difflib.get_close_matches(missing[0], header, n=1, cutoff=0.7)
        hint = f" (its column '{near[0]}' is near '{missing[0]}')" if near else ""
        if len(header) == 1 and (found := re.search(r"[;\t|]", header[0])):
            hint = f" (columns are separated by {found.group()!r}, not by a comma)"
        raise UserError(
            f"{path}: has no column {', '.join(missing)}{hint}; rename the columns, or put the right file there"
        )


def _folder(folders: Mapping[str, Path], table: TableSpec) -> Path:
    folder = folders.get(table.source, folders.get(""))
    if folder is None:
        raise UserError(f"--raw: no folder is given for source '{table.source}'; give --raw {table.source}=DIR")
    if not folder.is_dir():
        raise UserError(f"--raw: {folder} is not a folder; give the folder of the csv or csv.gz files")
    return folder


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() == ".parquet"


def _parquet_head(path: Path) -> list[list[str]]:
    """The header and the first rows of a parquet file, as text."""
    try:
        frame = pl.scan_parquet(path).head(_SAMPLE_ROWS).cast(pl.String).collect()
    except (pl.exceptions.PolarsError, OSError):
        raise UserError(f"{path}: is cut off, damaged, or no parquet table of plain columns; {_AGAIN}") from None
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
        raise UserError(f"{path}: is cut off or damaged; {_AGAIN}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    complete, start = len(start) < _SAMPLE_BYTES, header + start
    if b"\0" in start or start.startswith(b"PK"):
        raise UserError(f"{path}: is not CSV text (an archive or a spreadsheet?); unpack it, or save it as CSV")
    text = start.decode("utf-8-sig", errors="replace")
    if text.lstrip().startswith("<"):
        raise UserError(f"{path}: is a web page, not CSV (a log-in page saved by mistake?); download the file again")
    records = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    if not records:
        raise UserError(f"{path}: is empty; {_AGAIN}")
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


def _column(name: str, kind: str, file: _File) -> pl.Expr:
    column = pl.col(file.headers[name])
    if kind == "number":
        column = pl.when(column.is_finite()).then(column)
    elif name in file.decorated:
        column = column.str.strip_suffix(".0").cast(pl.Int64)
    return column.alias(name)


def _content_hash(path: Path) -> str:
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


def _explained(error: Exception, file: _File) -> Exception:
    """The user's mistake behind an error of polars; the error itself where it is a fault of the program."""
    message = str(error)
    if _is_damaged(file.path):
        return UserError(f"{file.path}: is cut off or damaged (its checksum fails); {_AGAIN}")
    if found := re.search(r"could not parse `(.*?)` as dtype `([if]64)` at column '(.*?)'", message, re.DOTALL):
        return _not_numeric(file, column=found[3], value=found[1], whole=found[2] == "i64")
    pattern = r"conversion from `\w+` to `([if]64)` failed in column '(.*?)'.*?\[\"?(.*?)[\"\],]"
    if found := re.search(pattern, message, re.DOTALL):
        return _not_numeric(file, column=found[2], value=found[3], whole=found[1] == "i64")
    if re.search("found more fields|CSV malformed|as dtype `str`", message):
        return UserError(f"{file.path}: its rows or quotes are broken; quote text that holds commas, or {_AGAIN}")
    if isinstance(error, OSError):
        return UserError(f"{file.path}: cannot be read ({' '.join(message.split())}); {_AGAIN}")
    return error


def _not_numeric(file: _File, column: str, value: str, whole: bool) -> UserError:
    kind, shown = "a whole number" if whole else "a number", " ".join(value.split())[:20]
    return UserError(f"{file.path}: column '{column}' should be {kind} and holds '{shown}'; correct it, or {_AGAIN}")


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
