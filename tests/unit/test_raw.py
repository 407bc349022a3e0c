"""Every way a raw file can be wrong gives one line that names it; every harmless variant reads the same."""

import gzip
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from ovo_clinic.errors import UserError
from ovo_clinic.raw import RawFolder
from ovo_clinic.spec import TableSpec

COLUMNS = {"id": "integer", "value": "number", "note": "text"}
THINGS = TableSpec.model_validate({"file": "things", "columns": COLUMNS, "unique": "id"})
OTHERS = TableSpec.model_validate({"file": "others", "columns": {"key": "integer", "word": "text"}, "required": False})
TABLES = {"things": THINGS, "others": OTHERS}
GOOD = "id,value,note\n1,2.5,x\n2,,\n"
EXPECTED = [(1, 2.5, "x"), (2, None, None)]


def folder(path: Path, content: str | bytes = GOOD, name: str = "things.csv") -> RawFolder:
    data = content.encode() if isinstance(content, str) else content
    (path / name).write_bytes(data)
    return RawFolder({"": path}, TABLES)


@cache
def long_csv(rows: int = 20_000) -> bytes:
    values = np.random.default_rng(0).normal(size=rows)
    return ("id,value,note\n" + "".join(f"{i},{value},text {i}\n" for i, value in enumerate(values))).encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("things.csv", GOOD.encode()),
        ("Things.CSV.gz", gzip.compress(GOOD.encode())),
        ("things.csv", b"\xef\xbb\xbf" + GOOD.encode()),
        ("things.csv", GOOD.replace("\n", "\r\n").encode()),
        ("things.csv", GOOD.rstrip("\n").encode()),
        ("things.csv", b"NOTE,extra,Id,VALUE\nx,,1,2.5\n,a,2,\n"),
        ("things.csv", b'"id","value","note"\n"1","2.5","x"\n"2","",""\n'),
        ("things.csv", b"id,value,note\n1.0,2.5,x\n2.0,,\n"),
        ("things.csv", b"id,value,note\n1,2.5,x\n2,NaN,\n"),
        ("things.csv", b"id,value,note\n1,2.5,x\n2,inf,\n"),
    ],
    ids=["plain", "gz", "bom", "crlf", "no last newline", "order and case", "quoted", "float ids", "nan", "infinite"],
)
def test_harmless_variants_read_the_same(tmp_path: Path, name: str, content: bytes) -> None:
    frame = folder(tmp_path, content, name).read("things")
    assert frame.rows() == EXPECTED
    assert frame.schema == {"id": pl.Int64, "value": pl.Float64, "note": pl.String}


def test_quoted_newlines_and_odd_bytes_in_text(tmp_path: Path) -> None:
    raw = folder(tmp_path, b'id,value,note\n1,2,"a, ""b""\r\nc"\n2,3,caf\xe9\n')
    assert raw.read("things")["note"].to_list() == ['a, "b"\r\nc', "caf\ufffd"]


def test_a_quote_inside_a_name_of_the_header(tmp_path: Path) -> None:
    raw = folder(tmp_path, 'id,"valu"e,note\n1,2.5,x\n')
    with pytest.raises(UserError, match="things.csv: its rows or quotes are broken"):
        raw.collect(raw.scan("things").select("value"), "things")


def test_whole_numbers_blank_at_first_may_be_written_as_floats(tmp_path: Path) -> None:
    spec = TableSpec.model_validate({"file": "things", "columns": {"id": "integer", "value": "integer"}})
    (tmp_path / "things.csv").write_text("id,value\n" + "1,\n" * 30_000 + "2,7.0\n")
    raw = RawFolder({"": tmp_path}, {"things": spec})
    assert raw.collect(raw.scan("things").drop_nulls(), "things").rows() == [(2, 7)]


def test_optional_file_may_be_absent(tmp_path: Path) -> None:
    assert folder(tmp_path).path("others") is None
    (tmp_path / "others.csv").write_text("key,word\n1,a\n")
    assert RawFolder({"": tmp_path}, TABLES).path("others") == tmp_path / "others.csv"


