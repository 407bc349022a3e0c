"""Rules of both eICU tasks on hand-made records, one rule a test; expected values are written out."""

import csv
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ovo_clinic import spec as specs
from ovo_clinic.errors import UserError
from ovo_clinic.raw import RawFolder
from ovo_clinic.tables import Tables

SPEC, SPEC_PATH = specs.load("eicu")
APS = [name for name in SPEC.tables["aps"].columns if name != "patientunitstayid"]
DEFAULTS: dict[str, dict[str, Any]] = {
    "patient": {
        "patienthealthsystemstayid": None,
        "uniquepid": None,
        "hospitalid": 7,
        "gender": "Male",
        "age": "60",
        "ethnicity": "Asian",
        "admissionheight": 170,
        "admissionweight": 80,
        "hospitaladmitoffset": -90,
        "unittype": "MICU",
        "unitadmitsource": "Floor",
        "unitvisitnumber": 1,
        "unitdischargeoffset": 3000,
        "unitdischargestatus": "Alive",
        "hospitaldischargeoffset": 9000,
        "hospitaldischargestatus": "Alive",
    },
    "diagnosis": {"diagnosisoffset": 10, "diagnosisstring": "d|e"},
    "treatment": {"treatmentoffset": 10, "treatmentstring": "t|u"},
    "medication": {
        "drugorderoffset": 5,
        "drugstartoffset": 10,
        "drugordercancelled": "No",
        "drugname": "ASPIRIN",
        "drughiclseqno": 1820,
    },
    "lab": {"labid": 1, "labresultoffset": 10, "labname": "sodium", "labresult": 140, "labresultrevisedoffset": 20},
    "aps": dict.fromkeys(APS, 3),
}
Rows = list[dict[str, Any]]


