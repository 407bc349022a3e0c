"""Training, resuming and comparing on a small simulated data set."""

import json
import math
import stat
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import sklearn.metrics
import torch
from lightning.pytorch.callbacks import Callback

from ovo_clinic import experiment as experiments
from ovo_clinic import training
from ovo_clinic.data import DataModule
from ovo_clinic.errors import UserError
from ovo_clinic.experiment import Experiment
from ovo_clinic.prepare import Prepared, prepare_task

SMALL = ("data.samples=300", "data.modalities=3", "model.dim=16", "training.batch_size=64", "training.epochs=4")


def experiment(*overrides: str) -> Experiment:
    return experiments.load("simulation", [*SMALL, *overrides])


@pytest.fixture
def prepared(home: Path) -> Prepared:
    return prepare_task(experiment(), None)


def train(prepared: Prepared, folder: Path, *overrides: str, **options: Any) -> dict[str, Any]:
    return training.train(experiment(*overrides), prepared, folder, **options)


def test_the_same_seed_gives_bit_identical_metrics_and_another_does_not(prepared: Prepared, tmp_path: Path) -> None:
    first = train(prepared, tmp_path / "a")
    assert train(prepared, tmp_path / "b")["metrics"] == first["metrics"]
    assert json.loads((tmp_path / "a" / "result.json").read_text())["history"] == first["history"]
    assert train(prepared, tmp_path / "c", "seed=1")["metrics"] != first["metrics"]


def test_metrics_are_those_of_the_saved_predictions_over_the_whole_split(prepared: Prepared, tmp_path: Path) -> None:
    result = train(prepared, tmp_path / "run")
    rows = pl.read_parquet(tmp_path / "run" / "predictions.parquet")
    cohort = prepared.cohort.select("unit_id", pl.col(prepared.manifest["target"][0]).alias("label"))
    for split in ("validation", "test"):
        part = rows.filter(pl.col("split") == split).join(cohort, on="unit_id")
        assert part.height == (prepared.split == split).sum()
        expected = sklearn.metrics.roc_auc_score(part["label"], part["probability_0"])
        assert result["metrics"][split]["auroc"] == pytest.approx(expected, abs=1e-12)


def test_the_best_epoch_is_restored_and_training_stops_after_patience(prepared: Prepared, tmp_path: Path) -> None:
    settings = ("training.epochs=40", "training.patience=2", "training.learning_rate=0.01")
    result = train(prepared, tmp_path / "run", *settings)
    scores = [epoch["validation_auroc"] for epoch in result["history"]]
    best = int(np.argmax(scores))
    assert result["best_epoch"] == best
    assert len(scores) in (best + 3, 40)
    assert result["metrics"]["validation"]["auroc"] == pytest.approx(scores[best], abs=1e-9)


