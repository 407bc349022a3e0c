"""Writes a prepared data set as plain tables for other tools, and for checking."""

import gzip
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from ovo_clinic.arrays import ModalityArray
from ovo_clinic.errors import UserError
from ovo_clinic.prepared import Prepared

Format = Literal["csv", "parquet"]


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
        for name, frame in _tables(prepared):
            _write(frame, working / name, kind)
        if out.exists():
            out.rmdir()
        working.rename(out)
    finally:
        shutil.rmtree(working, ignore_errors=True)
    return sorted(out.iterdir())


def _tables(prepared: Prepared) -> Iterator[tuple[str, pl.DataFrame]]:
    units = prepared.cohort.select("unit_id")
    leading = ["unit_id", "patient_id", "split"]
    cohort = prepared.cohort.with_columns(split=pl.Series(prepared.split))
    yield "cohort", cohort.select(*leading, pl.exclude(leading))
    presence = {name: pl.Series(prepared.present(name).astype(np.uint8)) for name in prepared.modalities}
    yield "presence", units.with_columns(**presence)
    steps = [step | step.get("classes", {}) for step in prepared.manifest["attrition"]]
    yield "attrition", pl.DataFrame(steps, infer_schema_length=None).select(pl.exclude("classes"))
    for name in prepared.modalities:
        yield name, _features(prepared, name, units)


def _features(prepared: Prepared, name: str, units: pl.DataFrame) -> pl.DataFrame:
    match prepared.manifest["modalities"][name]["kind"]:
        case "text":
            lengths = units.with_columns(characters=prepared.texts(name).str.len_chars())
            return lengths.drop_nulls("characters")
        case "image":
            return prepared.image_index(name).drop("file")
        case "sequence":
            return _sequence(prepared.array(name), units)
        case _:
            return _vector(prepared.array(name), units)


def _vector(array: ModalityArray, units: pl.DataFrame) -> pl.DataFrame:
    values = np.asarray(array.values[array.present])
    frame = pl.DataFrame(values, schema=[column.name for column in array.columns], orient="row")
    return pl.concat([units.filter(pl.Series(array.present)), frame.fill_nan(None)], how="horizontal")


def _sequence(array: ModalityArray, units: pl.DataFrame) -> pl.DataFrame:
    assert array.offsets is not None
    steps = pl.Series(np.repeat(np.arange(units.height), np.diff(array.offsets)))
    # By position: a variable may be called as one of the leading columns is.
    names = {str(position): column.name for position, column in enumerate(array.columns)}
    frame = pl.DataFrame(np.asarray(array.values), schema=list(names), orient="row")
    if array.hours is None:  # then they are the first column
        frame = frame.rename({"0": "hours"})
        del names["0"]
    else:
        frame = frame.with_columns(hours=pl.Series(array.hours))
    long = frame.with_columns(units["unit_id"].gather(steps)).unpivot(index=["unit_id", "hours"]).fill_nan(None)
    long = long.with_columns(pl.col("variable").replace_strict(names, return_dtype=pl.String))
    return long.drop_nulls("value").sort("unit_id", "hours", "variable")


def _write(frame: pl.DataFrame, stem: Path, kind: Format) -> None:
    path = stem.with_name(f"{stem.name}.csv.gz" if kind == "csv" else f"{stem.name}.parquet")
    if kind == "csv":
        # No time stamp and no name in the header: equal data give equal files.
        with path.open("wb") as file, gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
            frame.write_csv(packed)  # type: ignore[call-overload]
    else:
        frame.write_parquet(path)
    path.chmod(0o600)
