"""Downloads are found whatever they are nested in, and columns by whatever name a version gives them."""

from pathlib import Path

import polars as pl
import pytest

from ovo_clinic.errors import UserError
from ovo_clinic.raw import RawFolder
from ovo_clinic.raw_folders import by_source
from ovo_clinic.spec import TableSpec

TABLES = {
    name: TableSpec.model_validate({"columns": {"id": "integer"}} | settings)
    for name, settings in {
        "patients": {"file": "patients", "source": "iv", "folders": ["hosp", "core"]},
        "stays": {"file": "stays", "source": "iv", "folders": ["icu"]},
        "films": {"file": "films", "source": "cxr", "required": False},
        "letters": {"file": "letters", "source": "note", "folders": ["note"], "required": False},
    }.items()
}
EHR = ("hosp/patients.csv", "icu/stays.csv.gz")


def write(folder: Path, *files: str, content: str = "id\n1\n") -> Path:
    import gzip

    for file in files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content.encode()) if file.endswith(".gz") else content.encode())
    return folder


@pytest.mark.parametrize(
    ("place", "files", "given"),
    [
        ("", EHR, ""),
        ("", ("core/patients.csv", "icu/stays.csv"), ""),
        ("", ("hosp/patients.csv", "hosp/stays.csv"), "hosp"),
        ("mimiciv", EHR, ""),
        ("mimiciv/2.2", EHR, "mimiciv"),
        ("files/mimiciv/3.1", EHR, "files"),
        ("", ("Patients.CSV", "stays.csv"), ""),
    ],
)
def test_a_download_is_found_however_it_is_nested(
    tmp_path: Path, place: str, files: tuple[str, ...], given: str
) -> None:
    write(tmp_path / place, *files)
    raw = RawFolder({"": tmp_path / given}, TABLES)
    assert raw.folder("iv") == tmp_path / (place or given)
    assert raw.read("patients").height == raw.read("stays").height == 1
    assert raw.path("films") is None and raw.folder("note") is None
    assert raw.sources() == ["iv"]


def test_one_folder_holds_several_downloads(tmp_path: Path) -> None:
    write(tmp_path / "mimiciv" / "2.2", *EHR)
    write(tmp_path / "mimic-cxr-jpg" / "2.0.0", "films.csv.gz")
    write(tmp_path / "mimic-iv-note" / "2.2", "note/letters.csv")
    raw = RawFolder({"": tmp_path}, TABLES)
    assert raw.sources() == ["cxr", "iv", "note"]
    assert raw.folder("cxr") == tmp_path / "mimic-cxr-jpg" / "2.0.0"
    assert raw.path("letters") == tmp_path / "mimic-iv-note" / "2.2" / "note" / "letters.csv"
    image = tmp_path / "mimic-cxr-jpg" / "2.0.0" / "files" / "p10" / "a.jpg"
    assert raw.place(image) == ("cxr", "files/p10/a.jpg")


def test_images_alone_are_found_by_the_name_of_the_source(tmp_path: Path) -> None:
    write(tmp_path / "iv", *EHR)
    (tmp_path / "cxr" / "files").mkdir(parents=True)
    assert RawFolder({"": tmp_path}, TABLES).folder("cxr") == tmp_path / "cxr"
    other = tmp_path / "films of mine"
    other.mkdir()
    assert RawFolder({"iv": tmp_path / "iv", "cxr": other}, TABLES).folder("cxr") == other


def test_sources_that_are_not_named_and_not_needed_are_absent(tmp_path: Path) -> None:
    write(tmp_path, *EHR, "films.csv")
    assert RawFolder({"iv": tmp_path}, TABLES).path("films") is None
    with pytest.raises(UserError, match="no folder is given for source 'iv'; give --raw iv=DIR"):
        RawFolder({"cxr": tmp_path}, TABLES)


def test_two_versions_beside_each_other_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "2.2", *EHR)
    write(tmp_path / "3.1", *EHR)
    with pytest.raises(UserError, match=r"more than one download of 'iv': .*2\.2, .*3\.1; .*--raw iv=DIR"):
        RawFolder({"": tmp_path}, TABLES)
    assert RawFolder({"": tmp_path / "3.1"}, TABLES).folder("iv") == tmp_path / "3.1"


