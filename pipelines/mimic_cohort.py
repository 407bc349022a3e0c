"""Who is in the cohort of the MIMIC tasks: ICU stays with admission and patient, rules, labels, demographics."""

from collections.abc import Mapping
from typing import Literal

import polars as pl
from polars import col

from ovo_clinic import icd
from ovo_clinic.raw import RawFolder
from ovo_clinic.spec import DatasetSpec
from ovo_clinic.tables import VectorTable

PERSON = "subject_id"
_ADULT_YEARS = 18
_OLDEST_YEARS = 91  # ages above 89 are stored so
_IMPOSSIBLE_YEARS = 125
_LONGEST_DAYS = 2922  # eight years; a longer stay is a mistake, and its events could not be told apart by the second
_TIMES, _TIME_FORMAT = ["intime", "outtime", "admittime", "deathtime"], "%Y-%m-%d %H:%M:%S"
_DAY_ZERO = "2100-01-01"  # dates are shifted to after it
_LAST_YEARS = "2020 - 2022"  # the newest group of years, first in version 3
Rule = tuple[str, pl.Expr]


def read_stays(raw: RawFolder) -> pl.DataFrame:
    """ICU stays with their admission and patient, sorted by stay_id.

    Beside the raw columns: times as Datetime, `admitted` and `known` = whether admission and patient are in their
    tables, `coded` = whether the admission has a diagnosis, `years` = age at admission, `stays` = number of ICU stays
    of the admission, `first` = whether it is the soonest of them.
    """
    admissions = raw.read("admissions").rename({PERSON: "admission_subject"}).with_columns(admitted=pl.lit(True))
    patients = raw.read("patients").with_columns(known=pl.lit(True))
    coded = raw.collect(raw.scan("diagnoses_icd").select("hadm_id").unique(), "diagnoses_icd")
    stays = raw.read("icustays")
    joined = (
        stays.join(admissions, on="hadm_id", how="left")
        .join(patients, on=PERSON, how="left")
        .with_columns(col(_TIMES).str.slice(0, 19).str.to_datetime(_TIME_FORMAT, time_unit="ms", strict=False))
    )
    years = col("anchor_age") + col("admittime").dt.year() - col("anchor_year")
    soonest = col("stay_id").sort_by("intime", "stay_id", nulls_last=True).first().over("hadm_id")
    return joined.with_columns(
        coded=col("hadm_id").is_in(coded["hadm_id"].implode()),
        years=pl.when(years.is_between(0, _IMPOSSIBLE_YEARS)).then(years.clip(upper_bound=_OLDEST_YEARS)),
        stays=pl.len().over("hadm_id"),
        first=col("stay_id") == soonest,
    ).sort("stay_id")


def clean_rules(*, same_unit: bool, count_after_unit_filter: bool, unlabelled: bool) -> list[Rule]:
    """The corrected form; where `unlabelled`, diagnoses need not be coded yet."""
    one = ("the only ICU stay of its admission", col("stays") == 1)
    same = ("in one unit from admission to discharge", col("first_careunit") == col("last_careunit"))
    if not same_unit:
        order = [one]
    elif count_after_unit_filter:
        order = [same, ("the only such stay of its admission", pl.len().over("hadm_id") == 1)]
    else:
        order = [one, same]
    return [
        ("ICU stay", pl.lit(True)),
        *order,
        _found(),
        (f"aged {_ADULT_YEARS} or more", col("years") >= _ADULT_YEARS),
        *([] if unlabelled else [_coded()]),
        _timed(),
    ]


def replica_rules() -> list[Rule]:
    """MedFuse's: stays are counted once those with a change of unit are left out; the age is that of another year."""
    return [
        ("ICU stay", pl.lit(True)),
        ("in one unit from admission to discharge", col("first_careunit") == col("last_careunit")),
        _found(),
        ("the only such stay of its admission", pl.len().over("hadm_id") == 1),
        (f"anchor_age {_ADULT_YEARS} or more", col("anchor_age") >= _ADULT_YEARS),
        _coded(),
        _timed(),
    ]


def mortality_rules(prediction_hours: float, unlabelled: bool) -> list[Rule]:
    """One stay an admission, its first, so that no later stay of the patient decides who is in.

    Where `unlabelled`, the stay need not have ended: a patient without a time of leaving is there.
    """
    prediction = col("intime") + pl.duration(seconds=round(prediction_hours * 3600))
    return [
        ("ICU stay", pl.lit(True)),
        ("first ICU stay of the admission", col("first")),
        _found(),
        (f"aged {_ADULT_YEARS} or more", col("years") >= _ADULT_YEARS),
        ("with the time of admission", col("intime").is_not_null()) if unlabelled else _timed(),
        (f"in the unit at {prediction_hours:g} h", (col("outtime") >= prediction).fill_null(unlabelled)),
        (f"not dead before {prediction_hours:g} h", (col("deathtime") >= prediction) | col("deathtime").is_null()),
        *([] if unlabelled else [("death in hospital known", col("hospital_expire_flag").is_in([0, 1]))]),
    ]


