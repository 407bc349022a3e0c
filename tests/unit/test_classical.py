"""Classical baselines: tuned on validation, evaluated as networks are, rows of the same table."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import sklearn.metrics
from numpy.typing import NDArray
from scipy.optimize import minimize

from ovo_clinic import classical, fitted, predictors, report, study, verbs
from ovo_clinic import experiment as experiments
from ovo_clinic.baselines.logistic import Logistic
from ovo_clinic.errors import UserError
from ovo_clinic.experiment import Experiment
from ovo_clinic.fitted import Fitted
from ovo_clinic.predict import MODEL_FILES
from ovo_clinic.prepare import prepare_task
from ovo_clinic.prepared import Prepared
from ovo_clinic.registry import BASELINES, Choice
from ovo_clinic.runs import Result
from ovo_clinic.tabular import Arrays, Sample, Setting
from ovo_clinic.tuned import Found, Tuned
from tests.small_data import SIMULATION, flat_files

Floats = NDArray[np.float64]
LOGISTIC, BOOSTING = (Choice(name=name, budget=3) for name in ("logistic", "gradient_boosting"))


class Data:
    """A private data set, prepared."""

    def __init__(self, folder: Path, kind: str) -> None:
        config = flat_files(folder, kind)
        self.experiment = experiments.load(str(config))
        self.prepared = prepare_task(self.experiment, folder / "raw")

    def run(self, folder: Path, choice: Choice = LOGISTIC, seed: int = 0) -> Result:
        return classical.run(self.experiment.model_copy(update={"seed": seed}), choice, self.prepared, folder)


@pytest.fixture(params=["binary", "multiclass", "multilabel"])
def data(request: pytest.FixtureRequest, tmp_path: Path, home: Path) -> Data:
    return Data(tmp_path / "ward", request.param)


@pytest.fixture
def binary(tmp_path: Path, home: Path) -> Data:
    return Data(tmp_path / "ward", "binary")


def saved(folder: Path, split: str) -> tuple[NDArray[np.int64], Floats]:
    frame = pl.read_parquet(folder / "predictions.parquet").filter(pl.col("split") == split)
    return frame["row"].to_numpy(), frame.select(pl.col("^probability_.*$")).to_numpy()


def reference(target: NDArray[np.float32], probabilities: Floats) -> tuple[str, float]:
    """(the monitored metric's name, its value by scikit-learn)."""
    if target.ndim == 2:
        pairs = zip(target.T, probabilities.T, strict=True)
        return "auroc_macro", float(np.mean([sklearn.metrics.roc_auc_score(y, p) for y, p in pairs]))
    if probabilities.shape[1] == 1:
        return "auroc", float(sklearn.metrics.roc_auc_score(target, probabilities[:, 0]))
    return "mauc", float(sklearn.metrics.roc_auc_score(target, probabilities, multi_class="ovo"))


@pytest.mark.parametrize("choice", [LOGISTIC, BOOSTING], ids=lambda choice: choice.name)
def test_every_kind_of_task_is_evaluated_on_whole_splits(data: Data, choice: Choice, tmp_path: Path) -> None:
    result = data.run(tmp_path / "run", choice)
    for split in ("validation", "test"):
        rows, probabilities = saved(tmp_path / "run", split)
        assert np.array_equal(rows, data.prepared.rows(split))
        name, value = reference(data.prepared.target[rows], probabilities)
        assert result["monitor"] == name and result["metrics"][split][name] == pytest.approx(value, abs=1e-9)
    if data.prepared.task.kind == "multiclass":
        np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert result["metrics"]["test"][name] > 0.55  # severity moves the age
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    assert result["config"]["baseline"] == {"name": choice.name, "budget": 3} and "model" not in result["config"]
    files = {path.name for path in (tmp_path / "run").iterdir()} - {"lock"}
    assert files == {"config.yaml", "predictions.parquet", "result.json", *MODEL_FILES}
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "run").iterdir()} == {0o600}


@pytest.mark.parametrize("choice", [LOGISTIC, BOOSTING], ids=lambda choice: choice.name)
def test_what_is_kept_of_it_answers_as_scikit_learn_did(data: Data, choice: Choice, tmp_path: Path) -> None:
    data.run(tmp_path / "run", choice)
    kept = predictors.load(tmp_path / "run")
    found = kept.probabilities(kept.inputs(data.prepared, data.prepared.modalities))
    for split in ("validation", "test"):
        rows, probabilities = saved(tmp_path / "run", split)
        np.testing.assert_allclose(found.reshape(len(found), -1)[rows], probabilities, atol=1e-6)


