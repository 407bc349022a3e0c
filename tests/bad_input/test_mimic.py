"""MIMIC folders with one thing wrong: tables, times, downloads, X-rays and notes."""

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydicom import Dataset, dcmread
from pydicom.uid import DeflatedExplicitVRLittleEndian, JPEG2000Lossless, JPEGBaseline8Bit, RLELossless

from tests.bad_input.conftest import Broken, Command, Source, assert_refused, left_behind
from tests.bad_input.raw_files import CANARY, Change, Rows, cases, cells, every, linked, rows, unpacked

STAYS, ADMISSIONS = "iv/icu/icustays.csv.gz", "iv/hosp/admissions.csv.gz"
CHARTS, LABS, CODES = "iv/icu/chartevents.csv.gz", "iv/hosp/labevents.csv.gz", "iv/hosp/diagnoses_icd.csv.gz"
REPORTS = "note/radiology.csv.gz"
PATIENTS = "iv/hosp/patients.csv.gz"


def _of(source: Source, column: str, cell: str, file: str = STAYS, key: str = "stay_id") -> Change:
    """Another cell in the rows of the first unit of the cohort."""
    unit = str(source.prepared.cohort[{"stay_id": "unit_id", "subject_id": "patient_id"}.get(key, key)][0])

    def change(table: Rows) -> Rows:
        place, own = table[0].index(column), table[0].index(key)
        return [[cell if i == place and r[own] == unit else old for i, old in enumerate(r)] for r in table]

    return rows(file, change)


ABSURD = {
    "outtime 9999-12-31 23:59:59": "after all that is known",
    "outtime 0001-01-01 00:00:00": "before admission",
    "outtime 2150-02-30 00:00:00": "a day that is none",
    "outtime ": "blank",
    "intime 1000-01-01 00:00:00": "centuries before",
    "intime soon": "a text",
    "los -3.5": "negative",
    "los 1e12": "beyond a life",
    "los NaN": "no number",
    "los ": "blank",
}


@pytest.mark.parametrize("case", cases(ABSURD, ["outtime 9999-12-31 23:59:59", "los -3.5"]))
def test_a_stay_of_absurd_times_is_left_out_and_counted(
    broken: Callable[..., Broken], mimic: Source, case: str
) -> None:
    column, _, cell = case.partition(" ")
    found = broken(mimic, _of(mimic, column, cell)).prepared
    lost = set(mimic.prepared.cohort["unit_id"]) - set(found.cohort["unit_id"])
    assert lost == {mimic.prepared.cohort["unit_id"][0]}
    (rule,) = {
        new["rule"]
        for old, new in zip(mimic.prepared.manifest["attrition"], found.manifest["attrition"], strict=True)
        if "times of the stay" in new["rule"] and old["units"] == new["units"] + 1
    }
    assert rule


TIMES = ["9999-12-31 23:59:59", "0001-01-01 00:00:00", "2150-13-45", "yesterday", ""]


@pytest.mark.parametrize("time", cases(TIMES, TIMES[:1]))
@pytest.mark.parametrize("file", cases([CHARTS, LABS], [CHARTS]))
def test_events_of_absurd_times_are_dropped_and_counted(
    broken: Callable[..., Broken], mimic: Source, file: str, time: str
) -> None:
    """Copies of an event that counts, at a time at which nothing can have happened."""

    def added(table: Rows) -> Rows:
        place = table[0].index("charttime")
        return [*table, *([*r[:place], time, *r[place + 1 :]] for r in table[1:200])]

    found = broken(mimic, rows(file, added))
    found.assert_same()
    notes, before = found.prepared.manifest["notes"], mimic.prepared.manifest["notes"]
    more = {name for name in notes if notes[name] != before.get(name)}
    table = Path(file).name.split(".")[0]
    assert f"{table} rows looked at" in more
    assert {name for name in more if "without a time" in name or "the window" in name}


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["2149-01-01 00:00:00", "0001-01-01 00:00:00", "9999-12-31 00:00:00", "never"])
def test_death_before_admission(command: Command, mimic: Source, tmp_path: Path, cell: str) -> None:
    """Who is dead before the prediction is not predicted, and counted; another time of death is none."""
    folder = linked(mimic.folder, tmp_path / "raw")
    rows(ADMISSIONS, _half_dead)(folder)
    answer = command("prepare", "mimic_mortality_48h", "--raw", folder)
    assert answer.code == 0, answer
    before = _left(answer.out)
    rows(ADMISSIONS, lambda table: [table[0], *(_with(table[0], r, deathtime=cell) for r in table[1:])])(folder)
    answer = command("prepare", "mimic_mortality_48h", "--raw", folder)
    if cell[0] in "02":
        assert_refused(answer, "no unit is left; .*not dead before 48 h: 0")
    else:
        assert answer.code == 0 and _left(answer.out) >= before


