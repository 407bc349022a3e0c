"""A MIMIC-IV folder of a few hand-written stays, in the layout of any version."""

import csv
import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path

Row = Mapping[str, object]
HEADERS = {
    "patients": "subject_id gender anchor_age anchor_year anchor_year_group dod",
    "admissions": "subject_id hadm_id admittime dischtime deathtime admission_type admit_provider_id admission_location"
    " discharge_location insurance language marital_status race edregtime edouttime hospital_expire_flag",
    "diagnoses_icd": "subject_id hadm_id seq_num icd_code icd_version",
    "icustays": "subject_id hadm_id stay_id first_careunit last_careunit intime outtime los",
    "chartevents": "subject_id hadm_id stay_id caregiver_id charttime storetime itemid value valuenum valueuom warning",
    "labevents": "labevent_id subject_id hadm_id specimen_id itemid order_provider_id charttime storetime value"
    " valuenum valueuom ref_range_lower ref_range_upper flag priority comments",
}
LATER = {"admit_provider_id", "caregiver_id", "order_provider_id"}
"""Columns that version 1.0 has not."""
INTIME = "2150-03-01 10:00:00"


def patient(subject: int, **changes: object) -> dict[str, object]:
    row = {"subject_id": subject, "gender": "F", "anchor_age": 60, "anchor_year": 2150, "dod": ""}
    return row | {"anchor_year_group": "2011 - 2013"} | changes


def admission(subject: int, hadm: int, **changes: object) -> dict[str, object]:
    row = {
        "subject_id": subject,
        "hadm_id": hadm,
        "admittime": "2150-03-01 08:00:00",
        "dischtime": "2150-03-09 08:00:00",
        "deathtime": "",
        "admission_type": "URGENT",
        "admission_location": "EMERGENCY ROOM",
        "discharge_location": "HOME",
        "insurance": "Other",
        "language": "ENGLISH",
        "marital_status": "SINGLE",
        "race": "WHITE - RUSSIAN",
        "hospital_expire_flag": 0,
    }
    return row | changes


def stay(subject: int, hadm: int, number: int, days: float = 3.0, **changes: object) -> dict[str, object]:
    """A stay from INTIME on; `days` should be whole."""
    row = {"subject_id": subject, "hadm_id": hadm, "stay_id": number, "first_careunit": "MICU", "last_careunit": "MICU"}
    return row | {"intime": INTIME, "outtime": f"2150-03-{1 + int(days):02} 10:00:00", "los": days} | changes


def chart(
    subject: int, hadm: int, number: int, time: str, item: int, value: object, **changes: object
) -> dict[str, object]:
    """A chart row; `time` is `HH:MM[:SS]` of the first day, or a whole time stamp."""
    numeric = "" if isinstance(value, str) else value
    row = {
        "subject_id": subject,
        "hadm_id": hadm,
        "stay_id": number,
        "itemid": item,
        "value": value,
        "valuenum": numeric,
    }
    return row | {"charttime": _stamp(time)} | changes


def lab(subject: int, hadm: object, time: str, item: int, value: object, **changes: object) -> dict[str, object]:
    row = {"subject_id": subject, "hadm_id": hadm, "itemid": item, "value": value, "valuenum": value}
    return row | {"charttime": _stamp(time)} | changes


def diagnosis(subject: int, hadm: int, code: str, version: int) -> dict[str, object]:
    return {"subject_id": subject, "hadm_id": hadm, "seq_num": 1, "icd_code": code, "icd_version": version}


def tables(**changes: Sequence[Row]) -> dict[str, list[Row]]:
    """Six patients of one stay each, every second one with each label and dead, and some events; `changes` add rows."""
    people = range(10_000_001, 10_000_007)
    dead = [number % 2 for number in range(6)]
    found: dict[str, list[Row]] = {
        "patients": [patient(p) for p in people],
        "admissions": [admission(p, p + 10**7, hospital_expire_flag=d) for p, d in zip(people, dead, strict=True)],
        "diagnoses_icd": [
            diagnosis(p, p + 10**7, code, 9)
            for p, d in zip(people, dead, strict=True)
            for code in (CODES if d else ["V707"])
        ],
        "icustays": [stay(p, p + 10**7, p + 2 * 10**7) for p in people],
        "chartevents": [chart(p, p + 10**7, p + 2 * 10**7, "10:30", 220045, 70 + p % 10) for p in people],
        "labevents": [lab(p, p + 10**7, "11:30", 50931, 100 + p % 10) for p in people],
    }
    return found | {name: [*found[name], *rows] for name, rows in changes.items()}


# One ICD-9 code for each of the 25 phenotypes.
CODES = (
    "5849 43491 41071 42731 5859 496 28741 4260 4280 41401 25060 25000 2724 4019 2760 5789 40390 5715 78609 4719 5119"
    " 486 51881 0389 78551"
).split()


def write(folder: Path, rows: Mapping[str, Sequence[Row]], version: str = "2.2", suffix: str = ".csv.gz") -> Path:
    """Writes the tables in the layout of a version: 1.0 has core/, `ethnicity` and fewer columns."""
    for name, header in HEADERS.items():
        old = version == "1.0"
        columns = [column for column in header.split() if not (old and column in LATER)]
        names = ["ethnicity" if old and column == "race" else column for column in columns]
        place = (
            "icu"
            if name in ("icustays", "chartevents")
            else "core"
            if old and name in ("patients", "admissions")
            else "hosp"
        )
        path = folder / place / f"{name}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt", newline="") if suffix.endswith("gz") else path.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(names)
            writer.writerows([row.get(column, "") for column in columns] for row in rows[name])
    return folder


def _stamp(time: str) -> str:
    return time if len(time) > 8 else f"2150-03-01 {time}" + (":00" if len(time) == 5 else "")
