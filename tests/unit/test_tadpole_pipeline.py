"""Rules of the three TADPOLE tasks on hand-made visits, one rule a test; expected values are written out."""

import csv
import random
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ovo_clinic import experiment, splitting
from ovo_clinic import spec as specs
from ovo_clinic.errors import UserError
from ovo_clinic.prepare import Prepared, prepare
from ovo_clinic.raw import RawFolder
from ovo_clinic.spec import SplitSpec
from ovo_clinic.tables import Tables

SPEC, SPEC_PATH = specs.load("tadpole")
COLUMNS = [row["column"] for row in SPEC.lists["columns"]]
ABETA, TAU, PTAU = (f"{name}_UPENNBIOMK9_04_19_17" for name in ("ABETA", "TAU", "PTAU"))
CAUDATE = "LEFT_CAUDATE_UCBERKELEYAV45_10_17_16"
LONGITUDINAL, SECTIONAL = "UCSFFSL_02_01_16_UCSFFSL51ALL_08_01_16", "UCSFFSX_11_02_15_UCSFFSX51_08_01_16"
MODALITIES = ["mri", "fdg_pet", "av45_pet", "csf", "cognitive_tests", "clinical"]
# One value of each modality; whoever has no CSF gets {ABETA: " ", ...}.
COMPLETE = {
    "AGE": "70.5",
    "PTGENDER": "Male",
    "PTEDUCAT": "16",
    "DXCHANGE": "1",
    "DX": "NL",
    "DX_bl": "CN",
    "Years_bl": "0",
    "Ventricles": "30000",
    "FDG": "1.25",
    "AV45": "1.5",
    ABETA: "190.5",
    TAU: "75",
    "ADAS13": "10",
}
WITHOUT: dict[str, dict[str, str]] = {
    "mri": {"Ventricles": " "},
    "fdg_pet": {"FDG": " "},
    "av45_pet": {"AV45": " "},
    "csf": {ABETA: " ", TAU: " "},
    "cognitive_tests": {"ADAS13": " "},
    "clinical": {"AGE": " ", "PTGENDER": " ", "PTEDUCAT": " "},
}
Row = dict[str, str]


def visit(rid: int, month: int = 0, **cells: Any) -> Row:
    """A complete visit on the first of a month after January 2006; cells in the table's own names."""
    keys = {"RID": f"{rid}", "PTID": f"011_S_{rid:04d}", "VISCODE": f"m{month:02d}" if month else "bl"}
    date = f"{2006 + month // 12}-{1 + month % 12:02d}-01"
    return keys | {"EXAMDATE": date} | COMPLETE | {name: str(value) for name, value in cells.items()}


def without(rid: int, month: int, *modalities: str, **cells: Any) -> Row:
    return visit(rid, month, **{k: v for name in modalities for k, v in WITHOUT[name].items()} | cells)


