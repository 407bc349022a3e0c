"""Tunes a classical baseline on the validation split, evaluates it as the networks are, and writes a run folder.

The folder holds what a network's does; `model.safetensors` has the arrays of `fitted.Fitted`.
"""

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import yaml
from threadpoolctl import threadpool_limits

from ovo_clinic import drift, preprocessing, runs, tabular
from ovo_clinic.errors import UserError
from ovo_clinic.evaluation import predictions_frame
from ovo_clinic.experiment import Experiment
from ovo_clinic.fitted import Constant, Fitted, number_of_classes
from ovo_clinic.locks import locked
from ovo_clinic.prepared import Prepared
from ovo_clinic.registry import BASELINES, Choice
from ovo_clinic.runs import Result
from ovo_clinic.tabular import Baseline, Classifier, FeatureTable, Sample, Setting
from ovo_clinic.tasks import task_for

Target = npt.NDArray[np.float32]


def run(experiment: Experiment, choice: Choice, prepared: Prepared, folder: Path) -> Result:
    """Tunes, evaluates on the validation and test splits, and writes the run's folder where it is not finished.

    Args:
        experiment: modalities, monitored metric, threads and seed.
        choice: the baseline.
        prepared: the data.
        folder: of the run; `runs.folder_of(experiment.resolved_baseline(choice), prepared)`.

    Returns:
        The content of `result.json`; `tuning` has the setting that was chosen, and every one that was tried with its
        validation metric.

    Raises:
        UserError: settings that do not fit the data.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(folder / "lock"), threadpool_limits(experiment.training.threads):
        if not runs.is_evaluated(folder):
            _run(experiment, choice, prepared, folder)
    return runs.read_result(folder)


def _run(experiment: Experiment, choice: Choice, prepared: Prepared, folder: Path) -> None:
    started = time.perf_counter()
    config = experiment.resolved_baseline(choice)
    table = tabular.feature_table(prepared, prepared.chosen(experiment.modalities))
    baseline: Baseline = BASELINES.build(choice.name, options=choice.options, path="compare.baselines")
    task = task_for(prepared.task)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tuned = tune(baseline, table, prepared, experiment)
    scores, frames = {}, []
    for split in ("validation", "test"):
        rows = prepared.rows(split)
        probabilities = tuned.model.probabilities(table.values[rows])
        scores[split] = task.metrics(probabilities, prepared.target[rows])
        frames.append(predictions_frame(prepared, split, rows, probabilities))
    result = {
        **runs.described(config, prepared),
        "unsafe": None,
        "warnings": _notes(table, [str(warning.message) for warning in caught]),
        "monitor": experiment.training.monitor or task.monitor,
        "best_epoch": None,
        "history": [],
        "tuning": {"chosen": tuned.setting, "tried": tuned.tried},
        "metrics": scores,
        "costs": tuned.model.costs(baseline),
        "features": len(table.names),
        "seconds": time.perf_counter() - started,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    preprocessing.save(table.scalings, folder / "preprocessing.json")
    drift.save(drift.profiles(prepared, list(table.scalings), prepared.rows("train")), folder / "inputs.json")
    tuned.model.save(baseline, folder / "model.safetensors")
    pl.concat(frames).write_parquet(folder / "predictions.parquet")
    for path in folder.iterdir():
        path.chmod(0o600)
    runs.write_result(folder, result)


def _notes(table: FeatureTable, warned: Sequence[str]) -> list[str]:
    """What a reader must know; a warning of the library in one line, once."""
    notes = []
    if table.left_out:
        notes.append(f"{', '.join(table.left_out)}: images and texts are not offered to classical baselines")
    return list(dict.fromkeys([*notes, *(line.strip().split("\n")[0] for line in warned)]))


@dataclass(frozen=True)
class Best:
    """What tuning found.

    Attributes:
        setting: of the highest validation metric, the first one among equals.
        tried: every setting, and `score`, its validation metric.
        model: fitted with it.
    """

    setting: Setting
    tried: Sequence[Setting]
    model: Fitted


def tune(baseline: Baseline, table: FeatureTable, prepared: Prepared, experiment: Experiment) -> Best:
    """Fits every setting on the training units and keeps the one with the best validation metric.

    Args:
        baseline: what is tuned.
        table: features of all units.
        prepared: labels and splits.
        experiment: monitored metric and seed.

    Raises:
        UserError: the metric is not defined on the validation units.
    """
    task = task_for(prepared.task)
    monitor = experiment.training.monitor or task.monitor
    rows = prepared.rows("validation")
    sign = -1 if runs.lower_is_better(monitor) else 1
    tried: list[Setting] = []
    best, model = -1, None
    for index, setting in enumerate(baseline.settings):
        fitted = _fit(baseline, setting, table, prepared, experiment.seed)
        scores = task.metrics(fitted.probabilities(table.values[rows]), prepared.target[rows])
        if np.isnan(scores.get(monitor, np.nan)):
            raise UserError(f"training.monitor: '{monitor}' is not defined on the {len(rows)} validation units")
        tried.append({**setting, "score": scores[monitor]})
        if model is None or sign * scores[monitor] > sign * tried[best]["score"]:
            best, model = index, fitted
    assert model is not None, "a baseline without settings"
    return Best(baseline.settings[best], tried, model)


def _fit(baseline: Baseline, setting: Setting, table: FeatureTable, prepared: Prepared, seed: int) -> Fitted:
    kind = prepared.task.kind
    labels = prepared.target if prepared.target.ndim == 2 else prepared.target[:, None]
    classifiers: list[Classifier] = []
    for label in labels.T:
        train, validation = (_labelled(table, label, prepared.rows(split)) for split in ("train", "validation"))
        if np.unique(train.y).size > 1:
            classifiers.append(baseline.fit(setting, train, validation, seed))
        else:
            classifiers.append(Constant(np.unique(train.y)))
    return Fitted(kind, number_of_classes(kind, prepared.task.classes), classifiers)


def _labelled(table: FeatureTable, label: Target, rows: npt.NDArray[np.int64]) -> Sample:
    known = rows[~np.isnan(label[rows])]
    return Sample(table.values[known], label[known].astype(np.int64))
