"""Samples a second of the loader, and a training step beside the same step in a bare PyTorch loop.

    python benchmarks/loader.py

The data are 48 hourly bins of 34 columns and a vector a unit, memory-mapped from a temporary folder. Both loops train
the same model from the same weights in one process on one thread; the bare one slices its batches from tensors that
were scaled before. Validation is not counted.
"""

import argparse
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import lightning
import numpy as np
import polars as pl
import torch
from torch.nn.utils import clip_grad_norm_

from ovo_clinic import arrays, data, training
from ovo_clinic.data import DataModule
from ovo_clinic.experiment import Experiment
from ovo_clinic.prepared import TASK_FIELDS, Prepared
from ovo_clinic.spec import TaskSpec
from ovo_clinic.tables import StepsTable, VectorTable
from ovo_clinic.tasks import task_for
from ovo_clinic.training import fitting
from ovo_clinic.training.module import FusionModule
from ovo_clinic.types import Batch

BINS, COLUMNS, FEATURES = 48, 34, 20
EPOCHS = 3


def prepared_data(folder: Path, units: int) -> Prepared:
    """A prepared data set of random numbers; half of the columns are masks, as in the MIMIC tasks."""
    random = np.random.default_rng(0)
    unit = pl.Series("unit_id", np.arange(units))
    split = np.where(np.arange(units) % 10 < 8, "train", np.where(np.arange(units) % 10 == 8, "validation", "test"))
    hours = pl.DataFrame({"unit_id": np.repeat(unit.to_numpy(), BINS), "hours": np.tile(np.arange(BINS) * 1.0, units)})
    measured = [
        pl.Series(f"value{i}", random.normal(size=units * BINS).astype(np.float32)) for i in range(COLUMNS // 2)
    ]
    masks = [pl.Series(f"mask{i}", random.random(units * BINS) < 0.3) for i in range(COLUMNS // 2)]
    vector = pl.DataFrame([unit, *(pl.Series(f"x{i}", random.normal(size=units)) for i in range(FEATURES))])
    entries = {}
    for name, table in {"series": StepsTable(hours.hstack(measured + masks)), "vector": VectorTable(vector)}.items():
        array = arrays.build(table, unit, split == "train")
        array.write(folder, name)
        entries[name] = array.describe() | {"present": {"train": units}}
    labels = pl.DataFrame([unit, unit.alias("patient_id"), pl.Series("label", random.integers(0, 2, units))])
    labels.write_parquet(folder / "cohort.parquet")
    pl.DataFrame([unit, pl.Series("split", split)]).write_parquet(folder / "split.parquet")
    task = TaskSpec(title="Random numbers", target=["label"]).model_dump(include=set(TASK_FIELDS))
    return Prepared(folder, {"task": "benchmark", **task, "modalities": entries})


def seconds(call: Callable[[], object]) -> float:
    """Time of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def samples_per_second(module: DataModule) -> float:
    """Of one epoch of shuffled training batches, read and put aside."""
    rows = len(module.split_rows["train"])
    return rows / min(
        seconds(lambda: sum(len(batch.rows) for batch in module.train_dataloader())) for _ in range(EPOCHS)
    )


class EpochTimes(lightning.Callback):
    """Seconds of each epoch's training steps, validation apart."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._started = 0.0

    def on_train_epoch_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Starts the clock."""
        self._started = time.perf_counter()

    def on_validation_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Stops it: validation comes after the last step."""
        self.seconds.append(time.perf_counter() - self._started)


def bare_epochs(experiment: Experiment, module: DataModule) -> list[float]:
    """Seconds of each epoch of a bare loop."""
    settings = experiment.training
    task = task_for(module.prepared.task)
    model = training.build_model(experiment, module.modalities, task.outputs).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    whole = module.dataset[module.split_rows["train"]]

    def epoch() -> None:
        for rows in torch.randperm(len(whole.rows)).split(settings.batch_size):
            batch = Batch(
                {name: values[rows] for name, values in whole.inputs.items()},
                {name: mask[rows] for name, mask in whole.masks.items()},
                whole.target[rows],
                rows,
            )
            optimiser.zero_grad()
            task.loss(model(batch), batch.target).backward()
            clip_grad_norm_(model.parameters(), settings.gradient_clip)
            optimiser.step()

    return [seconds(epoch) for _ in range(EPOCHS)]


def trained_epochs(experiment: Experiment, module: DataModule) -> list[float]:
    """Seconds of each epoch of the project's own training."""
    task = task_for(module.prepared.task)
    model = training.build_model(experiment, module.modalities, task.outputs)
    clock = EpochTimes()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = fitting.trainer_for(experiment.training, [clock], Path(folder))
        trainer.fit(FusionModule(model, task, experiment), datamodule=module)
    return clock.seconds


def main() -> None:
    """Prints both measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=20_000)
    parser.add_argument("--encoder", default="lstm", help="of the series")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    encoders = {"default": {"name": "mlp"}, "series": {"name": chosen.encoder}}
    experiment = Experiment.model_validate(
        {
            "dataset": "",
            "task": "",
            "model": {"encoders": encoders},
            "training": {"epochs": EPOCHS, "accelerator": "cpu"},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepared_data(Path(folder), chosen.units)
        batch_size = experiment.training.batch_size
        module = DataModule(prepared, None, batch_size=batch_size, seed=0)
        print(
            f"{chosen.units} units of {BINS} bins x {COLUMNS} columns and {FEATURES} features, batches of {batch_size}"
        )
        print(f"scaled in memory: {samples_per_second(module):,.0f} samples/s")
        data.IN_MEMORY_BYTES = 0
        mapped = DataModule(prepared, None, batch_size=batch_size, seed=0)
        print(f"memory-mapped, scaled batch by batch: {samples_per_second(mapped):,.0f} samples/s (at least 10,000)")
        bare = bare_epochs(experiment, module)
        ratios = []
        for name, source in {"scaled in memory": module, "memory-mapped": mapped}.items():
            own = trained_epochs(experiment, source)
            ratios.append(statistics.median(own) / statistics.median(bare))
            steps = -(-len(module.split_rows["train"]) // batch_size)
            print(
                f"training step, {name}: {1e3 * statistics.median(own) / steps:.2f} ms, bare loop "
                f"{1e3 * statistics.median(bare) / steps:.2f} ms, ratio {ratios[-1]:.2f} (at most 1.6)"
            )


if __name__ == "__main__":
    main()
