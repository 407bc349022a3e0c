"""One streaming pass over a large raw table into Parquet by parts of the cohort, in bounded memory and resumable.

A gzip file can only be read from its start, so a pass that is killed starts again; one that is finished is found again.
"""

import json
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from ovo_clinic.raw import RawFolder

PART = "part"
_COUNTS, _WANTED, _ROW = "counts.json", "looked at", "_row"
_REPORT_SECONDS = 0.2


@dataclass(frozen=True)
class Stage:
    """A table's rows that matter, by part.

    Attributes:
        folder: of the Parquet files.
        counts: rows looked at, and rows dropped by reason.
    """

    folder: Path
    counts: Mapping[str, int]

    def read(self, part: int) -> pl.DataFrame | None:
        """The rows of one part, in any order; None where there is none."""
        files = sorted((self.folder / f"{PART}={part}").glob("*.parquet"))
        return pl.read_parquet(files, hive_partitioning=False) if files else None


@dataclass
class _Tally:
    """Counts rows as they stream by; the engine calls from several threads."""

    report: Callable[[int], None]
    reasons: Sequence[str]
    counts: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def wanted(self, rows: pl.DataFrame) -> pl.DataFrame:
        last = rows[_ROW].max()
        with self.lock:
            self.counts[_WANTED] += rows.height
            if isinstance(last, int):
                self.report(last)
        return rows

    def kept(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows that have no reason to be dropped."""
        reasons = np.bincount(rows["_reason"].drop_nulls(), minlength=len(self.reasons))
        with self.lock:
            self.counts.update(dict(zip(self.reasons, reasons.tolist(), strict=True)))
        return rows.filter(pl.col("_reason").is_null())


def stage(
    raw: RawFolder,
    table: str,
    wanted: pl.Expr,
    query: Callable[[pl.LazyFrame], pl.LazyFrame],
    drops: Mapping[str, pl.Expr],
    name: str,
    columns: Sequence[str],
) -> Stage:
    """Streams a table through a query into `raw.working / name`, or finds it there.

    Args:
        raw: the raw files.
        table: which one.
        wanted: which rows are looked at at all; on the columns of the table.
        query: from these to the rows of the cohort, with an integer column `part`.
        drops: reason -> condition on the query's columns; a row is dropped, and counted, for the first that is true.
        name: of the result; it names everything that the query depends on and that may change between two runs on the
            same working folder.
        columns: that are kept of the query's.

    Raises:
        UserError: the file is cut off or damaged, or holds text in a numeric column.
    """
    folder, partial = raw.working / name, raw.working / f"{name}.partial"
    if not folder.is_dir():
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700)
        with _progress(table) as report:
            tally = _Tally(report, list(drops))
            reason = pl.coalesce(pl.when(drop).then(pl.lit(n, pl.UInt8)) for n, drop in enumerate(drops.values()))
            numbered = raw.scan(table).with_row_index(_ROW).filter(wanted)
            looked_at = numbered.map_batches(tally.wanted, streamable=True, predicate_pushdown=False)
            rows = query(looked_at.drop(_ROW)).with_columns(reason.alias("_reason"))
            kept = rows.map_batches(tally.kept, streamable=True, predicate_pushdown=False).select(PART, *columns)
            parts = pl.PartitionBy(partial, key=PART, include_key=False)
            raw.collect(kept.sink_parquet(parts, compression="lz4", lazy=True), table)
        (partial / _COUNTS).write_text(json.dumps({key: tally.counts[key] for key in (_WANTED, *drops)}))
        partial.rename(folder)
    return Stage(folder, json.loads((folder / _COUNTS).read_text()))


@contextmanager
def _progress(table: str) -> Iterator[Callable[[int], None]]:
    """How far the pass has come, in rows and rows a second, on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda rows: None
        return
    start = shown = time.monotonic()

    def report(rows: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown > _REPORT_SECONDS:
            shown = now
            print(f"\r{table}: {rows:,} rows, {rows / (now - start):,.0f} rows/s", end="", file=sys.stderr, flush=True)

    yield report
    print(f"\r{'':79}\r", end="", file=sys.stderr, flush=True)
