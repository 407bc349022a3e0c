"""The small tables of the synthetic MIMIC-IV folder: patients, admissions, icustays, diagnoses_icd, d_icd_diagnoses."""

import numpy as np
import polars as pl

from ovo_clinic.synthetic.mimic_signal import Booleans, Integers
from ovo_clinic.synthetic.mimic_stays import DAY, HOUR, MINUTE, NEVER, Chunk, Version, choose, gather, moments
from ovo_clinic.synthetic.mimic_targets import OTHER_ICD9, OTHER_ICD10, PHENOTYPES, SEPTIC_SHOCK

GROUPS = ("2008 - 2010", "2011 - 2013", "2014 - 2016", "2017 - 2019", "2020 - 2022")
KINDS = {"URGENT": 0.3, "OBSERVATION ADMIT": 0.2, "ELECTIVE": 0.15, "SURGICAL SAME DAY ADMISSION": 0.2}
EMERGENCIES = {"EW EMER.": 0.6, "DIRECT EMER.": 0.1, "EU OBSERVATION": 0.2, "OBSERVATION ADMIT": 0.1}
ORIGINS = {"PHYSICIAN REFERRAL": 0.5, "TRANSFER FROM HOSPITAL": 0.3, "CLINIC REFERRAL": 0.1, "PROCEDURE SITE": 0.1}
DESTINATIONS = {
    "HOME": 0.3,
    "HOME HEALTH CARE": 0.28,
    "SKILLED NURSING FACILITY": 0.2,
    "REHAB": 0.07,
    "CHRONIC/LONG TERM ACUTE CARE": 0.05,
    "HOSPICE": 0.02,
    None: 0.08,
}
MARRIAGES = {"MARRIED": 0.43, "SINGLE": 0.32, "WIDOWED": 0.12, "DIVORCED": 0.08, None: 0.05}
INSURANCES = {"Other": 0.5, "Medicare": 0.4, "Medicaid": 0.1}
INSURANCES_3 = {"Medicare": 0.5, "Private": 0.3, "Medicaid": 0.16, "Other": 0.02, "No charge": 0.01, None: 0.01}
LANGUAGES = {"ENGLISH": 0.9, "?": 0.1}
LANGUAGES_3 = {"English": 0.88, "Spanish": 0.05, "Modern Greek (1453-)": 0.01, "Kabuverdianu": 0.03, None: 0.03}
ETHNICITIES = {
    "WHITE": 0.66,
    "BLACK/AFRICAN AMERICAN": 0.12,
    "HISPANIC/LATINO": 0.05,
    "ASIAN": 0.04,
    "OTHER": 0.05,
    "UNKNOWN": 0.05,
    "UNABLE TO OBTAIN": 0.02,
    "AMERICAN INDIAN/ALASKA NATIVE": 0.01,
}
RACES = {
    "WHITE": 0.6,
    "WHITE - OTHER EUROPEAN": 0.04,
    "WHITE - RUSSIAN": 0.02,
    "BLACK/AFRICAN AMERICAN": 0.1,
    "BLACK/CAPE VERDEAN": 0.02,
    "HISPANIC OR LATINO": 0.01,
    "HISPANIC/LATINO - PUERTO RICAN": 0.03,
    "HISPANIC/LATINO - DOMINICAN": 0.02,
    "ASIAN": 0.02,
    "ASIAN - CHINESE": 0.02,
    "PORTUGUESE": 0.01,
    "OTHER": 0.03,
    "UNKNOWN": 0.04,
    "UNABLE TO OBTAIN": 0.015,
    "PATIENT DECLINED TO ANSWER": 0.005,
    "AMERICAN INDIAN/ALASKA NATIVE": 0.005,
    "NATIVE HAWAIIAN OR OTHER PACIFIC ISLANDER": 0.005,
    "MULTIPLE RACE/ETHNICITY": 0.01,
}
UNITS = {
    "Medical Intensive Care Unit (MICU)": 0.22,
    "Medical/Surgical Intensive Care Unit (MICU/SICU)": 0.18,
    "Surgical Intensive Care Unit (SICU)": 0.16,
    "Cardiac Vascular Intensive Care Unit (CVICU)": 0.16,
    "Trauma SICU (TSICU)": 0.13,
    "Coronary Care Unit (CCU)": 0.11,
    "Neuro Surgical Intensive Care Unit (Neuro SICU)": 0.03,
    "Neuro Stepdown": 0.01,
}


