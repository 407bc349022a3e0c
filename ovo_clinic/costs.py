"""What fusion heads cost: tables and a figure, behind `ovo-clinic flops`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ovo_clinic import experiment as experiments
from ovo_clinic import figures, resources, study, training
from ovo_clinic.data import DataModule
from ovo_clinic.flops import REFERENCE_BATCH, macs_against_modalities, model_costs
from ovo_clinic.prepare import prepare_task
from ovo_clinic.registry import FUSION, Choice
from ovo_clinic.tasks import task_for


@dataclass(frozen=True)
class CostTables:
    """What fusion heads cost.

    Attributes:
        heads: one row per head on the task's modalities: MACs per sample of encoders, head and output, parameters, and
            parameters that a gradient reaches.
        against_modalities: MACs per sample of each head alone against the number of modalities.
        folder: where both lie as csv, with the figure `macs.png`.
    """

    heads: pd.DataFrame
    against_modalities: pd.DataFrame
    folder: Path


def flops(
    task: str,
    overrides: Sequence[str] = (),
    *,
    raw: str | Path | None = None,
    fusion: Sequence[str] | None = None,
    modalities: Sequence[int] = (2, 5, 10, 15, 20),
) -> CostTables:
    """Counts the multiply-accumulates of fusion heads, attention included.

    Args:
        task: a task's name or the path of a config.
        overrides: `key=value` settings.
        raw: folder of the raw files, where the task is not prepared yet.
        fusion: heads (default: all).
        modalities: numbers of them for the second table.

    Raises:
        UserError: anything wrong with the settings or the data.
    """
    names = list(fusion or FUSION.names())
    experiment = experiments.load(task, [*overrides, "model.allow_unsafe=true"])
    prepared = prepare_task(experiment, raw)
    data = DataModule(prepared, experiment.modalities, batch_size=REFERENCE_BATCH, seed=0)
    batch = data.dataset[data.split_rows["train"][:REFERENCE_BATCH]]
    rows = []
    for arm in study.arms(experiment, prepared, [Choice(name=name) for name in names], unimodal=False):
        model = training.build_model(arm.experiment, data.modalities, task_for(prepared.task).outputs)
        costs = model_costs(model, batch)
        rows.append(
            {
                "head": arm.label,
                "macs_encoders": sum(costs["macs_encoders"].values()),
                "macs_fusion": costs["macs_fusion"],
                "macs_output": costs["macs_output"],
                "macs_total": costs["macs_total"],
                "parameters": costs["parameters"],
                "parameters_used": costs["parameters_used"],
            }
        )
    options = {"tokens": 4, "heads": 4} | experiment.model.fusion.options
    against = macs_against_modalities(experiment.model.dim, options, modalities, names)
    folder = resources.home() / "costs" / experiment.task
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = CostTables(pd.DataFrame(rows), against, folder)
    found.heads.to_csv(folder / "heads.csv", index=False)
    against.to_csv(folder / "macs_against_modalities.csv", index=False)
    title = f"Cost of fusion, D = {experiment.model.dim}, " + ", ".join(f"{k} {v}" for v, k in options.items())
    figures.macs_figure(against, title).savefig(folder / "macs.png")
    return found
