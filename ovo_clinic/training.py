"""Trains one model and evaluates it on whole splits: the Lightning module, the trainer and the run's folder.

A run folder holds `config.yaml`, `preprocessing.json`, `model.safetensors` (the best epoch's weights), `result.json`
and `predictions.parquet` (patient-level: readable by its owner only, never uploaded). A folder with `result.json` is
finished; one with a checkpoint resumes at the epoch it had reached.
"""

import logging
import shutil
import signal
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import polars as pl
import torch
import yaml
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ovo_clinic import condition, flops, preprocessing, provenance, runs
from ovo_clinic.data import DataModule, model_inputs
from ovo_clinic.errors import UserError
from ovo_clinic.experiment import Experiment, TrainingConfig
from ovo_clinic.locks import locked
from ovo_clinic.model import FusionModel, refuse_unsafe
from ovo_clinic.prepare import Prepared
from ovo_clinic.registry import suggest
from ovo_clinic.runs import Result
from ovo_clinic.tasks import positive_weight, task_for
from ovo_clinic.types import Batch, Modality, Task

logger = logging.getLogger(__name__)
_TASK_FIELDS = ("dataset", "task", "title", "kind", "classes", "leaky", "options", "split")
CONDITION_UNITS = 64
"""Validation units, the first ones, on which condition numbers are measured."""
CALIBRATION_WARNING = "training.imbalance={} makes probabilities too high for the rarer class: calibration is shifted"


