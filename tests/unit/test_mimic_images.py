"""Which X-ray belongs to an ICU stay: windows, views, ties, absent files; from metadata and from DICOM headers."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image

from ovo_clinic import spec
from ovo_clinic.errors import UserError
from ovo_clinic.raw import RawFolder
from ovo_clinic.resources import load_pipeline
from tests.unit.test_images import write_dicom

mimic_images = load_pipeline("mimic_images")
select_images = mimic_images.select_images

Row = tuple[str, int, int, str, str, str]
"""dicom_id, subject_id, study_id, ViewPosition, StudyDate, StudyTime: as they stand in the file."""

# The window of stay 1 is 10:00:00.25 to 12:00:00 on 3 May 2180, that of stay 2 the whole of 4 May; 3 has nobody.
STAYS = pl.DataFrame(
    {
        "unit_id": [1, 2, 3],
        "subject_id": [10000032, 10000032, 17000000],
        "hadm_id": [5, 6, 7],
        "start": [datetime(2180, 5, 3, 10, 0, 0, 250_000), datetime(2180, 5, 4), datetime(2180, 5, 3)],
        "end": [datetime(2180, 5, 3, 12), datetime(2180, 5, 5), datetime(2180, 5, 9)],
    }
)


def raw_folder(folder: Path, working: Path | None = None) -> RawFolder:
    tables = {name: table for name, table in spec.load("mimic")[0].tables.items() if table.source == "cxr"}
    raw = RawFolder({"cxr": folder}, tables)
    return raw if working is None else raw.working_in(working)


def place(folder: Path, row: Row, suffix: str) -> Path:
    name, subject, study = row[:3]
    path = folder / f"files/p{str(subject)[:2]}/p{subject}/s{study}/{name}{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def jpg_release(folder: Path, rows: Sequence[Row], absent: Sequence[str] = ()) -> RawFolder:
    """MIMIC-CXR-JPG: the metadata of all rows, and files but for those named."""
    for row in rows:
        if row[0] not in absent:
            Image.new("L", (8, 8), 3).save(place(folder, row, ".jpg"))
    columns = ["dicom_id", "subject_id", "study_id", "ViewPosition", "StudyDate", "StudyTime"]
    frame = pl.DataFrame(rows, columns, orient="row").with_columns(Rows=8, Columns=8)
    order = ["dicom_id", "subject_id", "study_id", "ViewPosition", "Rows", "Columns", "StudyDate", "StudyTime"]
    (folder / "mimic-cxr-2.0.0-metadata.csv").write_text(frame.select(order).write_csv())
    return raw_folder(folder)


def dicom_release(folder: Path, rows: Sequence[Row], absent: Sequence[str] = (), listed: bool = True) -> None:
    """MIMIC-CXR: files with headers, and the record list."""
    for name, subject, study, view, date, time in rows:
        if name not in absent:
            pixels = np.arange(16).reshape(4, 4)
            path = place(folder, (name, subject, study, view, date, time), ".dcm")
            write_dicom(path, pixels, ViewPosition=view, StudyDate=date, StudyTime=time, PatientID=str(subject))
    if listed:
        lines = [f"{s},{t},{d},files/p{str(s)[:2]}/p{s}/s{t}/{d}.dcm" for d, s, t, *_ in rows]
        (folder / "cxr-record-list.csv").write_text("\n".join(["subject_id,study_id,dicom_id,path", *lines]) + "\n")


def chosen(raw: RawFolder, **options: object) -> dict[int, str]:
    table, _ = select_images(raw, STAYS, **options)
    return dict(table.frame.select("unit_id", "dicom_id").iter_rows())


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        ("5.0", datetime(2180, 5, 3, 0, 0, 5)),
        ("93015.25", datetime(2180, 5, 3, 9, 30, 15, 250_000)),
        ("235959.999", datetime(2180, 5, 3, 23, 59, 59, 999_000)),
        ("093015", datetime(2180, 5, 3, 9, 30, 15)),
        ("0", datetime(2180, 5, 3)),
        ("240000.0", None),
        ("126000.0", None),
        ("-5.0", None),
        ("noon", None),
    ],
)
def test_study_times_have_lost_their_leading_zeros(time: str, expected: datetime | None) -> None:
    frame = pl.DataFrame({"date": ["21800503"], "time": [time]})
    assert frame.select(mimic_images.taken(pl.col("date"), pl.col("time"))).item() == expected
    if expected is not None:
        numbers = frame.select(pl.col("date").cast(pl.Int64), pl.col("time").cast(pl.Float64))
        assert numbers.select(mimic_images.taken(pl.col("date"), pl.col("time"))).item() == expected


@pytest.mark.parametrize("date", ["", "2180", "21801303", "May"])
def test_a_date_that_is_none_gives_no_time(date: str) -> None:
    frame = pl.DataFrame({"date": [date], "time": ["5.0"]})
    assert frame.select(mimic_images.taken(pl.col("date"), pl.col("time"))).item() is None


EDGES: list[Row] = [
    ("before", 10000032, 50, "AP", "21800503", "100000.249"),
    ("start", 10000032, 51, "AP", "21800503", "100000.25"),
    ("end", 10000032, 52, "AP", "21800503", "120000.0"),
    ("after", 10000032, 53, "AP", "21800503", "120000.001"),
]


def test_both_ends_of_the_window_count(tmp_path: Path) -> None:
    raw = jpg_release(tmp_path, EDGES)
    assert chosen(raw) == {1: "end"}
    assert chosen(raw, which="first") == {1: "start"}
    assert chosen(raw, end_open=True) == {1: "start"}
    table, counts = select_images(raw, STAYS)
    assert counts == {
        "image: X-rays of the patients": 4,
        "image: X-rays without a time": 0,
        "image: X-rays in the window": 2,
        "image: X-rays in the window of another view, or of none": 0,
        "image: stays with an X-ray": 1,
        "image: stays whose X-ray is not in the download": 0,
    }
    hours = table.frame.select("hours_from_intime", "hours_to_end").row(0)
    assert hours == pytest.approx((2 - 0.25 / 3600, 0))
    path = tmp_path / "files/p10/p10000032/s52/end.jpg"
    assert table.frame["path"].to_list() == [str(path)] and (table.size, table.recipe) == (224, "crop")


def test_images_of_one_time_stand_in_the_order_of_study_and_identifier(tmp_path: Path) -> None:
    rows = [
        (name, 10000032, study, "AP", "21800504", "93015.25")
        for name, study in [("c", 60), ("b", 61), ("a", 61), ("d", 59)]
    ]
    assert chosen(jpg_release(tmp_path, rows)) == {2: "b"}
    assert chosen(raw_folder(tmp_path), which="first") == {2: "d"}


VIEWS: list[Row] = [
    ("ap", 10000032, 70, "AP", "21800504", "1.0"),
    ("pa", 10000032, 70, "PA", "21800504", "2.0"),
    ("axial", 10000032, 70, "AP AXIAL", "21800504", "3.0"),
    ("none", 10000032, 70, "", "21800504", "4.0"),
    ("timeless", 10000032, 70, "AP", "21800504", ""),
    ("stranger", 19999999, 71, "AP", "21800504", "5.0"),
]


def test_a_view_is_taken_exactly(tmp_path: Path) -> None:
    raw = jpg_release(tmp_path, VIEWS)
    assert [chosen(raw, view=view) for view in ("AP", "PA", None)] == [{2: "ap"}, {2: "pa"}, {2: "none"}]
    _, counts = select_images(raw, STAYS)
    assert counts["image: X-rays without a time"] == 1
    assert counts["image: X-rays in the window of another view, or of none"] == 3


def test_an_absent_file_is_counted_and_a_dicom_file_may_stand_for_a_jpg(tmp_path: Path) -> None:
    rows: list[Row] = [EDGES[2], ("early", 10000032, 80, "AP", "21800504", "1.0"), ("late", *VIEWS[0][1:5], "9.0")]
    raw = jpg_release(tmp_path, rows, absent=["end", "late"])
    table, counts = select_images(raw, STAYS)
    assert table.frame.is_empty() and counts["image: stays whose X-ray is not in the download"] == 2
    assert set(table.absent) == {
        str(place(tmp_path, row, end)) for row in (rows[0], rows[2]) for end in (".jpg", ".dcm")
    }
    write_dicom(place(tmp_path, rows[2], ".dcm"), np.arange(16).reshape(4, 4))
    table, counts = select_images(raw, STAYS)
    assert (
        table.frame["dicom_id"].to_list() == ["late"] and counts["image: stays whose X-ray is not in the download"] == 1
    )


@pytest.mark.parametrize("listed", [True, False])
def test_dicom_headers_tell_what_the_metadata_tells(tmp_path: Path, listed: bool) -> None:
    rows = [*EDGES, *VIEWS]
    jpg, dcm = tmp_path / "jpg", tmp_path / "dcm"
    jpg.mkdir()
    dicom_release(dcm, [row[:5] + (row[5] and f"{float(row[5]):010.3f}",) for row in rows], listed=listed)
    dcm_raw = raw_folder(dcm, tmp_path / "work")
    for options in ({}, {"which": "first"}, {"view": "PA"}, {"view": None}):
        expected, expected_counts = select_images(jpg_release(jpg, rows), STAYS, **options)
        found, counts = select_images(dcm_raw, STAYS, **options)
        assert found.frame.drop("path").equals(expected.frame.drop("path")) and counts == expected_counts
        assert [Path(path).suffix for path in found.frame["path"]] == [".dcm"] * found.frame.height


def test_dicom_files_that_are_listed_and_absent_or_damaged_are_left_out(tmp_path: Path) -> None:
    dicom_release(tmp_path, EDGES, absent=["end"])
    place(tmp_path, EDGES[0], ".dcm").write_bytes(b"not found")
    table, counts = select_images(raw_folder(tmp_path, tmp_path / "work"), STAYS)
    assert table.frame["dicom_id"].to_list() == ["start"]
    assert counts["image: listed X-rays that are not in the download"] == 1
    assert counts["image: X-rays without a time"] == 1
    assert table.absent == (str(place(tmp_path, EDGES[2], ".dcm")),)


def test_headers_that_a_killed_run_has_read_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mimic_images, "_HEADERS_AT_ONCE", 2)
    monkeypatch.setattr("ovo_clinic.processes.default_workers", lambda: 1)
    dicom_release(tmp_path, [*EDGES, VIEWS[0]])
    looked_at: list[int] = []
    real = mimic_images.dicom.read_headers
    monkeypatch.setattr(
        mimic_images.dicom, "read_headers", lambda paths: looked_at.append(len(paths)) or real(paths), raising=True
    )
    raw = raw_folder(tmp_path, tmp_path / "work")
    expected, _ = select_images(raw, STAYS)
    assert looked_at == [2, 2, 1]
    sorted((tmp_path / "work/cxr_headers").glob("*.parquet"))[0].unlink()
    found, _ = select_images(raw, STAYS)
    assert sum(looked_at[3:]) in (1, 2) and len(looked_at) == 4
    assert found.frame.equals(expected.frame) and not list((tmp_path / "work/cxr_headers").glob("*.partial"))


@pytest.mark.parametrize(
    ("time", "expected"), [("0930", (9, 30)), ("09", (9, 0)), ("09:30:00", (9, 30)), ("", None), ("soon", None)]
)
def test_dicom_times_may_be_short_or_old(tmp_path: Path, time: str, expected: tuple[int, int] | None) -> None:
    path = write_dicom(tmp_path / "a.dcm", np.arange(16).reshape(4, 4), StudyDate="21800504", StudyTime=time)
    (header,) = mimic_images.dicom.read_headers([path])
    assert header is not None and header.date == 21800504
    found = None if header.time is None else (int(header.time) // 10_000, int(header.time) // 100 % 100)
    assert found == expected


def test_a_folder_without_metadata_and_dicom_files_is_refused(tmp_path: Path) -> None:
    Image.new("L", (8, 8), 3).save(place(tmp_path, EDGES[0], ".jpg"))
    with pytest.raises(UserError, match="has no mimic-cxr-2.0.0-metadata.csv.gz and no DICOM file of these patients"):
        select_images(raw_folder(tmp_path, tmp_path / "work"), STAYS)