def write(folder: Path, rows: Iterable[Row], header: Iterable[str] = COLUMNS) -> Path:
    """A D1_D2 file; what a row does not name is the joined blocks' single blank."""
    folder.mkdir(exist_ok=True)
    with (folder / "TADPOLE_D1_D2.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(header), restval=" ", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return folder


def tables(folder: Path, rows: Iterable[Row], task: str = "tadpole_clean", **options: Any) -> Tables:
    raw = RawFolder({"": write(folder, rows)}, SPEC.tables)
    function = specs.pipeline_function(SPEC, task, SPEC_PATH)
    return function(raw, SPEC, **specs.task_options(SPEC, task, options, SPEC_PATH))


def prepared(folder: Path, task: str = "tadpole_clean", *overrides: str) -> Prepared:
    return prepare(experiment.load(task, overrides).data_request(), {"": folder})


def units(result: Tables) -> list[str]:
    return sorted(result.cohort["unit_id"])


def diagnoses(result: Tables) -> dict[str, int]:
    return dict(result.cohort.select("unit_id", "diagnosis").rows())


def value(result: Tables, modality: str, column: str, unit: str) -> Any:
    frame = result.modalities[modality].frame.filter(pl.col("unit_id") == unit)
    assert frame.height < 2
    return frame[column].item() if frame.height else "absent"


def steps(result: Tables) -> list[tuple[Any, ...]]:
    return [(step.units, step.patients, *(step.classes or {}).values()) for step in result.attrition]


def many(people: int = 40, seed: int = 0) -> list[Row]:
    """Random visits of all classes, complete and not."""
    draw, rows = random.Random(seed), []
    for rid in range(1, people + 1):
        for month in sorted(draw.sample(range(0, 60, 6), draw.randint(1, 4))):
            gone = [name for name in MODALITIES[:5] if draw.random() < 0.1]
            cells = {
                "DXCHANGE": draw.choice("1 2 3 4 5 6 7 8 9".split()),
                "DX": "",
                "DX_bl": draw.choice(["CN", "SMC", "EMCI", "LMCI", "AD"]),
                "PTGENDER": draw.choice(["Male", "Female"]),
                "ADAS13": f"{draw.uniform(0, 40):.3f}",
                "Ventricles": f"{draw.uniform(1e4, 9e4):.2f}",
                "FDG": draw.choice([" ", "1.1", "1.3"]),
                "FDG_bl": "1.2",
                ABETA: draw.choice(["<80", "120.5", ">1300", " "]),
                TAU: "90",
            }
            rows.append(without(rid, month, *gone, **{k: v for k, v in cells.items() if k not in _cells(gone)}))
    return rows


def _cells(modalities: list[str]) -> set[str]:
    return {name for modality in modalities for name in WITHOUT[modality]}


# ---------------------------------------------------------------- tadpole_clean: who


def test_attrition_counts_rows_people_and_classes_after_each_rule(tmp_path: Path) -> None:
    rows = [
        visit(1, 0),
        visit(1, 6, DXCHANGE=4),
        visit(1, 12, DXCHANGE=5, EXAMDATE="sometime"),
        without(2, 0, "mri"),
        without(2, 6, "fdg_pet", DXCHANGE=3),
        without(3, 0, "av45_pet"),
        without(4, 0, "csf", DXCHANGE=2),
        without(5, 0, "cognitive_tests"),
        without(6, 0, "clinical"),
        visit(7, 0, DXCHANGE=-1, DX=""),
        visit(8, 0, DXCHANGE=3),
    ]
    result = tables(tmp_path, rows)
    assert [step.rule for step in result.attrition] == [
        "visit",
        "exam date known",
        *(f"with {name}" for name in MODALITIES),
        "current diagnosis known",
        "latest such visit of the person",
    ]
    # rows, people, CN, MCI, AD
    assert steps(result) == [
        (11, 8, 5, 2, 3),
        (10, 8, 5, 2, 2),
        (9, 8, 4, 2, 2),
        (8, 7, 4, 2, 1),
        (7, 6, 3, 2, 1),
        (6, 5, 3, 1, 1),
        (5, 4, 2, 1, 1),
        (4, 3, 1, 1, 1),
        (3, 2, 1, 1, 1),
        (2, 2, 0, 1, 1),
    ]
    assert diagnoses(result) == {"1_m06": 1, "8_bl": 2}
    assert all(step.positives is None for step in result.attrition)


def test_the_latest_complete_visit_counts_whatever_the_order_of_the_file(tmp_path: Path) -> None:
    rows = [visit(1, 24), visit(1, 6), without(1, 36, "csf"), visit(1, 12), visit(2, 0)]
    assert units(tables(tmp_path, rows)) == ["1_m24", "2_bl"]


def test_visits_of_one_day_go_by_the_month_of_their_code(tmp_path: Path) -> None:
    day = {"EXAMDATE": "2010-05-05"}
    rows = [visit(1, 108, **day), visit(1, 12, **day), visit(1, 6, **day), visit(2, 0, **day), visit(2, 6, **day)]
    assert units(tables(tmp_path, rows)) == ["1_m108", "2_m06"]


def test_an_unknown_diagnosis_goes_back_to_an_earlier_visit_or_drops_the_person(tmp_path: Path) -> None:
    rows = [visit(1, 0, DXCHANGE=2), visit(1, 6, DXCHANGE=-1, DX=" "), visit(2, 0), visit(3, 0, DXCHANGE="", DX="")]
    assert diagnoses(tables(tmp_path, rows)) == {"1_bl": 1, "2_bl": 0}
    assert diagnoses(tables(tmp_path, rows, unknown_diagnosis="drop")) == {"2_bl": 0}


@pytest.mark.parametrize(
    ("dxchange", "dx", "expected"),
    [
        *[(str(code), "", label) for code, label in zip(range(1, 10), [0, 1, 2, 1, 2, 2, 0, 1, 0], strict=True)],
        ("4.0", "", 1),
        (" 5 ", "", 2),
        ("-1", "NL", 0),
        ("", "MCI", 1),
        (" ", "Dementia", 2),
        ("-4", "NL to MCI", 1),
        ("NA", "MCI to Dementia", 2),
        ("-1", "MCI to NL", 0),
        ("3", "NL", 2),
        ("1.5", "", None),
        ("12", "", None),
        ("-1", "Puzzling", None),
    ],
)
def test_current_diagnosis(tmp_path: Path, dxchange: str, dx: str, expected: int | None) -> None:
    result = tables(tmp_path, [visit(1, DXCHANGE=dxchange, DX=dx)])
    assert diagnoses(result) == ({} if expected is None else {"1_bl": expected})


def test_what_is_odd_about_diagnoses_is_counted(tmp_path: Path) -> None:
    rows = [
        visit(1, DXCHANGE=3, DX="NL"),
        visit(2, DXCHANGE=-1, DX="MCI"),
        visit(3, DXCHANGE=77, DX=""),
        visit(4, DX="Puzzling", DX_bl="??"),
    ]
    notes = tables(tmp_path, rows).notes
    assert notes["visits whose DX and DXCHANGE disagree (DXCHANGE counts)"] == 1
    assert notes["visits with a diagnosis from DX, DXCHANGE being unknown"] == 1
    assert notes["visits with a DXCHANGE other than 1 to 9 and -1 (taken as unknown)"] == 1
    assert (notes["visits with an unknown text in DX"], notes["visits with an unknown text in DX_bl"]) == (1, 1)


def test_cohort_has_the_age_at_the_visit(tmp_path: Path) -> None:
    row = tables(tmp_path, [visit(7, 12, Years_bl="1.25", AGE="70.5")]).cohort.row(0, named=True)
    expected = {"unit_id": "7_m12", "patient_id": 7, "diagnosis": 0, "age": 71.75, "gender": "Male", "viscode": "m12"}
    assert row == expected


def test_the_feature_age_is_that_at_the_visit_in_the_clean_task_alone(tmp_path: Path) -> None:
    rows = [
        visit(1, 48, AGE="70.5", Years_bl=" 4.25 "),
        visit(2, 48, AGE="60", Years_bl="-4"),
        visit(3, 48, AGE=" ", Years_bl="4"),
    ]
    result = tables(tmp_path, rows)
    assert [value(result, "clinical", "AGE", f"{rid}_m48") for rid in (1, 2, 3)] == [74.75, 60, None]
    ages = dict(result.cohort.select("unit_id", "age").rows())
    assert ages == {"1_m48": 74.75, "2_m48": 60, "3_m48": None}
    for task in ("tadpole_paper_text", "tadpole_paper_code"):
        paper = tables(tmp_path, rows, task)
        assert [value(paper, "clinical", "AGE", f"{rid}_m48") for rid in (1, 2)] == [70.5, 60]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([visit(1), visit(1)], "1 rows repeat the RID and VISCODE of another"),
        ([visit(1), visit(1) | {"RID": "1.0"}], "1 rows repeat the RID and VISCODE of another"),
        ([visit(1), visit(2) | {"RID": "x"}], "RID is no whole number or VISCODE is blank in 1 rows"),
        ([visit(1), visit(2) | {"RID": "2.5"}], "RID is no whole number or VISCODE is blank in 1 rows"),
        ([visit(1), visit(2) | {"VISCODE": " "}], "RID is no whole number or VISCODE is blank in 1 rows"),
        ([visit(1), visit(2) | {"PTID": "011_S_0001"}], "RID and PTID name different people in 1 cases"),
        ([visit(1), visit(1, 6) | {"PTID": "011_S_0002"}], "RID and PTID name different people in 1 cases"),
    ],
)
@pytest.mark.parametrize("task", SPEC.tasks)
def test_broken_keys_are_refused(tmp_path: Path, task: str, rows: list[Row], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        tables(tmp_path, rows, task)
    assert "TADPOLE_D1_D2.csv" in str(caught.value) and "011_S" not in str(caught.value)


# ---------------------------------------------------------------- tadpole_clean: what


def test_the_list_of_columns_is_the_reference_list(shared: Path) -> None:
    with (shared / "facts" / "tadpole" / "columns.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == SPEC.lists["columns"]


def test_columns_of_the_clean_task(tmp_path: Path) -> None:
    def columns(**options: Any) -> dict[str, list[str]]:
        frames = {name: table.frame for name, table in tables(tmp_path, [visit(1)], **options).modalities.items()}
        return {name: [column for column in frame.columns if column != "unit_id"] for name, frame in frames.items()}

    found = columns()
    assert list(found) == MODALITIES
    assert [len(found[name]) for name in MODALITIES] == [6 + 1 + 346 + 346, 335, 239, 3, 6, 7]
    ravlt = [f"RAVLT_{name}" for name in ("immediate", "learning", "forgetting", "perc_forgetting")]
    assert found["cognitive_tests"] == ["ADAS11", "ADAS13", *ravlt]
    assert found["clinical"] == ["AGE", "PTGENDER", "PTEDUCAT", "PTETHCAT", "PTRACCAT", "PTMARRY", "APOE4"]
    assert found["csf"] == [ABETA, TAU, PTAU] and "ICV" in found["mri"]
    everything = {name for names in found.values() for name in names}
    assert not everything & {"DX", "DXCHANGE", "DX_bl", "SITE", "D1", "COLPROT", "EXAMDATE", "FDG_bl", "MMSE"}
    assert not any(
        part in name for name in everything for part in ("EXAMDATE", "RUNDATE", "update_stamp", "UID", "QC_", "_bl")
    )
    circular = columns(exclude_diagnostic_criteria=False)
    assert set(circular["cognitive_tests"]) - set(found["cognitive_tests"]) == {"CDRSB", "MMSE", "FAQ", "MOCA"}
    coarse = columns(mri_regions=False)["mri"]
    assert set(found["mri"]) - set(coarse) == {
        n for n in COLUMNS if n[:2] == "ST" and n[2].isdigit() and n.endswith(SECTIONAL)
    }


@pytest.mark.parametrize("missing", ["", " ", "   ", "-4", "-4.0", "-4.00", " -4 ", "NA", "nan", "NaN"])
def test_every_code_for_missing_makes_the_modality_absent(tmp_path: Path, missing: str) -> None:
    result = tables(tmp_path, [visit(1, FDG=missing), visit(2)], allow_missing_modalities=True)
    assert value(result, "fdg_pet", "FDG", "1_bl") == "absent"
    assert not any(count for note, count in result.notes.items() if "no number" in note)


def test_minus_one_is_a_score_and_a_baseline_copy_is_no_scan(tmp_path: Path) -> None:
    rows = [visit(1, RAVLT_learning="-1", PTMARRY="-4"), visit(2, FDG=" ", FDG_bl="1.1", CDRSB="0")]
    result = tables(tmp_path, rows, allow_missing_modalities=True)
    assert value(result, "cognitive_tests", "RAVLT_learning", "1_bl") == -1
    assert value(result, "clinical", "PTMARRY", "1_bl") is None
    assert value(result, "fdg_pet", "FDG", "2_bl") == "absent"
    only_circular = [visit(1, **WITHOUT["cognitive_tests"], MMSE="29")]
    assert units(tables(tmp_path, only_circular)) == []
    assert units(tables(tmp_path, only_circular, exclude_diagnostic_criteria=False)) == ["1_bl"]


def test_limits_of_detection_are_numbers_and_unknown_texts_are_counted(tmp_path: Path) -> None:
    cells = ["<80", "> 1300", " >120", "1003.7", "about 90", "<", "inf", "80-90", "", "7"]
    rows = [visit(n, **{TAU: cell}) for n, cell in enumerate(cells)]
    result = tables(tmp_path, rows, censor_columns=True)
    found = [value(result, "csf", TAU, f"{n}_bl") for n in range(len(cells))]
    assert found == [80, 1300, 120, 1003.7, None, None, None, None, None, 7]
    limits = [value(result, "csf", f"{TAU} is a limit", f"{n}_bl") for n in range(len(cells))]
    assert limits == [True, True, True, *[False] * 7]
    assert result.notes["csf: cells with a text that is no number (taken as missing)"] == 4
    assert result.notes["csf: cells with a limit of detection (taken as that number)"] == 3
    assert tables(tmp_path, rows).modalities["csf"].frame.columns == ["unit_id", ABETA, TAU, PTAU]


def test_a_text_in_another_column_is_never_a_category(tmp_path: Path) -> None:
    result = tables(tmp_path, [visit(1, ADAS13="high", ADAS11="9"), visit(2, Ventricles="<5", **{PTAU: "1"})])
    assert value(result, "cognitive_tests", "ADAS13", "1_bl") is None
    assert result.notes["cognitive_tests: cells with a text that is no number (taken as missing)"] == 1
    assert result.notes["mri: cells with a text that is no number (taken as missing)"] == 1
    assert units(result) == ["1_bl"]


def test_quality_control_may_be_asked_for(tmp_path: Path) -> None:
    long, cross = f"ST10CV_{LONGITUDINAL}", f"ST10CV_{SECTIONAL}"
    quality = {"long": f"OVERALLQC_{LONGITUDINAL}", "cross": f"OVERALLQC_{SECTIONAL}"}
    cells = {long: "5", cross: "6", "ICV": "1500000"}
    rows = [
        visit(1, **cells, **{quality["long"]: "Pass", quality["cross"]: "Pass"}),
        visit(2, **cells, **{quality["long"]: "Pass", quality["cross"]: "Fail"}),
        visit(3, **cells, **{quality["long"]: "Partial", quality["cross"]: "Pass"}),
        visit(4, **cells),
    ]
    result = tables(tmp_path, rows, mri_quality="pass")
    names = ["Ventricles", "ICV", long, cross]
    found = {unit: [value(result, "mri", name, unit) for name in names] for unit in units(result)}
    assert found == {
        "1_bl": [30000, 1500000, 5, 6],
        "2_bl": [None, None, 5, None],
        "3_bl": [30000, 1500000, None, 6],
    }
    assert units(tables(tmp_path, rows)) == ["1_bl", "2_bl", "3_bl", "4_bl"]


def test_missing_modalities_may_be_allowed(tmp_path: Path) -> None:
    rows = [visit(1, 0), without(1, 12, "csf", "mri"), without(2, 0, *MODALITIES[:5])]
    result = tables(tmp_path, rows, allow_missing_modalities=True)
    assert units(result) == ["1_m12", "2_bl"]
    assert [step.units for step in result.attrition] == [3, 3, 3, 2]
    present = {name: sorted(table.frame["unit_id"]) for name, table in result.modalities.items()}
    assert present["csf"] == present["mri"] == [] and present["fdg_pet"] == ["1_m12"]
    assert present["clinical"] == ["1_m12", "2_bl"]


# ---------------------------------------------------------------- tadpole_clean: time


def test_a_modality_is_carried_forward_whole_within_the_limit_only(tmp_path: Path) -> None:
    rows = [
        visit(1, 0, **{ABETA: "100", TAU: "50"}),
        visit(1, 6, **{ABETA: "200", TAU: " "}),
        without(1, 12, "csf"),  # 184 days later
        without(2, 0, "csf"),
        visit(2, 6, **{ABETA: "300"}),  # a later value is never used for an earlier visit
        without(2, 12, "csf", DXCHANGE=2),
        visit(3, 0),
    ]
    result = tables(tmp_path, rows, carry_forward_days=184)
    assert units(result) == ["1_m12", "2_m12", "3_bl"]
    assert (value(result, "csf", ABETA, "1_m12"), value(result, "csf", TAU, "1_m12")) == (200, None)
    assert result.notes["csf: units with values carried forward"] == 2
    assert units(tables(tmp_path, rows, carry_forward_days=183)) == ["1_m06", "2_m06", "3_bl"]
    backward = [without(2, 0, "csf"), visit(2, 6, DXCHANGE=-1, DX="")]
    assert units(tables(tmp_path, backward, carry_forward_days=9999)) == []


def test_no_value_crosses_from_one_person_to_the_next(tmp_path: Path) -> None:
    rows = [visit(1, 0), without(2, 6, "csf", "mri")]
    result = tables(tmp_path, rows, carry_forward_days=9999, allow_missing_modalities=True)
    assert value(result, "csf", ABETA, "2_m06") == value(result, "mri", "Ventricles", "2_m06") == "absent"


@pytest.mark.parametrize("days", [0, 400])
def test_a_future_visit_changes_no_earlier_feature(tmp_path: Path, days: int) -> None:
    rows = many()
    future = [visit(rid, 90, Ventricles="99", FDG="9", DXCHANGE=-1, DX="") for rid in range(1, 41)]
    future += [without(rid, 96, "csf", "mri", ADAS13="77", DXCHANGE=-1, DX="") for rid in range(1, 41)]
    before = tables(tmp_path, rows, carry_forward_days=days)
    after = tables(tmp_path, rows + future, carry_forward_days=days)
    known = set(units(before)) & set(units(after))
    assert len(known) > 15
    for name, table in before.modalities.items():
        kept = pl.col("unit_id").is_in(known)
        first, second = (frame.filter(kept).sort("unit_id") for frame in (table.frame, after.modalities[name].frame))
        assert first.equals(second), name


def test_diagnosis_columns_change_no_feature(tmp_path: Path) -> None:
    rows = many()
    codes = random.Random(1)
    changed = [
        row | {"DXCHANGE": codes.choice("123456789"), "DX": codes.choice(["NL", "MCI"]), "DX_bl": "AD"} for row in rows
    ]
    before, after = tables(tmp_path, rows), tables(tmp_path, changed)
    assert diagnoses(before) != diagnoses(after)
    assert before.cohort.drop("diagnosis").equals(after.cohort.drop("diagnosis"))
    for name, table in before.modalities.items():
        assert table.frame.equals(after.modalities[name].frame), name


# ---------------------------------------------------------------- forms of the file


def _rewritten(change: Callable[[list[Row]], list[Row]]) -> Callable[[Path], None]:
    return lambda folder: _write_again(folder, change)


def _write_again(folder: Path, change: Callable[[list[Row]], list[Row]]) -> None:
    with (folder / "TADPOLE_D1_D2.csv").open(newline="") as file:
        rows = change(list(csv.DictReader(file)))
    write(folder, rows, header=rows[0])


def _edited(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "TADPOLE_D1_D2.csv"
        path.write_bytes(change(path.read_bytes()))

    return edit


def _with_codes(code: str) -> Callable[[list[Row]], list[Row]]:
    return lambda rows: [{name: code if cell == " " else cell for name, cell in row.items()} for row in rows]


FORMS: dict[str, Callable[[Path], None]] = {
    "shuffled": _rewritten(lambda rows: random.Random(5).sample(rows, len(rows))),
    "other order of columns": _rewritten(lambda rows: [dict(sorted(row.items())) for row in rows]),
    "extra columns": _rewritten(lambda rows: [{"NEW_ONE": "1", **row, "DTI_2": "x"} for row in rows]),
    "-4 as text": _rewritten(_with_codes("-4")),
    "-4 as float": _rewritten(_with_codes("-4.0")),
    "empty cells": _rewritten(_with_codes("")),
    "whole numbers as floats": _rewritten(
        lambda rows: [row | {"RID": f"{row['RID']}.0", "DXCHANGE": f"{row['DXCHANGE']}.0"} for row in rows]
    ),
    "CRLF": _edited(lambda data: data.replace(b"\n", b"\r\n")),
    "BOM": _edited(lambda data: b"\xef\xbb\xbf" + data),
}


@pytest.mark.parametrize(
    ("task", "forms"),
    [*(("tadpole_clean", [form]) for form in FORMS), ("tadpole_paper_text", [f for f in FORMS if f != "empty cells"])],
)
def test_the_form_of_the_file_changes_nothing(tmp_path: Path, home: Path, task: str, forms: list[str]) -> None:
    rows = many(people=25)
    first = prepared(write(tmp_path / "first", rows), task)
    folder = write(tmp_path / "second", rows)
    for form in forms:
        FORMS[form](folder)
    second = prepared(folder, task)
    assert first.folder != second.folder and first.cohort.height > 12
    assert first.cohort.equals(second.cohort) and (first.split == second.split).all()
    for name in MODALITIES:
        a, b = first.array(name), second.array(name)
        assert a.columns == b.columns and (a.present == b.present).all(), name
        assert np.array_equal(a.values, b.values, equal_nan=True), name


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda data: data[:-700], "cut off in its last row"),
        (lambda data: data.replace(b",70.5,", b",", 1), "fields where the header has 1424"),
        (lambda data: data[: data.index(b"\n") + 1], "has a header but no rows"),
        (lambda data: data.replace(b"PTEDUCAT,", b"EDUCATION,", 1), "has no column pteducat"),
    ],
)
def test_broken_files_are_refused(tmp_path: Path, broken: Callable[[bytes], bytes], message: str) -> None:
    path = write(tmp_path, many()) / "TADPOLE_D1_D2.csv"
    path.write_bytes(broken(path.read_bytes()))
    with pytest.raises(UserError, match=message):
        RawFolder({"": tmp_path}, SPEC.tables)


