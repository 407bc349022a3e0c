"""Writes a prepared data set as plain tables for other tools, and for checking."""

import contextlib
import gzip
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ovo_clinic.arrays import ModalityArray
from ovo_clinic.errors import UserError
from ovo_clinic.prepared import Prepared

Format = Literal["csv", "parquet"]
UNITS_AT_ONCE = 2000
"""Of a sequence, whose long table may be larger than memory."""


def export(prepared: Prepared, out: Path, kind: Format = "csv") -> list[Path]:
    """Writes cohort, presence, attrition and one table of unscaled, named features per modality.

    A vector's table has one row a unit in which the modality is present, and an empty cell where a value is missing; a
    sequence's is long: unit_id, hours, variable, value. Of an image there is what is known of it but its place, of a
    text its length in characters. Files are readable by their owner only.

    Args:
        prepared: the data set.
        out: a new or empty folder.
        kind: `csv` writes `.csv.gz`, `parquet` writes `.parquet`.

    Raises:
        UserError: the folder holds something already.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out: {out} is not empty; name a new folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    working = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        for name, parts in _tables(prepared):
            _write(parts, working / name, kind)
        if out.exists():
            out.rmdir()
        working.rename(out)
    finally:
        shutil.rmtree(working, ignore_errors=True)
    return sorted(out.iterdir())


def _tables(prepared: Prepared) -> Iterator[tuple[str, Iterable[pl.DataFrame]]]:
    """Each table by name, in parts."""
    units = prepared.cohort.select("unit_id")
    leading = ["unit_id", "patient_id", "split"]
    cohort = prepared.cohort.with_columns(split=pl.Series(prepared.split))
    yield "cohort", [cohort.select(*leading, pl.exclude(leading))]
    presence = {name: pl.Series(prepared.present(name).astype(np.uint8)) for name in prepared.modalities}
    yield "presence", [units.with_columns(**presence)]
    steps = [step | step.get("classes", {}) for step in prepared.manifest["attrition"]]
    yield "attrition", [pl.DataFrame(steps, infer_schema_length=None).select(pl.exclude("classes"))]
    for name in prepared.modalities:
        yield name, _features(prepared, name, units)


def _features(prepared: Prepared, name: str, units: pl.DataFrame) -> Iterable[pl.DataFrame]:
    match prepared.manifest["modalities"][name]["kind"]:
        case "text":
            lengths = units.with_columns(characters=prepared.texts(name).str.len_chars())
            return [lengths.drop_nulls("characters")]
        case "image":
            return [prepared.image_index(name).drop("file")]
        case "sequence":
            return _sequence(prepared.array(name), units["unit_id"])
        case _:
            return [_vector(prepared.array(name), units)]


def _vector(array: ModalityArray, units: pl.DataFrame) -> pl.DataFrame:
    values = np.asarray(array.values[array.present])
    frame = pl.DataFrame(values, schema=[column.name for column in array.columns], orient="row")
    return pl.concat([units.filter(pl.Series(array.present)), frame.fill_nan(None)], how="horizontal")


def _sequence(array: ModalityArray, units: pl.Series) -> Iterator[pl.DataFrame]:
    """The long table by ascending unit, some units at a time."""
    assert array.offsets is not None
    lengths = np.diff(array.offsets)
    order = units.arg_sort().to_numpy()
    for start in range(0, max(1, order.size), UNITS_AT_ONCE):
        rows = order[start : start + UNITS_AT_ONCE]
        # Where the steps of these units stand: from each one's offset on, as many as it has.
        counts = lengths[rows]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        steps = np.repeat(array.offsets[:-1][rows], counts) + within
        yield _long(array, steps, units.gather(np.repeat(rows, counts)))


def _long(array: ModalityArray, steps: NDArray[np.int64], units: pl.Series) -> pl.DataFrame:
    # By position: a variable may be called as one of the leading columns is.
    names = {str(position): column.name for position, column in enumerate(array.columns)}
    frame = pl.DataFrame(np.asarray(array.values[steps]), schema=list(names), orient="row")
    if array.hours is None:  # then they are the first column
        frame = frame.rename({"0": "hours"})
        del names["0"]
    else:
        frame = frame.with_columns(hours=pl.Series(array.hours[steps]))
    long = frame.with_columns(units.alias("unit_id")).unpivot(index=["unit_id", "hours"]).fill_nan(None)
    long = long.with_columns(pl.col("variable").replace_strict(names, return_dtype=pl.String))
    return long.drop_nulls("value").sort("unit_id", "hours", "variable")


def _write(parts: Iterable[pl.DataFrame], stem: Path, kind: Format) -> None:
    path = stem.with_name(f"{stem.name}.csv.gz" if kind == "csv" else f"{stem.name}.parquet")
    if kind == "csv":
        # No time stamp and no name in the header: equal data give equal files.
        with path.open("wb") as file, gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
            for number, part in enumerate(parts):
                part.write_csv(packed, include_header=number == 0)  # type: ignore[call-overload]
    else:
        with contextlib.ExitStack() as stack:
            writer = None
            for part in parts:
                table = part.to_arrow()
                writer = writer or stack.enter_context(pq.ParquetWriter(path, table.schema))
                writer.write_table(table)
    path.chmod(0o600)
