"""The task `tadpole_clean` recomputed from a D1_D2 file with plain pandas, independently of the package.

Nothing here imports ovo_clinic. Literal on purpose: a function for each sentence of the task's definition. Values are
unscaled and not imputed; missing is NaN.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

MODALITIES = ("mri", "fdg_pet", "av45_pet", "csf", "cognitive_tests", "clinical")
CLASSES = ("CN", "MCI", "AD")
MOVED = {"FAQ": "cognitive_tests", "MOCA": "cognitive_tests", "ICV": "mri"}
CRITERIA = ("CDRSB", "MMSE", "FAQ", "MOCA")
CATEGORIES = ("PTGENDER", "PTETHCAT", "PTRACCAT", "PTMARRY")
CSF = tuple(f"{name}_UPENNBIOMK9_04_19_17" for name in ("ABETA", "TAU", "PTAU"))
BLANK = "(blank)"
CHANGES = {1: 0, 7: 0, 9: 0, 2: 1, 4: 1, 8: 1, 3: 2, 5: 2, 6: 2}
TEXTS = {"NL": 0, "MCI": 1, "Dementia": 2}

Step = tuple[int, int, int, int, int]
"""Visits, people, and visits of each class."""


def read(path: Path) -> pd.DataFrame:
    """Every cell as text."""
    return pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")


def features(columns: pd.DataFrame, with_criteria: bool = False) -> dict[str, list[str]]:
    """Columns of each modality: those marked `in` or `optional`, and three that are moved; without the criteria.

    Args:
        columns: the column list of the facts.
        with_criteria: keep the scores from which a diagnosis is made.
    """
    used = columns[columns["clean_task"].isin(["in", "optional"]) | columns["column"].isin(list(MOVED))]
    found: dict[str, list[str]] = {name: [] for name in MODALITIES}
    for column, modality in zip(used["column"], used["modality"], strict=True):
        if with_criteria or column not in CRITERIA:
            found[MOVED.get(column, modality)].append(column)
    return found


def text(cell: str) -> str | None:
    """A cell without surrounding blanks; None for every code of a missing value."""
    stripped = cell.strip()
    return None if stripped in ("", "NA", "nan", "-4", "-4.0") else stripped


def number(cell: str, limits: bool = False) -> float:
    """A cell as a number, NaN where missing or no number; `<80` is 80 where limits are allowed."""
    stripped = text(cell)
    if stripped is None:
        return math.nan
    try:
        value = float(stripped.lstrip("<>") if limits else stripped)
    except ValueError:
        return math.nan
    return math.nan if value == -4 or math.isinf(value) else value


def diagnosis(change: str, words: str) -> float:
    """The current diagnosis: from DXCHANGE, else from DX, where it is the part after the last ` to `."""
    code = number(change)
    if code in CHANGES:
        return float(CHANGES[int(code)])
    return float(TEXTS.get((text(words) or "").split(" to ")[-1], math.nan))


def month(viscode: str) -> int:
    """Months from baseline."""
    return 0 if viscode == "bl" else int(viscode[1:])


@dataclass(frozen=True)
class Reference:
    """Everything recomputed from one file, but for what needs the split.

    Attributes:
        visits: the cohort by unit_id, with patient_id and diagnosis.
        attrition: after each rule.
        values: by modality, numbers of the cohort's visits.
        categories: texts of the cohort's visits.
    """

    visits: pd.DataFrame
    attrition: list[Step]
    values: dict[str, pd.DataFrame]
    categories: pd.DataFrame

    @classmethod
    def of(cls, path: Path, columns: pd.DataFrame, with_criteria: bool = False) -> "Reference":
        """Reads the file and applies the rules of the cohort."""
        table = read(path)
        assert not table.duplicated(["RID", "VISCODE"]).any()
        table.index = pd.Index(table["RID"] + "_" + table["VISCODE"], name="unit_id")
        values, present = {}, {}
        for modality, names in features(columns, with_criteria).items():
            chosen = table[[name for name in names if name not in CATEGORIES]]
            values[modality] = chosen.map(lambda cell, limits=modality == "csf": number(cell, limits))
            present[modality] = values[modality].notna().any(axis=1)
        years = table["Years_bl"].map(number).fillna(0)  # AGE is the age at baseline, the feature that at the visit
        values["clinical"]["AGE"] += years
        categories = table[list(CATEGORIES)].map(lambda cell: text(cell) or BLANK)
        present["clinical"] |= (categories != BLANK).any(axis=1)
        visits, attrition = cohort(table, present)
        return cls(
            visits,
            attrition,
            {modality: found.loc[visits.index] for modality, found in values.items()},
            categories.loc[visits.index],
        )

    def features(self, training: list[str]) -> dict[str, pd.DataFrame]:
        """All features by modality; the levels of a category are those of the training visits."""
        found = dict(self.values)
        for column in CATEGORIES:
            for level in sorted(set(self.categories.loc[training, column])):
                flag = (self.categories[column] == level).astype("float64").rename(f"{column}={level}")
                found["clinical"] = found["clinical"].join(flag)
        return found


def cohort(table: pd.DataFrame, present: dict[str, pd.Series]) -> tuple[pd.DataFrame, list[Step]]:
    """The latest visit of everybody at which all six modalities were measured and the diagnosis is known."""
    visits = pd.DataFrame(
        {
            "patient_id": table["RID"],
            "date": pd.to_datetime(table["EXAMDATE"].str.strip(), format="%Y-%m-%d", errors="coerce"),
            "month": table["VISCODE"].map(month),
            "diagnosis": [diagnosis(*pair) for pair in zip(table["DXCHANGE"], table["DX"], strict=True)],
        }
    )
    steps: list[Step] = []

    def keep(kept: pd.DataFrame) -> pd.DataFrame:
        classes = [int((kept["diagnosis"] == index).sum()) for index in range(3)]
        steps.append((len(kept), kept["patient_id"].nunique(), *classes))
        return kept

    visits = keep(visits)
    visits = keep(visits[visits["date"].notna()])
    for modality in MODALITIES:
        visits = keep(visits[present[modality].loc[visits.index]])
    visits = keep(visits[visits["diagnosis"].notna()])
    visits = visits.sort_values(["date", "month"])
    return keep(visits.drop_duplicates("patient_id", keep="last")), steps
