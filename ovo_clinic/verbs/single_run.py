"""`train`: one model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ovo_clinic import breakdown, report, runs, tracking
from ovo_clinic import experiment as experiments
from ovo_clinic.prepare import prepare_task
from ovo_clinic.raw_folders import Given


@dataclass(frozen=True)
class Run:
    """A finished training run.

    Attributes:
        result: metrics, history, costs, hashes.
        folder: where its weights and predictions lie.
        tracking_uri: where MLflow holds it.
        tables: of `breakdown.of_run`, which also lie in the folder.
    """

    result: dict[str, Any]
    folder: Path
    tracking_uri: str
    tables: Mapping[str, pd.DataFrame]


def train(
    task: str,
    overrides: Sequence[str] = (),
    *,
    raw: Given | None = None,
    tracking_uri: str | None = None,
    allow_remote_tracking: bool = False,
) -> Run:
    """Trains one model and logs it to MLflow; arguments as in `compare`."""
    from ovo_clinic import training

    experiment = experiments.load(task, overrides)
    experiment.resolved()  # checks names and options: preparing may take hours
    store = tracking.Store(tracking.tracking_uri(tracking_uri, allow_remote_tracking))
    prepared = prepare_task(experiment, raw)
    folder = runs.run_folder(experiment, prepared)
    result = training.train(experiment, prepared, folder)
    store.log_train(result, f"{experiment.model.fusion.label} seed {experiment.seed}", folder.name)
    tables = breakdown.of_run(
        folder, prepared, prepared.chosen(experiment.modalities), report.HEADLINE[prepared.task.kind]
    )
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)
    return Run(result, folder, store.uri, tables)