def patient_table(rng: np.random.Generator, chunk: Chunk) -> pl.DataFrame:
    """Rows of patients; `dod` of deaths in hospital, and from 2.0 on of some within a year after it."""
    people, admissions = chunk.people, chunk.admissions
    count = len(people.subject_id)
    died = np.full(count, NEVER)
    died[admissions.person[admissions.died]] = chunk.ends.death[admissions.died]
    last = np.zeros(count, np.int64)
    last[admissions.person] = chunk.ends.discharge
    afterwards = (died == NEVER) & (rng.random(count) < (0 if chunk.version == "1.0" else 0.15))
    died = np.where(afterwards, last + rng.integers(DAY, 365 * DAY, count), died)
    return pl.DataFrame(
        {
            "subject_id": people.subject_id,
            "gender": np.where(people.female, "F", "M"),
            "anchor_age": people.anchor_age,
            "anchor_year": people.anchor_year,
            "anchor_year_group": gather(list(GROUPS), people.group),
            "dod": moments(died).dt.date(),
        }
    )


def admission_table(rng: np.random.Generator, chunk: Chunk) -> pl.DataFrame:
    """Rows of admissions in the layout of the version."""
    admissions, ends = chunk.admissions, chunk.ends
    count, newer = len(admissions.died), chunk.version == "3.1"
    emergency = pl.Series(admissions.emergency)
    arrival = admissions.admitted - rng.integers(HOUR, 12 * HOUR, count) // MINUTE * MINUTE
    leaving = admissions.admitted + rng.integers(0, 3 * HOUR, count) // MINUTE * MINUTE
    died = pl.Series(admissions.died)
    race = choose(rng, ETHNICITIES if chunk.version == "1.0" else RACES, len(chunk.people.subject_id))
    providers = gather([f"SYN{number:03d}" for number in range(300)], rng.integers(0, 300, count))
    columns = {
        "subject_id": pl.Series(chunk.people.subject_id[admissions.person]),
        "hadm_id": pl.Series(admissions.hadm_id),
        "admittime": moments(admissions.admitted),
        "dischtime": moments(ends.discharge),
        "deathtime": moments(ends.death),
        "admission_type": choose(rng, EMERGENCIES, count).zip_with(emergency, choose(rng, KINDS, count)),
        **({} if chunk.version == "1.0" else {"admit_provider_id": providers}),
        "admission_location": _constant("EMERGENCY ROOM", count).zip_with(emergency, choose(rng, ORIGINS, count)),
        "discharge_location": _constant("DIED", count).zip_with(died, choose(rng, DESTINATIONS, count)),
        "insurance": choose(rng, INSURANCES_3 if newer else INSURANCES, count),
        "language": choose(rng, LANGUAGES_3 if newer else LANGUAGES, count),
        "marital_status": choose(rng, MARRIAGES, count),
        "ethnicity" if chunk.version == "1.0" else "race": race.gather(pl.Series(admissions.person)),
        "edregtime": moments(np.where(admissions.emergency, arrival, NEVER)),
        "edouttime": moments(np.where(admissions.emergency, leaving, NEVER)),
        "hospital_expire_flag": died.cast(pl.Int8),
    }
    return pl.DataFrame(columns)