def test_trees_and_weights_of_three_classes_answer_as_scikit_learn_does(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    x = random.normal(size=(300, 5)).astype(np.float32)
    y = np.digitize(x[:, 0] * x[:, 1] + 0.3 * random.normal(size=300), [-0.5, 0.5])
    for choice in (LOGISTIC, BOOSTING):
        baseline = BASELINES.build(choice.name, options=choice.options)
        sample = Sample(x[:200], y[:200])
        classifier = baseline.fit(baseline.settings[0], sample, Sample(x[200:], y[200:]), 0)
        Fitted("multiclass", 4, [classifier]).save(baseline, tmp_path / "model.safetensors")
        kept = fitted.load(baseline, "multiclass", 4, tmp_path / "model.safetensors")
        expected = np.column_stack([classifier.predict_proba(x), np.zeros(300)])
        np.testing.assert_allclose(kept.probabilities(x), expected, atol=1e-6)


class Column:
    """Ranks units by one feature."""

    def __init__(self, column: int, sign: int, classes: list[int]) -> None:
        self.column, self.sign, self.classes_ = column, sign, np.array(classes)

    def predict_proba(self, x: NDArray[np.float32]) -> Floats:
        score = 1 / (1 + np.exp(-self.sign * x[:, self.column].astype(np.float64)))
        return np.column_stack([1 - score, score])


class Columns:
    """A baseline that tries features, both ways; as anybody would add one."""

    def __init__(self, *, first: int = 0) -> None:
        self.settings: list[Setting] = [
            {"column": first, "sign": -1},
            {"column": first, "sign": 1},
            {"column": 1, "sign": 1},
        ]

    def fit(self, setting: Setting, train: Sample, validation: Sample, seed: int) -> Any:
        return Column(int(setting["column"]), int(setting["sign"]), [0, 1])

    def costs(self, fitted: Any) -> dict[str, int]:
        return {"parameters": 1, "macs_total": 2}

    def arrays(self, fitted: Any) -> Arrays:
        return {"of": np.array([fitted.column, fitted.sign])}

    def restored(self, classes: NDArray[np.int64], arrays: Arrays) -> Column:
        return Column(*arrays["of"].tolist(), classes.tolist())


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch) -> Choice:
    BASELINES.get("logistic")
    monkeypatch.setattr(BASELINES, "_entries", {**BASELINES._entries, "columns": Columns})
    return Choice(name="columns")


def test_the_best_setting_on_validation_is_chosen_and_all_are_recorded(
    binary: Data, columns: Choice, tmp_path: Path
) -> None:
    result = binary.run(tmp_path / "run", columns)
    rows = binary.prepared.rows("validation")
    age, target = binary.prepared.array("demographics").values[rows, 0], binary.prepared.target[rows]
    expected = [sklearn.metrics.roc_auc_score(target, sign * age) for sign in (-1, 1)]
    assert [tried["score"] for tried in result["tuning"]["tried"]][:2] == pytest.approx(expected)
    assert expected[1] > expected[0] and result["tuning"]["chosen"] == {"column": 0, "sign": 1}
    rows, probabilities = saved(tmp_path / "run", "test")
    order = np.argsort(binary.prepared.array("demographics").values[rows, 0], kind="stable")
    assert (np.diff(probabilities[order, 0]) >= 0).all()
    assert result["costs"] == {"parameters": 1, "macs_total": 2}


def test_a_metric_of_errors_is_made_small(binary: Data, columns: Choice, tmp_path: Path) -> None:
    training = binary.experiment.training.model_copy(update={"monitor": "brier"})
    other = replace_experiment(binary, training=training)
    tuning = classical.run(other, columns, binary.prepared, tmp_path / "run")["tuning"]
    scores = [tried["score"] for tried in tuning["tried"]]
    best = tuning["tried"][int(np.argmin(scores))]
    assert scores[0] > scores[1] and tuning["chosen"] == {"column": best["column"], "sign": best["sign"]}


def replace_experiment(data: Data, **changes: Any) -> Experiment:
    return data.experiment.model_copy(update=changes)


def test_a_metric_that_there_is_not_is_refused(binary: Data, tmp_path: Path) -> None:
    training = binary.experiment.training.model_copy(update={"monitor": "mauc"})
    with pytest.raises(UserError, match=r"training\.monitor: 'mauc' is not defined on the \d+ validation units"):
        classical.run(replace_experiment(binary, training=training), LOGISTIC, binary.prepared, tmp_path / "run")


