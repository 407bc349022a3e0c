"""Searches: the test split unread, the same budget for all, the same result whatever happens on the way."""

import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
import polars as pl
import pytest
import yaml
from optuna.trial import TrialState
from pandas.testing import assert_frame_equal

from ovo_clinic import experiment as experiments
from ovo_clinic import study, training, tune
from ovo_clinic.errors import MachineError, UserError
from ovo_clinic.experiment import Experiment
from ovo_clinic.prepare import prepare_task
from ovo_clinic.prepared import Prepared
from ovo_clinic.registry import Choice
from ovo_clinic.scheduling import LocalProcesses
from ovo_clinic.tune import Tuning
from ovo_clinic.tuned import Tuned
from tests.small_data import SIMULATION
from tests.small_jobs import InThisProcess

HEADS = [Choice(name="concat"), Choice(name="ovo")]
SPACE = (
    "tune.space={training.learning_rate: [1e-2, 1e-3, 1e-7], training.batch_size: [32, 64], "
    "model.fusion.heads: [1, 2, 4], model.encoders.*.layers: [1, 2]}"
)
TRIALS = 8


def experiment(*overrides: str) -> Experiment:
    return experiments.load(
        "simulation", [*SIMULATION, "training.epochs=4", SPACE, f"tune.trials={TRIALS}", *overrides]
    )


def search(home: Path, *overrides: str, **options: Any) -> Tuning:
    """A search in a home of its own, without worker processes unless asked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVO_CLINIC_HOME", str(home))
        prepared = prepare_task(experiment(), None)
        return tune.tune(experiment(*overrides), prepared, HEADS, **{"scheduler": InThisProcess(), **options})


def outcome(tuning: Tuning) -> pd.DataFrame:
    return tuning.trials.drop(columns="seconds")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    return search(tmp_path_factory.mktemp("tune") / "home")


def poison(folder: Path) -> None:
    """Makes every feature of the test units NaN and takes their labels away."""
    prepared = Prepared.open(folder)
    test = prepared.split == "test"
    assert test.sum() == 20
    for name in prepared.modalities:
        values = np.load(folder / f"{name}.npy")
        values[test] = np.nan
        np.save(folder / f"{name}.npy", values)
    label = prepared.manifest["target"][0]
    cohort = prepared.cohort.with_columns(pl.when(pl.Series(test)).then(None).otherwise(label).alias(label))
    cohort.write_parquet(folder / "cohort.parquet")


def test_the_test_split_is_never_read(finished: Tuning, tmp_path: Path) -> None:
    cache = tmp_path / "home" / "cache"
    shutil.copytree(finished.prepared.folder.parents[1], cache)
    poison(cache / finished.prepared.folder.relative_to(finished.prepared.folder.parents[1]))
    again = search(tmp_path / "home")
    assert np.isnan(again.prepared.target).sum() == 20 and again.prepared.rows("test").size == 0
    assert_frame_equal(outcome(again), outcome(finished), check_exact=True)
    assert again.tuned == finished.tuned


def test_workers_and_interruptions_change_nothing(finished: Tuning, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "home", scheduler=LocalProcesses(2), on_progress=stop)
    again = search(tmp_path / "home", scheduler=LocalProcesses(2))
    assert_frame_equal(outcome(again), outcome(finished), check_exact=True)
    assert again.tuned == finished.tuned


def test_a_finished_search_trains_nothing(finished: Tuning, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "validate", lambda *arguments: pytest.fail("trained again"))
    assert_frame_equal(search(finished.folder.parents[1]).trials, finished.trials)


def test_what_the_machine_lacks_is_no_result_of_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: Tuning
) -> None:
    def without_gpu(*arguments: object) -> None:
        raise MachineError("training: accelerator=gpu cannot be had here")

    with monkeypatch.context() as patch:
        patch.setattr(training, "validate", without_gpu)
        with pytest.raises(MachineError, match="cannot be had here"):
            search(tmp_path / "home")
    assert_frame_equal(outcome(search(tmp_path / "home")), outcome(finished), check_exact=True)


def test_every_model_gets_the_same_budget_and_what_it_has_options_for(finished: Tuning) -> None:
    trials = finished.trials
    assert trials.groupby("model")["number"].apply(list).to_dict() == {
        name: [*range(TRIALS)] for name in ("concat", "ovo")
    }
    assert trials[trials["model"] == "concat"]["model.fusion.heads"].isna().all()
    assert set(trials[trials["model"] == "ovo"]["model.fusion.heads"]) <= {1, 2, 4}
    for label, found in finished.tuned.models.items():
        own = trials[trials["model"] == label]
        assert found.completed + found.pruned + found.failed == finished.tuned.trials == TRIALS
        assert found.epochs == own["epochs"].sum()
        complete = own[own["state"] == "complete"]
        best = complete.loc[complete["validation"].idxmax()]
        assert found.validation == best["validation"] and found.settings == {key: best[key] for key in found.settings}


def test_trials_are_pruned_below_the_median_of_those_before(finished: Tuning) -> None:
    """From the sixth trial and third epoch on: the best epoch so far below the complete trials' median at this one."""
    storage = f"sqlite:///{finished.folder.parents[1] / 'tuning.db'}"
    pruned = 0
    for summary in optuna.get_all_study_summaries(storage):
        trials = optuna.load_study(study_name=summary.study_name, storage=storage).trials
        for number, trial in enumerate(trials):
            before = [other for other in trials[:number] if other.state == TrialState.COMPLETE]
            expected = False
            for epoch in range(2, max(trial.intermediate_values) + 1) if len(before) >= 5 else ():
                best = max(value for step, value in trial.intermediate_values.items() if step <= epoch)
                there = [other.intermediate_values[epoch] for other in before if epoch in other.intermediate_values]
                expected = bool(there) and best < np.median(there)
                assert not expected or epoch == max(trial.intermediate_values)
            assert (trial.state == TrialState.PRUNED) == expected
            pruned += expected
    assert pruned == (finished.trials["state"] == "pruned").sum() > 0