class FusionModule(lightning.LightningModule):
    """A fusion model with its loss, optimiser and whole-split validation metrics.

    Args:
        model: from `build_model`.
        task: loss and metrics.
        experiment: learning rate, weight decay, seed.
    """

    def __init__(self, model: nn.Module, task: Task, experiment: Experiment) -> None:
        super().__init__()
        self.model, self.history = model, list[dict[str, float]]()
        self._task, self._experiment = task, experiment
        self._losses: list[Tensor] = []
        self._outputs: list[tuple[Tensor, Tensor]] = []

    def on_fit_start(self) -> None:
        """Sets the threads of this process, which is a new one where there are several devices."""
        torch.set_num_threads(self._experiment.training.threads)

    def on_train_epoch_start(self) -> None:
        """Seeds dropout and order by seed and epoch, so that a resumed run repeats one that was not interrupted."""
        torch.manual_seed(self._experiment.seed * 100_003 + self.current_epoch)

    def training_step(self, batch: Batch, index: int) -> Tensor:
        """Mean loss of a batch."""
        loss = self._task.loss(self.model(batch), batch.target)
        self._losses.append(loss.detach())
        return loss

    def validation_step(self, batch: Batch, index: int) -> None:
        """Keeps the logits: metrics are of the whole split."""
        self._outputs.append((self.model(batch).float(), batch.target))

    def on_validation_epoch_end(self) -> None:
        """Metrics of the whole validation split, logged once an epoch."""
        logits = torch.cat([logits for logits, _ in self._outputs])
        target = torch.cat([target for _, target in self._outputs])
        train_loss = torch.stack(self._losses).mean().item() if self._losses else float("nan")
        self._outputs, self._losses = [], []
        if not torch.isfinite(logits).all():
            raise UserError(
                f"training diverged in epoch {self.current_epoch} (seed {self._experiment.seed}): "
                "lower training.learning_rate"
            )
        metrics = self._task.metrics(self._task.predict(logits).cpu().numpy(), target.cpu().numpy())
        loss = self._task.loss(logits, target).item()
        values = {"train_loss": train_loss, "validation_loss": loss}
        values |= {f"validation_{name}": value for name, value in metrics.items()}
        self.history.append({"epoch": float(self.current_epoch), **values})
        self.log_dict(values)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps the history with the weights."""
        checkpoint["history"] = list(self.history)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Takes the history up again."""
        self.history = list(checkpoint["history"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        training = self._experiment.training
        return torch.optim.AdamW(self.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay)


class ConditionNumbers(Callback):
    """Adds `condition.condition_metrics` of fixed units to the history, once an epoch.

    Args:
        batch: the units.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Measures; the model is in evaluation mode still, and the epoch in the history already."""
        assert isinstance(pl_module, FusionModule)
        batch = self._batch.to(pl_module.device)
        pl_module.history[-1] |= condition.condition_metrics(pl_module.model, batch)


def build_model(experiment: Experiment, modalities: Sequence[Modality], outputs: int) -> FusionModel:
    """The model of an experiment, its weights drawn from the experiment's seed.

    Raises:
        UserError: an unknown encoder, head or option; a combination that a head excludes; an unsafe head not allowed.
    """
    settings = experiment.model
    used = {modality.name for modality in modalities} | {"default"}
    torch.manual_seed(experiment.seed)
    model = FusionModel(
        modalities,
        {name: (choice.name, choice.options) for name, choice in settings.encoders.items() if name in used},
        (settings.fusion.name, settings.fusion.options),
        dim=settings.dim,
        outputs=outputs,
        output=settings.output,
        dropout=settings.dropout,
        modality_dropout=settings.modality_dropout,
    )
    refuse_unsafe(model.fusion, settings)
    return model


def train(experiment: Experiment, prepared: Prepared, folder: Path, callbacks: Sequence[Callback] = ()) -> Result:
    """Trains, restores the best epoch, evaluates on the validation and test splits and writes the run's folder.

    Args:
        experiment: resolved settings, with the seed.
        prepared: the data.
        folder: of the run; finished runs are returned as they are, interrupted ones resumed. A run that another
            process is training is waited for.
        callbacks: further Lightning callbacks.

    Returns:
        The content of `result.json`.

    Raises:
        UserError: settings that do not fit the data, or a training that diverged.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(folder / "lock"):
        if not runs.is_finished(folder):
            _train(experiment, prepared, folder, callbacks)
    return runs.read_result(folder)


def _train(experiment: Experiment, prepared: Prepared, folder: Path, callbacks: Sequence[Callback]) -> None:
    started = time.perf_counter()
    lightning.seed_everything(experiment.seed, workers=True, verbose=False)
    settings = experiment.training
    torch.set_num_threads(settings.threads)
    data = DataModule(
        prepared,
        experiment.modalities,
        batch_size=settings.batch_size,
        seed=experiment.seed,
        balanced=settings.imbalance == "balanced_sampler",
        length_buckets=settings.length_buckets,
        arrays=model_inputs(prepared, prepared.chosen(experiment.modalities), experiment.model),
    )
    task = _task(experiment, prepared, data)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        model = build_model(experiment, data.modalities, task.outputs)
    notes = [str(warning.message) for warning in caught]
    if settings.imbalance != "none":
        notes.append(CALIBRATION_WARNING.format(settings.imbalance))
    if settings.condition_numbers:
        rows = data.split_rows["validation"][:CONDITION_UNITS]
        callbacks = [*callbacks, ConditionNumbers(data.dataset[rows])]
    module, best_epoch = _fit(experiment, FusionModule(model, task, experiment), data, folder, callbacks)
    metrics, predictions = _evaluate(module.model, task, data, exact_batches=model.fusion.unsafe is not None)
    result = {
        "config": experiment.resolved(),
        "task": {key: prepared.manifest[key] for key in _TASK_FIELDS},
        "modalities": [asdict(modality) for modality in data.modalities],
        "outputs": task.outputs,
        "seed": experiment.seed,
        "unsafe": model.fusion.unsafe,
        "warnings": notes,
        "monitor": settings.monitor or task.monitor,
        "best_epoch": best_epoch,
        "history": module.history,
        "metrics": metrics,
        "costs": flops.model_costs(model, data.dataset[data.split_rows["train"][: flops.REFERENCE_BATCH]]),
        "digests": {
            "config": experiment.digest(),
            "data": prepared.manifest["key"],
            **prepared.manifest["digests"],
            "code": provenance.code_digest(),
        },
        "versions": provenance.versions(),
        "git_commit": provenance.git_commit(),
        "seconds": time.perf_counter() - started,
    }
    _write(folder, experiment, data, model, predictions)
    runs.write_result(folder, result)


def load_model(folder: Path) -> FusionModel:
    """The trained model of a finished run, in evaluation mode."""
    result = runs.read_result(folder)
    modalities = [Modality(**modality) for modality in result["modalities"]]
    model = build_model(Experiment.model_validate(result["config"]), modalities, result["outputs"])
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval()


def _task(experiment: Experiment, prepared: Prepared, data: DataModule) -> Task:
    """The task, after checking the settings against the data: the monitored metric must be defined."""
    specification = prepared.task
    settings = experiment.training
    if settings.imbalance == "balanced_sampler" and specification.kind == "multilabel":
        raise UserError("training.imbalance: balanced_sampler needs one label a unit; use pos_weight or none")
    unknown = sorted(set(experiment.model.encoders) - {*prepared.modalities, "default"})
    if unknown:
        raise UserError(f"model.encoders: no modality is named {unknown[0]}{suggest(unknown[0], prepared.modalities)}")
    target = torch.from_numpy(prepared.target[data.split_rows["train"]])
    weight = positive_weight(target) if settings.imbalance == "pos_weight" else None
    task = task_for(specification, weight)
    monitor = settings.monitor or task.monitor
    for split in ("validation", "test"):
        held_out = prepared.target[data.split_rows[split]]
        shape = (len(held_out), task.outputs) if task.outputs > 1 else (len(held_out),)
        scores = task.metrics(np.full(shape, 1 / max(task.outputs, 2)), held_out)
        if monitor not in scores:
            raise UserError(f"training.monitor: '{monitor}' is not a metric of this task; valid: {', '.join(scores)}")
        if np.isnan(scores[monitor]):
            raise UserError(
                f"split: '{monitor}' is not defined on the {len(held_out)} {split} units (one class only); "
                f"use more data or a larger split.{split}"
            )
    return task


def _fit(
    experiment: Experiment, module: FusionModule, data: DataModule, folder: Path, callbacks: Sequence[Callback]
) -> tuple[FusionModule, int]:
    """Fits with early stopping and puts the best epoch's weights back; (module, that epoch)."""
    settings = experiment.training
    monitor = f"validation_{settings.monitor or module._task.monitor}"
    mode = "min" if monitor.endswith(("loss", "brier")) else "max"
    checkpoints = folder / "checkpoints"
    # At the end of the epoch: a checkpoint written during validation would resume inside the epoch.
    keeper = partial(ModelCheckpoint, checkpoints, enable_version_counter=False, save_on_train_epoch_end=True)
    keepers = [keeper("best", monitor=monitor, mode=mode), keeper("last")]
    # The notice on which accelerator is used would come once per run; the result says it.
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        stopper = EarlyStopping(monitor, patience=settings.patience, mode=mode)
        trainer = _trainer(settings, [stopper, *keepers, *callbacks], folder)
        _fit_or_resume(trainer, module, data, checkpoints / "last.ckpt")
    # From disk, as with several devices the epochs passed in other processes.
    best, last = (
        torch.load(checkpoints / f"{name}.ckpt", map_location="cpu", weights_only=True) for name in ("best", "last")
    )
    module.load_state_dict(best["state_dict"])
    module.history = list(last["history"])
    return module, int(best["epoch"])


def _trainer(settings: TrainingConfig, callbacks: list[Callback], folder: Path) -> lightning.Trainer:
    """The trainer.

    Raises:
        UserError: an accelerator, devices or a precision that this machine does not have.
    """
    try:
        return lightning.Trainer(
            max_epochs=settings.epochs,
            accelerator=settings.accelerator,
            devices=settings.devices,
            # Processes of its own for several devices: the others would run the user's whole command a second time.
            strategy="auto" if settings.devices in (1, "1") else "ddp_spawn",
            precision=settings.precision,  # type: ignore[arg-type]
            gradient_clip_val=settings.gradient_clip,
            callbacks=callbacks,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            deterministic=True,
            default_root_dir=folder,
        )
    except (MisconfigurationException, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        chosen = f"accelerator={settings.accelerator} devices={settings.devices} precision={settings.precision}"
        raise UserError(f"training: {chosen} cannot be had here: {reason}") from None


def _fit_or_resume(trainer: lightning.Trainer, module: FusionModule, data: DataModule, last: Path) -> None:
    """Fits from the last checkpoint, where there is a whole one, else from the start.

    Raises:
        KeyboardInterrupt: Ctrl-C, for which Lightning would end the process with code 1 and go deaf to the next one.
    """
    handler = signal.getsignal(signal.SIGINT)
    resume = last.is_file() and _is_whole(last) and _is_whole(last.with_name("best.ckpt"))
    try:
        trainer.fit(module, datamodule=data, ckpt_path=str(last) if resume else None, weights_only=True)
    except SystemExit:
        if not trainer.interrupted:
            raise
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt from None


def _is_whole(checkpoint: Path) -> bool:
    """Whether a checkpoint can be read; one that a full disk or a power cut left half-written is as good as none."""
    try:
        torch.load(checkpoint, map_location="cpu", weights_only=True)
    except Exception:
        return False
    return True


@torch.no_grad()
def _evaluate(
    model: nn.Module, task: Task, data: DataModule, exact_batches: bool
) -> tuple[dict[str, dict[str, float]], pl.DataFrame]:
    """Metrics of the whole validation and test splits, and the predictions behind them."""
    model = model.cpu().float().eval()
    metrics, frames = {}, []
    for split in ("validation", "test"):
        outputs = [(task.predict(model(batch)), batch) for batch in data.loader(split, exact_batches)]
        probabilities = torch.cat([values for values, _ in outputs]).numpy()
        rows = torch.cat([batch.rows for _, batch in outputs]).numpy()
        metrics[split] = task.metrics(probabilities, data.prepared.target[rows])
        columns = probabilities.reshape(len(rows), -1)
        frames.append(
            pl.DataFrame({"row": rows, "unit_id": data.prepared.cohort["unit_id"].gather(rows)}).with_columns(
                pl.lit(split).alias("split"),
                *(pl.Series(f"probability_{index}", columns[:, index]) for index in range(columns.shape[1])),
            )
        )
    return metrics, pl.concat(frames)


def _write(
    folder: Path,
    experiment: Experiment,
    data: DataModule,
    model: FusionModel,
    rows: pl.DataFrame,
) -> None:
    """Writes everything but `result.json`, which marks the run as finished."""
    (folder / "config.yaml").write_text(yaml.safe_dump(experiment.resolved(), sort_keys=False), encoding="utf-8")
    preprocessing.save(data.scalings, folder / "preprocessing.json")
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, folder / "model.safetensors")
    rows.write_parquet(folder / "predictions.parquet")
    for path in folder.iterdir():
        if path.is_file():
            path.chmod(0o600)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
