"""A trained model that answers tables: what an MLflow model holds beside its files. MLflow is not needed for it.

A table has one row a unit and columns named `modality|feature`, features as the model was trained on them (see the
run's `inputs.json`): numbers, 0/1 for codes and categories; in a sequence's columns lists, one number a time step. A
missing value is NaN or null, a column may be left out, and a modality without any value is absent.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ovo_clinic import drift, preprocessing, runs, training
from ovo_clinic.arrays import ModalityArray
from ovo_clinic.data import EVALUATION_BATCH, IN_MEMORY_BYTES, ClinicalDataset, Source
from ovo_clinic.drift import Profile
from ovo_clinic.errors import UserError
from ovo_clinic.predict import outcome_names
from ovo_clinic.prepared import TASK_FIELDS
from ovo_clinic.registry import suggest
from ovo_clinic.spec import TaskSpec
from ovo_clinic.tasks import task_for
from ovo_clinic.trained import predicted

_EXAMPLE_STEPS = 3


def _load_pyfunc(path: str) -> "TableModel":
    """What MLflow calls."""
    return TableModel(Path(path))


class TableModel:
    """A trained model of vectors and sequences.

    Args:
        folder: the files `predict.MODEL_FILES`.
    """

    def __init__(self, folder: Path) -> None:
        self._result = runs.read_result(folder)
        self._model = training.load_model(folder)
        self._scalings = preprocessing.load(folder / "preprocessing.json")
        self._profiles = drift.load(folder / "inputs.json")
        task = self._result["task"]
        self._task = task_for(TaskSpec(**{name: task[name] for name in TASK_FIELDS}))

    def predict(self, frame: pd.DataFrame, params: Mapping[str, Any] | None = None) -> pd.DataFrame:
        """Probabilities, one row for each of the table's and a column `probability_<class or label>` for each outcome.

        Args:
            frame: the table.
            params: none are known; MLflow hands them over.

        Raises:
            UserError: a column that the model does not know, or time steps of unlike numbers.
        """
        known = list(columns(self._profiles))
        for name in frame.columns:
            if name not in known:
                raise UserError(f"column '{name}': the model has no such input{suggest(str(name), known)}")
        budget = IN_MEMORY_BYTES // len(self._profiles)
        sources = [
            Source.of(name, _array(frame, name, profile), self._scalings[name], budget)
            for name, profile in self._profiles.items()
        ]
        dataset = ClinicalDataset(sources, np.full(len(frame), np.nan, dtype=np.float32))
        found = predicted(self._model, self._task, dataset, np.arange(len(frame)), EVALUATION_BATCH)
        names = [f"probability_{name}" for name in outcome_names(self._result["task"])]
        return pd.DataFrame(found.reshape(len(frame), -1), columns=names, index=frame.index)


def columns(profiles: Mapping[str, Profile]) -> dict[str, bool]:
    """Name of every input column, and whether its cells are lists.

    Raises:
        UserError: a modality that does not go into a table.
    """
    for name, profile in profiles.items():
        if profile.kind not in ("vector", "sequence"):
            raise UserError(
                f"modality '{name}' is {profile.kind}, which is no column of a table; use `predict` instead"
            )
    return {
        f"{name}|{column.name}": profile.kind == "sequence"
        for name, profile in profiles.items()
        for column in profile.columns
    }


def _array(frame: pd.DataFrame, name: str, profile: Profile) -> ModalityArray:
    """One modality of the table."""
    given = [frame.get(f"{name}|{column.name}") for column in profile.columns]
    if profile.kind == "sequence":
        return _sequence(given, name, profile, len(frame))
    values = np.full((len(frame), len(given)), np.nan, dtype=np.float32)
    for place, column in enumerate(given):
        if column is not None:
            values[:, place] = pd.to_numeric(column).to_numpy(dtype=np.float32, na_value=np.nan)
    present = np.asarray((~np.isnan(values)).any(axis=1), dtype=np.bool_)
    return ModalityArray(profile.columns, _zero_filled(values, profile), present)


def _sequence(given: list["pd.Series[Any] | None"], name: str, profile: Profile, units: int) -> ModalityArray:
    cells = [
        [None if column is None or np.ndim(column.iloc[row]) == 0 else column.iloc[row] for column in given]
        for row in range(units)
    ]
    steps = [{len(cell) for cell in row if cell is not None} for row in cells]
    for row, lengths in enumerate(steps):
        if len(lengths) > 1:
            raise UserError(f"row {row}: modality '{name}' has lists of {sorted(lengths)} time steps; give all as many")
    counts = np.array([max(lengths, default=0) for lengths in steps], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    values = np.full((int(offsets[-1]), len(given)), np.nan, dtype=np.float32)
    for row, line in enumerate(cells):
        for place, cell in enumerate(line):
            if cell is not None:
                values[offsets[row] : offsets[row + 1], place] = cell
    return ModalityArray(profile.columns, _zero_filled(values, profile), counts > 0, offsets, kind="sequence")


def _zero_filled(values: npt.NDArray[np.float32], profile: Profile) -> npt.NDArray[np.float32]:
    """Codes, categories and counts that are not given are 0; numbers stay missing."""
    numeric = np.array([column.role == "numeric" for column in profile.columns])
    return np.where(numeric | ~np.isnan(values), values, np.float32(0))


def example(profiles: Mapping[str, Profile]) -> pd.DataFrame:
    """Two made-up rows, drawn from the profile alone; in the second the first of several modalities is absent."""
    random = np.random.default_rng(0)
    cells: dict[str, list[Any]] = {}
    for place, (name, profile) in enumerate(profiles.items()):
        absent = place == 0 and len(profiles) > 1
        steps = _EXAMPLE_STEPS if profile.kind == "sequence" else 1
        for column, share, low, high in zip(profile.columns, profile.share, profile.low, profile.high, strict=True):
            drawn = [
                random.uniform(low, high, steps).round(3)
                if low is not None and high is not None
                else (random.random(steps) < share).astype(np.float64)
                for _ in range(2)
            ]
            values: list[Any] = [row.tolist() if profile.kind == "sequence" else float(row[0]) for row in drawn]
            if absent:
                values[1] = None if profile.kind == "sequence" else float("nan")
            cells[f"{name}|{column.name}"] = values
    return pd.DataFrame(cells)
