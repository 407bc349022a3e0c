"""eICU folders with one thing wrong: refused in one line, counted, or read as if nothing were wrong."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bad_input.conftest import Broken, Source
from tests.bad_input.raw_files import (
    CANARY,
    Change,
    Rows,
    cases,
    cells,
    content,
    every,
    in_place_of,
    packed,
    replaced,
    rows,
    unpacked,
)

PATIENT, LAB, APS, DIAGNOSIS = "patient.csv.gz", "lab.csv.gz", "apacheApsVar.csv.gz", "diagnosis.csv.gz"
MIDDLE = slice(40, 41)
HTML = b"<!DOCTYPE html>\n<html><body>Log in to PhysioNet</body></html>\n"


def without_gz(folder: Path) -> None:
    for path in sorted(folder.glob("*.csv.gz")):
        path.with_suffix("").write_bytes(content(path))
        path.unlink()


def elsewhere(folder: Path) -> None:
    """The files are symbolic links, as on shared servers."""
    there = folder.with_name("there")
    there.mkdir()
    for path in sorted(folder.glob("*.csv.gz")):
        path.rename(there / path.name)
        path.symlink_to(there / path.name)


def renamed(file: str, old: str, new: str) -> Change:
    return rows(file, lambda table: [[new if name == old else name for name in table[0]], *table[1:]])


def with_column(name: str, cell: str) -> Callable[[Rows], Rows]:
    return lambda table: [[name, *table[0]], *([cell, *record] for record in table[1:])]


def quoted(data: bytes) -> bytes:
    lines = data.decode().splitlines()
    assert not any('"' in line for line in lines[:1])
    return "\n".join(",".join(f'"{cell}"' for cell in line.split(",")) for line in lines).encode()


FINE: dict[str, Change] = {
    "carriage returns": unpacked(PATIENT, lambda data: data.replace(b"\n", b"\r\n")),
    "byte order mark": unpacked(PATIENT, lambda data: b"\xef\xbb\xbf" + data),
    "no last line feed": unpacked(PATIENT, lambda data: data.rstrip(b"\n")),
    "columns in another order": rows(PATIENT, lambda table: [record[::-1] for record in table]),
    "rows in another order": rows(PATIENT, lambda table: [table[0], *table[:0:-1]]),
    "names in capitals": rows(PATIENT, lambda table: [[name.upper() for name in table[0]], *table[1:]]),
    "a further column": rows(PATIENT, with_column("ward", "7")),
    "a line break in a quoted text that is not read": rows(PATIENT, with_column("remark", 'a "b"\nc, d')),
    "latin-1 in a text that is not read": unpacked(
        PATIENT, lambda data: data.replace(b"\n", b",caf\xe9\n").replace(b"caf\xe9", b"remark", 1)
    ),
    "every cell quoted": unpacked(APS, quoted),
    "ids as floats": cells(PATIENT, "patientunitstayid", lambda cell: f"{cell}.0"),
    "not packed": without_gz,
    "packed twice in a row": packed(LAB, lambda data: data + gzip.compress(b"")),
    "name in capitals": lambda folder: (folder / PATIENT).rename(folder / PATIENT.upper()),
    "symbolic links": elsewhere,
    "a loop of symbolic links beside": lambda folder: (folder / "again").symlink_to(folder),
    "NaN for a missing number": cells(LAB, "labresult", lambda cell: cell or "NaN"),
    "infinite for a missing number": cells(LAB, "labresult", lambda cell: cell or "-inf"),
    "results of other patients in the year 30000": rows(
        LAB,
        lambda table: [*table, *(_lab(table, patientunitstayid="999", labresultoffset="99999999999") for _ in "ab")],
    ),
}


def _lab(table: Rows, **changes: str) -> list[str]:
    """The first laboratory result with other cells."""
    return [changes.get(name, cell) for name, cell in zip(table[0], table[1], strict=True)]


QUICK_FINE = (
    *("carriage returns", "byte order mark", "columns in another order", "ids as floats", "symbolic links"),
    *("a line break in a quoted text that is not read", "latin-1 in a text that is not read", "not packed"),
)


@pytest.mark.parametrize("case", cases(FINE, QUICK_FINE))
def test_what_is_only_odd_reads_the_same(broken: Callable[..., Broken], eicu: Source, case: str) -> None:
    broken(eicu, FINE[case]).assert_same()


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]


def as_folder(path: Path) -> None:
    path.mkdir()


def as_loop(path: Path) -> None:
    path.symlink_to(path)


def drop_cell(table: Rows) -> Rows:
    return [*table[:40], table[40][:-3], *table[41:]]


def add_cell(table: Rows) -> Rows:
    return [*table[:40], [*table[40], CANARY], *table[41:]]


def another(name: str) -> Change:
    """Another table of the data set under the file's name."""
    return lambda folder: replaced(folder / PATIENT, content(folder / name))


def the_wrong_data_set(folder: Path) -> None:
    for path in folder.glob("*.csv.gz"):
        path.unlink()
    (folder / "TADPOLE_D1_D2.csv").write_text("RID,VISCODE\n2,bl\n")