def test_logistic_regression_minimises_the_penalised_loss() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4)).astype(np.float32)
    y = (x[:, 0] - x[:, 1] + rng.normal(size=200) > 0.3).astype(np.int64)
    sample = Sample(x, y)

    def loss(weights: Floats) -> float:
        margin = (2 * y - 1) * (x @ weights[:4] + weights[4])
        return float(0.5 * weights[:4] @ weights[:4] + 0.05 * np.logaddexp(0, -margin).sum())

    expected = minimize(loss, np.zeros(5), tol=1e-10).x
    fitted = Logistic(budget=1).fit({"C": 0.05}, sample, sample, seed=0)
    np.testing.assert_allclose(np.append(fitted.coef_, fitted.intercept_), expected, atol=2e-3)
    assert Logistic().costs(fitted) == {"parameters": 5, "macs_total": 4}


@pytest.mark.parametrize("name", BASELINES.names())
def test_as_many_different_settings_as_the_budget_says_in_any_run(name: str) -> None:
    for budget in (1, 12):
        settings = BASELINES.build(name, options={"budget": budget}).settings
        assert len({json.dumps(setting) for setting in settings}) == budget
        assert settings == BASELINES.build(name, options={"budget": budget}).settings
    with pytest.raises(UserError, match="budget: 0: input should be greater than or equal to 1"):
        BASELINES.build(name, options={"budget": 0})


def test_a_seed_gives_the_same_bits_again_and_no_seed_changes_logistic_regression(binary: Data, tmp_path: Path) -> None:
    scores: dict[str, list[Floats]] = {}
    for choice in (LOGISTIC, BOOSTING):
        for index, seed in enumerate((0, 1, 0)):
            folder = tmp_path / f"{choice.name}{index}"
            binary.run(folder, choice, seed)
            scores.setdefault(choice.name, []).append(saved(folder, "test")[1])
    assert all(np.array_equal(first, again) for first, _, again in scores.values())
    assert np.array_equal(*scores["logistic"][:2])


def with_target(data: Data, target: NDArray[np.float32]) -> Prepared:
    other = Prepared.open(data.prepared.folder)
    other.__dict__["target"] = target  # a cached property
    return other


def test_test_labels_and_unlabelled_units_change_nothing(tmp_path: Path, home: Path) -> None:
    data = Data(tmp_path / "ward", "multilabel")
    target = data.prepared.target.copy()
    target[data.prepared.rows("train")[:20], 0] = np.nan
    partly = with_target(data, target)
    flipped = np.where((data.prepared.split == "test")[:, None], 1 - target, target)
    found = []
    for index, prepared in enumerate((partly, with_target(data, flipped))):
        classical.run(data.experiment, LOGISTIC, prepared, tmp_path / f"run{index}")
        found.append(saved(tmp_path / f"run{index}", "test")[1])
    assert np.array_equal(*found)
    data.run(tmp_path / "whole")
    whole = saved(tmp_path / "whole", "test")[1]
    assert not np.array_equal(found[0][:, 0], whole[:, 0]) and np.array_equal(found[0][:, 1], whole[:, 1])


def test_a_label_with_one_class_in_training_is_predicted_as_that(tmp_path: Path, home: Path) -> None:
    data = Data(tmp_path / "ward", "multilabel")
    target = data.prepared.target.copy()
    target[data.prepared.rows("train"), 1] = 0
    result = classical.run(data.experiment, LOGISTIC, with_target(data, target), tmp_path / "run")
    probabilities = saved(tmp_path / "run", "test")[1]
    assert (probabilities[:, 1] == 0).all() and np.ptp(probabilities[:, 0]) > 0.1
    assert result["costs"]["parameters"] == result["features"] + 1


def test_a_class_that_no_training_unit_has_gets_no_probability(tmp_path: Path, home: Path) -> None:
    data = Data(tmp_path / "ward", "multiclass")
    target = data.prepared.target.copy()
    training = data.prepared.rows("train")
    target[training] = np.minimum(target[training], 1)
    for choice in (LOGISTIC, BOOSTING):
        folder = tmp_path / choice.name
        classical.run(data.experiment, choice, with_target(data, target), folder)
        probabilities = saved(folder, "test")[1]
        assert (probabilities[:, 2] == 0).all()
        np.testing.assert_allclose(probabilities.sum(axis=1), 1)


