"""The task `mimic_phenotyping` recomputed from the raw files with plain pandas, independently of the package.

Nothing here imports ovo_clinic or reads its data specs: items, units, ranges and codes come from the fact tables.
Literal on purpose: a function for each sentence of the task's definition.
"""

import math
from collections import defaultdict
from pathlib import Path

import pandas as pd

SCORES = {
    220739: {"None": 1, "To Pain": 2, "To Speech": 3, "Spontaneously": 4},
    223901: {
        "No response": 1,
        "Abnormal extension": 2,
        "Abnormal Flexion": 3,
        "Flex-withdraws": 4,
        "Localizes Pain": 5,
        "Obeys Commands": 6,
    },
    223900: {
        "No Response-ETT": 1,
        "No Response": 1,
        "Incomprehensible sounds": 2,
        "Inappropriate Words": 3,
        "Confused": 4,
        "Oriented": 5,
    },
}
HIGHEST = {220739: 4, 223901: 6, 223900: 5}
COMPONENTS = (220739, 223901, 223900)
ARTERIAL = {220050, 220051, 220052, 225309, 225310, 225312, 224322}
RESPIRATORY = {220210: 0, 224690: 1, 224689: 2, 224422: 2}
HEIGHT = {226730: 0, 226707: 1}
NORMALS = {"eye opening": 4, "motor response": 6, "verbal response": 5, "total": 15}
OVERRIDES = {
    "I10": {"Essential hypertension"},
    "N171": {"Acute and unspecified renal failure"},
    "N172": {"Acute and unspecified renal failure"},
    "R7881": {"Septicemia (except in labor)"},
    "B250": {"Pneumonia (except that caused by tuberculosis or sexually transmitted disease)"},
    "B440": {"Pneumonia (except that caused by tuberculosis or sexually transmitted disease)"},
    "A3791": {"Pneumonia (except that caused by tuberculosis or sexually transmitted disease)"},
    "J1282": {"Pneumonia (except that caused by tuberculosis or sexually transmitted disease)"},
    "R6521": {"Septicemia (except in labor)", "Shock"},
    "K56699": set(),
    "T82818A": set(),
}