def test_a_single_download_may_lie_in_a_folder_of_its_version_too(tmp_path: Path) -> None:
    tables = {name: TableSpec(file=name, columns={"id": "integer"}) for name in ("patient", "lab")}
    write(tmp_path / "eicu" / "2.0", "patient.csv.gz", "lab.csv.gz")
    for given in (tmp_path, tmp_path / "eicu", tmp_path / "eicu" / "2.0"):
        assert RawFolder({"": given}, tables).folder() == tmp_path / "eicu" / "2.0"
    write(tmp_path / "eicu" / "1.2", "patient.csv.gz", "lab.csv.gz")
    with pytest.raises(
        UserError, match=r"^--raw: \S+ holds more than one download: .*1\.2, .*2\.0; name the one .*: --raw DIR$"
    ):
        RawFolder({"": tmp_path}, tables)
    write(tmp_path, "patient.csv")  # the given folder itself comes first, whatever it lacks
    with pytest.raises(UserError, match=r"^\S+: has no file lab\.csv"):
        RawFolder({"": tmp_path}, tables)


def test_a_folder_of_many_records_is_not_searched(tmp_path: Path) -> None:
    write(tmp_path, *EHR)
    for number in range(60):
        write(tmp_path / "files" / f"p{number}", "films.csv")
    assert RawFolder({"": tmp_path}, TABLES).path("films") is None


def test_a_missing_table_says_where_it_was_looked_for(tmp_path: Path) -> None:
    write(tmp_path, "hosp/patients.csv", "icu/stay.csv")
    with pytest.raises(
        UserError, match=r"has no file stays\.csv or stays\.csv\.gz \(nor has icu in it\); 'stay\.csv' is"
    ):
        RawFolder({"": tmp_path}, TABLES)


@pytest.mark.parametrize("second", ["icu/stays.csv.gz", "icu/stays.parquet", "icu/STAYS.csv"])
def test_a_table_in_two_forms_is_refused(tmp_path: Path, second: str) -> None:
    write(tmp_path, "hosp/patients.csv", "icu/stays.csv", second)
    with pytest.raises(UserError, match=r"icu: holds both \S+ and \S+, .*; remove or move one$") as caught:
        RawFolder({"": tmp_path}, TABLES)
    assert "stays.csv" in str(caught.value) and Path(second).name in str(caught.value)


def test_given_folders_are_checked(tmp_path: Path) -> None:
    assert by_source(str(tmp_path), TABLES) == {"": tmp_path}
    assert by_source({"iv": str(tmp_path)}, TABLES) == {"iv": tmp_path}
    with pytest.raises(UserError, match="no source 'vi'; valid: cxr, iv, note"):
        by_source({"vi": tmp_path}, TABLES)
    with pytest.raises(UserError, match="nowhere is not a folder"):
        by_source({"iv": tmp_path / "nowhere"}, TABLES)
    with pytest.raises(UserError, match="the data set has one; give --raw DIR"):
        by_source({"iv": tmp_path}, {"a": TableSpec(file="a", columns={})})


VERSIONED = TableSpec.model_validate(
    {
        "file": "t",
        "columns": {"id": "integer", "race": "text"},
        "optional_columns": {"carer": "integer", "weight": "number", "note": "text"},
        "renamed": {"race": ["ethnicity"], "weight": ["kilograms"]},
    }
)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("id,race\n1,a\n", (1, "a", None, None, None)),
        ("note,ethnicity,id,carer\nx,a,1,7\n", (1, "a", 7, None, "x")),
        ("Ethnicity,race,id,KILOGRAMS\nold,new,1,60.5\n", (1, "new", None, 60.5, None)),
    ],
)
def test_optional_and_renamed_columns(tmp_path: Path, content: str, expected: tuple[object, ...]) -> None:
    (tmp_path / "t.csv").write_text(content)
    frame = RawFolder({"": tmp_path}, {"t": VERSIONED}).read("t")
    assert frame.rows() == [expected]
    assert frame.schema == {
        "id": pl.Int64, "race": pl.String, "carer": pl.Int64, "weight": pl.Float64, "note": pl.String
    }  # fmt: skip


def test_the_fingerprint_is_that_of_the_content_not_of_the_nesting(tmp_path: Path) -> None:
    write(tmp_path / "a", *EHR)
    write(tmp_path / "b" / "iv" / "2.2", *EHR)
    (tmp_path / "b" / "iv" / "2.2" / "icu" / "stays.csv.gz").write_bytes(
        (tmp_path / "a" / "icu" / "stays.csv.gz").read_bytes()
    )
    first, second = (RawFolder({"": tmp_path / name}, TABLES).fingerprint() for name in "ab")
    assert first == second
