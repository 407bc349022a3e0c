"""Challenge mode: official scores of forecast files, what is refused, and the forecasts of a run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

from ovo_clinic import challenge, classical, experiment, verbs
from ovo_clinic.cli import app
from ovo_clinic.errors import UserError
from ovo_clinic.prepare import prepare_task
from ovo_clinic.registry import SYNTHETIC, Choice
from tests.small_data import PERSON, flat_files

CLASSES = ("CN", "MCI", "AD")
PROBABILITIES = [f"{name} relative probability" for name in CLASSES]
DAY = "2018-06-20"


def write_truth(path: Path, labels: list[Any], days: list[str] | None = None) -> Path:
    names = ["" if label is None else CLASSES[label] for label in labels]
    rids = np.arange(1, len(labels) + 1)
    table = {"RID": rids, "CognitiveAssessmentDate": days or [DAY] * len(labels), "Diagnosis": names, "ADAS13": 12.5}
    pd.DataFrame(table).to_csv(path, index=False)
    return path


def forecast_rows(rid: int, month: str, values: Any) -> dict[str, Any]:
    return {"RID": rid, "Forecast Month": 1, "Forecast Date": month, **dict(zip(PROBABILITIES, values, strict=True))}


def write_forecasts(path: Path, rows: list[dict[str, Any]]) -> Path:
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def small(tmp_path: Path) -> tuple[Path, Path]:
    """Three people and their forecasts, all right."""
    rows = [forecast_rows(rid, "2018-06", 5 + 90 * np.eye(3)[rid - 1]) for rid in (1, 2, 3)]
    return write_forecasts(tmp_path / "forecasts.csv", rows), write_truth(tmp_path / "D4.csv", [0, 1, 2])


def evaluate(*words: object) -> Any:
    return CliRunner().invoke(app, ["evaluate-challenge", *map(str, words)])


def test_end_to_end_cases_of_the_official_code(vectors: Path, tmp_path: Path) -> None:
    """The person's other forecasts, months away, hold the opposite and must not be used."""
    cases = json.loads((vectors / "metrics" / "tadpole.json").read_text())["end_to_end_cases"]
    for case in cases:
        values = np.array(case["relative_probs"])
        rows = []
        for rid, own in enumerate(values, start=1):
            rows += [forecast_rows(rid, month, own[::-1]) for month in ("2018-05", "2019-01")]
            rows.insert(0, forecast_rows(rid, "2018-07", own))  # 11 days from the visit; June is 19 days from it
            rows.append(forecast_rows(rid, "2018-06", own[::-1]))
        forecasts = challenge.read_forecasts(write_forecasts(tmp_path / "forecasts.csv", rows))
        truth = challenge.read_truth(write_truth(tmp_path / "D4.csv", case["labels"]))
        found = challenge.score(forecasts, truth)
        assert found.mauc == pytest.approx(case["expected"]["mauc_official"], abs=1e-12)
        assert found.bca == pytest.approx(case["expected"]["bca_official"], abs=1e-12)
        known = [place for place, label in enumerate(case["labels"]) if label is not None]
        assert found.undiagnosed == len(values) - len(known) and sum(found.classes.values()) == len(known)
        y, p = np.array(case["labels"], dtype=float)[known], values[known] / values[known].sum(1, keepdims=True)
        assert found.mauc_mid_ranks == pytest.approx(roc_auc_score(y, p, multi_class="ovo"), abs=1e-12)
    assert len(cases) == 2


def test_of_two_equally_near_forecasts_the_first_counts(tmp_path: Path) -> None:
    forecasts, truth = small(tmp_path)
    table = pd.read_csv(forecasts).assign(**{"Forecast Date": "2018-06"})
    wrong = table.assign(**dict(zip(PROBABILITIES, table[PROBABILITIES[::-1]].to_numpy().T, strict=True)))
    for order, perfect in (([table, wrong], True), ([wrong, table], False)):
        pd.concat(order).to_csv(forecasts, index=False)
        found = challenge.score(challenge.read_forecasts(forecasts), challenge.read_truth(truth))
        assert (found.bca == 1.0) == perfect