def test_a_short_row_far_down_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, [visit(n) for n in range(200)]) / "TADPOLE_D1_D2.csv"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:150], lines[150][:-500] + b"\n", *lines[151:]]))
    raw = RawFolder({"": tmp_path}, SPEC.tables)
    with pytest.raises(UserError, match="1 rows have not the header's 1424 fields"):
        specs.pipeline_function(SPEC, "tadpole_clean", SPEC_PATH)(raw, SPEC)


# ---------------------------------------------------------------- splits


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 9), st.integers(1, 9)), min_size=8, max_size=40))
def test_a_person_never_crosses_splits(drawn: list[tuple[int, int, int]]) -> None:
    kept = {(rid, 6 * month): code for rid, month, code in drawn} | {(rid, 0): 1 for rid in (20, 21, 22)}
    rows = [visit(rid, month, DXCHANGE=code) for (rid, month), code in kept.items()]
    with tempfile.TemporaryDirectory() as folder:
        cohort = tables(Path(folder), rows).cohort
        split = splitting.split_units(cohort, SPEC.task("tadpole_clean").split, ["diagnosis"], [])
        assert cohort["patient_id"].n_unique() == cohort.height == len({rid for rid, _ in kept})
        assert splitting.patients_apart(cohort, split) == 0
        # Every visit a unit, as if a task kept them all.
        visits = pl.DataFrame({"unit_id": range(len(rows)), "patient_id": [int(row["RID"]) for row in rows]})
        visits = visits.with_columns(diagnosis=pl.Series([code % 3 for code in kept.values()]))
        split = splitting.split_units(visits, SPEC.task("tadpole_clean").split, ["diagnosis"], [])
        sides = visits.with_columns(split=pl.Series(split)).group_by("patient_id").agg(pl.col("split").n_unique())
        assert sides["split"].max() == 1