def raw_folder(path: Path, seed: int | None = None, **given: Rows) -> RawFolder:
    """Writes six files; a table not given holds one plain record of stay 1; a seed shuffles the rows."""
    for table, defaults in DEFAULTS.items():
        rows = [defaults | {"patientunitstayid": 1} | row for row in given.get(table, [{}])]
        if table == "patient":
            rows = [named(row) for row in rows]
        if seed is not None:
            random.Random(seed).shuffle(rows)
        with (path / f"{SPEC.tables[table].file}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, ["patientunitstayid", *defaults])
            writer.writeheader()
            writer.writerows(rows)
    return RawFolder({"": path}, SPEC.tables)


def named(row: dict[str, Any]) -> dict[str, Any]:
    stay = row["patientunitstayid"]
    own = {"patienthealthsystemstayid": 1000 + stay, "uniquepid": f"p{stay}"}
    return row | {name: value for name, value in own.items() if row[name] is None}


def run(raw: RawFolder, task: str = "eicu_mortality_24h", **options: Any) -> Tables:
    function = specs.pipeline_function(SPEC, task, SPEC_PATH)
    return function(raw, SPEC, **specs.task_options(SPEC, task, options, SPEC_PATH))


def units(result: Tables) -> list[int]:
    return sorted(result.cohort["unit_id"])


def codes(result: Tables, modality: str, unit: int = 1) -> list[str]:
    return sorted(result.modalities[modality].frame.filter(pl.col("unit_id") == unit)["code"])


def lab(result: Tables, variable: str = "sodium") -> dict[str, Any] | None:
    rows = (
        result.modalities["lab"]
        .frame.filter(pl.col("variable") == variable)
        .drop("unit_id", "variable")
        .rows(named=True)
    )
    assert len(rows) < 2
    return rows[0] if rows else None


def vector(result: Tables, modality: str, unit: int = 1) -> Mapping[str, Any]:
    return result.modalities[modality].frame.row(by_predicate=pl.col("unit_id") == unit, named=True)


def stay(number: int, **cells: Any) -> dict[str, Any]:
    return {"patientunitstayid": number} | cells


# ---------------------------------------------------------------- cohort


def test_attrition_counts_each_rule_in_order(tmp_path: Path) -> None:
    patient = [
        stay(1),
        stay(2, patienthealthsystemstayid=1001, uniquepid="p1", hospitaladmitoffset=-5000, unitvisitnumber=2),
        stay(3, age="17"),
        stay(4, age=""),
        stay(5, age="> 89", hospitaldischargestatus="Expired"),
        stay(6, unitdischargeoffset=1439, hospitaldischargestatus="Expired"),
        stay(7, unitdischargeoffset=1440, hospitaldischargeoffset=1439),
        stay(8, hospitaldischargestatus="", unitdischargestatus="Expired"),
        stay(9, unitdischargestatus="Expired"),
        stay(10, unitdischargestatus="", hospitaldischargestatus="Expired", uniquepid="p1"),
    ]
    result = run(raw_folder(tmp_path, patient=patient))
    assert [(step.units, step.patients, step.positives) for step in result.attrition] == [
        (10, 8, 3),
        (9, 8, 3),
        (7, 6, 3),
        (6, 5, 2),
        (5, 4, 2),
        (4, 3, 2),
    ]
    assert dict(result.cohort.select("unit_id", "died").rows()) == {1: 0, 5: 1, 7: 0, 10: 1}
    assert result.notes["stays with a hospital discharge before the prediction time (kept)"] == 1


def test_icu_label_has_its_own_column_and_no_contradiction_rule(tmp_path: Path) -> None:
    patient = [
        stay(1, unitdischargestatus="Expired"),
        stay(2, hospitaldischargestatus=""),
        stay(3, unitdischargestatus=""),
    ]
    result = run(raw_folder(tmp_path, patient=patient), label="icu")
    assert dict(result.cohort.select("unit_id", "died").rows()) == {1: 1, 2: 0}
    assert len(result.attrition) == 5


def test_first_stay_of_a_hospital_stay(tmp_path: Path) -> None:
    def of(hospital_stay: int, number: int, admit: int | str, visit: int | str) -> dict[str, Any]:
        ids = {"patienthealthsystemstayid": hospital_stay, "uniquepid": f"p{hospital_stay}"}
        return stay(number, hospitaladmitoffset=admit, unitvisitnumber=visit, **ids)

    patient = [
        *(of(1, 11, -900, 1), of(1, 12, -100, 2)),  # time before visit number
        *(of(2, 21, -100, 2), of(2, 22, -100, 1)),  # then the lower visit number
        *(of(3, 32, -100, 1), of(3, 31, -100, 1)),  # then the lower id
        *(of(4, 41, "", 1), of(4, 42, -100, 2)),  # an unknown time comes last
    ]
    result = run(raw_folder(tmp_path, patient=patient))
    assert units(result) == [12, 22, 31, 42]
    assert result.notes["hospital stays whose first unit stay in time has not the lowest unitvisitnumber"] == 2


def test_a_hospital_stay_whose_first_unit_stay_fails_a_later_rule_is_lost(tmp_path: Path) -> None:
    same = {"patienthealthsystemstayid": 5, "uniquepid": "p"}
    early = stay(1, unitdischargeoffset=500, **same)
    later = stay(2, hospitaladmitoffset=-2000, unitvisitnumber=2, **same)
    assert units(run(raw_folder(tmp_path, patient=[early, later]))) == []


def test_gap_asks_for_a_longer_stay_and_says_so(tmp_path: Path) -> None:
    patient = [stay(1, unitdischargeoffset=1799), stay(2, unitdischargeoffset=1800)]
    result = run(raw_folder(tmp_path, patient=patient), gap_hours=6)
    assert units(result) == [2]
    assert "selects on the future" in result.attrition[3].rule


def test_cohort_carries_identifiers(tmp_path: Path) -> None:
    row = run(raw_folder(tmp_path)).cohort.row(0, named=True)
    expected = {"unit_id": 1, "patient_id": "p1", "hospital_id": 7, "hospital_stay_id": 1001, "died": 0, "age": 60.0}
    assert {name: row[name] for name in expected} == expected


@pytest.mark.parametrize("column", ["uniquepid", "patienthealthsystemstayid"])
def test_blank_identifier_is_refused(tmp_path: Path, column: str) -> None:
    with pytest.raises(UserError, match=rf"patient\.csv: column '{column}' is blank in 1 rows"):
        run(raw_folder(tmp_path, patient=[{column: ""}]))


@pytest.mark.parametrize("table", ["patient", "aps"])
def test_stay_twice_is_refused(tmp_path: Path, table: str) -> None:
    with pytest.raises(UserError, match=rf"{SPEC.tables[table].file}\.csv: column 'patientunitstayid' holds 1 values"):
        run(raw_folder(tmp_path, **{table: [{}, {}]}))


# ---------------------------------------------------------------- modalities


def test_demographics(tmp_path: Path) -> None:
    odd = stay(2, age="> 89", gender="", admissionheight=0, admissionweight=300.5, hospitaladmitoffset=30)
    edge = stay(3, admissionheight=250, admissionweight=20, hospitaladmitoffset="")
    result = run(raw_folder(tmp_path, patient=[stay(1), odd, edge]))
    first, second, third = (vector(result, "demographics", unit) for unit in (1, 2, 3))
    assert (first["age"], first["age_over_89"], first["hours_in_hospital_before"]) == (60, False, 1.5)
    assert (second["age"], second["age_over_89"], second["hours_in_hospital_before"]) == (90, True, 0)
    assert (second["gender"], second["admissionheight"], second["admissionweight"]) == (None, None, None)
    assert (third["admissionheight"], third["admissionweight"], third["hours_in_hospital_before"]) == (250, 20, None)


@pytest.mark.parametrize(("minute", "kept"), [(-361, False), (-360, True), (1439, True), (1440, False), (1441, False)])
def test_windows_of_every_event_table(tmp_path: Path, minute: int, kept: bool) -> None:
    raw = raw_folder(
        tmp_path,
        diagnosis=[{"diagnosisoffset": minute}],
        treatment=[{"treatmentoffset": minute}],
        medication=[{"drugstartoffset": minute, "drugorderoffset": -999}],
        lab=[{"labresultoffset": minute, "labresultrevisedoffset": min(minute, 1439)}],
    )
    result = run(raw)
    for modality in ("diagnosis", "treatment", "medication", "lab"):
        assert result.modalities[modality].frame.height == (
            0 if not kept else 1 if modality in ("medication", "lab") else 2
        )
    side = "before the window" if minute < 0 else "at or after the end of the window"
    assert result.notes[f"lab records dropped: {side}"] == (0 if kept else 1)


def test_options_move_the_window(tmp_path: Path) -> None:
    raw = raw_folder(
        tmp_path, diagnosis=[{"diagnosisoffset": m, "diagnosisstring": str(m)} for m in (-61, -60, 1799, 1800)]
    )
    assert codes(run(raw, prediction_hours=30, lookback_hours=1), "diagnosis") == ["-60", "1799"]


def test_every_prefix_of_a_path_is_a_code(tmp_path: Path) -> None:
    rows = [{"treatmentstring": text} for text in ("a|b|C d", "a|b|C d", "a|c", "b", "")]
    result = run(raw_folder(tmp_path, treatment=rows))
    assert codes(result, "treatment") == ["a", "a|b", "a|b|C d", "a|c", "b"]
    assert result.notes["treatment records dropped: without a text"] == 1


def test_medication_rules(tmp_path: Path) -> None:
    rows = [
        {"drughiclseqno": 1, "drugname": ""},
        {"drughiclseqno": 1},
        {"drughiclseqno": 2, "drugordercancelled": ""},
        {"drughiclseqno": 3, "drugordercancelled": "YES"},
        {"drughiclseqno": 4, "drugordercancelled": "Yes"},
        {"drughiclseqno": ""},
        {"drughiclseqno": 5, "drugorderoffset": 1440},
        {"drughiclseqno": 6, "drugorderoffset": 1439},
        {"drughiclseqno": 7, "drugorderoffset": ""},
    ]
    result = run(raw_folder(tmp_path, medication=rows))
    assert codes(result, "medication") == ["1", "2", "6"]
    dropped = [count for name, count in result.notes.items() if name.startswith("medication")]
    assert dropped == [0, 0, 0, 2, 2, 1]


def test_orders_without_a_code_make_no_presence_and_rare_codes_do(tmp_path: Path) -> None:
    raw = raw_folder(tmp_path, patient=[stay(1), stay(2)], medication=[stay(1, drughiclseqno=""), stay(2)])
    assert run(raw, code_share=1.0).modalities["medication"].frame.rows() == [(2, "1820")]


def test_events_of_stays_outside_the_cohort_are_not_counted(tmp_path: Path) -> None:
    result = run(raw_folder(tmp_path, lab=[stay(99), stay(99, labresultoffset=5000), stay(1)]))
    assert result.modalities["lab"].frame["unit_id"].to_list() == [1]
    assert not any(count for name, count in result.notes.items() if name.startswith("lab"))


def test_lab_summaries(tmp_path: Path) -> None:
    values = [(30, 150), (-10, 131), (20, 133), (40, 144)]
    rows = [{"labid": n, "labresultoffset": t, "labresult": v} for n, (t, v) in enumerate(values)]
    rows += [{"labname": "unheard of", "labresult": -1e9}, {"labname": "potassium", "labresult": ""}]
    result = run(raw_folder(tmp_path, lab=rows))
    assert lab(result) == {"last": 144, "min": 131, "max": 150, "mean": 139.5, "count": 4}
    assert lab(result, "unheard of") == {"last": -1e9, "min": -1e9, "max": -1e9, "mean": -1e9, "count": 1}
    assert lab(result, "potassium") is None


@pytest.mark.parametrize(
    ("versions", "last"),
    [
        ([(20, 1, 140), (30, 2, 141)], 141),  # the later revision, whatever the id
        ([(30, 1, 141), (20, 2, 140)], 141),
        ([(20, 1, 140), (20, 2, 141)], 141),  # then the higher id
        ([(20, 2, 140), (20, 1, 141)], 140),
        ([(20, 1, 140), (1440, 2, 141)], 140),  # not known yet
        ([(20, 1, 140), (30, 2, "")], 140),  # no number: as if it were not there
        ([(20, 1, 140), ("", 2, 141)], 140),
        ([(1440, 1, 140)], None),
    ],
)
def test_lab_versions(tmp_path: Path, versions: list[tuple[Any, int, Any]], last: int | None) -> None:
    rows = [{"labresultrevisedoffset": r, "labid": i, "labresult": v} for r, i, v in versions]
    summary = lab(run(raw_folder(tmp_path, lab=rows)))
    assert summary == (None if last is None else dict.fromkeys(("last", "min", "max", "mean"), last) | {"count": 1})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("FiO2", 0.4, 40),
        ("FiO2", 40, 40),
        ("FiO2", 1, 100),
        ("FiO2", 4, None),
        ("FiO2", 10000, None),
        ("Temperature", 37.0, 37),
        ("Temperature", 98.6, 37),
        ("Temperature", 50, None),
        ("ionized calcium", 1.2, 4.81),
        ("ionized calcium", 4.8, 4.8),
        ("potassium", 4.1, 4.1),
        ("potassium", 99, None),
    ],
)
def test_lab_units_and_ranges(tmp_path: Path, name: str, value: float, expected: float | None) -> None:
    result = run(raw_folder(tmp_path, lab=[{"labname": name, "labresult": value}, {}]))
    summary = lab(result, name)
    assert summary is not None and summary["count"] == (expected is not None)
    assert summary["mean"] is None if expected is None else summary["mean"] == pytest.approx(expected, abs=1e-3)
    assert result.notes["lab records outside the plausible range (kept without a value)"] == (expected is None)