class _StopAfter(Callback):
    """Ends the process's work at the end of an epoch, as a killed process would."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        if trainer.current_epoch == self._epoch:
            raise KeyboardInterrupt


def test_an_interrupted_run_resumes_and_equals_an_undisturbed_one(prepared: Prepared, tmp_path: Path) -> None:
    undisturbed = train(prepared, tmp_path / "a")
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        train(prepared, tmp_path / "b", callbacks=[_StopAfter(2)])
    assert not (tmp_path / "b" / "result.json").exists()
    assert (tmp_path / "b" / "checkpoints" / "last.ckpt").is_file()
    resumed = train(prepared, tmp_path / "b")
    assert resumed["metrics"] == undisturbed["metrics"]
    assert resumed["history"] == undisturbed["history"]


@pytest.mark.parametrize("damaged", ["last.ckpt", "best.ckpt"])
def test_a_damaged_checkpoint_is_as_good_as_none(prepared: Prepared, tmp_path: Path, damaged: str) -> None:
    undisturbed = train(prepared, tmp_path / "a")
    with pytest.raises(KeyboardInterrupt):
        train(prepared, tmp_path / "b", callbacks=[_StopAfter(2)])
    checkpoint = tmp_path / "b" / "checkpoints" / damaged
    checkpoint.write_bytes(checkpoint.read_bytes()[:2000])
    again = train(prepared, tmp_path / "b")
    assert (again["metrics"], again["history"]) == (undisturbed["metrics"], undisturbed["history"])


def test_a_finished_run_is_not_repeated(prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = train(prepared, tmp_path / "run")
    monkeypatch.setattr(training, "fit", lambda *arguments: pytest.fail("trained again"))
    assert train(prepared, tmp_path / "run") == first


def test_the_saved_model_gives_the_saved_predictions(prepared: Prepared, tmp_path: Path) -> None:
    train(prepared, tmp_path / "run", "model.fusion=self_attention")
    model = training.load_model(tmp_path / "run")
    data = DataModule(prepared, None, batch_size=64, seed=0)
    with torch.no_grad():
        found = torch.cat([model(batch)[:, 0].sigmoid() for batch in data.loader("test")])
    saved = pl.read_parquet(tmp_path / "run" / "predictions.parquet").filter(pl.col("split") == "test")
    np.testing.assert_allclose(found.numpy(), saved["probability_0"].to_numpy(), rtol=0, atol=1e-6)


def test_patient_level_files_are_private(prepared: Prepared, tmp_path: Path) -> None:
    train(prepared, tmp_path / "run")
    for path in (tmp_path / "run").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path.name


@pytest.mark.parametrize("imbalance", ["pos_weight", "balanced_sampler"])
def test_imbalance_options_warn_that_they_shift_calibration(prepared: Prepared, tmp_path: Path, imbalance: str) -> None:
    result = train(prepared, tmp_path / "run", f"training.imbalance={imbalance}")
    assert any("calibration" in warning for warning in result["warnings"])
    assert math.isfinite(result["metrics"]["test"]["auroc"])


def test_modality_dropout_trains(prepared: Prepared, tmp_path: Path) -> None:
    plain = train(prepared, tmp_path / "a")
    dropped = train(prepared, tmp_path / "b", "model.modality_dropout=0.5")
    assert dropped["history"] != plain["history"]
    assert math.isfinite(dropped["metrics"]["test"]["auroc"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.fusion=self_attention_reference", "model.allow_unsafe=true"),
        ("model.fusion.tokens=1", "tokens: ovo needs at least 2"),
        ("model.fusion.heads=5", "heads: 5 does not divide"),
        ("model.encoders.modality_001=mlp", "did you mean 'modality_01'"),
        ("training.monitor=f1", "valid: auroc"),
        ("training.learning_rate=1e12", "lower training.learning_rate"),
        ("modalities=[nothing]", "nothing: not in the data set"),
    ],
)
def test_settings_that_do_not_fit_are_one_clear_line(
    prepared: Prepared, tmp_path: Path, override: str, message: str
) -> None:
    with pytest.raises(UserError, match="^[^\n]*$") as caught:
        train(prepared, tmp_path / "run", override)
    assert message in str(caught.value)
    assert not (tmp_path / "run" / "result.json").exists()


def test_an_unsafe_head_runs_when_asked_and_is_marked(prepared: Prepared, tmp_path: Path) -> None:
    result = train(prepared, tmp_path / "run", "model.fusion=cross_attention_reference", "model.allow_unsafe=true")
    assert "patient" in result["unsafe"]


def test_the_epoch_of_an_unsafe_head_is_chosen_in_the_batches_it_is_judged_in(
    prepared: Prepared, tmp_path: Path
) -> None:
    unsafe = ("model.fusion=self_attention_reference", "model.allow_unsafe=true", "training.batch_size=4")
    result = train(prepared, tmp_path / "run", *unsafe)
    best = result["history"][result["best_epoch"]]
    judged = result["metrics"]["validation"]
    assert judged["auroc"] == pytest.approx(best["validation_auroc"], abs=1e-9)
    assert judged["log_loss"] == pytest.approx(best["validation_log_loss"], abs=1e-6)


@pytest.mark.slow
def test_two_processes_train_one_model_together(prepared: Prepared, tmp_path: Path) -> None:
    settings = ("training.accelerator=cpu", "training.devices=2", "model.fusion=self_attention")
    first = train(prepared, tmp_path / "a", *settings)
    again = train(prepared, tmp_path / "b", *settings)
    assert first["metrics"] == again["metrics"]
    assert len(first["history"]) == 4
    assert 0 <= first["metrics"]["test"]["auroc"] <= 1


def test_an_accelerator_that_is_not_there_is_one_clear_line(prepared: Prepared, tmp_path: Path) -> None:
    for override in ("training.accelerator=abacus", "training.devices=-3"):
        with pytest.raises(UserError, match="^training: [^\n]* cannot be had here: [^\n]*$"):
            train(prepared, tmp_path / "run", override)


@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "3-bit"])
def test_a_precision_in_which_batches_do_not_come_is_refused(precision: str) -> None:
    with pytest.raises(UserError, match="training.precision"):
        experiment(f"training.precision={precision}")


def test_a_layer_that_the_cpu_cannot_compute_in_a_precision_is_one_clear_line(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise RuntimeError("could not create a primitive descriptor for the LSTM forward propagation primitive.")

    monkeypatch.setattr(training.FusionModule, "training_step", refuse)
    with pytest.raises(UserError, match="^training.precision=bf16-mixed: this machine's CPU cannot [^\n]*$"):
        train(prepared, tmp_path / "run", "training.precision=bf16-mixed")