def test_a_class_that_a_part_lacks_is_noted(tmp_path: Path, home: Path) -> None:
    rows = [visit(n, DXCHANGE=1 + n % 2) for n in range(20)] + [visit(20, DXCHANGE=3)]
    notes = prepared(write(tmp_path / "raw", rows)).manifest["notes"]
    assert sum(notes.get(f"classes without a unit in {part}") == "AD" for part in splitting.SPLITS) == 2


def test_split_is_stratified_and_seeded(tmp_path: Path, home: Path) -> None:
    folder = write(tmp_path / "raw", [visit(n, DXCHANGE=1 + n % 3) for n in range(60)])
    data = prepared(folder)
    assert data.manifest["units"] == {"train": 42, "validation": 9, "test": 9}
    assert np.bincount(data.target[data.split == "test"].astype(int)).tolist() == [3, 3, 3]
    assert (prepared(folder, "tadpole_clean", "split.seed=1").split != data.split).any()
    assert data.manifest["patients_apart"] == 0


def test_notebook_split_has_the_reference_order() -> None:
    """Vector: Python's random.shuffle with seed 42 of 1,403 ids sorted as text."""
    ids = [f"{n:04d}" for n in range(1403)]
    cohort = pl.DataFrame({"unit_id": ids, "patient_id": range(1403), "diagnosis": [0] * 1403})
    split = SPEC.task("tadpole_paper_code").split
    names = splitting.split_units(
        cohort.sample(fraction=1, shuffle=True, seed=3).sort("unit_id"), split, ["diagnosis"], []
    )
    parts = {part: set(np.flatnonzero(names == part)) for part in splitting.SPLITS}
    assert [len(parts[part]) for part in splitting.SPLITS] == [982, 210, 211]
    assert {187, 1021, 697, 297, 1097, 364, 687, 9} < parts["train"]
    assert {814, 840, 312, 358, 1201} < parts["validation"]
    assert {1198, 676, 64, 138, 468} < parts["test"]