def test_the_version_that_counts_may_be_implausible(tmp_path: Path) -> None:
    rows = [
        {"labresultrevisedoffset": 20, "labid": 1, "labresult": 140},
        {"labresultrevisedoffset": 30, "labid": 2, "labresult": 999},
    ]
    expected = {"last": None, "min": None, "max": None, "mean": None, "count": 0}
    assert lab(run(raw_folder(tmp_path, lab=rows))) == expected


def test_aps_missing_codes(tmp_path: Path) -> None:
    row = {"eyes": 0, "motor": 0, "verbal": -1, "meds": 0, "ph": -1, "urine": -1.0, "vent": 0, "wbc": 7.5}
    aps = vector(run(raw_folder(tmp_path, aps=[row])), "aps")
    expected = {
        "eyes": None,
        "motor": None,
        "verbal": None,
        "meds": 0,
        "ph": None,
        "urine": None,
        "vent": 0,
        "wbc": 7.5,
    }
    assert {name: aps[name] for name in expected} == expected
    assert len(aps) == 25


def test_aps_before_24_hours_is_refused(tmp_path: Path) -> None:
    raw = raw_folder(tmp_path)
    with pytest.raises(UserError, match=r"data\.prediction_hours: 23\.5: modality 'aps'"):
        run(raw, prediction_hours=23.5)
    without = SPEC.model_copy(update={"modalities": {k: v for k, v in SPEC.modalities.items() if k != "aps"}})
    result = specs.pipeline_function(SPEC, "eicu_mortality_24h", SPEC_PATH)(raw, without, prediction_hours=12)
    assert list(result.modalities) == ["demographics", "diagnosis", "treatment", "medication", "lab"]