def test_blanks_bom_line_ends_and_missing_diagnoses(tmp_path: Path) -> None:
    forecasts, truth = small(tmp_path)
    text = truth.read_text() + "4,,,\n5,,-4,\n6,2018-01-01,nan,\n"
    truth.write_bytes("\ufeff".encode() + text.replace("MCI", " MCI ").replace("\n", "\r\n").encode())
    found = challenge.score(challenge.read_forecasts(forecasts), challenge.read_truth(truth))
    assert (found.mauc, found.bca, found.undiagnosed, found.people) == (1.0, 1.0, 3, 3)


def test_people_without_a_forecast(tmp_path: Path) -> None:
    forecasts, truth = small(tmp_path)
    with truth.open("a") as file:
        file.write(f"77,{DAY},AD,\n78,{DAY},CN,\n")
    pair = challenge.read_forecasts(forecasts), challenge.read_truth(truth)
    with pytest.raises(UserError, match="2 people of the truth have no forecast; add them"):
        challenge.score(*pair)
    found = challenge.score(*pair, partial=True)
    assert found.without_forecast == 2 and found.classes == {"CN": 1, "MCI": 1, "AD": 1}


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("D4.csv", "MCI", "Dementia", "line 3: Diagnosis: should be one of CN, MCI, AD"),
        ("D4.csv", "2018-06-20,MCI", "20.6.2018,MCI", "line 3: CognitiveAssessmentDate: should be a date"),
        ("D4.csv", "Diagnosis", "diag", "has no column 'Diagnosis'"),
        ("D4.csv", "\n2,", "\nx,", "line 3: RID: should be a whole number"),
        ("D4.csv", "AD,", "MCI,", "mAUC is not defined: no visit that can be scored has the diagnosis AD"),
        (
            "forecasts.csv",
            "2018-06,95",
            "2018-06-01,95",
            "line 2: Forecast Date: should be a date YYYY-MM",
        ),
        ("forecasts.csv", "2018-06,95.0", "2018-06,-1", "line 2: CN relative probability"),
        ("forecasts.csv", "2018-06,95.0", "2018-06,inf", "line 2: CN relative probability"),
        ("forecasts.csv", "2018-06,95.0", "2018-06,", "line 2: CN relative probability"),
        ("forecasts.csv", "95.0,5.0,5.0", "0,0,0", "line 2: CN relative probability: no class has any"),
        ("forecasts.csv", "AD relative", "ADrelative", "has no column 'AD relative probability'"),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, name: str, old: str, new: str, message: str) -> None:
    forecasts, truth = small(tmp_path)
    content = (tmp_path / name).read_text()
    assert old in content
    (tmp_path / name).write_text(content.replace(old, new))
    result = evaluate(forecasts, "--truth", truth)
    assert isinstance(result.exception, UserError)
    assert message in str(result.exception) and "\n" not in str(result.exception)


def test_bad_arguments_are_one_line(tmp_path: Path) -> None:
    forecasts, truth = small(tmp_path)
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "header.csv").write_text("RID,CognitiveAssessmentDate,Diagnosis\n")
    (tmp_path / "binary.csv").write_bytes(bytes(range(256)))
    for words, message in (
        ([forecasts], "give --truth D4.csv to score, or --submission"),
        ([forecasts, "--submission", tmp_path / "out.csv"], "is not a folder"),
        ([tmp_path / "absent.csv", "--truth", truth], "cannot be read"),
        ([forecasts, "--truth", tmp_path / "empty.csv"], "is not a csv file"),
        ([forecasts, "--truth", tmp_path / "binary.csv"], "is not a csv file"),
        ([forecasts, "--truth", tmp_path / "header.csv"], "holds no row"),
        ([tmp_path, "--truth", truth], "is not the folder of a finished run"),
    ):
        result = evaluate(*words)
        assert isinstance(result.exception, UserError), words
        assert message in str(result.exception) and "\n" not in str(result.exception)


