"""Private data in flat files with one thing wrong."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.bad_input.conftest import Broken, Command, Source, assert_refused
from tests.bad_input.raw_files import CANARY, Change, Rows, cells, linked, rows, unpacked

STAYS, LABS = "stays.csv", "labs.csv"
ONE = slice(9, 10)


def packed_by(file: str, suffix: str, write: Callable[[pd.DataFrame, Path], object]) -> Change:
    """The file in another format."""

    def apply(folder: Path) -> None:
        path = folder / file
        table = pd.read_csv(path)
        path.unlink()
        write(table, path.with_name(path.name.replace(".csv", suffix)))

    return apply


FINE: dict[str, Change] = {
    "carriage returns": unpacked(STAYS, lambda data: data.replace(b"\n", b"\r\n")),
    "byte order mark": unpacked(LABS, lambda data: b"\xef\xbb\xbf" + data),
    "blanks around texts": cells(STAYS, "person", lambda cell: f"  {cell} "),
    "columns in another order": rows(STAYS, lambda table: [record[::-1] for record in table]),
    "rows in another order": rows(STAYS, lambda table: [table[0], *table[:0:-1]]),
    "ids as floats": cells(STAYS, "stay_id", lambda cell: f"{cell}.0"),
    "labels as floats": cells(STAYS, "died", lambda cell: f"{cell}.0"),
    "parquet": packed_by(STAYS, ".parquet", lambda table, path: table.to_parquet(path, index=False)),
    "packed": packed_by(STAYS, ".csv.gz", lambda table, path: table.to_csv(path, index=False)),
}


@pytest.mark.parametrize("case", FINE)
def test_what_is_only_odd_reads_the_same(broken: Callable[..., Broken], flat: Source, case: str) -> None:
    broken(flat, FINE[case]).assert_same()


REFUSED: dict[str, tuple[Change, str]] = {
    "not CSV": (unpacked(LABS, lambda data: gzip.compress(data)[:-9]), "is cut off or damaged"),
    "unit twice": (rows(STAYS, lambda table: [*table, table[9]]), "'stay_id' holds 1 value"),
    "unit blank": (cells(STAYS, "stay_id", lambda cell: "", ONE), "1 units have no unit_id"),
    "person blank": (cells(STAYS, "person", lambda cell: "", ONE), "1 units have no patient_id"),
    "ids in latin-1": (unpacked(STAYS, lambda data: data.replace(b"canary", b"can\xe1ry", 1)), "1 cell.* not UTF-8"),
    "text as label": (cells(STAYS, "died", lambda cell: CANARY, ONE), "'died' should be a whole number"),
    "label of three values": (cells(STAYS, "died", lambda cell: "2", ONE), "holds 1 value"),
    "label of one value": (cells(STAYS, "died", lambda cell: "0"), "nothing can be learned"),
    "no label at all": (cells(STAYS, "died", lambda cell: ""), "no unit is left"),
    "one person": (cells(STAYS, "person", lambda cell: "everybody"), "1 separate group"),
    "no number": (cells(LABS, "value", lambda cell: "hemolyzed", ONE), "'value' should be a number"),
    "an age beyond all numbers": (cells(STAYS, "age", lambda cell: "1e39", ONE), "age holds values beyond 3e38"),
    "a value beyond all numbers": (cells(LABS, "value", lambda cell: "-1e39", ONE), "beyond 3e38"),
    "no parquet": (lambda folder: (folder / STAYS).rename(folder / "stays.parquet"), "no parquet table"),
    "a table of tables": (
        packed_by(STAYS, ".parquet", lambda t, path: t.assign(age=[[1.0]] * len(t)).to_parquet(path)),
        "no parquet table of plain columns|should be a number",
    ),
    "a long row": (rows(LABS, lambda table: [*table[:9], [*table[9], CANARY], *table[10:]]), "fields where the header"),
    "both tables in one file": (lambda folder: (folder / LABS).unlink(), r"has no file labs\.csv"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_said_in_one_line(broken: Callable[..., Broken], flat: Source, case: str) -> None:
    change, message = REFUSED[case]
    broken(flat, change).assert_refused(message)


@pytest.mark.parametrize("cell", ["NaN", "inf", "-inf", ""])
def test_a_number_that_is_none_is_missing(broken: Callable[..., Broken], flat: Source, cell: str) -> None:
    found = broken(flat, cells(STAYS, "age", lambda old: cell, ONE)).prepared
    unit = int(pd.read_csv(flat.folder / STAYS)["stay_id"][9])
    row = found.cohort["unit_id"].to_list().index(unit)
    missing = np.isnan(found.array("demographics").values)
    assert np.argwhere(missing).tolist() == [[row, 0]]


def test_a_modality_that_nobody_has(broken: Callable[..., Broken], flat: Source) -> None:
    found = broken(flat, cells(LABS, "stay_id", lambda cell: "1"))
    found.assert_same(but=["labs"])
    assert not found.prepared.present("labs").any()


@pytest.mark.slow
def test_training_on_a_modality_that_nobody_has(command: Command, flat: Source, tmp_path: Path) -> None:
    folder = linked(flat.folder, tmp_path / "raw")
    cells(LABS, "stay_id", lambda cell: "1")(folder)
    answer = command("train", flat.task, "--raw", folder, "model.fusion=concat")
    assert_refused(answer, r"labs has no feature .*modalities=\[demographics\]")


@pytest.mark.slow
def test_training_where_validation_has_one_class(command: Command, flat: Source, tmp_path: Path) -> None:
    folder = linked(flat.folder, tmp_path / "raw")

    def few(table: Rows) -> Rows:
        place = table[0].index("died")
        return [
            [str(int(n in (4, 8))) if n and i == place else c for i, c in enumerate(r)] for n, r in enumerate(table)
        ]

    rows(STAYS, few)(folder)
    answer = command("train", flat.task, "--raw", folder, "split.stratify=false", "split.seed=1")
    assert_refused(answer, "is not defined on the .* units .one class only.; use more data or a larger split")


NEW = {
    "--csv nowhere.csv": "nowhere.csv should be a file",
    "--csv {raw}": "should be a file named",
    "--csv {raw}/stays.csv --label nothing": "--label: no column",
    "--csv {raw}/stays.csv --label died --unit age": "--unit: ",
    "--csv {raw}/stays.csv --label died --patient nobody": "has no column 'nobody'",
    "--csv {raw}/stays.csv --label stage": "3 different values",
    "--csv {raw}/stays.csv --label died --prediction-hours nan": "should be a number of hours",
    "--csv empty.csv": "is empty",
    "--csv web.csv": "is a web page",
    "--csv wide.csv": "rows or quotes are broken",
    "--csv loop/stays.csv": "symbolic links",
}


@pytest.mark.parametrize("words", NEW)
def test_new_datasets_from_broken_files(command: Command, flat: Source, tmp_path: Path, words: str) -> None:
    (tmp_path / "empty.csv").touch()
    (tmp_path / "web.csv").write_text("<html></html>\n")
    (tmp_path / "wide.csv").write_bytes(b"a" * 300_000)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    given = words.format(raw=flat.folder).split()
    assert_refused(command("new-dataset", "mine", "--out", tmp_path / "mine", *given), NEW[words])
    assert not (tmp_path / "mine").exists()
