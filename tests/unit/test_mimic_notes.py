"""Which notes belong to an ICU stay, and what is left of a discharge note."""

from datetime import datetime
from pathlib import Path

import polars as pl
import pytest

from ovo_clinic import spec
from ovo_clinic.raw import RawFolder
from ovo_clinic.resources import load_pipeline

mimic_notes = load_pipeline("mimic_notes")
select_notes = mimic_notes.select_notes

STAYS = pl.DataFrame(
    {
        "unit_id": [1, 2, 3],
        "subject_id": [10, 10, 11],
        "hadm_id": [100, 101, 110],
        "start": [datetime(2180, 5, 3, 10), datetime(2180, 6, 1), datetime(2180, 5, 3)],
        "end": [datetime(2180, 5, 4, 10), datetime(2180, 6, 2), datetime(2180, 5, 5)],
    }
)
NOT_STORED = "text: reports charted, but not known to be stored before the prediction"
HEADER = ["note_id", "subject_id", "hadm_id", "note_type", "note_seq", "charttime", "storetime", "text"]
REPORTS = [
    ("10-RR-1", 10, 100, "RR", 1, "2180-05-03 09:59:59", "2180-05-03 11:00:00", "Before the stay."),
    ("10-RR-4", 10, None, "RR", 4, "2180-05-04 10:00:00", "2180-05-04 12:00:00", "At the end."),
    ("10-RR-2", 10, 100, "RR", 2, "2180-05-03 10:00:00", "2180-05-03 10:30:00", ' At the start,\nwith a "quote". '),
    ("10-AR-3", 10, 100, "AR", 3, "2180-05-03 20:00:00", "2180-05-04 10:00:00", "Stored at the end."),
    ("10-RR-5", 10, 100, "RR", 5, "2180-05-04 10:00:01", "2180-05-04 10:00:02", "After the end."),
    ("10-RR-6", 10, 100, "RR", 6, "2180-05-03 21:00:00", "2180-05-03 22:00:00", 'At the start,\nwith a "quote".'),
    ("10-RR-7", 10, 100, "RR", 7, "2180-05-03 22:00:00", None, "   "),
    ("11-RR-8", 11, 110, "RR", 8, None, None, "Without a time."),
    ("12-RR-9", 12, 120, "RR", 9, "2180-05-03 12:00:00", "2180-05-03 12:00:00", "Of a stranger."),
]
DISCHARGES = [
    ("10-AD-2", 10, 100, "AD", 2, "2180-05-09 00:00:00", "2180-05-10 00:00:00", "Addendum."),
    ("10-DS-3", 10, 100, "DS", 3, "2180-05-08 00:00:00", "2180-05-09 00:00:00", "Summary."),
    ("11-AD-1", 11, 110, "AD", 1, "2180-05-08 00:00:00", "2180-05-09 00:00:00", "Only an addendum."),
    ("10-DS-4", 10, 999, "DS", 4, "2180-05-08 00:00:00", "2180-05-09 00:00:00", "Of another admission."),
]


def raw_folder(folder: Path, suffix: str = ".csv") -> RawFolder:
    (folder / "note").mkdir()
    for name, rows in {"radiology": REPORTS, "discharge": DISCHARGES}.items():
        frame = pl.DataFrame(rows, HEADER, orient="row")
        path = folder / f"note/{name}{suffix}"
        frame.write_csv(path) if suffix == ".csv" else frame.write_parquet(path)
    tables = {name: table for name, table in spec.load("mimic")[0].tables.items() if table.source == "note"}
    return RawFolder({"note": folder}, tables)


def texts(found: tuple[object, dict[str, int]]) -> dict[int, str]:
    table, _ = found
    return dict(table.frame.iter_rows())  # type: ignore[attr-defined]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_reports_of_the_window_are_joined_in_time_order_and_said_once(tmp_path: Path, suffix: str) -> None:
    found = select_notes(raw_folder(tmp_path, suffix), STAYS, "radiology")
    assert texts(found) == {1: 'At the start,\nwith a "quote".\n\nStored at the end.\n\nAt the end.'}
    assert found[1] == {
        "text: radiology reports in the window": 5,
        "text: reports said twice, or blank": 2,
        "text: stays with reports": 1,
    }