def test_only_a_leaky_task_may_cut_patients_apart() -> None:
    with pytest.raises(UserError, match="only a task marked `leaky` may"):
        experiment.load("tadpole_clean", ["split.whole_patients=false", "split.stratify=false"]).data_request()
    with pytest.raises(UserError, match="whole_patients: false goes only with stratify: false"):
        experiment.load("tadpole_paper_code", ["split.stratify=true"]).data_request()
    with pytest.raises(ValueError, match="needs a `leaky` reason"):
        specs.TaskSpec(title="t", target=["y"], uses_banned=["DXCHANGE"])
    assert not SplitSpec(stratify=False, whole_patients=False).whole_patients


# ---------------------------------------------------------------- tadpole_paper_text


def test_paper_text_takes_one_visit_a_person_and_the_baseline_group(tmp_path: Path) -> None:
    rows = [
        visit(1, 0, DX_bl="SMC"),
        visit(1, 6, DX_bl="SMC", DXCHANGE=4),
        without(1, 12, "csf", DX_bl="SMC"),
        visit(2, 0, DX_bl="EMCI"),
        visit(3, 0, DX_bl="LMCI"),
        visit(4, 0, DX_bl="AD", DXCHANGE=1),
        visit(5, 0, DX_bl=" "),
        visit(6, 0, FDG=" ", FDG_bl="1.2"),
    ]
    result = tables(tmp_path, rows, "tadpole_paper_text")
    assert diagnoses(result) == {"1_m06": 0, "2_bl": 1, "3_bl": 1, "4_bl": 2}
    current = tables(tmp_path, rows, "tadpole_paper_text", label="current")
    assert diagnoses(current) == {"1_m06": 1, "2_bl": 0, "3_bl": 0, "4_bl": 0, "5_bl": 0}