def test_sources_have_folders_of_their_own(tmp_path: Path) -> None:
    spec = THINGS.model_copy(update={"source": "iv"})
    (tmp_path / "things.csv").write_text(GOOD)
    assert RawFolder({"iv": tmp_path}, {"things": spec}).read("things").height == 2
    with pytest.raises(UserError, match="--raw iv=DIR"):
        RawFolder({"cxr": tmp_path}, {"things": spec})


MISTAKES = {
    "empty": ("", "things.csv: is empty"),
    "header only": ("id,value,note\n", "has a header but no rows"),
    "web page": ("<!DOCTYPE html>\n<html>log in</html>", "is a web page"),
    "spreadsheet": (b"PK\x03\x04\0\0", "is not CSV text"),
    "missing column": ("id,values,note\n1,2,x\n", "has no column value (its column 'values' is near 'value')"),
    "semicolons": ("id;value;note\n1;2;x\n", "has no column id, value, note (columns are separated by ';'"),
    "carriage returns alone": (long_csv().replace(b"\n", b"\r"), "its lines end in carriage returns alone"),
    "another table": ("key,word\n1,a\n", "holds the columns of table 'others'"),
    "same column twice": ("id,value,note,ID\n1,2,x,3\n", "has two columns 'id'"),
    "too many fields": ("id,value,note\n1,2,x\n1,2,x,y\n", "record 3 has 4 fields where the header has 3"),
    "too few fields": ("id,value,note\n1,2\n1,2,x\n", "record 2 has 2 fields"),
    "cut off": (long_csv()[:-8].rpartition(b",")[0], "is cut off in its last row"),
    "cut off in the head": (gzip.compress(long_csv())[:200], "is cut off or damaged"),
}


def test_a_message_shows_a_few_names_of_many_and_none_whole(tmp_path: Path) -> None:
    columns = dict.fromkeys((f"column_{number}" for number in range(1000)), "text")
    spec = TableSpec.model_validate({"file": "things", "columns": columns | {"name": "text"}})
    (tmp_path / "things.csv").write_text(f"{'x' * 100_000},column_0{'_' * 20}{' y' * 10_000}\n1,2\n")
    with pytest.raises(UserError, match="has no column column_0, column_1, .* and 993 more") as caught:
        RawFolder({"": tmp_path}, {"things": spec})
    assert len(str(caught.value)) < 500 + len(str(tmp_path))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_seen_at_once(tmp_path: Path, mistake: str) -> None:
    content, message = MISTAKES[mistake]
    with pytest.raises(UserError) as caught:
        folder(tmp_path, content)
    assert message in str(caught.value) and str(tmp_path / "things.csv") in str(caught.value)
    assert "\n" not in str(caught.value) and ";" in str(caught.value)


