"""Trains one model, evaluates it on whole splits and writes the run's folder.

A run folder holds `config.yaml`, `preprocessing.json`, `inputs.json` (see `drift`), `model.safetensors` (the best
epoch's weights), `result.json` and `predictions.parquet` (patient-level: readable by its owner only, never uploaded). A
folder with `result.json` is finished; one with a checkpoint resumes at the epoch it had reached.
"""

import shutil
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import lightning
import polars as pl
import torch
import yaml
from lightning.pytorch.callbacks import Callback
from safetensors.torch import load_file, save_file

from ovo_clinic import drift, flops, preprocessing, runs
from ovo_clinic.data import DataModule, model_inputs
from ovo_clinic.evaluation import checked_task, evaluate
from ovo_clinic.experiment import Experiment
from ovo_clinic.locks import locked
from ovo_clinic.model import FusionModel, refuse_unsafe
from ovo_clinic.prepared import Prepared
from ovo_clinic.registry import FUSION
from ovo_clinic.runs import Result
from ovo_clinic.splitting import SPLITS
from ovo_clinic.training.callbacks import ConditionNumbers, Hopeless, Pruning
from ovo_clinic.training.fitting import fit
from ovo_clinic.training.module import FusionModule
from ovo_clinic.types import Modality

CONDITION_UNITS = 64
"""Validation units, the first ones, on which condition numbers are measured."""
CALIBRATION_WARNING = "training.imbalance={} makes probabilities too high for the rarer class: calibration is shifted"


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
        if not runs.is_evaluated(folder):
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
        exact_batches=getattr(FUSION.get(experiment.model.fusion.name), "unsafe", None) is not None,
        arrays=model_inputs(prepared, prepared.chosen(experiment.modalities), experiment.model),
        splits=splits,
    )
    task = checked_task(experiment, prepared, data)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        model = build_model(experiment, data.modalities, task.outputs)
    model.check_lengths(data.longest())
    notes = [str(warning.message) for warning in caught]
    if settings.imbalance != "none":
        notes.append(CALIBRATION_WARNING.format(settings.imbalance))
    if settings.condition_numbers:
        rows = data.split_rows["validation"][:CONDITION_UNITS]
        callbacks = [*callbacks, ConditionNumbers(data.dataset[rows])]
    module, best_epoch = fit(experiment, FusionModule(model, task, experiment), data, folder, callbacks)
    metrics, predictions = evaluate(module.model, task, data)
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
        "costs": flops.model_costs(model, data.reference(flops.REFERENCE_BATCH)),
        "seconds": time.perf_counter() - started,
    }
    profiles = drift.profiles(prepared, list(data.scalings), data.split_rows["train"])
    return _Trained(result, model, data.scalings, profiles, predictions)


def load_model(folder: Path) -> FusionModel:
    """The trained model of a finished run, in evaluation mode.

    Raises:
        UserError: a checkpoint that it reads is gone, or is another one by now.
    """
    runs.check_checkpoints(folder)
    result = runs.read_result(folder)
    modalities = [Modality(**modality) for modality in result["modalities"]]
    model = build_model(runs.settings(folder), modalities, result["outputs"])
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval()


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