def test_paper_text_features(tmp_path: Path) -> None:
    bookkeeping = {"SITE": "11", "COLPROT": "ADNI2", "EXAMDATE_bl": "2006-01-01", "MMSE": "29", "MMSE_bl": "28"}
    status = "STATUS_BAIPETNMRC_09_12_16"
    rows = [
        visit(1, **bookkeeping, **{TAU: "<80", status: "complete", "KIT_UPENNBIOMK9_04_19_17": "P06"}),
        visit(2, 6, **{**bookkeeping, "COLPROT": "ADNI1"}, **{TAU: "995"}, MOCA="-4"),
        visit(3, **{**bookkeeping, "COLPROT": "ADNI1", "SITE": "-4"}, **{TAU: "1003.7"}),
        visit(4, **bookkeeping, **{TAU: "odd", CAUDATE: "odd"}),
    ]
    for row in rows[:3]:
        row[CAUDATE] = "1.5"
    result = tables(tmp_path, rows, "tadpole_paper_text")
    everyone = [f"{n}_{code}" for n, code in ((1, "bl"), (2, "m06"), (3, "bl"), (4, "bl"))]
    assert [value(result, "csf", TAU, unit) for unit in everyone] == [80, 995, 1003.7, None]
    assert [value(result, "clinical", "COLPROT", unit) for unit in everyone] == [1, 0, 0, 1]
    assert [value(result, "clinical", "SITE", unit) for unit in everyone] == [11, 11, None, 11]
    assert [value(result, "av45_pet", CAUDATE, unit) for unit in everyone] == [1.5, 1.5, 1.5, None]  # no DATE
    assert value(result, "clinical", "EXAMDATE", "1_bl") == 1136073600  # 2006-01-01
    columns = {name: set(table.frame.columns) for name, table in result.modalities.items()}
    assert "MMSE" in columns["cognitive_tests"] and "MMSE_bl" not in columns["cognitive_tests"]
    assert not columns["clinical"] & {"DX", "DX_bl", "DXCHANGE", "MOCA"}  # MOCA: nobody has one
    assert status not in columns["fdg_pet"]  # three of four are missing
    assert "DIFFERENT" in str(result.notes["units of each class"])