REFUSED: dict[str, tuple[Change, str]] = {
    "empty": (in_place_of(PATIENT, Path.touch), r"patient\.csv\.gz: is empty; "),
    "nothing packed": (unpacked(PATIENT, lambda data: b""), "is empty; "),
    "header alone": (rows(PATIENT, lambda table: table[:1]), "has a header but no rows; "),
    "header alone in an event table": (rows(LAB, lambda table: table[:1]), "has a header but no rows; "),
    "web page": (packed(PATIENT, lambda data: HTML), "is a web page, not CSV"),
    "packed web page": (unpacked(PATIENT, lambda data: HTML), "is a web page, not CSV"),
    "web page in front": (unpacked(PATIENT, lambda data: b"\n \n" + HTML + data), "is a web page, not CSV"),
    "cut off": (packed(LAB, lambda data: data[: len(data) // 2]), "is cut off or damaged"),
    "cut off by its end": (packed(LAB, lambda data: data[:-6]), "is cut off or damaged"),
    "cut off in the head": (packed(PATIENT, lambda data: data[:60]), "is cut off or damaged"),
    "one byte wrong": (packed(LAB, flipped), "is cut off or damaged"),
    "other bytes at the end": (packed(LAB, lambda data: data + b"\0" * 50 + b"rest"), "is cut off or damaged"),
    "cut off before it was packed": (unpacked(PATIENT, lambda data: data[: len(data) // 2]), "fields where the header"),
    "blank lines at the end": (unpacked(PATIENT, lambda data: data + b"\n\n"), "is blank in 2 rows"),
    "utf-16": (unpacked(PATIENT, lambda data: data.decode().encode("utf-16")), "is not CSV text"),
    "utf-32": (unpacked(PATIENT, lambda data: data.decode().encode("utf-32")), "is not CSV text"),
    "spreadsheet": (packed(PATIENT, lambda data: b"PK\x03\x04" + data), "is not CSV text"),
    "semicolons": (unpacked(APS, lambda data: data.replace(b",", b";")), "separated by ';', not by a comma"),
    "tabs": (unpacked(APS, lambda data: data.replace(b",", b"\t")), "not by a comma"),
    "old line ends": (unpacked(APS, lambda data: data.replace(b"\n", b"\r")), "carriage returns alone"),
    "a column is missing": (renamed(PATIENT, "age", "comment"), "has no column age"),
    "a column goes by another name": (renamed(LAB, "labresult", "lab_result"), "'lab_result' is near 'labresult'"),
    "a column stands twice": (rows(PATIENT, lambda table: [[*r, r[0]] for r in table]), "has two columns"),
    "no header": (rows(PATIENT, lambda table: table[1:]), "has no column"),
    "another table": (another(APS), "holds the columns of table 'aps', not of 'patient'"),
    "a short row": (rows(PATIENT, drop_cell), "1 rows have not the header's|has .* fields"),
    "a long row": (rows(PATIENT, add_cell), "rows or quotes are broken|has .* fields"),
    "a quote left open": (unpacked(LAB, lambda data: data + b'1,"' + CANARY.encode() + b"\n"), "rows or quotes are"),
    "text as id": (cells(PATIENT, "patientunitstayid", lambda cell: CANARY, MIDDLE), "should be a whole number"),
    "text as number": (cells(LAB, "labresult", lambda cell: CANARY, slice(-2, -1)), "should be a number"),
    "fraction as id": (cells(PATIENT, "patientunitstayid", lambda cell: "7.25", MIDDLE), "should be a whole number"),
    "id of thirty digits": (cells(PATIENT, "patientunitstayid", lambda cell: "9" * 30, MIDDLE), "a whole number"),
    "scientific ids": (cells(PATIENT, "patientunitstayid", lambda c: f"{float(c):e}"), "should be a whole number"),
    "id blank": (cells(PATIENT, "patientunitstayid", lambda cell: "", MIDDLE), "is blank in 1 rows"),
    "person blank": (cells(PATIENT, "uniquepid", lambda cell: "", MIDDLE), "'uniquepid' is blank in 1 rows"),
    "a row twice": (rows(PATIENT, lambda table: [*table, table[5]]), "holds 1 values more than once"),
    "a file is missing": (lambda folder: (folder / LAB).unlink(), r"has no file lab\.csv or lab\.csv\.gz"),
    "a folder in its place": (in_place_of(LAB, as_folder), r"lab\.csv\.gz: cannot be read \(Is a directory\)"),
    "a loop of symbolic links": (in_place_of(LAB, as_loop), r"lab\.csv\.gz: cannot be read"),
    "a link to nowhere": (in_place_of(LAB, lambda path: path.symlink_to("nowhere")), r"lab\.csv\.gz: cannot be read"),
    "the wrong data set": (the_wrong_data_set, r"has no file patient\.csv"),
    "a result beyond all numbers": (cells(APS, "glucose", lambda cell: "1e300", MIDDLE), "beyond 3e38"),
    "everybody survived": (cells(PATIENT, "hospitaldischargestatus", lambda cell: "Alive"), "nothing can be learned"),
    "nobody's outcome is known": (cells(PATIENT, "hospitaldischargestatus", lambda cell: "?"), "no unit is left"),
    "everybody left before admission": (cells(PATIENT, "unitdischargeoffset", lambda c: "-900"), "no unit is left"),
    "one patient": (cells(PATIENT, "uniquepid", lambda cell: "000-0001"), "1 separate group"),
    "children": (cells(PATIENT, "age", lambda cell: "7"), "no unit is left"),
}


LATE = (  # seen only once most of the work is done
    *("cut off", "cut off by its end", "one byte wrong", "other bytes at the end", "a quote left open"),
    *("text as number", "a result beyond all numbers", "one patient", "everybody left before admission"),
)
QUICK_LATE = ("cut off", "text as number", "one patient")


@pytest.mark.parametrize("case", cases(REFUSED, set(REFUSED) - set(LATE) | set(QUICK_LATE)))
def test_what_is_wrong_is_said_in_one_line(broken: Callable[..., Broken], eicu: Source, case: str) -> None:
    change, message = REFUSED[case]
    broken(eicu, change).assert_refused(message)


def _attrition(found: Broken) -> dict[str, int]:
    return {step["rule"]: step["units"] for step in found.prepared.manifest["attrition"]}


AGES = ["", "NaN", "inf", "-3", "900", "unknown", "1e9"]


@pytest.mark.parametrize("age", cases(AGES, ["NaN", "900"]))
def test_an_age_that_is_none_leaves_the_stay_out(broken: Callable[..., Broken], eicu: Source, age: str) -> None:
    unit = str(eicu.prepared.cohort["unit_id"][7])

    def aged(table: Rows) -> Rows:
        place, stay = table[0].index("age"), table[0].index("patientunitstayid")
        return [[age if i == place and r[stay] == unit else cell for i, cell in enumerate(r)] for r in table]

    found = broken(eicu, rows(PATIENT, aged))
    assert found.prepared.cohort.height == eicu.prepared.cohort.height - 1
    assert int(unit) not in found.prepared.cohort["unit_id"].to_list()


def test_a_stay_of_negative_length_is_counted(broken: Callable[..., Broken], eicu: Source) -> None:
    unit = str(eicu.prepared.cohort["unit_id"][7])

    def left(table: Rows) -> Rows:
        place, stay = table[0].index("unitdischargeoffset"), table[0].index("patientunitstayid")
        return [["-5000" if i == place and r[stay] == unit else cell for i, cell in enumerate(r)] for r in table]

    found = broken(eicu, rows(PATIENT, left))
    before = {step["rule"]: step["units"] for step in eicu.prepared.manifest["attrition"]}
    lost = [rule for rule, units in _attrition(found).items() if units != before[rule]]
    assert lost[0] == "in the unit at 24 h" and found.prepared.cohort.height == eicu.prepared.cohort.height - 1


@pytest.mark.parametrize("offset", cases(["-99999999999", "99999999999"], ["-99999999999"]))
@pytest.mark.parametrize("column", ["labresultoffset", "labresultrevisedoffset"])
def test_absurd_times_of_records(broken: Callable[..., Broken], eicu: Source, column: str, offset: str) -> None:
    """A time beyond the window drops the record; a revision long ago is known."""

    def added(table: Rows) -> Rows:
        unit = str(eicu.prepared.cohort["unit_id"][0])
        record = _lab(table, patientunitstayid=unit, labname="made up", labresult="5", labresultoffset="60")
        record[table[0].index(column)] = offset
        return [*table, record]

    found = broken(eicu, rows(LAB, added))
    if (column, offset[0]) != ("labresultrevisedoffset", "-"):
        found.assert_same()
    reason = {
        ("labresultoffset", "-"): "before the window",
        ("labresultoffset", "9"): "at or after the end of the window",
        ("labresultrevisedoffset", "9"): "version not known before the end of the window",
    }
    notes, before = found.prepared.manifest["notes"], eicu.prepared.manifest["notes"]
    more = {name: notes[name] - before[name] for name in notes if notes[name] != before[name]}
    wanted = reason.get((column, offset[0]))
    assert more == ({f"lab records dropped: {wanted}": 1} if wanted else {})


def test_a_modality_that_nobody_has(broken: Callable[..., Broken], eicu: Source) -> None:
    """Prepared as absent for all, and told; the others are as they were."""
    found = broken(eicu, cells(APS, "patientunitstayid", lambda cell: str(10**6 + int(cell))))
    found.assert_same(but=["aps"])
    assert not found.prepared.present("aps").any()
    assert set(found.prepared.manifest["modalities"]["aps"]["present"].values()) == {0}


def test_two_things_wrong_are_told_one_after_the_other(broken: Callable[..., Broken], eicu: Source) -> None:
    both = every(in_place_of(PATIENT, Path.touch), in_place_of(LAB, Path.touch))
    broken(eicu, both).assert_refused(r"patient\.csv\.gz: is empty")
