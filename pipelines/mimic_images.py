"""The X-ray of each ICU stay, from a whole or partial download of MIMIC-CXR-JPG or of MIMIC-CXR (DICOM).

View and time come from the JPG set's metadata (table `cxr_metadata`) where they are there, and else from the headers of
the DICOM files of the patients in question, which `cxr_record_list` names or their folders hold. The JPG set's makers
harmonised some views, so that the two may differ in a few images.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import polars as pl
from polars import col

from ovo_clinic import dicom
from ovo_clinic.errors import UserError
from ovo_clinic.processes import in_order
from ovo_clinic.raw import RawFolder
from ovo_clinic.tables import ImageTable

SOURCE, METADATA, RECORDS = "cxr", "cxr_metadata", "cxr_record_list"
_IDS = ["subject_id", "study_id", "dicom_id"]
_HEADERS_AT_ONCE = 512
_SECONDS_PER_HOUR = 3600


def select_images(
    raw: RawFolder,
    stays: pl.DataFrame,
    *,
    view: str | None = "AP",
    which: Literal["last", "first"] = "last",
    size: int = 224,
    recipe: str = "crop",
    end_open: bool = False,
) -> tuple[ImageTable, dict[str, int]]:
    """The last or first X-ray of each stay's window, and counts worth telling.

    Images of one time stand in the order of study_id, then dicom_id. An image is chosen whether or not its file is
    there; without metadata only files that are there can be chosen.

    Args:
        raw: raw files with the source `cxr`.
        stays: unit_id, subject_id, start, end (Datetime) of the window.
        view: ViewPosition, exactly; None = any, or none given.
        which: of those inside the window.
        size: side of the image in pixels.
        recipe: see `images.RECIPES`.
        end_open: an image at `end` itself does not count (a prediction is made then); at `start` it always does.

    Returns:
        A table with study_id, dicom_id, view and the hours_from_intime and hours_to_end of the window.

    Raises:
        UserError: no metadata, and no DICOM files either.
    """
    folder = raw.folder(SOURCE)
    assert folder is not None, "there is no download of X-rays: ask raw.folder first"
    patients = stays.select("subject_id").unique()
    from_metadata = raw.path(METADATA) is not None
    found, missed = (_metadata(raw, patients), []) if from_metadata else _headers(raw, folder, patients)
    suffixes = (".jpg", ".dcm") if from_metadata else (".dcm",)
    candidates, counts = _in_window(found, stays, end_open)
    seen = candidates if view is None else candidates.filter(col("view") == view)
    chosen = seen.group_by("unit_id", maintain_order=True).agg(pl.all().last() if which == "last" else pl.all().first())
    frame, absent = _with_paths(chosen, folder, suffixes)
    counts |= {
        "image: X-rays in the window of another view, or of none": candidates.height - seen.height,
        "image: stays with an X-ray": chosen.height,
        "image: stays whose X-ray is not in the download": chosen.height - frame.height,
    }
    if missed:
        counts["image: listed X-rays that are not in the download"] = len(missed)
    latest = frame.select("unit_id", hours="hours_from_intime")
    return ImageTable(frame, size, recipe, (*absent, *missed), latest=latest), counts


def taken(date: pl.Expr, time: pl.Expr) -> pl.Expr:
    """Datetime of YYYYMMDD and HHMMSS.fff, numbers or texts whose leading zeros may be lost; null where it is none.

    `93015.25` is 09:30:15.25 and `5.0` five seconds after midnight.
    """
    clock = time.cast(pl.Float64, strict=False)
    whole = clock.floor().cast(pl.Int64, strict=False)
    hours, minutes, seconds = whole // 10_000, whole // 100 % 100, whole % 100
    valid = (whole >= 0) & (hours < 24) & (minutes < 60) & (seconds < 60)
    microseconds = ((clock - whole) * 1e6).round().cast(pl.Int64)
    day = date.cast(pl.String).str.to_date("%Y%m%d", strict=False).cast(pl.Datetime("us"))
    since = pl.duration(hours=hours, minutes=minutes, seconds=seconds, microseconds=microseconds)
    return pl.when(valid).then(day + since)


def _metadata(raw: RawFolder, patients: pl.DataFrame) -> pl.DataFrame:
    """Images of some patients: _IDS, view, taken."""
    rows = raw.scan(METADATA).join(patients.lazy(), on="subject_id", how="semi")
    when = taken(col("studydate"), col("studytime"))
    return raw.collect(rows.select(*_IDS, view="viewposition", taken=when), METADATA)


def _headers(raw: RawFolder, folder: Path, patients: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """The same from the DICOM files that are there, and the paths of those that are listed and not there.

    A file that cannot be read has neither view nor time.
    """
    files = _dicom_files(raw, folder, patients)
    listed = [folder / name for name in _path(files, ".dcm")]
    paths = [path for path in listed if path.is_file()]
    if not paths:
        raise UserError(
            f"{folder}: has no mimic-cxr-2.0.0-metadata.csv.gz and no DICOM file of these patients; give a download of "
            "MIMIC-CXR-JPG with its metadata, or of MIMIC-CXR"
        )
    parts = [paths[start : start + _HEADERS_AT_ONCE] for start in range(0, len(paths), _HEADERS_AT_ONCE)]
    read = _read_parts(raw, parts).select("dicom_id", "view", taken=taken(col("date"), col("time")))
    there = set(paths)
    return (
        files.join(read, on="dicom_id", how="inner").select(*_IDS, "view", "taken"),
        [str(path) for path in listed if path not in there],
    )


def _dicom_files(raw: RawFolder, folder: Path, patients: pl.DataFrame) -> pl.DataFrame:
    """_IDS of the patients' files, from the record list, or as their folders hold them."""
    if raw.path(RECORDS) is not None:
        rows = raw.scan(RECORDS).join(patients.lazy(), on="subject_id", how="semi")
        return raw.collect(rows.select(_IDS), RECORDS)
    found = [
        (subject, int(path.parent.name[1:]), path.stem)
        for subject in patients["subject_id"].sort()
        for path in (folder / "files" / f"p{str(subject)[:2]}" / f"p{subject}").glob("s[0-9]*/*.dcm")
    ]
    schema = {"subject_id": pl.Int64, "study_id": pl.Int64, "dicom_id": pl.String}
    return pl.DataFrame(found, schema, orient="row").sort(_IDS)