def test_a_report_that_is_not_stored_before_the_prediction_is_not_known_then(tmp_path: Path) -> None:
    found = select_notes(raw_folder(tmp_path), STAYS, "radiology", end_open=True)
    assert texts(found) == {1: 'At the start,\nwith a "quote".'}
    assert found[1][NOT_STORED] == 2  # the one stored at the end, and a blank one without a time


@pytest.mark.parametrize("stored", [None, "unknown"])
def test_a_report_without_a_time_of_storing_is_not_known_at_the_prediction(tmp_path: Path, stored: str | None) -> None:
    raw = raw_folder(tmp_path)
    path = raw.path("radiology")
    assert path is not None
    reports = [REPORTS[2], (*REPORTS[5][:6], stored, "Never stored.")]
    pl.DataFrame(reports, HEADER, orient="row").write_csv(path)
    found = select_notes(raw, STAYS, "radiology", end_open=True)
    assert texts(found) == {1: 'At the start,\nwith a "quote".'} and found[1][NOT_STORED] == 1
    assert texts(select_notes(raw, STAYS, "radiology")) == {1: 'At the start,\nwith a "quote".\n\nNever stored.'}


def test_two_discharge_rows_of_one_admission_give_one_note(tmp_path: Path) -> None:
    found = select_notes(raw_folder(tmp_path), STAYS, "discharge")
    assert texts(found) == {1: "Summary.", 3: "Only an addendum."}
    assert found[1] == {
        "text: discharge notes of the admissions": 3,
        "text: further or blank notes of an admission": 1,
        "text: stays with a discharge note": 2,
    }


def test_two_stays_of_one_admission_have_its_note_each(tmp_path: Path) -> None:
    stays = STAYS.with_columns(hadm_id=pl.lit(100))
    assert texts(select_notes(raw_folder(tmp_path), stays, "discharge")) == {1: "Summary.", 2: "Summary."}


NOTE = """Name:  ___  Unit No:  ___
Chief Complaint:
Cough

Past Medical History:
asthma
Brief Hospital Course:
# Pneumonia: treated.
ACUTE COURSE:
better
  discharge medications:
1. Drug A
Discharge Disposition:
Home
Discharge Diagnosis:
Pneumonia
Discharge Condition:
Mental Status: Clear
Physical Exam on discharge was normal
"""


def test_sections_are_left_out_up_to_the_next_known_title() -> None:
    all_sections = ["diagnoses", "hospital_course", "discharge_medications", "discharge_condition"]
    short = mimic_notes.without(NOTE, all_sections)
    assert short == "Name:  ___  Unit No:  ___\nChief Complaint:\nCough\n\nPast Medical History:\nasthma"
    assert mimic_notes.without(NOTE, ["past_history"]) == NOTE.replace("Past Medical History:\nasthma\n", "").strip()
    without_drugs = NOTE.replace("  discharge medications:\n1. Drug A\n", "").strip()
    assert mimic_notes.without(NOTE, ["discharge_medications"]) == without_drugs
    assert mimic_notes.without("A note without titles.", all_sections) == "A note without titles."


def test_a_note_of_nothing_but_left_out_sections_is_no_note(tmp_path: Path) -> None:
    raw = raw_folder(tmp_path)
    path = raw.path("discharge")
    assert path is not None
    frame = pl.DataFrame([(*DISCHARGES[1][:7], "Discharge Diagnosis: Pneumonia")], HEADER, orient="row")
    frame.write_csv(path)
    found = select_notes(raw, STAYS, "discharge", without_sections=["diagnoses"])
    assert texts(found) == {} and found[1]["text: stays with a discharge note"] == 0
