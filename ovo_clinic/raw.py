"""Raw folders of csv, csv.gz or parquet files: found and checked early, read streaming, with one-line errors."""

import copy
import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from ovo_clinic import raw_folders
from ovo_clinic.errors import UserError
from ovo_clinic.raw_files import AGAIN, RawFile, content_hash, explained, inspect, is_parquet
from ovo_clinic.spec import ColumnType, TableSpec

_DTYPES: dict[ColumnType, Any] = {"integer": pl.Int64, "number": pl.Float64, "text": pl.String}


class RawFolder:
    """The raw files of one data set.

    Every file's name, header and first rows are checked on construction: a mistake shows before hours are spent.
    Not noticed: a row with too few fields, beyond the first 64 KiB, reads as if its last fields were blank;
    `check_fields` looks for that, and `read` does.

    Args:
        folders: folder of each source; "" stands for every source that is not named.
        tables: what the files hold, by the name the pipeline uses.
        memory: bytes that a pipeline should keep within; default: a third of the machine's.

    Attributes:
        memory: as given, or the default.
        unlabelled: whether units whose label is not known are wanted too (for prediction).

    Raises:
        UserError: a folder, file or column is missing; a file is empty, has no rows, is no CSV or another table.
    """

    def __init__(self, folders: Mapping[str, Path], tables: Mapping[str, TableSpec], memory: int | None = None) -> None:
        self._tables = tables
        self._folders = raw_folders.locate(folders, tables)
        self._files = {name: open_table(name, tables, self._folders) for name in tables}
        self._working: Path | None = None
        self.unlabelled = False
        self.memory = memory or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 3

    def working_in(self, folder: Path) -> "RawFolder":
        """The same raw files, with a folder for a pipeline's unfinished work."""
        changed = copy.copy(self)
        changed._working = folder
        return changed

    def for_prediction(self) -> "RawFolder":
        """The same raw files, for a pipeline that should keep units whose label is not known yet."""
        changed = copy.copy(self)
        changed.unlabelled = True
        return changed

    def not_for_prediction(self, why: str) -> None:
        """Refuses new units, for a pipeline that needs their outcomes or makes features by the rows at hand.

        Args:
            why: what is wrong, and what to do.

        Raises:
            UserError: the raw files are those of a prediction.
        """
        if self.unlabelled:
            raise UserError(f"predict: {why}")

    @property
    def working(self) -> Path:
        """Where a pipeline keeps finished steps of long work, whole or not at all (write, then rename).

        It is the same folder when `prepare` was killed and runs again on the same data, and goes once it is done.
        """
        assert self._working is not None, "only prepare gives a folder to work in"
        self._working.mkdir(mode=0o700, exist_ok=True)
        return self._working

    def folder(self, source: str = "") -> Path | None:
        """The folder of a download, for files that are no tables; None where it is absent."""
        return self._folders.get(source)

    def place(self, path: Path) -> tuple[str, str]:
        """(source, path inside its folder) of a file, which a copy of the raw files has in common with them."""
        for source, folder in self._folders.items():
            if folder is not None and path.is_relative_to(folder):
                return source, path.relative_to(folder).as_posix()
        return "", str(path)

    def path(self, table: str) -> Path | None:
        """The table's file; None only for an optional one that is absent."""
        file = self._files[table]
        return None if file is None else file.path

    def scan(self, table: str) -> pl.LazyFrame:
        """The declared columns by lower-case name: Int64, Float64 (null unless finite) or String (null where blank).

        An optional column that the file lacks is null.
        """
        file, columns = self._file(table), self._tables[table].all_columns
        missing = ["", *self._tables[table].missing]
        text = {file.headers[name] for name in file.decorated}
        dtypes = {
            header: pl.String() if header in text else _DTYPES[columns[name]]() for name, header in file.headers.items()
        }
        if is_parquet(file.path):
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
        if is_parquet(path):
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
            raise UserError(f"{path}: {wrong} rows have not the header's {counts['line'][0]} fields; {AGAIN}")

    def collect(self, query: pl.LazyFrame, table: str) -> pl.DataFrame:
        """Runs a query on `scan(table)` with the streaming engine.

        Raises:
            UserError: the file is cut off or damaged, or holds text in a numeric column.
        """
        try:
            return query.collect(engine="streaming")
        except (pl.exceptions.PolarsError, OSError) as error:
            raise explained(error, self._file(table)) from None

    def batches(self, query: pl.LazyFrame, table: str) -> Iterator[pl.DataFrame]:
        """The result of a query on `scan(table)`, piece by piece in any order, for files larger than memory.

        Raises:
            UserError: as `collect`.
        """
        try:
            yield from query.collect_batches(engine="streaming", maintain_order=False)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise explained(error, self._file(table)) from None

    def read(self, table: str) -> pl.DataFrame:
        """A small table whole, with its `unique` column checked.

        Raises:
            UserError: as `collect`; or the unique column is blank or holds a value twice.
        """
        self.check_fields(table)
        frame, unique = self.collect(self.scan(table), table), self._tables[table].unique
        if unique is None:
            return frame
        path, blank = self.path(table), frame[unique].null_count()
        if blank:
            raise UserError(f"{path}: column '{unique}' is blank in {blank} rows; remove them, or {AGAIN}")
        twice = frame.height - frame[unique].n_unique()
        if twice:
            raise UserError(
                f"{path}: column '{unique}' holds {twice} values more than once; it should be unique: remove the "
                f"repeated rows, or {AGAIN}"
            )
        return frame

    def sources(self) -> list[str]:
        """The downloads that are there, sorted."""
        return sorted(source for source, folder in self._folders.items() if folder is not None)

    def fingerprint(self) -> list[dict[str, Any]]:
        """Name, size and content hash of each file; its date and folder make no difference."""
        return [
            {
                "table": table,
                "file": file.path.name,
                "bytes": file.path.stat().st_size,
                "sha256": content_hash(file.path),
            }
            for table, file in self._files.items()
            if file is not None
        ]

    def _file(self, table: str) -> RawFile:
        file = self._files[table]
        assert file is not None, f"optional table {table} is absent: ask path() first"
        return file


