"""The task `eicu_mortality_24h` recomputed from the raw files with plain pandas, independently of the package.

Nothing here imports ovo_clinic. Literal on purpose: a function for each sentence of the task's definition. Values are
unscaled and not imputed; missing is NaN.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

PREDICTION_MINUTE = 1440
LOWER_MINUTE = -360
CODED = ("diagnosis", "treatment", "medication")
EVENTS = (*CODED, "lab")
APS = (
    "intubated vent dialysis eyes motor verbal meds urine wbc temperature respiratoryrate sodium heartrate meanbp ph"
    " hematocrit creatinine albumin pao2 pco2 bun glucose bilirubin fio2"
).split()
CATEGORIES = ("gender", "ethnicity", "unittype", "unitadmitsource")
BLANK = "(blank)"

Vocabularies = dict[str, list[str]]
Features = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Entry:
    """One range of raw values of a lab, bounds included, and how it becomes the common unit."""

    low: float
    high: float
    scale: float = 1.0
    offset: float = 0.0


Ranges = dict[str, list[Entry]]


def read(raw: Path) -> dict[str, pd.DataFrame]:
    """The six tables, every cell as text, blank as an empty string."""
    files = [*EVENTS, "patient", "apacheApsVar"]
    return {name: pd.read_csv(raw / f"{name}.csv.gz", dtype=str, keep_default_na=False) for name in files}


def number(text: pd.Series) -> pd.Series:
    """Text to float64, blank to NaN."""
    return pd.to_numeric(text.where(text != ""), errors="raise").astype("float64")


def cohort(patient: pd.DataFrame) -> tuple[pd.DataFrame, list[tuple[int, int, int]]]:
    """The stays in the cohort with `died`, and (stays, people, hospital deaths) after each of the six rules."""
    stays = patient.assign(
        unit_id=patient["patientunitstayid"].astype("int64"),
        years=number(patient["age"].replace("> 89", "90")),
        visit=number(patient["unitvisitnumber"]),
        admitted=number(patient["hospitaladmitoffset"]),
        left=number(patient["unitdischargeoffset"]),
        died=(patient["hospitaldischargestatus"] == "Expired").astype("int64"),
    )
    counts = []

    def keep(kept: pd.DataFrame) -> pd.DataFrame:
        counts.append((len(kept), kept["uniquepid"].nunique(), int(kept["died"].sum())))
        return kept

    stays = keep(stays)
    in_order = stays.sort_values(["admitted", "visit", "unit_id"], ascending=[False, True, True])
    stays = keep(in_order[~in_order["patienthealthsystemstayid"].duplicated()])
    stays = keep(stays[stays["years"] >= 18])
    stays = keep(stays[stays["left"] >= PREDICTION_MINUTE])
    stays = keep(stays[stays["hospitaldischargestatus"].isin(["Alive", "Expired"])])
    contradiction = (stays["unitdischargestatus"] == "Expired") & (stays["hospitaldischargestatus"] == "Alive")
    stays = keep(stays[~contradiction])
    return stays.sort_values("unit_id").set_index("unit_id"), counts


def in_window(offset: pd.Series) -> pd.Series:
    """True for minutes from six hours before unit admission to just before the prediction time."""
    minutes = number(offset)
    return (minutes >= LOWER_MINUTE) & (minutes < PREDICTION_MINUTE)


def events(tables: dict[str, pd.DataFrame], units: pd.Index) -> dict[str, pd.DataFrame]:
    """Rows that survive the filters: unit_id with `text` (a path), `code` (HICL) or labname, minute and value."""
    mine = {}
    for name in EVENTS:
        rows = tables[name].assign(unit_id=tables[name]["patientunitstayid"].astype("int64"))
        mine[name] = rows[rows["unit_id"].isin(units)]
    kept = {}
    for name in ("diagnosis", "treatment"):
        rows = mine[name][in_window(mine[name][f"{name}offset"])].rename(columns={f"{name}string": "text"})
        kept[name] = rows.loc[rows["text"] != "", ["unit_id", "text"]]
    kept["medication"] = medication(mine["medication"])
    kept["lab"] = lab(mine["lab"])
    return kept


def medication(orders: pd.DataFrame) -> pd.DataFrame:
    """Orders that began in the window, were placed before the prediction time, stand, and have an HICL number."""
    kept = in_window(orders["drugstartoffset"]) & (number(orders["drugorderoffset"]) < PREDICTION_MINUTE)
    kept &= orders["drugordercancelled"].str.lower() != "yes"
    kept &= orders["drughiclseqno"] != ""
    rows = orders[kept]
    return pd.DataFrame({"unit_id": rows["unit_id"], "text": number(rows["drughiclseqno"]).astype("int64").astype(str)})


def lab(results: pd.DataFrame) -> pd.DataFrame:
    """One row per (stay, labname, minute): the last version known before the prediction time; raw values."""
    rows = results.assign(
        value=number(results["labresult"]),
        minute=number(results["labresultoffset"]),
        revised=number(results["labresultrevisedoffset"]),
        labid=results["labid"].astype("int64"),
    )
    rows = rows[rows["value"].notna()]
    rows = rows[in_window(rows["labresultoffset"]) & (rows["revised"] < PREDICTION_MINUTE)]
    rows = rows.sort_values(["revised", "labid"]).drop_duplicates(["unit_id", "labname", "minute"], keep="last")
    return rows[["unit_id", "labname", "minute", "value"]]


def presence(stays: pd.DataFrame, kept: dict[str, pd.DataFrame], aps: pd.DataFrame) -> pd.DataFrame:
    """One row a stay, 0/1 per modality."""
    units = stays.index
    present = {"demographics": pd.Series(1, index=units)}
    for name in EVENTS:
        present[name] = pd.Series(units.isin(kept[name]["unit_id"]).astype(int), index=units)
    present["aps"] = pd.Series(units.isin(aps["patientunitstayid"].astype("int64")).astype(int), index=units)
    return pd.DataFrame(present)


def prefixes(path: str) -> list[str]:
    """`a|b|c` -> a, a|b, a|b|c."""
    parts = path.split("|")
    return ["|".join(parts[: depth + 1]) for depth in range(len(parts))]


def codes(name: str, text: str) -> list[str]:
    """The codes that one row states."""
    return [text] if name == "medication" else prefixes(text)


def vocabularies(stays: pd.DataFrame, kept: dict[str, pd.DataFrame], training: Iterable[int]) -> Vocabularies:
    """What the training stays make a feature.

    Codes in at least 1% of all of them, labnames in at least 1% of those with a lab row, every level of the categories.
    """
    chosen = set(training)
    found: Vocabularies = {}
    for name in CODED:
        having: dict[str, set[int]] = {}
        for unit, text in kept[name].itertuples(index=False):
            if unit in chosen:
                for code in codes(name, text):
                    having.setdefault(code, set()).add(unit)
        found[name] = sorted(code for code, units in having.items() if 100 * len(units) >= len(chosen))
    labs = kept["lab"][kept["lab"]["unit_id"].isin(chosen)]
    having_lab = labs.groupby("labname")["unit_id"].nunique()
    found["lab"] = sorted(having_lab.index[100 * having_lab >= labs["unit_id"].nunique()])
    for column in CATEGORIES:
        found[column] = sorted(set(stays.loc[sorted(chosen), column].replace("", BLANK)))
    return found


def convert(labname: str, value: float, ranges: Ranges) -> float:
    """A raw result in the common unit; NaN outside every range; unlisted labs as they are."""
    if labname not in ranges:
        return value
    for entry in ranges[labname]:
        if entry.low <= value <= entry.high:
            return value * entry.scale + entry.offset
    return math.nan


def demographics(row: dict[str, Any], vocabulary: Vocabularies) -> dict[str, float]:
    """Numbers by column, categories as 0/1 per level."""
    height = float(row["admissionheight"] or "nan")
    weight = float(row["admissionweight"] or "nan")
    values = {
        "age": row["years"],
        "age_over_89": float(row["age"] == "> 89"),
        "admissionheight": height if 100 <= height <= 250 else math.nan,
        "admissionweight": weight if 20 <= weight <= 300 else math.nan,
        "hours_in_hospital_before": max(0.0, -row["admitted"] / 60),
    }
    for column in CATEGORIES:
        own = row[column] or BLANK
        values |= {f"{column}={level}": float(level == own) for level in vocabulary[column]}
    return values


def aps(row: dict[str, str]) -> dict[str, float]:
    """24 numbers; -1 is missing everywhere, 0 in the three GCS components."""
    values = {}
    for column in APS:
        value = float(row[column] or "nan")
        absent = value == -1 or (column in ("eyes", "motor", "verbal") and value == 0)
        values[column] = math.nan if absent else value
    return values


def summaries(rows: pd.DataFrame, names: list[str], ranges: Ranges) -> dict[str, float]:
    """last, min, max, mean and count of each labname over the results that are in range."""
    in_range: dict[str, list[float]] = {labname: [] for labname in names}
    for labname, value in rows.sort_values("minute")[["labname", "value"]].itertuples(index=False):
        if labname in in_range and not math.isnan(converted := convert(labname, value, ranges)):
            in_range[labname].append(converted)
    values: dict[str, float] = {}
    for labname, numbers in in_range.items():
        some = bool(numbers)
        values[f"{labname}|last"] = numbers[-1] if some else math.nan
        values[f"{labname}|min"] = min(numbers) if some else math.nan
        values[f"{labname}|max"] = max(numbers) if some else math.nan
        values[f"{labname}|mean"] = math.fsum(numbers) / len(numbers) if some else math.nan
        values[f"{labname}|count"] = float(len(numbers))
    return values


@dataclass(frozen=True)
class Reference:
    """Everything recomputed from one raw folder, but for what needs the split."""

    tables: dict[str, pd.DataFrame]
    stays: pd.DataFrame
    attrition: list[tuple[int, int, int]]
    kept: dict[str, pd.DataFrame]
    presence: pd.DataFrame

    @classmethod
    def of(cls, raw: Path) -> "Reference":
        """Reads the folder and applies the cohort's rules and the filters."""
        tables = read(raw)
        stays, attrition = cohort(tables["patient"])
        kept = events(tables, stays.index)
        return cls(tables, stays, attrition, kept, presence(stays, kept, tables["apacheApsVar"]))

    def vocabularies(self, training: Iterable[int]) -> Vocabularies:
        """See `vocabularies`."""
        return vocabularies(self.stays, self.kept, training)

    def features(self, units: Iterable[int], vocabulary: Vocabularies, ranges: Ranges) -> dict[int, Features]:
        """All features: stay -> modality -> name -> value; an absent modality is not in it."""
        rows = {name: dict(list(self.kept[name].groupby("unit_id"))) for name in EVENTS}
        stays = self.stays.to_dict("index")
        scores = self.tables["apacheApsVar"].set_index("patientunitstayid").to_dict("index")
        found: dict[int, Features] = {}
        for unit in units:
            mine: Features = {"demographics": demographics(stays[unit], vocabulary)}
            for name in CODED:
                if unit in rows[name]:
                    had = {code for text in rows[name][unit]["text"] for code in codes(name, text)}
                    mine[name] = {code: float(code in had) for code in vocabulary[name]}
            if unit in rows["lab"]:
                mine["lab"] = summaries(rows["lab"][unit], vocabulary["lab"], ranges)
            if str(unit) in scores:
                mine["aps"] = aps(scores[str(unit)])
            found[unit] = mine
        return found