def _read_parts(raw: RawFolder, parts: Sequence[Sequence[Path]]) -> pl.DataFrame:
    """dicom_id, date, time, view of the files; what a killed run had read is read from where it left it."""
    kept = raw.working / "cxr_headers"
    kept.mkdir(mode=0o700, exist_ok=True)
    names = [kept / f"{hashlib.sha256(os.fsencode(chr(0).join(map(str, part)))).hexdigest()}.parquet" for part in parts]
    todo = [number for number, name in enumerate(names) if not name.is_file()]
    advice = "run again to go on from there, with more memory or on fewer cores"
    for number, headers in zip(
        todo, in_order(dicom.read_headers, [parts[number] for number in todo], None, advice), strict=True
    ):
        rows = [
            (path.stem, header and header.date, header and header.time, header and header.view)
            for path, header in zip(parts[number], headers, strict=True)
        ]
        schema = {"dicom_id": pl.String, "date": pl.Int64, "time": pl.Float64, "view": pl.String}
        partial = names[number].with_suffix(".partial")
        pl.DataFrame(rows, schema, orient="row").write_parquet(partial)
        partial.rename(names[number])
    return pl.read_parquet(names)


def _in_window(found: pl.DataFrame, stays: pl.DataFrame, end_open: bool) -> tuple[pl.DataFrame, dict[str, int]]:
    """Images inside their stay's window, sorted by stay, time and identifiers, and counts of the others."""
    joined = found.join(stays.select("unit_id", "subject_id", "start", "end"), on="subject_id", how="inner")
    before_end = col("taken") < col("end") if end_open else col("taken") <= col("end")
    inside = joined.filter((col("taken") >= col("start")) & before_end)
    hours = [
        ((col("taken") - col("start")).dt.total_microseconds() / (1e6 * _SECONDS_PER_HOUR)).alias("hours_from_intime"),
        ((col("end") - col("taken")).dt.total_microseconds() / (1e6 * _SECONDS_PER_HOUR)).alias("hours_to_end"),
    ]
    counts = {
        "image: X-rays of the patients": found.height,
        "image: X-rays without a time": found["taken"].null_count(),
        "image: X-rays in the window": inside.height,
    }
    return inside.sort("unit_id", "taken", "study_id", "dicom_id").with_columns(hours), counts


def _path(images: pl.DataFrame, suffix: str) -> list[str]:
    """Where the files lie inside the download."""
    return [
        f"files/p{str(subject)[:2]}/p{subject}/s{study}/{name}{suffix}"
        for subject, study, name in images.select(_IDS).iter_rows()
    ]


def _with_paths(chosen: pl.DataFrame, folder: Path, suffixes: Sequence[str]) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """The images whose file is there, with its path, and the paths that were looked for in vain."""
    places = zip(*([str(folder / name) for name in _path(chosen, suffix)] for suffix in suffixes), strict=True)
    found: list[str | None] = []
    absent: list[str] = []
    for candidates in places:
        path = next(filter(os.path.isfile, candidates), None)
        found.append(path)
        absent += [] if path else candidates
    frame = chosen.with_columns(path=pl.Series(found, dtype=pl.String)).drop_nulls("path")
    columns = ["unit_id", "path", "study_id", "dicom_id", "view", "hours_from_intime", "hours_to_end"]
    return frame.select(columns), tuple(absent)
