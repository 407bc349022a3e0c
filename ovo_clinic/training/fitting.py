"""Fitting: the trainer, checkpoints, resuming, and the best epoch's weights."""

import logging
import signal
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import lightning
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from ovo_clinic import runs
from ovo_clinic.data import DataModule
from ovo_clinic.errors import MachineError
from ovo_clinic.experiment import Experiment
from ovo_clinic.settings import TrainingConfig
from ovo_clinic.training.callbacks import Patience
from ovo_clinic.training.module import FusionModule


def fit(
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
        MachineError: an accelerator, devices or a precision that this machine does not have.
    """
    try:
        return lightning.Trainer(
            max_epochs=settings.epochs,
            accelerator=settings.accelerator,
            devices=settings.devices,
            # Processes of its own for several devices: the others would run the user's whole command a second time.
            strategy="auto" if settings.devices in (1, "1") else "ddp_spawn",
            precision=settings.precision,
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
        raise MachineError(f"training: {chosen} cannot be had here: {reason}") from None


def _fit_or_resume(trainer: lightning.Trainer, module: FusionModule, data: DataModule, last: Path) -> None:
    """Fits from the last checkpoint, where there is a whole one, else from the start.

    Raises:
        KeyboardInterrupt: Ctrl-C, for which Lightning would end the process with code 1 and go deaf to the next one.
        MachineError: a precision in which this CPU cannot compute one of the model's layers.
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
    except RuntimeError as error:
        if "could not create a primitive" not in str(error):  # how oneDNN says that it has no such kernel
            raise
        raise MachineError(
            f"training.precision={trainer.precision}: this machine's CPU cannot compute a layer of the model in it; "
            "take 32-true"
        ) from None


def _is_whole(checkpoint: Path) -> bool:
    """Whether a checkpoint can be read; one that a full disk or a power cut left half-written is as good as none."""
    try:
        torch.load(checkpoint, map_location="cpu", weights_only=True)
    except Exception:
        return False
    return True
