"""Trains one model and evaluates it on whole splits: the Lightning module, the trainer and the run's folder.

A run folder holds `config.yaml`, `preprocessing.json`, `inputs.json` (see `drift`), `model.safetensors` (the best
epoch's weights), `result.json` and `predictions.parquet` (patient-level: readable by its owner only, never uploaded). A
folder with `result.json` is finished; one with a checkpoint resumes at the epoch it had reached.
"""

import logging
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import polars as pl
import torch
import yaml
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ovo_clinic import condition, drift, flops, preprocessing, runs
from ovo_clinic.data import DataModule, model_inputs
from ovo_clinic.errors import UserError
from ovo_clinic.evaluation import checked_task, evaluate
from ovo_clinic.experiment import Experiment, TrainingConfig
from ovo_clinic.locks import locked
from ovo_clinic.model import FusionModel, refuse_unsafe
from ovo_clinic.prepared import Prepared
from ovo_clinic.runs import Result
from ovo_clinic.splitting import SPLITS
from ovo_clinic.types import Batch, Modality, Task

logger = logging.getLogger(__name__)
CONDITION_UNITS = 64
"""Validation units, the first ones, on which condition numbers are measured."""
Hopeless = Callable[[int, float], bool]
"""Whether to stop a training, given the epoch and its validation metric."""
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

    @property
    def monitor(self) -> str:
        """Key of the history that selects the best epoch."""
        return f"validation_{self._experiment.training.monitor or self._task.monitor}"

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


class Patience(EarlyStopping):
    """Early stopping that a run killed right after its last epoch remembers when it resumes."""

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Stops before another epoch where the checkpoint was the last one's."""
        trainer.should_stop = trainer.should_stop or self.wait_count >= self.patience


class Pruning(Callback):
    """Stops a training that another judges hopeless by its validation metric, and remembers when it resumes.

    Args:
        hopeless: asked once for each epoch, in order; for those before a resumption too.

    Attributes:
        ended: whether it stopped the training.
    """

    def __init__(self, hopeless: Hopeless) -> None:
        self._hopeless, self._seen, self.ended = hopeless, 0, False

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Asks for the epochs of the checkpoint."""
        self._ask(trainer, pl_module)

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Asks for the new epoch."""
        self._ask(trainer, pl_module)

    def _ask(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        assert isinstance(pl_module, FusionModule)
        for epoch in pl_module.history[self._seen :]:
            self.ended = self._hopeless(int(epoch["epoch"]), epoch[pl_module.monitor])
        self._seen = len(pl_module.history)
        trainer.should_stop = trainer.should_stop or self.ended


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
            trained = _train(experiment, prepared, folder, callbacks, SPLITS)
            _write(folder, experiment, trained)
            runs.write_result(folder, trained.result)
    return runs.read_result(folder)


def validate(experiment: Experiment, prepared: Prepared, folder: Path, hopeless: Hopeless | None = None) -> Result:
    """Trains as `train` does and evaluates on the validation split; of the test split not even labels are looked at.

    Args:
        experiment: resolved settings, with the seed.
        prepared: the data.
        folder: gets `result.json`, and no weights or predictions; otherwise as in `train`.
        hopeless: given epoch and validation metric, once each epoch and in order, whether to stop early.

    Returns:
        The content of `result.json`; `pruned` = whether `hopeless` ended it.

    Raises:
        UserError: as in `train`.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(folder / "lock"):
        if not runs.is_finished(folder):
            pruning = Pruning(hopeless) if hopeless else None
            trained = _train(experiment, prepared, folder, [pruning] if pruning else [], ("train", "validation"))
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
            runs.write_result(folder, {**trained.result, "pruned": pruning is not None and pruning.ended})
    return runs.read_result(folder)


@dataclass(frozen=True)
class _Trained:
    """A trained model and what came of it.

    Attributes:
        result: content of `result.json`.
        model: with the best epoch's weights.
        scalings: fitted on the training rows.
        profiles: of the same rows.
        predictions: on the splits held out.
    """

    result: Result
    model: FusionModel
    scalings: Mapping[str, preprocessing.Scaling]
    profiles: Mapping[str, drift.Profile]
    predictions: pl.DataFrame


def _train(
    experiment: Experiment, prepared: Prepared, folder: Path, callbacks: Sequence[Callback], splits: Sequence[str]
) -> _Trained:
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
        splits=splits,
    )
    task = checked_task(experiment, prepared, data)
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
    metrics, predictions = evaluate(module.model, task, data, exact_batches=model.fusion.unsafe is not None)
    result = {
        **runs.described(experiment.resolved(), prepared),
        "modalities": [asdict(modality) for modality in data.modalities],
        "outputs": task.outputs,
        "unsafe": model.fusion.unsafe,
        "warnings": notes,
        "monitor": settings.monitor or task.monitor,
        "best_epoch": best_epoch,
        "history": module.history,
        "metrics": metrics,
        "costs": flops.model_costs(model, data.dataset[data.split_rows["train"][: flops.REFERENCE_BATCH]]),
        "seconds": time.perf_counter() - started,
    }
    profiles = drift.profiles(prepared, list(data.scalings), data.split_rows["train"])
    return _Trained(result, model, data.scalings, profiles, predictions)


def load_model(folder: Path) -> FusionModel:
    """The trained model of a finished run, in evaluation mode."""
    result = runs.read_result(folder)
    modalities = [Modality(**modality) for modality in result["modalities"]]
    model = build_model(Experiment.model_validate(result["config"]), modalities, result["outputs"])
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval()


def _fit(
    experiment: Experiment, module: FusionModule, data: DataModule, folder: Path, callbacks: Sequence[Callback]
) -> tuple[FusionModule, int]:
    """Fits with early stopping and puts the best epoch's weights back; (module, that epoch)."""
    settings = experiment.training
    monitor = module.monitor
    mode = "min" if runs.lower_is_better(monitor) else "max"
    checkpoints = folder / "checkpoints"
    # At the end of the epoch: a checkpoint written during validation would resume inside the epoch.
    keeper = partial(ModelCheckpoint, checkpoints, enable_version_counter=False, save_on_train_epoch_end=True)
    keepers = [keeper("best", monitor=monitor, mode=mode), keeper("last")]
    # The notice on which accelerator is used would come once per run; the result says it.
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        stopper = Patience(monitor, patience=settings.patience, mode=mode)
        trainer = trainer_for(settings, [stopper, *keepers, *callbacks], folder)
        _fit_or_resume(trainer, module, data, checkpoints / "last.ckpt")
    # From disk, as with several devices the epochs passed in other processes.
    best, last = (
        torch.load(checkpoints / f"{name}.ckpt", map_location="cpu", weights_only=True) for name in ("best", "last")
    )
    module.load_state_dict(best["state_dict"])
    module.history = list(last["history"])
    return module, int(best["epoch"])


def trainer_for(settings: TrainingConfig, callbacks: list[Callback], folder: Path) -> lightning.Trainer:
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


def _write(folder: Path, experiment: Experiment, trained: _Trained) -> None:
    """Writes everything but `result.json`, which marks the run as finished."""
    (folder / "config.yaml").write_text(yaml.safe_dump(experiment.resolved(), sort_keys=False), encoding="utf-8")
    preprocessing.save(trained.scalings, folder / "preprocessing.json")
    drift.save(trained.profiles, folder / "inputs.json")
    weights = {name: value.contiguous() for name, value in trained.model.state_dict().items()}
    save_file(weights, folder / "model.safetensors")
    trained.predictions.write_parquet(folder / "predictions.parquet")
    for path in folder.iterdir():
        if path.is_file():
            path.chmod(0o600)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