# ---------------------------------------------------------------- tadpole_paper_code


def test_paper_code_keeps_visits_with_any_cell_of_each_modality(tmp_path: Path) -> None:
    rows = [
        visit(1, 0, DX_bl="SMC"),
        visit(1, 6, FDG=" ", FDG_bl="1.2", DX_bl="LMCI"),  # a baseline copy is a value there
        without(1, 12, "csf"),
        visit(2, 0, AV45=" ", update_stamp_UCBERKELEYAV45_10_17_16="2016-10-18", DX_bl="AD"),
        without(3, 0, "mri"),
        visit(4, 0, DX_bl=" "),
        without(5, 0, "cognitive_tests", ADAS13="  "),  # so are two blanks
    ]
    result = tables(tmp_path, rows, "tadpole_paper_code")
    assert diagnoses(result) == {"1_bl": 0, "1_m06": 1, "2_bl": 2, "5_bl": 0}
    assert steps(result) == [
        (7, 5, 4, 1, 1),
        (6, 4, 3, 1, 1),
        (6, 4, 3, 1, 1),
        (6, 4, 3, 1, 1),
        (5, 4, 2, 1, 1),
        (5, 4, 2, 1, 1),
        (5, 4, 2, 1, 1),
        (4, 3, 2, 1, 1),
    ]


