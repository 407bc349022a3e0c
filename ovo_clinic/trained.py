"""A finished run, ready to predict: on its test units, on altered inputs, on new data."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ovo_clinic import preprocessing, runs, training
from ovo_clinic.data import ClinicalDataset, DataModule, model_inputs
from ovo_clinic.experiment import Experiment
from ovo_clinic.prepare import Prepared
from ovo_clinic.splitting import SPLITS
from ovo_clinic.statistics import Bootstrap, bootstrap_by_patient
from ovo_clinic.study import Comparison
from ovo_clinic.tasks import task_for
from ovo_clinic.types import Batch, Task

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
Alteration = Callable[[Batch], Batch]

RESAMPLES = 1000


def unaltered(batch: Batch) -> Batch:
    """The batch as it is."""
    return batch


class Trained:
    """A trained model with the scaling that was fitted for it.

    Args:
        folder: of the finished run.
        prepared: data of the same task, those it was trained on or new ones.
        splits: the parts that `data` can load; none of new data, which have no labels.

    Attributes:
        result: of the run.
        data: the prepared data as the model takes them.
    """

    def __init__(self, folder: Path, prepared: Prepared, splits: Sequence[str] = SPLITS) -> None:
        self.result = runs.read_result(folder)
        settings = Experiment.model_validate(self.result["config"])
        self.data = DataModule(
            prepared,
            settings.modalities,
            batch_size=settings.training.batch_size,
            seed=settings.seed,
            exact_batches=self.result["unsafe"] is not None,
            scalings=preprocessing.load(folder / "preprocessing.json"),
            arrays=model_inputs(prepared, prepared.chosen(settings.modalities), settings.model),
            splits=splits,
        )
        self.model = training.load_model(folder)
        self.task = task_for(prepared.task)

    def probabilities(self, rows: Rows, alter: Alteration = unaltered) -> Floats:
        """(N,) or (N,K) for cohort rows (N,), in their order.

        Args:
            rows: of the cohort.
            alter: changes each batch before the model sees it.
        """
        return predicted(self.model, self.task, self.data.dataset, rows, self.data.evaluation_batch, alter)


@torch.no_grad()
def predicted(
    model: nn.Module, task: Task, dataset: ClinicalDataset, rows: Rows, size: int, alter: Alteration = unaltered
) -> Floats:
    """Probabilities of a model in evaluation mode, (N,) or (N,K), for rows (N,) taken `size` at a time."""
    batches = (alter(dataset[rows[start : start + size]]) for start in range(0, len(rows), size))
    return torch.cat([task.predict(model(batch)) for batch in batches]).numpy().astype(np.float64)


def altered(
    comparison: Comparison, label: str, rows: Rows, alterations: Mapping[str, Alteration]
) -> dict[str, NDArray[np.float64]]:
    """What the runs of one arm predict under each alteration: name -> (S,N) or (S,N,K) by seed.

    Args:
        comparison: finished runs.
        label: of the arm.
        rows: of the cohort (N,).
        alterations: by name.
    """
    found: dict[str, list[Floats]] = {name: [] for name in alterations}
    for folder in comparison.run_folders[label]:
        trained = Trained(folder, comparison.prepared)  # one at a time: each holds the data
        for name, alter in alterations.items():
            found[name].append(trained.probabilities(rows, alter))
    return {name: np.stack(values) for name, values in found.items()}


def over_patients(comparison: Comparison, found: Mapping[str, Floats]) -> Bootstrap:
    """Bootstrap over patients of what altered runs predict for the test units, for percentile intervals.

    Args:
        comparison: finished runs.
        found: (S,N) or (S,N,K) by name, of the test units.
    """
    prepared = comparison.prepared
    rows = prepared.rows("test")
    return bootstrap_by_patient(
        found,
        prepared.target[rows],
        prepared.cohort["patient_id"].gather(rows).to_numpy(),
        resamples=RESAMPLES,
        jackknife_groups=0,
    )
