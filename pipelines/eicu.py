"""eICU Collaborative Research Database: death in hospital or in the unit, from six tables.

Times in the raw files are minutes from admission to the unit. `tables` is the leak-free task: one stay per hospital
stay, and only what was known before the prediction. `paper_tables` is what the OvO notebooks do with the whole stay.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import polars as pl
from polars import col
from pydantic import Field

from ovo_clinic import events
from ovo_clinic.errors import UserError
from ovo_clinic.events import Range, Window
from ovo_clinic.raw import RawFolder
from ovo_clinic.registry import Options, check
from ovo_clinic.spec import DatasetSpec
from ovo_clinic.tables import CodesTable, ModalityTable, SummariesTable, Tables, VectorTable, Vocabulary

STAY, PERSON, HOSPITAL_STAY = "patientunitstayid", "uniquepid", "patienthealthsystemstayid"
STATUS = {"hospital": "hospitaldischargestatus", "icu": "unitdischargestatus"}
_ADULT_YEARS = 18
_OLDEST_YEARS = 125  # an age beyond is none
_APS_HOURS = 24
_MOST_MINUTES = 2**31 - 1
_PLAUSIBLE = {"admissionheight": (100, 250), "admissionweight": (20, 300)}  # cm, kg
_TIMES = {"diagnosis": "diagnosisoffset", "treatment": "treatmentoffset", "medication": "drugstartoffset"}
_TEXTS = {"diagnosis": "diagnosisstring", "treatment": "treatmentstring", "medication": "drugname"}

NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Rule = tuple[str, pl.Expr]
Built = tuple[ModalityTable, dict[str, int]]


class Settings(Options):
    """Settings of the data spec: plausible values by labname."""

    lab_ranges: dict[str, list[Range]]


def tables(
    raw: RawFolder,
    spec: DatasetSpec,
    *,
    prediction_hours: NotNegative = 24,
    lookback_hours: NotNegative = 6,
    gap_hours: NotNegative = 0,
    label: Literal["hospital", "icu"] = "hospital",
    code_share: Share = 0.01,
    lab_share: Share = 0.01,
) -> Tables:
    """Death after the prediction time, from what was known before it; one stay per hospital stay.

    Args:
        raw: the raw files.
        spec: the data spec.
        prediction_hours: hours from admission to the unit to the prediction.
        lookback_hours: hours before admission from which records count.
        gap_hours: further hours that the patient must stay in the unit; this selects on the future.
        label: death in `hospital` or in the `icu`.
        code_share: a diagnosis, treatment or drug is a feature if this share of all training stays have it.
        lab_share: a laboratory test is a feature if this share of the training stays with any result have it.

    Raises:
        UserError: a wrong option, or a mistake in the raw files.
    """
    if "aps" in spec.modalities and prediction_hours < _APS_HOURS:
        raise UserError(
            f"data.prediction_hours: {prediction_hours:g}: modality 'aps' sums up the first {_APS_HOURS} hours; "
            f"predict at {_APS_HOURS} or later, or use a data spec without 'aps'"
        )
    window, status = Window(-60 * lookback_hours, 60 * prediction_hours), STATUS[label]
    patient, positive = _patient(raw), col(status) == "Expired"
    cohort, attrition = events.select(patient, _rules(raw, window.end, gap_hours, status), PERSON, positive)
    records, code_vocabulary = Records(raw, cohort.select(STAY), window), Vocabulary(code_share)
    ranges = check(Settings, spec.settings, "settings").lab_ranges
    modalities, notes = _build(
        spec,
        {
            "demographics": lambda: (_demographics(cohort), {}),
            "diagnosis": lambda: records.texts("diagnosis", _prefixes, code_vocabulary),
            "treatment": lambda: records.texts("treatment", _prefixes, code_vocabulary),
            "medication": lambda: records.drugs(code_vocabulary),
            "lab": lambda: records.labs(ranges, Vocabulary(lab_share, of="present")),
            "aps": lambda: (_aps(raw, cohort.select(STAY)), {}),
        },
    )
    visit, early = col("unitvisitnumber"), col("hospitaldischargeoffset") < window.end
    disagreeing = patient.filter(_is_first_stay() & (visit > visit.min().over(HOSPITAL_STAY)))
    notes["hospital stays whose first unit stay in time has not the lowest unitvisitnumber"] = disagreeing.height
    notes["stays with a hospital discharge before the prediction time (kept)"] = cohort.filter(early).height
    return Tables(_cohort(cohort, positive), modalities, attrition, notes)


def paper_tables(
    raw: RawFolder,
    spec: DatasetSpec,
    *,
    window_hours: NotNegative | None = None,
    max_los_days: NotNegative | None = None,
    token_share: Share = 0.05,
    lab_row_share: Share = 0.00025,
) -> Tables:
    """Death in hospital as in the OvO notebooks: the whole stay, complete cases only, no cleaning.

    Source: rsinghlab/OvO, eICU/preprocessing.ipynb; the label, which is one of its features, is left out.

    Args:
        raw: the raw files.
        spec: the data spec.
        window_hours: only records before this hour (the notebooks' optional lines have 12); all by default.
        max_los_days: longest stay in the unit (the paper's text has 10); any by default.
        token_share: a token is a feature if more than this share of the training stays have it.
        lab_row_share: a laboratory test is a feature if it has this share of all laboratory rows (the notebooks ask for
            10,000 of the full table's 39 million).

    Raises:
        UserError: a wrong option, or a mistake in the raw files.
    """
    raw.not_for_prediction(
        "eicu_paper takes stays whose outcome is known, and laboratory tests by the rows at hand; use a model of "
        "eicu_mortality_24h"
    )
    end = math.inf if window_hours is None else 60 * window_hours
    longest = math.inf if max_los_days is None else 1440 * max_los_days
    positive = col(STATUS["hospital"]) == "Expired"
    cohort, attrition = events.select(_patient(raw), _paper_rules(longest), PERSON, positive)
    records = Records(raw, cohort.select(STAY), Window(-math.inf, end))
    vocabulary = Vocabulary(token_share, of="present", strictly_more=True)
    modalities, notes = _build(
        spec,
        {
            "demographics": lambda: (_paper_demographics(cohort), {}),
            "diagnosis": lambda: records.texts("diagnosis", _tokens, vocabulary),
            "treatment": lambda: records.texts("treatment", _tokens, vocabulary),
            "medication": lambda: records.texts("medication", _tokens, vocabulary),
            "lab": lambda: (_lab_sums(raw, end, lab_row_share), {}),
            "aps": lambda: (VectorTable(raw.read("aps").rename({STAY: "unit_id"})), {}),
        },
    )
    complete = [
        (f"with a record in {name}", col(STAY).is_in(table.frame["unit_id"].unique().implode()))
        for name, table in modalities.items()
        if name != "demographics"
    ]
    cohort, steps = events.select(cohort, complete, PERSON, positive)
    return Tables(_cohort(cohort, positive), modalities, attrition + steps, notes)


def _build(
    spec: DatasetSpec, builders: Mapping[str, Callable[[], Built]]
) -> tuple[dict[str, ModalityTable], dict[str, int | float | str]]:
    """The spec's modalities, and the counts of each worth telling."""
    modalities: dict[str, ModalityTable] = {}
    notes: dict[str, int | float | str] = {}
    for name in spec.modalities:
        if name not in builders:
            raise UserError(f"modalities.{name}: pipeline 'eicu' has no such modality; valid: {', '.join(builders)}")
        modalities[name], counts = builders[name]()
        notes |= {f"{name} records {what}": count for what, count in counts.items()}
    return modalities, notes


def _patient(raw: RawFolder) -> pl.DataFrame:
    """The patient table with `years` and `age_over_89`; `> 89` counts as 90."""
    patient = raw.read("patient")
    for column in (PERSON, HOSPITAL_STAY):
        if blank := patient[column].null_count():
            raise UserError(f"{raw.path('patient')}: column '{column}' is blank in {blank} rows; remove those rows")
    over_89 = col("age").str.contains(r"^\s*>\s*89\s*$").fill_null(False)
    number = col("age").str.strip_chars().cast(pl.Float64, strict=False)
    years = pl.when(over_89).then(90.0).when(number.is_between(0, _OLDEST_YEARS)).then(number)
    return patient.with_columns(age_over_89=over_89, years=years)


def _is_first_stay() -> pl.Expr:
    """The unit stay that began soonest after admission to the hospital."""
    order = ["hospitaladmitoffset", "unitvisitnumber", STAY]
    first = col(STAY).sort_by(order, descending=[True, False, False], nulls_last=True).first()
    return col(STAY) == first.over(HOSPITAL_STAY)


_PERSON_RULES: list[Rule] = [
    ("unit stay", pl.lit(True)),
    ("first unit stay of the hospital stay", _is_first_stay()),
    (f"aged {_ADULT_YEARS} or more", col("years") >= _ADULT_YEARS),
]


def _rules(raw: RawFolder, end: float, gap_hours: float, status: str) -> list[Rule]:
    future = " (selects on the future)" if gap_hours else ""
    if raw.unlabelled:  # a patient who is still there has no discharge yet
        return [
            *_PERSON_RULES,
            (f"in the unit at {end / 60:g} h", (col("unitdischargeoffset") >= end).fill_null(True)),
        ]
    rules = [
        *_PERSON_RULES,
        (f"in the unit at {end / 60 + gap_hours:g} h{future}", col("unitdischargeoffset") >= end + 60 * gap_hours),
        (f"{status} known", _is_known(status)),
    ]
    if status == STATUS["hospital"]:
        contradiction = (col(STATUS["icu"]) == "Expired") & (col(status) == "Alive")
        rules.append(("not dead in the unit and alive in hospital", ~contradiction.fill_null(False)))
    return rules


def _paper_rules(longest: float) -> list[Rule]:
    filled = [col(name).is_not_null() for name in ("age", "gender", "ethnicity", "unitdischargeoffset")]
    rules = [
        ("unit stay", pl.lit(True)),
        ("nothing blank", pl.all_horizontal(*filled, _is_known(STATUS["hospital"]))),
        ("aged 89 or less", ~col("age_over_89")),
        (f"aged {_ADULT_YEARS} or more", col("years") >= _ADULT_YEARS),
    ]
    if math.isfinite(longest):
        rules.append((f"at most {longest / 1440:g} days in the unit", col("unitdischargeoffset") <= longest))
    return rules


def _is_known(status: str) -> pl.Expr:
    return col(status).is_in(["Alive", "Expired"])


def _cohort(patient: pl.DataFrame, positive: pl.Expr) -> pl.DataFrame:
    return patient.select(
        unit_id=STAY,
        patient_id=PERSON,
        died=positive.cast(pl.Int8),
        hospital_id="hospitalid",
        hospital_stay_id=HOSPITAL_STAY,
        age="years",
        gender="gender",
        ethnicity="ethnicity",
        unit_type="unittype",
    )


def _demographics(cohort: pl.DataFrame) -> VectorTable:
    sizes = {name: pl.when(col(name).is_between(low, high)).then(col(name)) for name, (low, high) in _PLAUSIBLE.items()}
    frame = cohort.select(
        "age_over_89",
        "gender",
        "ethnicity",
        "unittype",
        "unitadmitsource",
        unit_id=STAY,
        age="years",
        hours_in_hospital_before=(-col("hospitaladmitoffset") / 60).clip(lower_bound=0),
        **sizes,
    )
    return VectorTable(frame)


def _paper_demographics(cohort: pl.DataFrame) -> VectorTable:
    return VectorTable(cohort.select("gender", "ethnicity", unit_id=STAY, age="years"))


def _aps(raw: RawFolder, stays: pl.DataFrame) -> VectorTable:
    """-1 is missing everywhere; 0 on the Glasgow scales means sedated, not scored."""
    aps = raw.read("aps").join(stays, on=STAY, how="semi").rename({STAY: "unit_id"})
    values, glasgow = pl.exclude("unit_id"), col("eyes", "motor", "verbal")
    known = aps.with_columns(pl.when(values != -1).then(values))
    return VectorTable(known.with_columns(pl.when(glasgow != 0).then(glasgow)))


def _minutes(name: str) -> pl.Expr:
    """A time in half the memory; four thousand years before or after are as good as more."""
    return col(name).clip(-_MOST_MINUTES, _MOST_MINUTES).cast(pl.Int32)


def _prefixes(path: str) -> list[str]:
    """Every prefix of a `|` path, the path itself too."""
    levels = path.split("|")
    return ["|".join(levels[:depth]) for depth in range(1, len(levels) + 1)]


def _tokens(path: str) -> list[str]:
    """The notebooks' codes: every level on its own, whatever its branch."""
    return [level for level in path.split("|") if level]


@dataclass(frozen=True)
class Records:
    """The cohort's records in a window, made into tables; each method also counts what it drops."""

    raw: RawFolder
    stays: pl.DataFrame
    window: Window

    def texts(self, table: str, codes_of: Callable[[str], list[str]], vocabulary: Vocabulary) -> Built:
        """Codes from the texts of a table."""
        text = _TEXTS[table]
        drops = {"without a text": col(text).is_null(), **self.window.outside(_TIMES[table])}
        columns = [
            col(STAY).alias("unit_id"),
            col(text).cast(pl.Categorical).alias("text"),
            _minutes(_TIMES[table]).alias("time"),
        ]
        kept, counts = events.keep(self.raw, table, self.stays, drops, columns)
        codes = events.codes(kept.select("unit_id", "text"), codes_of)
        return CodesTable(codes, vocabulary, latest=events.latest(kept, "time", per_hour=60)), counts

    def drugs(self, vocabulary: Vocabulary) -> Built:
        """Orders that begin in the window, by HICL code."""
        ordered, cancelled = col("drugorderoffset"), col("drugordercancelled").str.to_lowercase() == "yes"
        drops = {
            **self.window.outside(_TIMES["medication"]),
            "ordered at or after the end of the window": ~(ordered < self.window.end).fill_null(False),
            "cancelled (when is not recorded, so perhaps later)": cancelled,
            "without a HICL code": col("drughiclseqno").is_null(),
        }
        times = [_minutes(name) for name in (_TIMES["medication"], "drugorderoffset")]
        columns = [col(STAY).alias("unit_id"), col("drughiclseqno").alias("code"), *times]
        kept, counts = events.keep(self.raw, "medication", self.stays, drops, columns)
        codes = kept.select("unit_id", "code").unique().with_columns(col("code").cast(pl.String))
        latest = events.latest(kept, _TIMES["medication"], "drugorderoffset", per_hour=60)
        return CodesTable(codes, vocabulary, latest=latest), counts

    def labs(self, ranges: Mapping[str, list[Range]], vocabulary: Vocabulary) -> Built:
        """Summaries of the results, each in the last version that was known at the end of the window."""
        revised = col("labresultrevisedoffset")
        drops = {
            "without a number": col("labresult").is_null() | col("labname").is_null(),
            **self.window.outside("labresultoffset"),
            "version not known before the end of the window": ~(revised < self.window.end).fill_null(False),
        }
        columns = [
            col(STAY).alias("unit_id"),
            col("labname").cast(pl.Categorical).alias("variable"),
            _minutes("labresultoffset").alias("time"),
            _minutes("labresultrevisedoffset").alias("revised"),
            col("labid"),
            col("labresult").alias("value"),
        ]
        kept, counts = events.keep(self.raw, "lab", self.stays, drops, columns)
        names = pl.Enum(kept["variable"].unique().cast(pl.String).sort())
        result = ["unit_id", "variable", "time"]
        versions = kept.with_columns(col("variable").cast(names)).sort(*result, "revised", "labid")
        latest = versions.filter(pl.any_horizontal(col(name).ne_missing(col(name).shift(-1)) for name in result))
        values = events.in_range(latest["value"], latest["variable"], ranges)
        counts["dropped: superseded by a later version"] = versions.height - latest.height
        counts["outside the plausible range (kept without a value)"] = values.null_count()
        summaries = events.summarise(latest.select("unit_id", "variable", values))
        known = events.latest(latest, "time", "revised", per_hour=60)
        return SummariesTable(summaries, vocabulary, latest=known), counts


def _lab_sums(raw: RawFolder, end: float, row_share: float) -> SummariesTable:
    """Sum of all results of a test over the stay, for tests that are common among all rows."""
    # Results have at most four decimals, so sums of ten-thousandths are exact in any order of the rows.
    total = (col("labresult") * 10_000).round().cast(pl.Int64).sum() / 10_000
    query = raw.scan("lab").filter(col("labresultoffset") < end)
    sums = raw.collect(query.group_by(STAY, "labname").agg(total.alias("sum"), pl.len().alias("rows")), "lab")
    least = Vocabulary(row_share).least(int(sums["rows"].sum()))
    common = sums.group_by("labname").agg(col("rows").sum()).filter(col("rows") >= least)
    frame = sums.join(common, on="labname", how="semi").select(unit_id=STAY, variable="labname", sum="sum")
    return SummariesTable(frame, Vocabulary(0), zero_filled=frozenset({"sum"}))