def _half_dead(table: Rows) -> Rows:
    """Every second admission ends with death, so that there is something to learn."""
    return [table[0], *(_with(table[0], r, hospital_expire_flag=str(n % 2)) for n, r in enumerate(table[1:]))]


def _left(out: str) -> int:
    (line,) = [line for line in out.splitlines() if "death in hospital known" in line]
    return int(line.replace("|", " ").split("known")[1].split()[0].replace(",", ""))


def _with(header: list[str], record: list[str], **changes: str) -> list[str]:
    return [changes.get(name, cell) for name, cell in zip(header, record, strict=True)]


REFUSED: dict[str, tuple[Change, str]] = {
    "charts of no row": (rows(CHARTS, lambda table: table[:1]), "chartevents.*has a header but no rows"),
    "charts of other stays": (
        every(cells(CHARTS, "stay_id", lambda cell: "1"), cells(LABS, "subject_id", lambda cell: "1")),
        "holds no usable event of any stay of the cohort",
    ),
    "text among the charted numbers": (
        cells(CHARTS, "valuenum", lambda c: CANARY, slice(-3, -2)),
        "should be a number",
    ),
    "charts cut off": (lambda folder: _cut(folder / CHARTS), "chartevents.*is cut off or damaged"),
    "reports cut off": (lambda folder: _cut(folder / REPORTS), "radiology.*is cut off or damaged"),
    "codes of another version of the ICD": (cells(CODES, "icd_version", lambda cell: "11"), "nothing can be learned"),
    "a version that is a text": (cells(CODES, "icd_version", lambda cell: "ICD-9"), "should be a whole number"),
    "an admission twice": (rows(ADMISSIONS, lambda table: [*table, table[3]]), "'hadm_id' holds 1 values more than"),
    "no folder of the hospital's tables": (
        lambda folder: (folder / "iv/hosp").rename(folder / "iv/home"),
        "has no file",
    ),
    "patients without the year of their age": (cells(PATIENTS, "anchor_year", lambda cell: ""), "no unit is left"),
}