def test_what_is_printed(tmp_path: Path) -> None:
    forecasts, truth = small(tmp_path)
    result = evaluate(forecasts, "--truth", truth)
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "mAUC 1.0000 (ties counted half: 1.0000), BCA 1.0000",
        "3 visits of 3 people: CN 1, MCI 1, AD 1",
        "left out: 0 visits without a diagnosis, 0 without a forecast",
    ]


def baseline_run(folder: Path) -> Path:
    """A logistic regression of a made-up task whose patients are called by numbers."""
    config = flat_files(folder, "multiclass")
    spec = folder / "ward.spec.yaml"
    spec.write_text(
        spec.read_text().replace("- none\n", "- CN\n").replace("- mild\n", "- MCI\n").replace("- severe\n", "- AD\n")
    )
    stays = folder / "raw" / "stays.csv"
    stays.write_text(stays.read_text().replace(PERSON, ""))
    settings = experiment.load(str(config))
    run = folder / "run"
    classical.run(settings, Choice(name="logistic", budget=2), prepare_task(settings, folder / "raw"), run)
    return run


def test_a_baseline_forecasts_what_it_was_evaluated_with(home: Path, tmp_path: Path) -> None:
    run = baseline_run(tmp_path / "ward")
    forecasts = challenge.forecasts_of_run(run)
    stays = pd.read_csv(tmp_path / "ward" / "raw" / "stays.csv").sort_values("stay_id")
    assert set(forecasts["RID"]) == set(stays["person"]) and (forecasts.groupby("RID").size() == 60).all()
    last = stays.drop_duplicates("person", keep="last").set_index("stay_id")["person"]
    stored = pd.read_parquet(run / "predictions.parquet").set_index("unit_id")
    stored = stored.loc[stored.index.intersection(last.index)]
    assert len(stored) > 20
    mine = forecasts.drop_duplicates("RID").set_index("RID").loc[last[stored.index], PROBABILITIES].to_numpy()
    np.testing.assert_allclose(mine, stored[[f"probability_{label}" for label in range(3)]], atol=1e-6)
    result = json.loads((run / "result.json").read_text()) | {"unsafe": "people see each other"}
    (run / "result.json").write_text(json.dumps(result))
    with pytest.raises(UserError, match=r"^\S+: its head is unsafe: people see each other"):
        challenge.forecasts_of_run(run)


@pytest.mark.slow
def test_a_run_is_written_as_a_submission_and_scored(home: Path, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    SYNTHETIC.build("tadpole", raw, options={"patients": 250, "seed": 2})
    settings = ["training.epochs=2", "data.allow_missing_modalities=true", "model.fusion=concat", "model.dim=16"]
    run = verbs.train("tadpole_clean", settings, raw=raw)
    written, truth = tmp_path / "submission.csv", raw / "TADPOLE_D4_corr.csv"
    of_run = evaluate(run.folder, "--truth", truth, "--submission", written)
    assert of_run.exit_code == 0, of_run.exception
    assert written.stat().st_mode & 0o777 == 0o600
    table = pd.read_csv(written)
    assert list(table) == ["RID", "Forecast Month", "Forecast Date", *PROBABILITIES]
    assert (table.groupby("RID").size() == 60).all() and table["RID"].nunique() > 240
    assert table["Forecast Date"].iloc[[0, 59]].tolist() == ["2018-01", "2022-12"]
    assert table[PROBABILITIES].sum(axis=1).to_numpy() == pytest.approx(1, abs=1e-6)
    # The test people's are the ones that the run itself has stored.
    stored = pd.read_parquet(run.folder / "predictions.parquet")
    rids = stored["unit_id"].str.split("_").str[0].astype(int)
    mine = table.drop_duplicates("RID").set_index("RID").loc[rids, PROBABILITIES].to_numpy()
    assert mine == pytest.approx(stored[["probability_0", "probability_1", "probability_2"]].to_numpy(), abs=1e-5)
    of_file = evaluate(written, "--truth", truth)
    assert of_file.exit_code == 0, of_file.exception
    assert of_file.output.splitlines() == of_run.output.splitlines()[-3:]
