"""The TADPOLE challenge: scores forecasts of the diagnosis against a D4 file, and turns a run into forecasts.

Formats and rules are those of the challenge: a forecast file holds, for every person and month, relative probabilities
of CN, MCI and AD; a visit of D4 is compared with the person's forecast nearest in time to the cognitive assessment. The
forecasts of ADAS13 and of the ventricles are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ovo_clinic import drift, metrics, predict, resources, runs
from ovo_clinic.errors import UserError
from ovo_clinic.metrics import Floats
from ovo_clinic.prepare import Prepared

CLASSES = ("CN", "MCI", "AD")
PROBABILITIES = [f"{name} relative probability" for name in CLASSES]
TRUTH_COLUMNS = ["RID", "CognitiveAssessmentDate", "Diagnosis"]
FORECAST_COLUMNS = ["RID", "Forecast Month", "Forecast Date", *PROBABILITIES]
MISSING = ("", "-4", "NA", "nan", "NaN")
FIRST_MONTH = "2018-01"
MONTHS = 60


@dataclass(frozen=True)
class Score:
    """How forecasts fared.

    Attributes:
        mauc, bca: as the challenge's code has them (mAUC: of equal scores the later row of D4 is the higher one).
        mauc_mid_ranks: mAUC with ties counted half, which does not depend on the order of the rows.
        classes: visits that were scored, by true diagnosis.
        people: how many they belong to.
        undiagnosed: visits of D4 without a diagnosis.
        without_forecast: visits of D4 with a diagnosis, of people who have no forecast.
    """

    mauc: float
    bca: float
    mauc_mid_ranks: float
    classes: dict[str, int]
    people: int
    undiagnosed: int
    without_forecast: int


def read_truth(path: Path) -> pd.DataFrame:
    """RID, date and label (0 CN, 1 MCI, 2 AD, NaN not known) of the visits of a D4 file, in its order.

    Raises:
        UserError: no such file, a column that is missing, or a cell that cannot be read.
    """
    table = _read(path, TRUTH_COLUMNS)
    unknown = ~table["Diagnosis"].isin([*CLASSES, *MISSING])
    _refuse(path, table, unknown, "Diagnosis", f"should be one of {', '.join(CLASSES)}, or empty")
    label = table["Diagnosis"].map({name: float(index) for index, name in enumerate(CLASSES)})
    date = _dates(path, table, "CognitiveAssessmentDate", "%Y-%m-%d", label.notna())
    return pd.DataFrame({"RID": _identifiers(path, table), "date": date, "label": label})


def read_forecasts(path: Path) -> pd.DataFrame:
    """The columns of a submission, with dates on the first of the month.

    Raises:
        UserError: no such file, a column that is missing, a cell that cannot be read, or probabilities that are
            negative or all zero.
    """
    table = _read(path, FORECAST_COLUMNS)
    everywhere = pd.Series(True, index=table.index)
    found = pd.DataFrame({"RID": _identifiers(path, table)})
    found["Forecast Month"] = table["Forecast Month"]
    found["Forecast Date"] = _dates(path, table, "Forecast Date", "%Y-%m", everywhere)
    for column in PROBABILITIES:
        values = pd.to_numeric(table[column], errors="coerce").astype("float64")
        _refuse(path, table, ~values.between(0, np.inf, inclusive="left"), column, "should be a number, 0 or more")
        found[column] = values
    _refuse(path, table, found[PROBABILITIES].sum(axis=1) == 0, PROBABILITIES[0], "no class has any probability")
    return found


def score(forecasts: pd.DataFrame, truth: pd.DataFrame, partial: bool = False) -> Score:
    """The challenge's mAUC and BCA.

    Args:
        forecasts: from `read_forecasts` or `forecasts_of_run`.
        truth: from `read_truth`.
        partial: leave out people without a forecast, instead of refusing.

    Raises:
        UserError: people without a forecast, no visit to score, or a class without one.
    """
    diagnosed = truth[truth["label"].notna()]
    visits = diagnosed[diagnosed["RID"].isin(forecasts["RID"])]
    lacking = diagnosed.loc[~diagnosed["RID"].isin(forecasts["RID"]), "RID"].unique()
    if lacking.size and not partial:
        raise UserError(f"{lacking.size} people of the truth have no forecast; add them")
    by_person = dict(iter(forecasts.groupby("RID")))
    matched = [_nearest(by_person[rid], date) for rid, date in zip(visits["RID"], visits["date"], strict=True)]
    # By the mean, as the challenge does: A(i|j) compares scores over rows.
    probabilities = np.array(matched).reshape(-1, len(CLASSES))
    probabilities = probabilities / probabilities.mean(axis=1, keepdims=True)
    label = visits["label"].to_numpy()
    counts = {name: int(np.sum(label == index)) for index, name in enumerate(CLASSES)}
    if absent := [name for name, count in counts.items() if count == 0]:
        raise UserError(f"mAUC is not defined: no visit that can be scored has the diagnosis {', '.join(absent)}")
    return Score(
        mauc=metrics.mauc(probabilities, label, official_ties=True),
        bca=metrics.bca(probabilities, label),
        mauc_mid_ranks=metrics.mauc(probabilities, label),
        classes=counts,
        people=visits["RID"].nunique(),
        undiagnosed=len(truth) - len(diagnosed),
        without_forecast=len(diagnosed) - len(visits),
    )


def forecasts_of_run(folder: Path) -> pd.DataFrame:
    """Forecasts of a network or baseline for everybody in its task's cohort: today's probabilities, at every month.

    People it was trained on are among them, as the challenge has it: what is scored is their later diagnosis. Where a
    person has several units, the last one by unit_id counts.

    Args:
        folder: of a finished run of a task with the classes CN, MCI, AD whose patient_id is the RID.

    Returns:
        The columns of a submission, as from `read_forecasts`.

    Raises:
        UserError: no finished run, one whose head lets people of a batch see each other, a task of other classes or
            identifiers, or prepared data that are gone.
    """
    if not runs.is_finished(folder):
        raise UserError(f"{folder}: is not the folder of a finished run; `ovo-clinic train` prints its run folder")
    result = predict.checked(folder, str(folder))
    if tuple(result["task"]["classes"]) != CLASSES:
        raise UserError(f"{folder}: its task '{result['task']['task']}' does not predict {', '.join(CLASSES)}")
    prepared = _prepared(result)
    rows, probabilities = _predicted(folder, prepared)
    people = prepared.cohort["patient_id"].gather(rows).cast(str).to_list()
    if not all(person.isdecimal() for person in people):
        raise UserError(f"{folder}: the patients of its task are not called by RID numbers")
    latest = pd.DataFrame(probabilities, columns=PROBABILITIES).assign(RID=np.array(people, dtype=np.int64), row=rows)
    latest = latest.sort_values("row").drop_duplicates("RID", keep="last").sort_values("RID", ignore_index=True)
    months = pd.DataFrame({"Forecast Month": np.arange(1, MONTHS + 1)})
    months["Forecast Date"] = pd.date_range(FIRST_MONTH, periods=MONTHS, freq="MS")
    return latest.merge(months, how="cross")[FORECAST_COLUMNS]


def write_forecasts(forecasts: pd.DataFrame, path: Path) -> None:
    """Writes a submission-shaped csv, readable by its owner only.

    Raises:
        UserError: the file cannot be written.
    """
    try:
        path.touch(mode=0o600)
        path.chmod(0o600)
        forecasts.to_csv(path, index=False, date_format="%Y-%m")
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); give another file") from None


def _predicted(folder: Path, prepared: Prepared) -> tuple[Any, Floats]:
    """Labelled rows of the cohort (N,) and the model's probabilities (N,3)."""
    from ovo_clinic import predictors  # imports torch, and a forecast file is scored without it

    predictor = predictors.load(folder)
    names = list(drift.load(folder / "inputs.json"))
    rows = np.concatenate([prepared.rows(split) for split in ("train", "validation", "test")])
    return rows, predictor.probabilities(predictor.inputs(prepared, names))[rows]