def test_baselines_have_the_budget_of_the_search_unless_they_say_otherwise(tmp_path: Path) -> None:
    found = Found(settings={}, validation=0.7, completed=4, pruned=3, failed=0, epochs=9)
    tuned = Tuned(task="simulation", split="", sampler="tpe", trials=7, monitor="auroc", models={"concat": found})
    tuned.write(tmp_path / "tuned.yaml")
    plain = experiments.load("simulation")
    searched = plain.with_compare({"tuned": str(tmp_path / "tuned.yaml")})
    choices = [Choice(name="logistic"), Choice(name="gradient_boosting", budget=4)]
    budgets = [arm.baseline.options for arm in study.baseline_arms(searched, choices) if arm.baseline]
    assert budgets == [{"budget": 7}, {"budget": 4}]
    assert [arm.baseline.options for arm in study.baseline_arms(plain, choices) if arm.baseline] == [{}, {"budget": 4}]


@pytest.mark.parametrize(
    ("baselines", "message"),
    [
        (["logistc"], "compare.baselines: classical baseline 'logistc' is not known; did you mean 'logistic'"),
        (["{name: logistic, bugdet: 3}"], "compare.baselines.bugdet: no such setting; did you mean 'budget'"),
    ],
)
def test_mistakes_show_before_anything_is_prepared(home: Path, baselines: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        verbs.compare("simulation", [f"compare.baselines=[{', '.join(baselines)}]"])
    assert message in str(caught.value) and not (home / "cache").exists()


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> verbs.Study:
    chosen = "compare.baselines=[{name: logistic, budget: 2}, {name: gradient_boosting, budget: 2}]"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVO_CLINIC_HOME", str(tmp_path_factory.mktemp("compared") / "home"))
        return verbs.compare("simulation", [*SIMULATION, chosen], fusion=["concat"], seeds=2, workers=1)


def test_baselines_are_rows_of_the_table_with_intervals_and_tests(compared: verbs.Study) -> None:
    rows = compared.table.rows.set_index("model")
    labels = ["concat", "logistic(budget=2)", "gradient_boosting(budget=2)"]
    assert list(rows.index) == labels and list(rows["kind"]) == ["head", "baseline", "baseline"]
    assert rows[["auroc_mean", "auroc_low", "auroc_high"]].notna().all().all()
    assert rows.loc[labels[1], "auroc_sd"] == 0 and np.isnan(rows.loc[labels[2], "parameters"])
    assert set(compared.table.p_values["model"]) == set(labels) == set(compared.comparison.contenders)
    assert compared.comparison.heads == ["concat"]
    notes = [note for note in compared.table.notes if note.startswith("logistic")]
    assert notes == [
        "logistic(budget=2): every seed takes the best of 2 settings on the validation units; the heads have one "
        "setting, as they were not tuned (--tuned)"
    ]
    text = report.printable(compared.table, ["no", "yes"]).set_index("model")
    assert text.loc[labels[2], "parameters"] == text.loc[labels[2], "MACs - concat"] == ""
    assert "Classical baselines" in report.caption(compared.comparison, compared.table)


def test_baselines_are_in_the_store_with_what_was_tried(compared: verbs.Study) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=compared.tracking_uri)
    experiment = client.get_experiment_by_name("simulation")
    assert experiment is not None
    found = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    run = found["gradient_boosting(budget=2) seed 1"]
    result = compared.comparison.results["gradient_boosting(budget=2)"][1]
    assert run.data.params["settings_tried"] == "2" and run.data.params["baseline.name"] == "gradient_boosting"
    assert run.data.params["chosen.max_leaf_nodes"] == str(result["tuning"]["chosen"]["max_leaf_nodes"])
    assert run.data.metrics["best_test_auroc"] == result["metrics"]["test"]["auroc"]
    tried = client.get_metric_history(run.info.run_id, "tried_validation_auroc")
    assert [point.value for point in tried] == [setting["score"] for setting in result["tuning"]["tried"]]
    summary = found["logistic(budget=2)"]
    assert summary.data.tags["kind"] == "baseline" and "auroc_mean" in summary.data.metrics


def test_settings_of_networks_do_not_repeat_a_baseline() -> None:
    plain = experiments.load("simulation")
    other = experiments.load("simulation", ["model.dim=8", "training.learning_rate=0.1"])
    assert plain.resolved_baseline(LOGISTIC) == other.resolved_baseline(LOGISTIC)
    assert plain.resolved_baseline(LOGISTIC) != plain.resolved_baseline(BOOSTING)
    assert plain.resolved_baseline(LOGISTIC) != experiments.load("simulation", ["seed=1"]).resolved_baseline(LOGISTIC)