def stay_table(rng: np.random.Generator, chunk: Chunk) -> pl.DataFrame:
    """Rows of icustays."""
    stays = chunk.stays
    count = len(stays)
    first = choose(rng, UNITS, count)
    # Another unit for those who were transferred: the next one of the list.
    units = list(UNITS)
    following = first.replace_strict(dict(zip(units, [*units[1:], units[0]], strict=True)), return_dtype=pl.String)
    length = pl.Series((stays.end - stays.start) / DAY)
    unknown = pl.Series(stays.open)
    return pl.DataFrame(
        {
            **chunk.keys(np.arange(count)),
            "first_careunit": first,
            "last_careunit": following.zip_with(pl.Series(stays.transferred), first),
            "intime": moments(stays.start),
            "outtime": moments(np.where(stays.open, NEVER, stays.end)),
            "los": length.set(unknown, None),
        }
    )


def diagnosis_table(rng: np.random.Generator, chunk: Chunk) -> pl.DataFrame:
    """Rows of diagnoses_icd: a code for every phenotype of an admission, and codes of none, in any order."""
    admissions = chunk.admissions
    labels = admissions.labels[:, : len(PHENOTYPES)]
    visit, phenotype = np.nonzero(labels)
    septic = _septic_shock(rng, admissions.icd10, labels)[visit] & (phenotype == len(PHENOTYPES) - 1)
    starts, codes = _code_list()
    own = np.array([[len(target.icd9), len(target.icd10)] for target in PHENOTYPES])
    version = admissions.icd10[visit].astype(np.int64)
    code = starts[phenotype, version] + np.floor(rng.random(len(visit)) * own[phenotype, version]).astype(np.int64)
    code = np.where(septic, codes.index(SEPTIC_SHOCK), code)

    others = rng.random((len(labels), len(OTHER_ICD9))) < 0.25
    others[np.arange(len(labels)), rng.integers(0, len(OTHER_ICD9), len(labels))] = True
    plain, position = np.nonzero(others)
    other = starts[-1][admissions.icd10[plain].astype(np.int64)] + position

    visit, code = np.concatenate([visit, plain]), np.concatenate([code, other])
    order = np.lexsort((rng.random(len(visit)), visit))
    order = order[admissions.coded[visit[order]]]
    visit, code = visit[order], code[order]
    return pl.DataFrame(
        {
            "subject_id": chunk.people.subject_id[admissions.person[visit]],
            "hadm_id": admissions.hadm_id[visit],
            "seq_num": np.arange(len(visit)) - np.searchsorted(visit, visit) + 1,
            "icd_code": gather(codes, code),
            "icd_version": np.where(admissions.icd10[visit], 10, 9),
        }
    )


def diagnosis_names() -> pl.DataFrame:
    """d_icd_diagnoses: the codes that the folder uses."""
    rows = [
        (code, version, target.name)
        for target in PHENOTYPES
        for version, codes in ((9, target.icd9), (10, target.icd10))
        for code in codes
    ]
    rows += [(code, 9, "Of no phenotype") for code in OTHER_ICD9] + [
        (code, 10, "Of no phenotype") for code in OTHER_ICD10
    ]
    rows.append((SEPTIC_SHOCK, 10, "Septicemia (except in labor) and Shock"))
    return pl.DataFrame(rows, schema=["icd_code", "icd_version", "long_title"], orient="row").sort("icd_code")


def _septic_shock(rng: np.random.Generator, icd10: Booleans, labels: Booleans) -> Booleans:
    """(V,) one code is to tell septicemia and shock at once."""
    return icd10 & labels[:, -1] & labels[:, -2] & (rng.random(len(labels)) < 0.5)


def _code_list() -> tuple[Integers, list[str]]:
    """(where the codes of each phenotype, and of none, start by version (26,2); all codes)."""
    codes: list[str] = []
    starts = []
    for icd9, icd10 in [*((target.icd9, target.icd10) for target in PHENOTYPES), (OTHER_ICD9, OTHER_ICD10)]:
        starts.append((len(codes), len(codes) + len(icd9)))
        codes += [*icd9, *icd10]
    return np.array(starts), [*codes, SEPTIC_SHOCK]


def _constant(text: str, count: int) -> pl.Series:
    return pl.Series([text]).new_from_index(0, count)


def version_folder(version: Version) -> str:
    """Where patients and admissions lie."""
    return "core" if version == "1.0" else "hosp"