def _cut(path: Path) -> None:
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[: 2 * len(data) // 3])


@pytest.mark.parametrize("case", cases(REFUSED, ["charts of no row"]))
def test_what_is_wrong_is_said_in_one_line(broken: Callable[..., Broken], mimic: Source, case: str) -> None:
    change, message = REFUSED[case]
    broken(mimic, change).assert_refused(message)


FOLDERS = {
    "iv={raw}/iv/icu/icustays.csv.gz": "is not a folder",
    "iv={raw}/iv ixr={raw}/cxr": "there is no source 'ixr'; valid: cxr, iv, note",
    "iv={raw}/iv cxr={raw}/nowhere": "nowhere is not a folder",
    "cxr={raw}/cxr": "no folder is given for source 'iv'",
    "iv={raw}/cxr": "has no file",
    "{raw}/note": "has no file|no folder",
    "iv={raw}/iv iv={raw}/iv": "source 'iv' is given twice",
    "iv={raw}/iv cxr=~nobody-of-this-name/cxr": "nobody-of-this-name",
}


@pytest.mark.parametrize("given", FOLDERS)
def test_folders_that_are_none_of_the_data_set(command: Command, mimic: Source, tmp_path: Path, given: str) -> None:
    words = given.format(raw=mimic.folder).split()
    assert_refused(command("prepare", mimic.task, "--raw", *words), FOLDERS[given])
    assert left_behind(tmp_path / "home") == []


def test_a_download_inside_itself_by_a_link(broken: Callable[..., Broken], mimic: Source) -> None:
    broken(mimic, lambda folder: (folder / "iv" / "again").symlink_to(folder)).assert_same()


@pytest.mark.slow
def test_two_downloads_are_not_guessed_between(broken: Callable[..., Broken], mimic: Source) -> None:
    found = broken(mimic, lambda folder: (folder / "copy").symlink_to(folder / "iv"))
    found.assert_refused("holds more than one download of 'iv'")


@pytest.mark.slow
def test_a_report_that_is_not_utf8_stays_readable(broken: Callable[..., Broken], mimic: Source) -> None:
    found = broken(mimic, unpacked(REPORTS, lambda data: data.replace(b"e", b"\xe9")))
    ours, theirs = (prepared.texts("text") for prepared in (found.prepared, mimic.prepared))
    assert ours.is_null().to_list() == theirs.is_null().to_list()
    assert ours.to_list() == theirs.str.replace_all("e", "\ufffd", literal=True).to_list()


# ---------------------------------------------------------------- X-rays


def _altered(change: Callable[[Dataset], None]) -> Callable[[Path], None]:
    """Another file in place of a DICOM file, with some of its elements changed."""

    def apply(path: Path) -> None:
        file = dcmread(path)
        change(file)
        path.unlink()
        file.save_as(path)

    return apply


def _bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        data = change(path.read_bytes())
        path.unlink()
        path.write_bytes(data)

    return apply


def _set(**elements: Any) -> Callable[[Path], None]:
    return _altered(lambda file: [setattr(file, name, value) for name, value in elements.items()] and None)


def _pixels(file: Dataset, pixels: NDArray[Any], stored: int, **elements: Any) -> None:
    allocated = 8 * pixels.dtype.itemsize
    file.BitsAllocated, file.BitsStored, file.HighBit = allocated, stored, stored - 1
    for name, value in elements.items():
        setattr(file, name, value)
    file.PixelData = pixels.tobytes()


def _inverted(file: Dataset) -> None:
    was = file.PhotometricInterpretation
    now = {"MONOCHROME1": "MONOCHROME2", "MONOCHROME2": "MONOCHROME1"}[was]
    _pixels(file, (4095 - file.pixel_array).astype("<u2"), 12, PhotometricInterpretation=now)


def _colour(file: Dataset) -> None:
    grey = (_white_high(file) >> 4).astype(np.uint8)
    colour = {"PhotometricInterpretation": "RGB", "SamplesPerPixel": 3, "PlanarConfiguration": 0}
    _pixels(file, grey[..., None].repeat(3, axis=2), 8, **colour)


def _colour_by_luminance(file: Dataset) -> None:
    grey = (_white_high(file) >> 4).astype(np.uint8)
    other = np.full_like(grey, 128)
    colour = {"PhotometricInterpretation": "YBR_FULL", "SamplesPerPixel": 3, "PlanarConfiguration": 0}
    _pixels(file, np.stack([grey, other, other], axis=2), 8, **colour)


def _white_high(file: Dataset) -> NDArray[Any]:
    pixels: NDArray[Any] = file.pixel_array
    return 4095 - pixels if file.PhotometricInterpretation == "MONOCHROME1" else pixels


def _overlay_in_unused_bits(file: Dataset) -> None:
    pixels = file.pixel_array.astype("<u2")
    pixels[::3] |= 0xA000
    file.PixelData = pixels.tobytes()


SAME: dict[str, tuple[Callable[[Dataset], None], int]] = {
    "white is 0, or no longer": (_inverted, 2),
    "16 bits": (lambda file: _pixels(file, (file.pixel_array * 16).astype("<u2"), 16), 0),
    "signed": (
        lambda file: _pixels(file, (file.pixel_array.astype("<i4") - 2048).astype("<i2"), 12, PixelRepresentation=1),
        0,
    ),
    "8 bits": (lambda file: _pixels(file, (file.pixel_array >> 4).astype(np.uint8), 8), 6),
    "colour": (_colour, 6),
    "luminance and colour": (_colour_by_luminance, 6),
    "an overlay in the unused bits": (_overlay_in_unused_bits, 0),
    "run-length encoded": (lambda file: file.compress(RLELossless), 0),
    "deflated": (lambda file: setattr(file.file_meta, "TransferSyntaxUID", DeflatedExplicitVRLittleEndian), 0),
}


def _chosen(source: Source) -> tuple[int, Path]:
    """(row of the cohort, place in the download) of the first X-ray with pixels."""
    index = source.prepared.image_index("image")
    unit, file = index.select("unit_id", "file").row(0)
    return source.prepared.cohort["unit_id"].to_list().index(unit), Path("cxr") / file


def _image(prepared: Any, row: int) -> NDArray[np.int64]:
    array = prepared.array("image")
    assert array.present[row]
    return array.values[array.index[row], 0].astype(np.int64)


@pytest.mark.parametrize("case", cases(SAME, ["white is 0, or no longer", "16 bits", "colour"]))
def test_other_forms_of_an_x_ray_give_the_same_picture(broken: Callable[..., Broken], mimic: Source, case: str) -> None:
    change, levels = SAME[case]
    row, file = _chosen(mimic)
    found = broken(mimic, lambda folder: _altered(change)(folder / file))
    found.assert_same(but=["image"])
    ours, theirs = (_image(prepared, row) for prepared in (found.prepared, mimic.prepared))
    assert np.corrcoef(ours.ravel(), theirs.ravel())[0, 1] > 0.999
    assert np.abs(ours - theirs).max() <= levels
    others = np.arange(mimic.prepared.cohort.height) != row
    assert np.array_equal(found.prepared.present("image"), mimic.prepared.present("image")) and others.any()


def _without(*names: str) -> Callable[[Path], None]:
    return _altered(lambda file: [delattr(file, name) for name in names] and None)


def _of_syntax(uid: str) -> Callable[[Path], None]:
    """Says that it is compressed, with bytes that are not."""

    def change(file: Dataset) -> None:
        from pydicom.encaps import encapsulate

        file.file_meta.TransferSyntaxUID = uid
        file.PixelData = encapsulate([b"\xff\x4f\xff\x51" + bytes(200)])
        file["PixelData"].VR = "OB"

    return _altered(change)


_UNREAD, _ABSENT = "image: X-rays without a time", "image: listed X-rays that are not in the download"
_EXPLICIT, _UNKNOWN = b"1.2.840.10008.1.2.1\0", b"1.2.840.10008.1.2.9\0"

NOT_READ: dict[str, tuple[Callable[[Path], object], str]] = {
    "no byte": (_bytes(lambda data: b""), _UNREAD),
    "cut off in the header": (_bytes(lambda data: data[:200]), _UNREAD),
    "web page": (_bytes(lambda data: b"<html>log in</html>" * 40), _UNREAD),
    "noise after the preamble": (_bytes(lambda data: data[:132] + bytes(range(256)) * 40), _UNREAD),
    "a folder in its place": (lambda path: (path.unlink(), path.mkdir()), _ABSENT),
    "a loop of symbolic links": (lambda path: (path.unlink(), path.symlink_to(path)), _ABSENT),
}

SKIPPED: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut off in the pixels": (_bytes(lambda data: data[: len(data) // 2]), "cannot be decoded"),
    "no pixels": (_without("PixelData"), "has no pixels"),
    "no number of rows": (_without("Rows"), "cannot be decoded"),
    "more rows than pixels": (_set(Rows=60_000, Columns=60_000), "cannot be decoded"),
    "no rows": (_set(Rows=0), "cannot be decoded"),
    "several frames": (_altered(lambda f: _pixels(f, f.pixel_array.repeat(2, 0), 12, NumberOfFrames=2)), "2 frames"),
    "one value": (_altered(lambda file: _pixels(file, np.zeros_like(file.pixel_array), 12)), "all pixels have one"),
    "a palette": (_set(PhotometricInterpretation="PALETTE COLOR"), "colours from a palette"),
    "JPEG 2000 of no picture": (_of_syntax(JPEG2000Lossless), "cannot be decoded"),
    "JPEG of no picture": (_of_syntax(JPEGBaseline8Bit), "cannot be decoded"),
    "a syntax that nobody knows": (_bytes(lambda data: data.replace(_EXPLICIT, _UNKNOWN, 1)), "cannot be decoded"),
}


