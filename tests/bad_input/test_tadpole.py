"""TADPOLE files with one thing wrong, and files of the challenge."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bad_input.conftest import Broken, Command, Source, assert_refused
from tests.bad_input.raw_files import CANARY, Change, Rows, cases, cells, rows, unpacked

FILE = "TADPOLE_D1_D2.csv"
FINE: dict[str, Change] = {
    "carriage returns": unpacked(FILE, lambda data: data.replace(b"\n", b"\r\n")),
    "byte order mark": unpacked(FILE, lambda data: b"\xef\xbb\xbf" + data),
    "columns in another order": rows(FILE, lambda table: [record[::-1] for record in table]),
    "rows in another order": rows(FILE, lambda table: [table[0], *table[:0:-1]]),
    "RID as a float": cells(FILE, "RID", lambda cell: f"{cell}.0"),
}


@pytest.mark.parametrize("case", cases(FINE, ["columns in another order"]))
def test_what_is_only_odd_reads_the_same(broken: Callable[..., Broken], tadpole: Source, case: str) -> None:
    broken(tadpole, FINE[case]).assert_same()


REFUSED: dict[str, tuple[Change, str]] = {
    "empty": (unpacked(FILE, lambda data: b""), "is empty"),
    "header alone": (rows(FILE, lambda table: table[:1]), "has a header but no rows"),
    "web page": (unpacked(FILE, lambda data: b"<html>LONI log in</html>\n" * 9), "is a web page"),
    "utf-16": (unpacked(FILE, lambda data: data[:9000].decode().encode("utf-16")), "is not CSV text"),
    "cut off": (unpacked(FILE, lambda data: data[: len(data) // 2]), "is cut off in its last row"),
    "a column is missing": (
        rows(FILE, lambda table: [[*record[:9], *record[10:]] for record in table]),
        "has no column",
    ),
    "a short row": (
        rows(FILE, lambda table: [*table[:60], table[60][:-2], *table[61:]]),
        "have not the header's|fields",
    ),
    "a visit twice": (rows(FILE, lambda table: [*table, table[7]]), "1 rows repeat the RID and VISCODE"),
    "RID blank": (cells(FILE, "RID", lambda cell: "", slice(3, 4)), "RID is no whole number .* in 1 rows"),
    "RID a text": (cells(FILE, "RID", lambda cell: CANARY, slice(3, 4)), "RID is no whole number .* in 1 rows"),
    "RID infinite": (cells(FILE, "RID", lambda cell: "inf", slice(3, 4)), "RID is no whole number .* in 1 rows"),
    "RID beyond 64 bits": (cells(FILE, "RID", lambda cell: "1e300", slice(3, 4)), "RID is no whole number .* in 1"),
    "RID not a number": (cells(FILE, "RID", lambda cell: "NAN", slice(3, 4)), "RID is no whole number .* in 1 rows"),
    "RID a fraction": (cells(FILE, "RID", lambda cell: "2.5", slice(3, 4)), "RID is no whole number .* in 1 rows"),
    "visit blank": (cells(FILE, "VISCODE", lambda cell: "", slice(3, 4)), "VISCODE is blank in 1 rows"),
    "dates that are none": (cells(FILE, "EXAMDATE", lambda cell: "2010-13-45"), "no unit is left"),
    "one diagnosis": (
        rows(FILE, lambda table: _filled(table, DXCHANGE="1", DX="NL")),
        "nothing can be learned",
    ),
    "one person": (
        rows(FILE, lambda table: [r for r in table if r[0] == table[9][0] or r is table[0]]),
        "nothing can be learned|split: the",
    ),
    "a modality that nobody has": (
        rows(FILE, lambda table: _filled(table, **{name: "" for name in table[0] if "UPENNBIOMK" in name})),
        "no unit is left",
    ),
}


def _filled(table: Rows, **values: str) -> Rows:
    """Columns of one value."""
    return [table[0], *([values.get(name, cell) for name, cell in zip(table[0], r, strict=True)] for r in table[1:])]


@pytest.mark.parametrize("case", cases(REFUSED, ["empty", "web page", "RID infinite", "a short row"]))
def test_what_is_wrong_is_said_in_one_line(broken: Callable[..., Broken], tadpole: Source, case: str) -> None:
    change, message = REFUSED[case]
    broken(tadpole, change).assert_refused(message)


DATES = ["9999-12-31", "0001-01-01", "2010-02-30", "soon", ""]


@pytest.mark.parametrize("date", cases(DATES, DATES[:1]))
def test_a_visit_of_an_absurd_date_is_left_out(broken: Callable[..., Broken], tadpole: Source, date: str) -> None:
    """It is neither the latest nor any other visit."""
    unit = tadpole.prepared.cohort["unit_id"][0]

    def dated(table: Rows) -> Rows:
        rid, code, place = (table[0].index(name) for name in ("RID", "VISCODE", "EXAMDATE"))
        return [[date if i == place and f"{r[rid]}_{r[code]}" == unit else c for i, c in enumerate(r)] for r in table]

    found = broken(tadpole, rows(FILE, dated)).prepared
    assert unit not in found.cohort["unit_id"].to_list()
    assert found.manifest["attrition"][1]["units"] == tadpole.prepared.manifest["attrition"][1]["units"] - 1


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["m" + "9" * 30, "m-3", "x"])
def test_a_visit_code_that_is_none_only_names_the_visit(
    broken: Callable[..., Broken], tadpole: Source, cell: str
) -> None:
    found = broken(tadpole, cells(FILE, "VISCODE", lambda code: cell if code == "bl" else code)).prepared
    assert found.cohort.height == tadpole.prepared.cohort.height
    assert set(found.cohort["patient_id"]) == set(tadpole.prepared.cohort["patient_id"])


TRUTH = b"RID,CognitiveAssessmentDate,Diagnosis\n2,2018-01-05,CN\n3,2018-01-05,AD\n4,2018-01-05,MCI\n"
CHALLENGE: dict[str, tuple[bytes, bytes | None]] = {
    "empty": (b"", None),
    "web page": (b"<html>\n<body></body></html>", None),
    "binary": (bytes(range(256)), None),
    "utf-16": ("RID,Forecast Month\n2,1\n".encode("utf-16"), None),
    "header alone": (b"RID,Forecast Month,Forecast Date,CN relative probability\n", None),
    "truth of another form": (b"", b"RID;Diagnosis\n1;2\n"),
    "truth with a text": (b"", f"RID,CognitiveAssessmentDate,Diagnosis\n2,2018-01-05,{CANARY}\n".encode()),
    "truth with a date that is none": (b"", f"RID,CognitiveAssessmentDate,Diagnosis\n2,{CANARY},CN\n".encode()),
    "truth with a text for a person": (
        b"",
        f"RID,CognitiveAssessmentDate,Diagnosis\n{CANARY},2018-01-05,CN\n".encode(),
    ),
}


@pytest.mark.parametrize("case", CHALLENGE)
def test_challenge_files(command: Command, tadpole: Source, tmp_path: Path, case: str) -> None:
    forecasts, truth = CHALLENGE[case]
    (tmp_path / "forecasts.csv").write_bytes(forecasts)
    (tmp_path / "truth.csv").write_bytes(TRUTH if truth is None else truth)
    if truth is not None:
        (tmp_path / "forecasts.csv").write_bytes(_submission())
    answer = command("evaluate-challenge", tmp_path / "forecasts.csv", "--truth", tmp_path / "truth.csv")
    assert_refused(answer, r"truth\.csv|forecasts\.csv")
    assert CANARY not in answer.err


def _submission(**changes: str) -> bytes:
    from ovo_clinic.challenge import FORECAST_COLUMNS

    values = {name: "0.4" for name in FORECAST_COLUMNS} | {
        "RID": "2",
        "Forecast Month": "1",
        "Forecast Date": "2018-01",
    }
    values |= changes
    return (",".join(values) + "\n" + ",".join(values.values()) + "\n").encode()


@pytest.mark.parametrize("column", ["RID", "Forecast Date", "CN relative probability"])
def test_a_forecast_that_cannot_be_read_is_told_without_its_value(
    command: Command, tmp_path: Path, column: str
) -> None:
    (tmp_path / "forecasts.csv").write_bytes(_submission(**{column: CANARY}))
    (tmp_path / "truth.csv").write_bytes(TRUTH)
    answer = command("evaluate-challenge", tmp_path / "forecasts.csv", "--truth", tmp_path / "truth.csv")
    assert_refused(answer, r"forecasts\.csv: line 2: ")
    assert CANARY not in answer.err