def open_table(name: str, tables: Mapping[str, TableSpec], folders: Mapping[str, Path | None]) -> RawFile | None:
    """The file of a table, looked at; None for an optional one that is absent.

    Args:
        name: of the table.
        tables: of the data set.
        folders: of each source, from `raw_folders.locate`.

    Raises:
        UserError: it is missing, or as in `raw_files.inspect`.
    """
    table = tables[name]
    base = folders[table.source]
    path = base and raw_folders.file_in(base, table)
    if path is not None:
        return inspect(path, name, tables)
    if base is None or not table.required:
        return None
    wanted = f"{table.file}.csv"
    found = [path.name for folder in raw_folders.folders_of(base, table) for path in folder.iterdir()]
    near = difflib.get_close_matches(f"{wanted}.gz".lower(), [name.lower() for name in found], n=1)
    hint = next((f"; '{name}' is there, is it the one?" for name in found if [name.lower()] == near), "")
    inside = f" (nor has {' or '.join(table.folders)} in it)" if table.folders else ""
    raise UserError(f"{base}: has no file {wanted} or {wanted}.gz{inside}{hint}; give the folder that has")


def _column(name: str, kind: ColumnType, file: RawFile) -> pl.Expr:
    if name not in file.headers:
        return pl.lit(None, _DTYPES[kind]).alias(name)
    column = pl.col(file.headers[name])
    if kind == "number":
        column = pl.when(column.is_finite()).then(column)
    elif name in file.decorated:
        column = column.str.strip_suffix(".0").cast(pl.Int64)
    return column.alias(name)