def test_negative_option_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.gap_hours: -1: input should be greater than or equal to 0"):
        run(raw_folder(tmp_path), gap_hours=-1)


def many_rows() -> dict[str, Rows]:
    """Ties, versions and numbers whose sum depends on the order of addition."""
    draw = random.Random(0)
    patient = [stay(n, uniquepid=f"p{n // 2}", patienthealthsystemstayid=n // 2) for n in range(1, 60)]
    texts = ["a|b", "a|c", "b|c|d", "b"]
    minutes = range(-400, 1500, 7)
    events: dict[str, Rows] = {"patient": patient, "aps": [stay(n, ph=7 + n / 100) for n in range(1, 60)]}
    for table, time, text in (
        ("diagnosis", "diagnosisoffset", "diagnosisstring"),
        ("treatment", "treatmentoffset", "treatmentstring"),
    ):
        events[table] = [
            stay(draw.randint(1, 60), **{time: draw.choice(minutes), text: draw.choice(texts)}) for _ in range(500)
        ]
    events["medication"] = [stay(draw.randint(1, 60), drughiclseqno=draw.randint(1, 9)) for _ in range(500)]
    events["lab"] = [
        stay(
            draw.randint(1, 60),
            labid=number,
            labname=draw.choice(["glucose", "made up"]),
            labresult=draw.choice([0.1, 0.7, 1e6, 123.4567]),
            labresultoffset=draw.randint(0, 30),
            labresultrevisedoffset=draw.randint(30, 33),
        )
        for number in range(3000)
    ]
    return events


@pytest.mark.parametrize("task", ["eicu_mortality_24h", "eicu_paper"])
def test_order_of_rows_changes_nothing(tmp_path: Path, task: str) -> None:
    results = []
    for seed in (1, 2):
        path = tmp_path / str(seed)
        path.mkdir()
        results.append(run(raw_folder(path, seed=seed, **many_rows()), task))
    first, second = results
    assert (first.attrition, first.notes) == (second.attrition, second.notes)
    assert first.cohort.height > 20 and first.cohort.sort("unit_id").equals(second.cohort.sort("unit_id"))
    for name, table in first.modalities.items():
        order = [column for column in ("unit_id", "code", "variable") if column in table.frame.columns]
        assert table.frame.height > 20
        assert table.frame.sort(order).equals(second.modalities[name].frame.sort(order)), name


# ---------------------------------------------------------------- eicu_paper


def test_paper_cohort(tmp_path: Path) -> None:
    patient = [
        stay(1, hospitaldischargestatus="Expired", unitdischargeoffset=60),
        stay(2, uniquepid="p1", patienthealthsystemstayid=1001),
        stay(3, ethnicity=""),
        stay(4, hospitaldischargestatus=""),
        stay(5, age="> 89"),
        stay(6, age="17"),
        stay(7, unitdischargeoffset=14401),
        stay(8),
    ]
    events = {name: [stay(n) for n in (1, 2, 7)] for name in ("diagnosis", "treatment", "medication", "lab", "aps")}
    events["aps"] = [stay(n) for n in (2, 1)]
    events["lab"].append(stay(8))
    result = run(raw_folder(tmp_path, patient=patient, **events), "eicu_paper", max_los_days=10)
    counts = [(step.units, step.patients, step.positives) for step in result.attrition]
    assert counts[:5] == [(8, 7, 1), (6, 5, 1), (5, 4, 1), (4, 3, 1), (3, 2, 1)]
    assert counts[5:] == [(2, 1, 1)] * 5
    assert dict(result.cohort.select("unit_id", "died").rows()) == {1: 1, 2: 0}
    assert list(result.modalities["demographics"].frame.columns) == ["gender", "ethnicity", "unit_id", "age"]


def test_paper_features(tmp_path: Path) -> None:
    sums = [(-500, 1.5), (10, 140), (99999, 0.5), (10, "")]
    raw = raw_folder(
        tmp_path,
        diagnosis=[{"diagnosisstring": "a|b|c", "diagnosisoffset": 99999}, {"diagnosisstring": "c|b"}],
        medication=[
            {"drugname": "ASPIRIN 81 MG"},
            {"drugname": ""},
            {"drugname": "aspirin", "drugordercancelled": "Yes"},
        ],
        lab=[{"labresultoffset": t, "labresult": v} for t, v in sums],
        aps=[{"ph": -1, "eyes": 0}],
    )
    result = run(raw, "eicu_paper")
    assert codes(result, "diagnosis") == ["a", "b", "c"]
    assert codes(result, "medication") == ["ASPIRIN 81 MG", "aspirin"]
    assert lab(result) == {"sum": 142}
    assert (vector(result, "aps")["ph"], vector(result, "aps")["eyes"]) == (-1, 0)
    windowed = run(raw, "eicu_paper", window_hours=12)
    assert codes(windowed, "diagnosis") == ["b", "c"]
    assert lab(windowed) == {"sum": 141.5}


def test_paper_lab_share_counts_all_rows(tmp_path: Path) -> None:
    rows = [{"labname": "common"}] * 3 + [{"labname": "rare"}] + [stay(99, labname="elsewhere")] * 4
    for share, expected in ((0.125, ["common", "elsewhere", "rare"]), (0.126, ["common", "elsewhere"])):
        result = run(raw_folder(tmp_path, lab=rows), "eicu_paper", lab_row_share=share)
        assert sorted(result.modalities["lab"].frame["variable"]) == expected
        assert result.modalities["lab"].vocabulary.least(1000) == 1
    assert result.modalities["lab"].zero_filled == {"sum"}
    assert result.modalities["diagnosis"].vocabulary.least(39) == 2


def test_real_demo_attrition(shared: Path) -> None:
    result = run(RawFolder({"": shared / "data" / "eicu-demo"}, SPEC.tables))
    assert [step.units for step in result.attrition] == sorted((step.units for step in result.attrition), reverse=True)
    assert result.attrition[0].units == 2520 and result.attrition[0].patients == 1841
