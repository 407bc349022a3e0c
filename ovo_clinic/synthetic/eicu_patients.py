"""The patient table of the synthetic eICU folder."""

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ovo_clinic.synthetic.eicu_signal import Integers
from ovo_clinic.synthetic.eicu_stays import DAY, Nest, Stays, Texts, pick
from ovo_clinic.synthetic.eicu_vocabulary import ADMISSION_DIAGNOSES

Columns = dict[str, NDArray[Any]]

PATIENT_HEADER = (
    "patientunitstayid,patienthealthsystemstayid,gender,age,ethnicity,hospitalid,wardid,apacheadmissiondx,"
    "admissionheight,hospitaladmittime24,hospitaladmitoffset,hospitaladmitsource,hospitaldischargeyear,"
    "hospitaldischargetime24,hospitaldischargeoffset,hospitaldischargelocation,hospitaldischargestatus,unittype,"
    "unitadmittime24,unitadmitsource,unitvisitnumber,unitstaytype,admissionweight,dischargeweight,"
    "unitdischargetime24,unitdischargeoffset,unitdischargelocation,unitdischargestatus,uniquepid"
)

GENDERS = {"Male": 0.54, "Female": 0.445, "Other": 0.005, "Unknown": 0.003, "": 0.007}
ETHNICITIES = {
    "Caucasian": 0.77,
    "African American": 0.11,
    "Hispanic": 0.04,
    "Asian": 0.02,
    "Native American": 0.01,
    "Other/Unknown": 0.035,
    "": 0.015,
}
UNITS = {
    "Med-Surg ICU": 0.6,
    "MICU": 0.09,
    "Cardiac ICU": 0.08,
    "SICU": 0.07,
    "CCU-CTICU": 0.06,
    "Neuro ICU": 0.05,
    "CSICU": 0.03,
    "CTICU": 0.02,
}
SOURCES = {
    "Emergency Department": 0.55,
    "Floor": 0.15,
    "Operating Room": 0.12,
    "Direct Admit": 0.07,
    "Recovery Room": 0.04,
    "Acute Care/Floor": 0.03,
    "Other Hospital": 0.03,
    "": 0.01,
}
UNIT_EXITS = {
    "Floor": 0.55,
    "Step-Down Unit (SDU)": 0.12,
    "Acute Care/Floor": 0.1,
    "Home": 0.1,
    "Telemetry": 0.08,
    "Other Hospital": 0.05,
}
HOSPITAL_EXITS = {
    "Home": 0.65,
    "Skilled Nursing Facility": 0.14,
    "Other Hospital": 0.06,
    "Rehabilitation": 0.05,
    "Other External": 0.04,
    "Other": 0.04,
    "Nursing Home": 0.02,
}


def patient_table(rng: np.random.Generator, stays: Stays, start: int) -> pl.DataFrame:
    """Rows of patient.csv, sorted by patientunitstayid; `start` people were drawn before."""
    columns = {
        **_personal(rng, stays, start),
        **_hospital_columns(rng, stays, start),
        **_unit_columns(rng, stays),
        **_clocks(rng, stays),
    }
    frame = pl.DataFrame({name: columns[name] for name in PATIENT_HEADER.split(",")}, nan_to_null=True)
    return blank_to_null(frame).sort("patientunitstayid")


def _personal(rng: np.random.Generator, stays: Stays, start: int) -> Columns:
    people = len(stays.age)
    height = np.round(rng.normal(170, 10.5, people), 1)
    odd = rng.random(people)
    height = np.where(odd < 0.004, rng.choice([1.7, 67.0, 610.0, 0.0], people), height)
    number = 10_000 + start + rng.permutation(people)
    columns: Columns = {
        "gender": pick_text(rng, people, GENDERS),
        "age": stays.age,
        "ethnicity": pick_text(rng, people, ETHNICITIES),
        "admissionheight": np.where((odd > 0.004) & (odd < 0.03), np.nan, height),
        "hospitaldischargeyear": rng.choice([2014, 2015], people),
        "uniquepid": np.char.add(np.char.mod("%03d", rng.integers(2, 36, people)), np.char.mod("-%d", number)),
    }
    return {name: values[stays.nest.person[stays.nest.visit]] for name, values in columns.items()}