def test_paper_code_fills_codes_and_dates_as_the_notebooks_do(tmp_path: Path) -> None:
    kit = "KIT_UPENNBIOMK9_04_19_17"
    rundate = "RUNDATE_UPENNBIOMK9_04_19_17"
    rows = [
        visit(1, 12, MMSE="28", **{TAU: "<80", rundate: "2016-01-02", kit: "P2"}),
        visit(1, 0, **{TAU: "1003.7", rundate: " ", kit: "P1"}),  # file order: gets what month 12 had
        visit(2, 0, FAQ=" ", **{TAU: "995", rundate: "then", kit: " "}),
        visit(2, 6, FAQ="3", MMSE="-4", **{TAU: "995", rundate: "2016-01-02", kit: " "}),
        visit(3, 0, MMSE="27", FAQ="4", DXCHANGE=-1, **{TAU: "75", rundate: " ", kit: "P1"}),
    ]
    result = tables(tmp_path, rows, "tadpole_paper_code")
    order = ["1_m12", "1_bl", "2_bl", "2_m06", "3_bl"]

    def found(modality: str, column: str) -> list[float]:
        return [value(result, modality, column, unit) for unit in order]

    assert found("cognitive_tests", "MMSE") == [28, 28, -4, -4, 27]  # forward in file order, then backward
    assert found("clinical", "FAQ") == [-1, -1, 3, 3, 4]  # never known: -1
    assert found("csf", TAU) == [3, 0, 2, 2, 1]  # "1003.7" < "75" < "995" < "<80", as texts sort
    assert found("csf", kit) == [2, 1, 0, 0, 1]  # the -1 of a gap is a category of its own and sorts first
    assert found("csf", rundate) == [1451692800, 1451692800, -9223372037, 1451692800, -1]
    assert found("clinical", "DXCHANGE") == [1, 1, 1, 1, -1]
    assert not any(table.frame.null_count().sum_horizontal().sum() for table in result.modalities.values())


def test_paper_code_drops_columns_that_are_mostly_missing(tmp_path: Path) -> None:
    rows = [visit(n, MOCA="20" if n < 3 else " ", FAQ="1" if n < 2 else " ") for n in range(10)]
    columns = tables(tmp_path, rows, "tadpole_paper_code").modalities["clinical"].frame.columns
    assert "MOCA" in columns and "FAQ" not in columns  # 70 % and 80 % missing


def test_paper_code_is_loud_about_its_overlap_and_its_counts(tmp_path: Path, home: Path) -> None:
    rows = [visit(n, month, DX_bl=["CN", "EMCI", "AD"][n % 3]) for n in range(1, 16) for month in (0, 6, 12, 18)]
    data = prepared(write(tmp_path / "raw", rows), "tadpole_paper_code")
    assert data.manifest["units"] == {"train": 42, "validation": 9, "test": 9}
    test = set(data.cohort.filter(pl.Series(data.split == "test"))["patient_id"])
    rest = set(data.cohort.filter(pl.Series(data.split != "test"))["patient_id"])
    assert data.manifest["patients_apart"] == len(test & rest) > 0
    assert data.manifest["leaky"].startswith("visits of one person stand in training and test")
    counts = data.manifest["notes"]["units of each class"]
    assert counts == "CN 20, MCI 20, AD 20; published: CN 493, MCI 767, AD 143 (DIFFERENT)"
    widths = data.manifest["notes"]["inputs of each modality"]
    ours, published = widths.split("; published: ")
    assert published == "mri 662, fdg_pet 15, av45_pet 241, csf 9, cognitive_tests 15, clinical 24 (DIFFERENT)"
    assert ours == ", ".join(f"{name} {len(data.array(name).columns)}" for name in MODALITIES)
    assert "DXCHANGE" in [column.name for column in data.array("clinical").columns]


def test_equal_figures_are_said_to_be_the_same(tmp_path: Path) -> None:
    function = specs.pipeline_function(SPEC, "tadpole_paper_code", SPEC_PATH)
    ours = {"published_classes": {"CN": 2, "MCI": 0, "AD": 0}}
    told = SPEC.model_copy(update={"settings": SPEC.settings | ours})
    raw = RawFolder({"": write(tmp_path, [visit(1), visit(2)])}, SPEC.tables)
    assert str(function(raw, told).notes["units of each class"]).endswith("(the same)")