class Reference:
    """Cohort, labels and binned series of a MIMIC-IV folder."""

    def __init__(self, folder: Path, facts: Path, tables: dict[str, pd.DataFrame] | None = None) -> None:
        self.facts = facts
        read = {name: pd.read_csv(folder / f"{name}.csv.gz", dtype=str, keep_default_na=False) for name in _FILES}
        self.raw = {name.split("/")[1]: frame for name, frame in read.items()} | (tables or {})
        self.channels = pd.read_csv(facts / "variables.csv", dtype=str, keep_default_na=False)
        self.names = self.channels["variable"].tolist()
        columns = [f"table_{name}" for name in ("outlier_low", "valid_low", "valid_high", "outlier_high")]
        limits = self.channels[columns].astype(float).itertuples(index=False, name=None)
        self.bounds = dict(zip(self.names, limits, strict=True))
        items = pd.read_csv(facts / "variable_itemids.csv", dtype=str, keep_default_na=False)
        items = items[(items["exists_in_mimic_iv"] == "1") & items["itemid"].str.isdigit()]
        dropped = {int(item) for cell in self.channels["drop_itemids_in_corrected_mode"] for item in _numbers(cell)}
        self.channel_of = {
            int(item): name
            for item, name in zip(items["itemid"], items["variable"], strict=True)
            if int(item) not in dropped
        }
        self.attrition: list[tuple[int, int]] = []
        self.stays = self._cohort()
        self.events = self._events()
        has_event = [unit for unit in self.stays.index if any(t >= 0 for _, t, _, _ in self.events.get(unit, []))]
        self._keep(self.stays.index.isin(has_event))

    def _keep(self, condition: "pd.Series[bool]") -> None:
        self.stays = self.stays[condition]
        self.attrition.append((len(self.stays), self.stays["subject_id"].nunique()))

    def _cohort(self) -> pd.DataFrame:
        stays = self.raw["icustays"].copy()
        per_admission = stays["hadm_id"].value_counts()
        self.stays = stays.set_index(stays["stay_id"].astype(int)).sort_index()
        self._keep(self.stays["stay_id"] != "")
        self._keep(self.stays["hadm_id"].map(per_admission) == 1)
        self._keep(self.stays["first_careunit"] == self.stays["last_careunit"])
        admissions = self.raw["admissions"].set_index("hadm_id")
        patients = self.raw["patients"].set_index("subject_id")
        found = self.stays["hadm_id"].isin(admissions.index) & self.stays["subject_id"].isin(patients.index)
        self._keep(found)
        year = pd.to_datetime(self.stays["hadm_id"].map(admissions["admittime"])).dt.year
        anchor = self.stays["subject_id"].map(patients["anchor_year"]).astype(int)
        age = self.stays["subject_id"].map(patients["anchor_age"]).astype(int) + year - anchor
        self.stays = self.stays.assign(age=age.clip(upper=91))
        self._keep(self.stays["age"] >= 18)
        self._keep(self.stays["hadm_id"].isin(self.raw["diagnoses_icd"]["hadm_id"]))
        los = pd.to_numeric(self.stays["los"])
        self._keep((self.stays["intime"] != "") & (self.stays["outtime"] != "") & (los > 0))
        return self.stays

    def labels(self) -> pd.DataFrame:
        """All 25 labels of every stay, from the fact tables."""
        nine = pd.read_csv(self.facts / "phenotype_codes.csv", dtype=str)
        ten = pd.read_csv(self.facts / "phenotype_codes_icd10.csv", dtype=str)
        ten = ten[ten["in_gem2018_any_target"] == "1"]
        of_nine, of_ten = defaultdict(set), defaultdict(set)
        for code, name in zip(nine["icd_code"], nine["name"], strict=True):
            of_nine[code].add(name)
        for code, name in zip(ten["icd_code"], ten["name"], strict=True):
            of_ten[code].add(name)
        of_ten.update(OVERRIDES)
        names = pd.read_csv(self.facts / "phenotypes.csv")["name"].tolist()
        positive = defaultdict(set)
        diagnoses = self.raw["diagnoses_icd"]
        for hadm, code, version in zip(*(diagnoses[c] for c in ("hadm_id", "icd_code", "icd_version")), strict=True):
            positive[hadm] |= of_nine.get(code, set()) if version == "9" else icd10_labels(code, of_ten)
        rows = [[int(name in positive[hadm]) for name in names] for hadm in self.stays["hadm_id"]]
        return pd.DataFrame(rows, index=self.stays.index, columns=names)

    def _events(self) -> dict[int, list[tuple[str, float, int, float]]]:
        """Rows in the channel's unit and in range: stay -> (channel, seconds from intime, item, value)."""
        start, end = (pd.to_datetime(self.stays[name]).to_dict() for name in ("intime", "outtime"))
        found = defaultdict(list)
        chart = self._table("chartevents")
        for stay, item, time, text, number in chart[["stay_id", "item", "time", "value", "valuenum"]].itertuples(
            index=False
        ):
            stay = int(stay) if stay else -1
            if stay not in start:
                continue
            carried = self.channel_of[item] in ("Height", "Weight")
            seconds = (time - start[stay]).total_seconds()
            if seconds >= (-86400 if carried else 0) and time <= end[stay]:
                value = self._value(item, text, number)
                if value is not None:
                    found[stay].append((self.channel_of[item], seconds, item, value))
        owners = defaultdict(list)
        for stay, subject in self.stays["subject_id"].items():
            owners[subject].append(stay)
        labs = self._table("labevents")
        for subject, item, time, text, number in labs[["subject_id", "item", "time", "value", "valuenum"]].itertuples(
            index=False
        ):
            for stay in owners.get(subject, []):
                if start[stay] <= time <= end[stay]:
                    value = self._value(item, text, number)
                    if value is not None:
                        seconds = (time - start[stay]).total_seconds()
                        found[stay].append((self.channel_of[item], seconds, item, value))
        return found

    def _table(self, name: str) -> pd.DataFrame:
        table = self.raw[name]
        table = table.assign(item=pd.to_numeric(table["itemid"]))
        table = table[table["item"].isin(list(self.channel_of))]
        return table.assign(time=pd.to_datetime(table["charttime"]))

    def _value(self, item: int, text: str, number: str) -> float | None:
        channel = self.channel_of[item]
        if item in SCORES:
            if text in SCORES[item]:
                return SCORES[item][text]
            return float(text) if text in [str(score) for score in range(1, HIGHEST[item] + 1)] else None
        if channel == "Capillary refill rate":
            return 0.0 if text.startswith("Normal") else 1.0 if text.startswith("Abnormal") else None
        if number == "":
            return None
        value = float(number)
        if item == 223761 or (item == 223762 and value >= 79):
            value = (value - 32) * 5 / 9
        elif item == 226707:
            value *= 2.54
        elif item == 226531:
            value *= 0.45359237
        elif channel == "Oxygen saturation" and value <= 1:
            value *= 100
        elif item == 223835:
            if 20 <= value <= 100:
                value /= 100
            elif not 0.2 <= value <= 1:
                return None
        low, valid_low, valid_high, high = self.bounds[channel]
        if not low <= value <= high or (value == 0 and channel in ("Height", "Weight")):
            return None
        return min(max(value, valid_low), valid_high)

    def series(self, stay: int, step_hours: float = 1.0) -> pd.DataFrame:
        """The 17 values and 17 masks of every time step of a stay."""
        moments = defaultdict(list)
        for channel, seconds, item, value in self.events[stay]:
            moments[channel, seconds].append((item, value))
        merged = {key: _merge(key[0], rows) for key, rows in moments.items()}
        for channel in ("Height", "Weight"):
            early = [seconds for name, seconds in merged if name == channel and seconds < 0]
            if early:
                merged.setdefault((channel, 0.0), merged[channel, max(early)])
            for seconds in early:
                del merged[channel, seconds]
        self._add_totals(merged)
        bins = math.floor(24 * float(self.stays.loc[stay, "los"]) / step_hours + 1 - 1e-6)
        rows, current = [], self.normals()
        by_bin = defaultdict(dict)
        for (channel, seconds), value in sorted(merged.items(), key=lambda pair: pair[0][1]):
            place = min(int(seconds / 3600 / step_hours - 1e-6), bins - 1)
            by_bin[place][channel] = value
        for place in range(bins):
            current = current | by_bin[place]
            masks = {f"mask->{name}": float(name in by_bin[place]) for name in self.names}
            rows.append(current | masks)
        return pd.DataFrame(rows, index=[place * step_hours for place in range(bins)])

    def normals(self) -> dict[str, float]:
        """What stands before the first observation."""
        values = dict(zip(self.names, self.channels["impute_normal_value"], strict=True))
        return {
            name: float(NORMALS.get(name.removeprefix("Glascow coma scale "), 0) or value)
            for name, value in values.items()
        }

    def _add_totals(self, merged: dict[tuple[str, float], float]) -> None:
        names = [self.channel_of[item] for item in COMPONENTS]
        last: dict[str, float] = {}
        for seconds in sorted({seconds for name, seconds in merged if name in names}):
            last |= {name: merged[name, seconds] for name in names if (name, seconds) in merged}
            if len(last) == 3:
                merged["Glascow coma scale total", seconds] = sum(last.values())


