"""A finished run that answers new data: a network or a classical baseline, with the scaling that was fitted for it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ovo_clinic import fitted, preprocessing, runs, tabular, training
from ovo_clinic.arrays import ModalityArray
from ovo_clinic.data import IN_MEMORY_BYTES, ClinicalDataset, Source, evaluation_batch, model_inputs
from ovo_clinic.prepared import TASK_FIELDS, Prepared
from ovo_clinic.registry import BASELINES, ENCODERS, Choice
from ovo_clinic.spec import TaskSpec
from ovo_clinic.tabular import Baseline
from ovo_clinic.tasks import task_for
from ovo_clinic.trained import predicted

Probabilities = npt.NDArray[np.float64]


class Predictor(Protocol):
    """What a model of any kind answers with."""

    def inputs(self, prepared: Prepared, names: Sequence[str]) -> dict[str, ModalityArray]:
        """What the model is fed of the named modalities of prepared data."""
        ...

    def probabilities(self, arrays: Mapping[str, ModalityArray]) -> Probabilities:
        """(N,) or (N,K) of all units, from what `inputs` gives of every modality."""
        ...


def load(folder: Path, embeddings: Mapping[str, Path] | None = None) -> Predictor:
    """The predictor of a finished run, or of the files `predict.MODEL_FILES` of one.

    Args:
        folder: of it.
        embeddings: modality -> file that a network reads in place of the one with the rows of its training.
    """
    if "baseline" in runs.read_result(folder)["config"]:
        return FittedBaseline(folder)
    return TrainedNetwork(folder, embeddings or {})


def reads_rows(folder: Path, names: Sequence[str]) -> list[str]:
    """The modalities in whose place the model reads rows of units from a file of its own."""
    if "baseline" in runs.read_result(folder)["config"]:
        return []
    model = runs.settings(folder).model
    return [name for name in names if getattr(ENCODERS.get(model.encoder(name).name), "of_rows", False)]


class TrainedNetwork:
    """A network.

    Args:
        folder: of the run.
        embeddings: see `load`.
    """

    def __init__(self, folder: Path, embeddings: Mapping[str, Path]) -> None:
        self._settings = runs.settings(folder)
        read = {name: self._settings.model.encoder(name) for name in embeddings}
        others = {
            name: choice.model_copy(update={"file": str(embeddings[name].resolve())}) for name, choice in read.items()
        }
        self._fed = self._settings.model.model_copy(update={"encoders": {**self._settings.model.encoders, **others}})
        self._scalings = preprocessing.load(folder / "preprocessing.json")
        self._model = training.load_model(folder)
        self._task = task_for(_task(folder))

    def inputs(self, prepared: Prepared, names: Sequence[str]) -> dict[str, ModalityArray]:
        """As prepared, or what encoders make of it: token ids, embeddings."""
        return model_inputs(prepared, names, self._fed)

    def probabilities(self, arrays: Mapping[str, ModalityArray]) -> Probabilities:
        """(N,) or (N,K), in batches that fit."""
        budget = IN_MEMORY_BYTES // max(1, len(self._scalings))
        sources = [Source.of(name, arrays[name], scaling, budget) for name, scaling in self._scalings.items()]
        units = len(sources[0].array.present)
        dataset = ClinicalDataset(sources, np.full(units, np.nan, dtype=np.float32))
        size = evaluation_batch(sources, self._settings.training.batch_size)
        return predicted(self._model, self._task, dataset, np.arange(units), size)


class FittedBaseline:
    """A classical baseline.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._scalings = preprocessing.load(folder / "preprocessing.json")
        choice = Choice.model_validate(runs.read_result(folder)["config"]["baseline"])
        baseline: Baseline = BASELINES.build(choice.name, options=choice.options)
        task = _task(folder)
        classes = fitted.number_of_classes(task.kind, task.classes)
        self._fitted = fitted.load(baseline, task.kind, classes, folder / "model.safetensors")

    def inputs(self, prepared: Prepared, names: Sequence[str]) -> dict[str, ModalityArray]:
        """As prepared."""
        return {name: prepared.array(name) for name in names}

    def probabilities(self, arrays: Mapping[str, ModalityArray]) -> Probabilities:
        """(N,) or (N,K)."""
        return self._fitted.probabilities(tabular.features(arrays, self._scalings))


def _task(folder: Path) -> TaskSpec:
    task = runs.read_result(folder)["task"]
    return TaskSpec(**{name: task[name] for name in TASK_FIELDS})