def damaged() -> bytes:
    data = bytearray(gzip.compress(long_csv()))
    data[len(data) // 2] ^= 0xFF
    return bytes(data)


def wrong_checksum() -> bytes:
    data = bytearray(gzip.compress(long_csv()))
    data[-6] ^= 0xFF
    return bytes(data)


LATE_MISTAKES = {
    "truncated gz": (gzip.compress(long_csv())[:-1000], "is cut off or damaged"),
    "gz without its end": (gzip.compress(long_csv())[:-4], "is cut off or damaged"),
    "damaged gz": (damaged(), "is cut off or damaged"),
    "wrong checksum": (wrong_checksum(), "is cut off or damaged"),
    "text in a number": (
        long_csv() + b"1,n/a,x\n",
        "'value' should be a number and is not in 1 rows, the first of them record 20002",
    ),
    "text in an id": (
        long_csv() + b"one,1,x\n",
        "'id' should be a whole number and is not in 1 rows, the first of them record 20002",
    ),
    "fraction in an id": (
        b"id,value,note\n1.0,1,x\n1.5,1,x\n",
        "'id' should be a whole number and is not in 1 rows, the first of them record 3",
    ),
    "quote left open": (long_csv() + b'1,2,"x\n', "its rows or quotes are broken"),
    "too many fields later": (long_csv() + b"1,2,x,y\n", "1 rows have not the header's 3 fields"),
    "id twice": (b"id,value,note\n1,2,x\n1,3,y\n2,3,y\n", "column 'id' holds 1 values more than once"),
    "id blank": (b"id,value,note\n1,2,x\n,3,y\n", "column 'id' is blank in 1 rows"),
}


@pytest.mark.parametrize("mistake", LATE_MISTAKES)
def test_mistakes_seen_on_reading(tmp_path: Path, mistake: str) -> None:
    content, message = LATE_MISTAKES[mistake]
    raw = folder(tmp_path, content)
    with pytest.raises(UserError) as caught:
        raw.read("things")
    assert message in str(caught.value) and str(tmp_path / "things.csv") in str(caught.value)
    assert "\n" not in str(caught.value) and ";" in str(caught.value)


@pytest.mark.parametrize("mistake", ["truncated gz", "wrong checksum", "text in a number"])
def test_mistakes_seen_in_batches(tmp_path: Path, mistake: str) -> None:
    content, message = LATE_MISTAKES[mistake]
    raw = folder(tmp_path, content)
    with pytest.raises(UserError, match=message):
        for _ in raw.batches(raw.scan("things").filter(pl.col("value") > 5), "things"):
            pass


def test_missing_file_and_folder(tmp_path: Path) -> None:
    (tmp_path / "thing.csv").write_text(GOOD)
    with pytest.raises(UserError, match=r"has no file things\.csv or things\.csv\.gz; 'thing\.csv' is there"):
        RawFolder({"": tmp_path}, TABLES)
    with pytest.raises(UserError, match="is not a folder"):
        RawFolder({"": tmp_path / "nowhere"}, TABLES)


def test_batches_hold_every_row_once(tmp_path: Path) -> None:
    raw = folder(tmp_path, gzip.compress(long_csv()), "things.csv.gz")
    ids = pl.concat(list(raw.batches(raw.scan("things").select("id"), "things")))["id"]
    assert sorted(ids) == list(range(20_000))


def test_fault_of_the_program_keeps_its_error(tmp_path: Path) -> None:
    raw = folder(tmp_path)
    with pytest.raises(pl.exceptions.ColumnNotFoundError):
        raw.collect(raw.scan("things").select("absent"), "things")


@pytest.mark.parametrize("packed", [False, True])
def test_fingerprint_sees_an_edit_anywhere_that_keeps_the_size(tmp_path: Path, packed: bool) -> None:
    rows = [f"{number},{number % 2}" for number in range(100_000, 1_000_000)]
    found = []
    for name, changed in (("a", rows), ("b", [*rows[:200_000], "300000,1", *rows[200_001:]])):
        content = ("id,label\n" + "\n".join(changed) + "\n").encode()
        path = tmp_path / name / ("t.csv.gz" if packed else "t.csv")
        path.parent.mkdir()
        path.write_bytes(gzip.compress(content, compresslevel=1, mtime=0) if packed else content)
        tables = {"t": TableSpec(file="t", columns={"id": "integer"})}
        found.append(RawFolder({"": path.parent}, tables).fingerprint()[0]["sha256"])
    assert found[0] != found[1]


def test_fingerprint_follows_content_not_place(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("a", "b", "c"))
    for path in (first, second, third):
        path.mkdir()
    big = long_csv(100_000)
    changed = bytearray(big)
    changed[len(big) // 2] ^= 1
    prints = [
        folder(first, big).fingerprint(),
        folder(second, big).fingerprint(),
        folder(third, bytes(changed)).fingerprint(),
    ]
    assert prints[0] == prints[1] != prints[2]
    assert prints[0][0]["file"] == "things.csv" and prints[0][0]["bytes"] == len(big)