_FILES = (
    "hosp/patients",
    "hosp/admissions",
    "hosp/diagnoses_icd",
    "hosp/labevents",
    "icu/icustays",
    "icu/chartevents",
)


def icd10_labels(code: str, listed: dict[str, set[str]]) -> set[str]:
    """By the list, else the nearest shorter code, else the one set that all longer codes share."""
    if code in listed:
        return listed[code]
    shorter = code[:-1]
    while len(shorter) >= 3:
        if shorter in listed:
            return listed[shorter]
        shorter = shorter[:-1]
    longer = [labels for other, labels in listed.items() if other.startswith(code)]
    return longer[0] if longer and all(labels == longer[0] for labels in longer) else set()


def _numbers(cell: str) -> list[str]:
    return [part for part in cell.split(";") if part]


def _merge(channel: str, rows: list[tuple[int, float]]) -> float:
    """One value of several rows of a channel at one time."""

    def rank(item: int) -> int:
        if "blood pressure" in channel:
            return 0 if item in ARTERIAL else 1
        return {"Respiratory rate": RESPIRATORY, "Height": HEIGHT}.get(channel, {}).get(item, 0)

    best = min(rank(item) for item, _ in rows)
    values = [value for item, value in rows if rank(item) == best]
    if channel.startswith("Glascow"):
        return min(values)
    return max(values) if channel == "Capillary refill rate" else sum(values) / len(values)
