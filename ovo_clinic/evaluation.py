"""Metrics of whole splits, and what must hold of the data before a model is trained on them."""

from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import nn

from ovo_clinic import spec
from ovo_clinic.data import DataModule
from ovo_clinic.errors import UserError
from ovo_clinic.experiment import Experiment
from ovo_clinic.prepared import Prepared
from ovo_clinic.registry import suggest
from ovo_clinic.tasks import positive_weight, task_for
from ovo_clinic.types import Task


def checked_task(experiment: Experiment, prepared: Prepared, data: DataModule) -> Task:
    """The task, after checking the settings against the data: the monitored metric must be defined.

    Raises:
        UserError: it is not, or a setting does not fit the task.
    """
    specification = prepared.task
    settings = experiment.training
    if settings.imbalance == "balanced_sampler" and specification.kind == "multilabel":
        raise UserError("training.imbalance: balanced_sampler needs one label a unit; use pos_weight or none")
    # Of the spec, not of the prepared data: a modality whose download was not there may have an encoder.
    known = list(spec.load(experiment.dataset, experiment.folder)[0].modalities)
    unknown = sorted(set(experiment.model.encoders) - {*known, "default"})
    if unknown:
        raise UserError(f"model.encoders: no modality is named {unknown[0]}{suggest(unknown[0], known)}")
    target = torch.from_numpy(prepared.target[data.split_rows["train"]])
    weight = positive_weight(target) if settings.imbalance == "pos_weight" else None
    task = task_for(specification, weight)
    monitor = settings.monitor or task.monitor
    for split in data.held_out:
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


@torch.no_grad()
def evaluate(model: nn.Module, task: Task, data: DataModule) -> tuple[dict[str, dict[str, float]], pl.DataFrame]:
    """Metrics of the whole validation and test splits, as far as `data` has them, and the predictions behind them."""
    model = model.cpu().float().eval()
    metrics, frames = {}, []
    for split in data.held_out:
        outputs = [(task.predict(model(batch)), batch) for batch in data.loader(split)]
        probabilities = torch.cat([values for values, _ in outputs]).numpy()
        rows = torch.cat([batch.rows for _, batch in outputs]).numpy()
        metrics[split] = task.metrics(probabilities, data.prepared.target[rows])
        frames.append(predictions_frame(data.prepared, split, rows, probabilities))
    return metrics, pl.concat(frames)


def predictions_frame(
    prepared: Prepared, split: str, rows: NDArray[np.int64], probabilities: NDArray[np.floating[Any]]
) -> pl.DataFrame:
    """Predictions as a run keeps them: row, unit_id, split and `probability_0`, ...

    Args:
        prepared: the data.
        split: whose units they are.
        rows: (N,) of the cohort.
        probabilities: (N,) or (N,K).
    """
    columns = probabilities.reshape(len(rows), -1)
    return pl.DataFrame({"row": rows, "unit_id": prepared.cohort["unit_id"].gather(rows)}).with_columns(
        pl.lit(split).alias("split"),
        *(pl.Series(f"probability_{index}", columns[:, index]) for index in range(columns.shape[1])),
    )