def _hospital_columns(rng: np.random.Generator, stays: Stays, start: int) -> Columns:
    status = stays.outcome.hospital_status
    visits = len(status)
    alive_exit = pick_text(rng, visits, HOSPITAL_EXITS)
    columns: Columns = {
        "patienthealthsystemstayid": 120_000 + 10 * start + 3 * rng.permutation(visits),
        "hospitaladmitsource": pick_text(rng, visits, SOURCES),
        "hospitaldischargelocation": np.where(status == "Expired", "Death", np.where(status == "", "", alive_exit)),
        "hospitaldischargestatus": status,
    }
    return {name: values[stays.nest.visit] for name, values in columns.items()}


def _unit_columns(rng: np.random.Generator, stays: Stays) -> Columns:
    count = stays.nest.stays
    later = stays.nest.position > 0
    step_down = np.where(later, rng.random(count) < 0.5, rng.random(count) < 0.03)
    kind = np.where(later, rng.choice(["readmit", "transfer"], count), "admit")
    ward = pick(rng, count, np.array(list(UNITS.values())))
    weight = np.round(rng.normal(83, 19, count).clip(35), 1)
    odd = rng.random(count)
    implausible = np.where(odd < 0.005, rng.choice([0.0, 4.1, 890.0], count), weight)
    unit_status = stays.outcome.unit_status
    return {
        "patientunitstayid": stays.unit_id,
        "hospitalid": stays.hospital + 56,
        "wardid": stays.hospital * 10 + ward + 80,
        "apacheadmissiondx": np.where(step_down, "", rng.choice(ADMISSION_DIAGNOSES, count)),
        "unittype": np.array(list(UNITS))[ward],
        "unitadmitsource": np.where(later & step_down, "ICU to SDU", pick_text(rng, count, SOURCES)),
        "unitvisitnumber": _visit_numbers(rng, stays.nest),
        "unitstaytype": np.where(step_down, "stepdown/other", kind),
        "admissionweight": np.where(odd > 0.93, np.nan, implausible),
        "dischargeweight": np.where(rng.random(count) < 0.5, np.nan, np.round(weight + rng.normal(0, 3, count), 1)),
        "unitdischargelocation": np.where(unit_status == "Expired", "Death", pick_text(rng, count, UNIT_EXITS)),
        "unitdischargestatus": unit_status,
    }


def _clocks(rng: np.random.Generator, stays: Stays) -> Columns:
    times = stays.times
    admitted_at = rng.integers(0, DAY, stays.nest.stays)
    return {
        "hospitaladmittime24": _clock(admitted_at + times.admitted),
        "hospitaladmitoffset": times.admitted,
        "hospitaldischargetime24": _clock(admitted_at + times.left),
        "hospitaldischargeoffset": times.left,
        "unitadmittime24": _clock(admitted_at),
        "unitdischargetime24": _clock(admitted_at + times.length),
        "unitdischargeoffset": times.length,
    }


def _visit_numbers(rng: np.random.Generator, nest: Nest) -> Integers:
    """From 1, or from 2 where a step-down stay is not in the data; rarely against the order of time."""
    visits = len(nest.first)
    units = np.bincount(nest.visit)
    number = 1 + (rng.random(visits) < 0.05)[nest.visit] + nest.position
    reversed_number = units[nest.visit] - nest.position
    return np.where((rng.random(visits) < 0.04)[nest.visit], reversed_number, number)


def blank_to_null(frame: pl.DataFrame) -> pl.DataFrame:
    """Blank texts as nulls, which are written as nothing between two commas."""
    texts = [name for name, kind in frame.schema.items() if kind == pl.String]
    return frame.with_columns(pl.col(texts).replace("", None)) if texts else frame


def _clock(minutes: Integers) -> Texts:
    minutes = minutes % DAY
    return np.char.add(np.char.mod("%02d:", minutes // 60), np.char.mod("%02d:00", minutes % 60))


def pick_text(rng: np.random.Generator, count: int, shares: dict[str, float]) -> Texts:
    """(count,) texts drawn with their shares."""
    return np.array(list(shares))[pick(rng, count, np.array(list(shares.values())))]