def test_the_storage_is_the_owners_alone(finished: Tuning) -> None:
    assert stat.S_IMODE((finished.folder.parents[1] / "tuning.db").stat().st_mode) == 0o600


def test_compare_takes_the_settings_of_each_head(finished: Tuning) -> None:
    settings = experiment().with_compare({"tuned": finished.file})
    for arm in study.arms(settings, finished.prepared, HEADS, unimodal=False):
        chosen = finished.tuned.models[arm.label].settings
        assert arm.experiment.training.learning_rate == chosen["training.learning_rate"]
        assert arm.experiment.training.batch_size == chosen["training.batch_size"]
        assert arm.experiment.model.encoders["default"].options["layers"] == chosen["model.encoders.*.layers"]
        assert arm.experiment.model.fusion.options.get("heads") == chosen.get("model.fusion.heads")
    assert Tuned.read(finished.file) == finished.tuned


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values["models"].pop("ovo"), "--tuned: 'ovo' was not tuned"),
        (
            lambda values: values.update(split="0" * 64),
            "--tuned: the settings were found for task 'simulation' on another",
        ),
        (lambda values: values.update(trils=3), "trils: no such setting"),
    ],
)
def test_settings_that_do_not_belong_here_are_refused(
    finished: Tuning, tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    values = yaml.safe_load(finished.file.read_text())
    change(values)
    file = tmp_path / "tuned.yaml"
    file.write_text(yaml.safe_dump(values))
    with pytest.raises(UserError, match="^[^\n]*$") as caught:
        study.arms(experiment().with_compare({"tuned": file}), finished.prepared, HEADS, unimodal=False)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["tune.space={training.lerning_rate: [1]}"],
            "tune.space.training.lerning_rate: 1: training.lerning_rate: no such",
        ),
        (["tune.space={model.fusion.heds: [1]}"], "tune.space.model.fusion.heds: none of concat, ovo has this setting"),
        (
            ["tune.space={model.fusion.heads: [3]}"],
            "tune.space.model.fusion.heads: 3: compare.fusion: ovo: heads: 3 does not",
        ),
        (["tune.space={model.encoders.*.layers: [9]}"], "tune.space.model.encoders.*.layers: 9: "),
        (["tune.space={data.samples: [200]}"], "only settings of `model` and `training` can be tuned"),
        (["tune.space={model.fusion: [ovo]}"], "tune.space.model.fusion: cannot be tuned"),
        (["tune.space={training.dropout: {low: 1, high: 0}}"], "low should be below high"),
        (
            ["tune.space={training.learning_rate: {low: 1e-4, high: 1e-2, log: true}}", "tune.sampler=grid"],
            "--sampler grid needs values, not a range",
        ),
    ],
)
def test_mistakes_in_the_space_show_before_any_training(tmp_path: Path, overrides: list[str], message: str) -> None:
    def untouched(jobs: object, done: object) -> None:
        pytest.fail("a trial was started")

    scheduler = InThisProcess()
    scheduler.run = untouched  # type: ignore[method-assign]
    with pytest.raises(UserError, match="^[^\n]*$") as caught:
        # Spaces are merged; only the given keys count here.
        search(tmp_path / "home", "tune.space=null", *overrides, scheduler=scheduler)
    assert message in str(caught.value)


def test_the_default_space_is_for_heads_of_any_kind_and_any_seed(tmp_path: Path) -> None:
    """A date as seed; heads are searched by nobody, as concat has none."""
    given = ["seed=20261130", "tune.trials=2", "training.epochs=1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVO_CLINIC_HOME", str(tmp_path))
        settings = experiments.load("simulation", [*SIMULATION, *given])
        found = tune.tune(settings, prepare_task(settings, None), HEADS[:1], scheduler=InThisProcess())
    assert "model.fusion.heads" not in found.trials and len(found.trials) == 2