def _prepared(result: runs.Result) -> Prepared:
    key = result["digests"]["data"]
    for folder in (resources.home() / "cache").glob(f"*/{key}"):
        return Prepared.open(folder)
    raise UserError(f"the prepared data of the run are gone; run `ovo-clinic prepare {result['task']['task']}` again")


def _nearest(own: pd.DataFrame, date: pd.Timestamp) -> Floats:
    """(3,) a person's forecast nearest to the date, the first of two equally near ones."""
    place = int(np.argmin(np.abs((own["Forecast Date"] - date).to_numpy())))
    return np.asarray(own[PROBABILITIES].iloc[place], dtype=np.float64)


def _read(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """The columns as text without surrounding blanks."""
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: is not a csv file: {' '.join(str(error).split())}") from None
    if missing := [column for column in columns if column not in table]:
        raise UserError(f"{path}: has no column '{missing[0]}'; needed are {', '.join(columns)}")
    if table.empty:
        raise UserError(f"{path}: holds no row")
    return pd.DataFrame({column: table[column].fillna("").str.strip() for column in columns})


def _identifiers(path: Path, table: pd.DataFrame) -> pd.Series:
    values = pd.to_numeric(table["RID"], errors="coerce")
    _refuse(path, table, ~(values == values.round()), "RID", "should be a whole number")
    return values.astype("int64")


def _dates(path: Path, table: pd.DataFrame, column: str, form: str, needed: pd.Series) -> pd.Series:
    """Dates; NaT where none can be read and none is needed."""
    found = pd.to_datetime(table[column], format=form, errors="coerce")
    wanted = form.replace("%Y", "YYYY").replace("%m", "MM").replace("%d", "DD")
    _refuse(path, table, found.isna() & needed, column, f"should be a date {wanted}")
    return found


def _refuse(path: Path, table: pd.DataFrame, wrong: pd.Series, column: str, message: str) -> None:
    """Raises a UserError that names the line of the first wrong cell, and not what stands in it."""
    if wrong.any():
        place = int(np.argmax(wrong.to_numpy()))
        raise UserError(f"{path}: line {place + 2}: {column}: {message}")
