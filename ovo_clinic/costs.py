"""What models cost on a task: tables and a figure, behind `ovo-clinic flops TASK`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from ovo_clinic import experiment as experiments
from ovo_clinic import figures, resources, study, training
from ovo_clinic.data import DataModule, model_inputs
from ovo_clinic.errors import UserError
from ovo_clinic.experiment import Experiment
from ovo_clinic.flops import REFERENCE_BATCH, Costs, macs_against_modalities, model_costs
from ovo_clinic.measure import latencies, peak_memory
from ovo_clinic.model import FusionModel
from ovo_clinic.prepare import Prepared, prepare_task
from ovo_clinic.raw_folders import Given
from ovo_clinic.registry import ATTENTION, FUSION, Choice
from ovo_clinic.study import Arm
from ovo_clinic.tasks import task_for
from ovo_clinic.types import Batch, Tokens, parameter_count

LATENCY_BATCHES = (1, 128)
"""Batch sizes of the measured forward passes."""


@dataclass(frozen=True)
class CostTables:
    """What models cost.

    Attributes:
        heads: one row per head on the task's modalities: MACs per sample of encoders, head and output layer,
            elementwise work apart, parameters and those that a gradient reaches, latency and peak memory of a forward
            pass.
        encoders: one row per modality: MACs, elementwise work, parameters and latency of its encoder.
        against_modalities: MACs per sample of each head alone against the number of modalities.
        refused: head with a mechanism that it excludes -> why.
        folder: where the tables lie as csv, with the figure `macs.png`.
    """

    heads: pd.DataFrame
    encoders: pd.DataFrame
    against_modalities: pd.DataFrame
    refused: dict[str, str]
    folder: Path


def flops(
    task: str,
    overrides: Sequence[str] = (),
    *,
    raw: Given | None = None,
    fusion: Sequence[str] | None = None,
    attention: Sequence[str] | None = None,
    modalities: Sequence[int] = (2, 5, 10, 15, 20),
) -> CostTables:
    """Counts and measures what encoders and fusion heads cost, attention included.

    Args:
        task: a task's name or the path of a config.
        overrides: `key=value` settings.
        raw: folder of the raw files, or one for each source, where the task is not prepared yet.
        fusion: heads (default: all).
        attention: mechanisms; each head that takes one is counted with each that it accepts (`all`: every one).
            Default: the config's.
        modalities: numbers of them for the last table.

    Raises:
        UserError: anything wrong with the settings or the data.
    """
    names = list(fusion or FUSION.names())
    mechanisms = ATTENTION.names() if attention == ["all"] else attention
    for mechanism in mechanisms or ():
        ATTENTION.get(mechanism, "--attention")
    experiment = experiments.load(task, [*overrides, "model.allow_unsafe=true"])
    prepared = prepare_task(experiment, raw)
    arms, refused = _arms(experiment, prepared, names, mechanisms)
    inputs = model_inputs(prepared, prepared.chosen(experiment.modalities), experiment.model)
    data = DataModule(prepared, experiment.modalities, batch_size=REFERENCE_BATCH, seed=0, arrays=inputs)
    outputs = task_for(prepared.task).outputs
    models = [training.build_model(arm.experiment, data.modalities, outputs).eval() for arm in arms]
    batches = {size: data.dataset[np.resize(data.split_rows["train"], size)] for size in LATENCY_BATCHES}
    counts = [model_costs(model, data.reference(REFERENCE_BATCH)) for model in models]
    heads = _heads_table([arm.label for arm in arms], counts, _measured(models, batches))
    encoders = _encoders_table(arms[0].experiment, models[0], counts[0], batches)
    options = {"tokens": 4, "heads": 4} | experiment.model.fusion.options
    against = macs_against_modalities(experiment.model.dim, options, modalities, names)
    folder = resources.state("costs", experiment.task)
    for name, table in {"heads": heads, "encoders": encoders, "macs_against_modalities": against}.items():
        table.to_csv(folder / f"{name}.csv", index=False)
    title = f"Cost of fusion, D = {experiment.model.dim}, " + ", ".join(f"{k} {v}" for v, k in options.items())
    figures.macs_figure(against, title).savefig(folder / "macs.png")
    return CostTables(heads, encoders, against, refused, folder)


def _arms(
    experiment: Experiment, prepared: Prepared, names: Sequence[str], mechanisms: Sequence[str] | None
) -> tuple[list[Arm], dict[str, str]]:
    """The heads, with every mechanism that they accept, and why they refuse the others."""
    if mechanisms is None or experiment.compare.encoders:
        return study.arms(experiment, prepared, [Choice(name=name) for name in names], unimodal=False), {}
    arms: list[Arm] = []
    refused: dict[str, str] = {}
    for name in names:
        takes = "attention" in FUSION.schema(name).model_fields
        for choice in [Choice(name=name, attention=m) for m in mechanisms] if takes else [Choice(name=name)]:
            try:
                arms += study.arms(experiment, prepared, [choice], unimodal=False)
            except UserError as error:
                refused[choice.label] = str(error).removeprefix(f"compare.fusion: {choice.label}: ")
    if not arms:
        raise UserError(f"--attention: no head accepts it: {next(iter(refused.values()))}")
    return arms, refused


def _heads_table(labels: Sequence[str], counts: Sequence[Costs], measured: pd.DataFrame) -> pd.DataFrame:
    rows = [
        {
            "head": label,
            "macs_encoders": sum(costs["macs_encoders"].values()),
            "macs_fusion": costs["macs_fusion"],
            "macs_output": costs["macs_output"],
            "macs_total": costs["macs_total"],
            "elementwise": costs["elementwise"],
            "parameters": costs["parameters"],
            "parameters_used": costs["parameters_used"],
        }
        for label, costs in zip(labels, counts, strict=True)
    ]
    return pd.concat([pd.DataFrame(rows), measured], axis=1)


def _measured(models: Sequence[FusionModel], batches: dict[int, Batch]) -> pd.DataFrame:
    """Latency of a forward pass at each batch size, models in turn, and the peak memory of the largest."""
    columns = {
        f"ms_batch_{size}": [1e3 * took for took in latencies([_forward(model, batch) for model in models])]
        for size, batch in batches.items()
    }
    largest = max(batches)
    peaks = [peak_memory(_forward(model, batches[largest])) / 2**20 for model in models]
    return pd.DataFrame({**columns, f"peak_mib_batch_{largest}": peaks})


def _forward(model: FusionModel, batch: Batch) -> Callable[[], object]:
    @torch.no_grad()
    def run() -> torch.Tensor:
        return model(batch)  # type: ignore[no-any-return]

    return run


def _encoders_table(
    experiment: Experiment, model: FusionModel, costs: Costs, batches: dict[int, Batch]
) -> pd.DataFrame:
    """Encoders are the same under every head, so that one model stands for all."""
    chosen = experiment.model.encoders
    table = pd.DataFrame(
        {
            "modality": model.names,
            "encoder": [chosen.get(name, chosen.get("default", Choice(name=""))).label for name in model.names],
            "macs": list(costs["macs_encoders"].values()),
            "elementwise": list(costs["elementwise_encoders"].values()),
            "parameters": [parameter_count(encoder) for encoder in model.encoders],
        }
    )
    for size, batch in batches.items():
        calls = [_encode(encoder, batch, name) for name, encoder in zip(model.names, model.encoders, strict=True)]
        table[f"ms_batch_{size}"] = [1e3 * took for took in latencies(calls)]
    return table


def _encode(encoder: torch.nn.Module, batch: Batch, name: str) -> Callable[[], object]:
    @torch.no_grad()
    def run() -> Tokens:
        return encoder(batch.inputs[name], batch.masks[name])  # type: ignore[no-any-return]

    return run


def printable(table: pd.DataFrame) -> pd.DataFrame:
    """A table of costs as text: counts with thousands separated, measured values with one or two decimals."""
    return table.map(_text)


def _text(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:,.1f}" if cell >= 10 else f"{cell:.2f}"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)
