"""`predict` on raw folders of MIMIC with X-rays and of TADPOLE, and what they are refused for."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ovo_clinic import experiment, runs, training
from ovo_clinic.errors import UserError
from ovo_clinic.predict import predict
from ovo_clinic.prepare import prepare_task
from ovo_clinic.registry import SYNTHETIC

pytestmark = pytest.mark.slow
QUICK = ["model.dim=8", "training.epochs=1", "split.train=0.5", "split.validation=0.2", "split.test=0.3"]
Change = Callable[[pd.DataFrame], pd.DataFrame]
PATIENTS = "iv/hosp/patients.csv.gz"
VISITS = "TADPOLE_D1_D2.csv"


@dataclass(frozen=True)
class Known:
    """A data set whose network is trained on a synthetic folder."""

    raw: Path
    run: Path


def made(folder: Path, name: str, task: str, people: int, *settings: str) -> Iterator[Known]:
    raw = folder / "raw"
    SYNTHETIC.build(name, raw, options={"patients": people})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVO_CLINIC_HOME", str(folder / "home"))
        resolved = experiment.load(task, [*QUICK, *settings])
        prepared = prepare_task(resolved, raw)
        run = runs.run_folder(resolved, prepared)
        training.train(resolved, prepared, run)
        yield Known(raw, run)


@pytest.fixture(scope="module")
def mimic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Known]:
    modalities = "modalities=[time_series, demographics, image]"
    yield from made(
        tmp_path_factory.mktemp("mimic"), "mimic", "mimic_mortality_48h", 150, modalities, "data.image_size=32"
    )


@pytest.fixture(scope="module")
def tadpole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Known]:
    yield from made(tmp_path_factory.mktemp("tadpole"), "tadpole", "tadpole_clean", 400)


def changed(raw: Path, folder: Path, changes: dict[str, Change]) -> Path:
    """A copy of the raw folder in which some tables are others."""
    new = shutil.copytree(raw, folder / "new")
    for table, change in changes.items():
        change(pd.read_csv(new / table, dtype=str, keep_default_na=False)).to_csv(new / table, index=False)
    return new


def scaled(frame: pd.DataFrame, columns: list[str], factor: float) -> pd.DataFrame:
    found = frame.copy()
    for column in columns:
        numbers = pd.to_numeric(found[column], errors="coerce")
        found[column] = np.where(numbers.notna() & (numbers > 0), (numbers * factor).astype(str), found[column])
    return found


def answers_as_evaluated(known: Known, raw: Path, out: Path) -> pd.DataFrame:
    """Compares what `predict` says with what the run said of the same units; of the new file all, by unit."""
    frame = predict(known.run, raw, out).frame.to_pandas().set_index("unit_id")
    evaluated = pd.read_parquet(known.run / "predictions.parquet").set_index("unit_id")
    both = evaluated.index.intersection(frame.index)
    # Where a later visit has no diagnosis, the latest one that a person is asked about is another.
    assert len(both) > 30 and len(both) >= 0.8 * len(evaluated)
    names, expected = ([name for name in own if name.startswith("probability_")] for own in (frame, evaluated))
    np.testing.assert_allclose(frame.loc[both, names].to_numpy(), evaluated.loc[both, expected].to_numpy(), atol=1e-5)
    return frame


def test_mimic_without_outcomes_is_answered_as_in_the_evaluation(mimic: Known, tmp_path: Path) -> None:
    unknown = {
        "iv/hosp/admissions.csv.gz": lambda frame: frame.assign(deathtime="", hospital_expire_flag="0"),
        PATIENTS: lambda frame: frame.assign(dod=""),
    }
    raw = changed(mimic.raw, tmp_path, unknown)
    frame = answers_as_evaluated(mimic, raw, tmp_path / "out.csv")
    assert set(frame["prediction_hours"]) == {48.0}
    missing = frame["missing_modalities"].value_counts(normalize=True)
    assert set(missing.index) == {"", "image"} and 0.1 < missing["image"] < 0.9
    shutil.rmtree(raw / "cxr")
    without = predict(mimic.run, raw, tmp_path / "no_images.csv").frame
    assert set(without["missing_modalities"]) == {"image"} and len(without) == len(frame)


def test_tadpole_without_diagnoses_is_answered_as_in_the_evaluation(tadpole: Known, tmp_path: Path) -> None:
    raw = changed(tadpole.raw, tmp_path, {VISITS: lambda frame: frame.assign(DXCHANGE="", DX="")})
    predicted = predict(tadpole.run, raw, tmp_path / "out.csv").frame.to_pandas()
    outcomes = predicted[["probability_CN", "probability_MCI", "probability_AD"]]
    np.testing.assert_allclose(outcomes.sum(axis=1), 1, atol=1e-5)
    assert len(predicted) > 100 and predicted["patient_id"].is_unique
    answers_as_evaluated(tadpole, raw, tmp_path / "same.csv")


def glucose(frame: pd.DataFrame) -> pd.DataFrame:
    """In mmol/l in place of mg/dl."""
    found = frame.copy()
    rows = found["itemid"].isin(["50931", "50809", "220621", "225664", "226537"])
    numbers = pd.to_numeric(found["valuenum"], errors="coerce") / 18
    found.loc[rows, "valuenum"] = numbers[rows].astype(str)
    found.loc[rows, "value"] = numbers[rows].astype(str)
    return found


EVENTS = {"iv/hosp/labevents.csv.gz": glucose, "iv/icu/chartevents.csv.gz": glucose}
REFUSED: dict[str, tuple[dict[str, Change], str]] = {
    "mimic units": (EVENTS, "time_series: half of the Glucose values are below"),
    "mimic column": ({PATIENTS: lambda frame: frame.drop(columns="anchor_age")}, "patients.*anchor_age"),
    "mimic vocabulary": (
        {PATIENTS: lambda frame: frame.assign(gender=frame["gender"].map({"F": "Frau", "M": "Mann"}))},
        "demographics: gender is in 100 % of .* rows a value not seen in training",
    ),
    "tadpole units": ({VISITS: lambda frame: scaled(frame, ["AGE"], 12)}, "clinical: half of the AGE values are above"),
    "tadpole column": (
        {VISITS: lambda frame: frame.drop(columns="PTEDUCAT")},
        "TADPOLE_D1_D2.csv: has no column pteducat",
    ),
    "tadpole vocabulary": ({VISITS: lambda frame: frame.assign(PTGENDER="Frau")}, "clinical: PTGENDER is in 100 %"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_units_columns_and_values_are_refused_in_one_line(
    request: pytest.FixtureRequest, tmp_path: Path, case: str
) -> None:
    known: Any = request.getfixturevalue(case.split()[0])
    changes, told = REFUSED[case]
    raw = changed(known.raw, tmp_path, changes)
    with pytest.raises(UserError, match=rf"^[^\n]*{told}[^\n]*$") as caught:
        predict(known.run, raw, tmp_path / "out.csv")
    print(caught.value)
    assert not (tmp_path / "out.csv").exists()