def test_a_trial_of_other_settings_does_not_answer_for_one_of_the_same_number(tmp_path: Path) -> None:
    few = ("tune.trials=2", "tune.space=null", "tune.space={training.learning_rate: [1e-2, 1e-3]}", "tune.sampler=grid")
    first = search(tmp_path / "home", *few)
    (tmp_path / "home" / "tuning.db").unlink()
    folders = sorted((tmp_path / "home" / "trials").glob("*/*"))
    assert len(folders) == 4
    for folder in folders:  # another order of the same settings
        number, _, settings = folder.name.partition("-")
        folder.rename(folder.with_name(f"{1 - int(number)}-{settings}"))
    assert_frame_equal(outcome(search(tmp_path / "home", *few)), outcome(first), check_exact=True)


def test_two_labels_of_one_model_are_two_searches(tmp_path: Path) -> None:
    twice = [Choice(name="concat"), Choice(name="concat", tokens=4)]  # the default
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVO_CLINIC_HOME", str(tmp_path))
        space = ("tune.space=null", "tune.space={training.learning_rate: [1e-2, 1e-3]}")
        settings = experiment(*space, "tune.trials=2", "training.epochs=1")
        found = tune.tune(settings, prepare_task(settings, None), twice, scheduler=LocalProcesses(1))
    assert found.trials.groupby("model")["number"].apply(list).to_dict() == {choice.label: [0, 1] for choice in twice}


def test_a_trial_takes_one_device(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="^tune: trains each trial on one device; leave out training.devices [^\n]*$"):
        search(tmp_path / "home", "training.devices=2")


def test_a_grid_has_every_combination_once(tmp_path: Path) -> None:
    space = "tune.space={training.learning_rate: [1e-2, 1e-3], model.fusion.heads: [1, 2]}"
    found = search(tmp_path / "home", "tune.space=null", space, "tune.sampler=grid", "training.epochs=1")
    trials = found.trials.groupby("model")
    assert sorted(trials.get_group("concat")["training.learning_rate"]) == [1e-3, 1e-2]
    columns = ["training.learning_rate", "model.fusion.heads"]
    assert set(map(tuple, trials.get_group("ovo")[columns].to_numpy())) == {(1e-2, 1), (1e-2, 2), (1e-3, 1), (1e-3, 2)}
    assert len(trials.get_group("ovo")) == 4


def test_trials_that_cannot_be_trained_count_and_lose(tmp_path: Path) -> None:
    space = "tune.space={training.learning_rate: [1e30, 1e-3]}"
    overrides = ("tune.space=null", space, "tune.sampler=grid", "training.gradient_clip=1e30")
    found = search(tmp_path / "home", *overrides)
    for model in found.tuned.models.values():
        assert (model.completed, model.failed) == (1, 1) and model.settings == {"training.learning_rate": 1e-3}
    failed = found.trials[found.trials["state"] == "failed"]
    assert failed["reason"].str.contains("training diverged").all()


def test_a_run_killed_after_its_last_epoch_trains_no_further(
    finished: Tuning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = experiment("training.learning_rate=1e-7", "training.patience=1", "training.epochs=30")
    whole = training.train(settings, finished.prepared, tmp_path / "whole")
    assert len(whole["history"]) < 30
    with monkeypatch.context() as patch:
        patch.setattr(training, "evaluate", lambda *arguments, **options: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            training.train(settings, finished.prepared, tmp_path / "killed")
    resumed = training.train(settings, finished.prepared, tmp_path / "killed")
    assert resumed["history"] == whole["history"] and resumed["metrics"] == whole["metrics"]


@pytest.mark.slow
def test_a_search_lives_in_postgresql(finished: Tuning, tmp_path: Path, database: str) -> None:
    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "home", scheduler=LocalProcesses(2), storage=database, on_progress=stop)
    assert not (tmp_path / "home" / "tuning.db").exists()
    assert 0 < sum(summary.n_trials for summary in optuna.get_all_study_summaries(database)) < 2 * TRIALS
    again = search(tmp_path / "home", scheduler=LocalProcesses(2), storage=database)
    assert_frame_equal(outcome(again), outcome(finished), check_exact=True)
    assert again.tuned == finished.tuned
    assert sum(summary.n_trials for summary in optuna.get_all_study_summaries(database)) == 2 * TRIALS


@pytest.mark.parametrize("address", ["me:secret@127.0.0.1:9/x", "127.0.0.1:9/x?user=me&password=secret"])
def test_a_storage_that_cannot_be_opened_is_named_without_its_password(address: str) -> None:
    with pytest.raises(
        UserError, match=r"^--storage: postgresql\+psycopg://127.0.0.1:9/x cannot be opened: "
    ) as caught:
        tune.open_storage(f"postgresql+psycopg://{address}")
    assert "secret" not in str(caught.value)