def _one_less(found: Broken, source: Source, row: int) -> None:
    """The unit has no X-ray, and everything else is as it was."""
    found.assert_same(but=["image"])
    present, before = found.prepared.present("image"), source.prepared.present("image")
    assert np.flatnonzero(present != before).tolist() == [row]
    for other in np.flatnonzero(present):
        assert np.array_equal(_image(found.prepared, other), _image(source.prepared, other))


@pytest.mark.parametrize("case", cases(NOT_READ, ["no byte"]))
def test_an_x_ray_whose_header_cannot_be_read_is_counted(
    broken: Callable[..., Broken], mimic: Source, case: str
) -> None:
    """Without a view and a time it is not known whose window it lies in."""
    change, note = NOT_READ[case]
    row, file = _chosen(mimic)
    found = broken(mimic, lambda folder: change(folder / file))
    _one_less(found, mimic, row)
    assert found.prepared.manifest["notes"][note] == mimic.prepared.manifest["notes"].get(note, 0) + 1


@pytest.mark.parametrize("case", cases(SKIPPED, ["no pixels", "several frames", "a syntax that nobody knows"]))
def test_an_x_ray_that_cannot_be_decoded_is_skipped_and_counted(
    broken: Callable[..., Broken], mimic: Source, case: str
) -> None:
    change, reason = SKIPPED[case]
    row, file = _chosen(mimic)
    found = broken(mimic, lambda folder: change(folder / file))
    _one_less(found, mimic, row)
    with (found.prepared.folder / "image.skipped.csv").open(newline="") as stream:
        told = {entry["file"]: entry["reason"] for entry in csv.DictReader(stream)}
    assert re.search(reason, told[file.relative_to("cxr").as_posix()])
    skipped = "image: files that cannot be decoded"
    before = mimic.prepared.manifest["notes"][skipped]
    assert found.prepared.manifest["notes"][skipped] == before + 1 == len(told)