def _found() -> Rule:
    same_person = col("admission_subject") == col(PERSON)
    return "admission and patient found", col("admitted").fill_null(False) & col("known").fill_null(False) & same_person


def _coded() -> Rule:
    return "with a diagnosis of the admission", col("coded")


def _timed() -> Rule:
    days = (col("outtime") - col("intime")).dt.total_days()
    possible = col("los").is_between(0, _LONGEST_DAYS, closed="right") & days.is_between(0, _LONGEST_DAYS)
    return "with times of the stay", possible.fill_null(False)


def phenotypes(raw: RawFolder, spec: DatasetSpec, *, mapping: Literal["corrected", "medfuse"]) -> pl.DataFrame:
    """hadm_id and one 0/1 column per phenotype, for every admission with a diagnosis.

    Args:
        raw: the raw files.
        spec: with the lists of codes.
        mapping: `corrected` = every ICD-10 code whose 2018 equivalence map has any target in a phenotype, reviewed
            exceptions, and a fallback for newer codes; `medfuse` = its shorter list, whatever the version of a code.
    """
    pairs = [(row["code"], row["phenotype"]) for row in spec.lists["icd9"]]
    column = "gem2018" if mapping == "corrected" else "medfuse"
    newer = [(row["code"], row["phenotype"]) for row in spec.lists["icd10"] if row[column] == "1"]
    lists: dict[int, icd.CodeList]
    if mapping == "corrected":
        overrides = [(row["code"], row["phenotype"]) for row in spec.lists["icd10_overrides"]]
        lists = {9: icd.CodeList.of(pairs), 10: icd.CodeList.of(newer, overrides, fallback=True)}
    else:
        lists = dict.fromkeys((9, 10), icd.CodeList.of([*pairs, *newer]))
    diagnoses = raw.read("diagnoses_icd")
    return icd.label_table(diagnoses, lists, [row["phenotype"] for row in spec.lists["phenotypes"]])


def demographics(cohort: pl.DataFrame, groups: Mapping[str, str]) -> VectorTable:
    """What is known at admission; race as recorded, in groups."""
    columns = ("gender", "admission_type", "admission_location", "insurance", "language", "marital_status")
    return VectorTable(cohort.select(*columns, unit_id="stay_id", age="years", race=race_group(groups)))


def paper_demographics(cohort: pl.DataFrame) -> VectorTable:
    """The OvO paper's fourteen without time of discharge, time of death and where the patient went.

    The time of admission is the number of (shifted) days; the paper's code makes every distinct time a column, which
    no other patient shares.
    """
    columns = ("gender", "admission_type", "admission_location", "insurance", "language", "marital_status", "race")
    days = (col("admittime") - pl.lit(_DAY_ZERO).str.to_datetime()).dt.total_seconds() / 86_400
    numbers = ("anchor_age", "anchor_year", "anchor_year_group")
    return VectorTable(cohort.select(*columns, *numbers, unit_id="stay_id", admittime=days))


def race_group(groups: Mapping[str, str]) -> pl.Expr:
    """The group of a recorded race: what stands before " - " and "/" is looked up; others are OTHER, null is null."""
    prefix = col("race").str.replace(" OR ", "/", literal=True).str.extract(r"^(.*?)(?: - |/|$)")
    group = prefix.str.strip_chars().str.to_uppercase().replace_strict(dict(groups), default="OTHER")
    return pl.when(col("race").is_not_null()).then(group)


def cohort_table(cohort: pl.DataFrame, labels: pl.DataFrame, groups: Mapping[str, str]) -> pl.DataFrame:
    """The cohort as `Tables` wants it; `labels` has hadm_id and one column per label."""
    columns = ("hadm_id", "gender", "first_careunit", "insurance", "anchor_year_group")
    kept = cohort.select(*columns, unit_id="stay_id", patient_id=PERSON, age="years", race=race_group(groups))
    return kept.join(labels, on="hadm_id", how="left")


def release(raw: RawFolder, releases: Mapping[str, Mapping[str, int]]) -> tuple[str, bool]:
    """The version of MIMIC-IV, and whether the numbers of its rows are those of a full release.

    Args:
        raw: the raw files.
        releases: version -> table -> rows as published.
    """
    counted = {name: raw.collect(raw.scan(name).select(pl.len()), name).item() for name in ("admissions", "icustays")}
    for version, rows in releases.items():
        if counted.items() <= rows.items():
            return version, True
    path = raw.path("patients")
    if path is not None and path.parent.name == "core":
        return "1.x", False
    years = raw.collect(raw.scan("patients").select("anchor_year_group").unique(), "patients")
    return ("3.x" if _LAST_YEARS in years["anchor_year_group"] else "2.x"), False
