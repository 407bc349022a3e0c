"""A trained model that answers tables: what an MLflow model holds beside its files. MLflow is not needed for it.

A table has one row a unit. Columns named `modality|feature` hold features as the model was trained on them (see the
run's `inputs.json`): numbers, 0/1 for codes and categories; in a sequence's columns lists, one number a time step. A
column named `modality` holds the texts of that modality, or the content (bytes) of image files: PNG, JPG, DICOM. A
missing value is NaN or null, a column may be left out, and a modality without any value is absent.
"""

import io
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl

from ovo_clinic import images, portable, predictors, runs
from ovo_clinic.arrays import ModalityArray
from ovo_clinic.drift import Profile
from ovo_clinic.errors import UserError
from ovo_clinic.predict import outcome_names
from ovo_clinic.prepared import Prepared
from ovo_clinic.registry import suggest


def _load_pyfunc(path: str) -> "TableModel":
    """What MLflow calls."""
    return TableModel(Path(path))


class TableModel:
    """A trained model.

    Args:
        folder: from `portable.save`, or of the run itself.
    """

    def __init__(self, folder: Path) -> None:
        self._outcomes = [f"probability_{name}" for name in outcome_names(runs.read_result(folder)["task"])]
        self._predictor = predictors.load(folder)
        self._profiles = portable.inputs(folder)

    def predict(self, frame: pd.DataFrame, params: Mapping[str, Any] | None = None) -> pd.DataFrame:
        """Probabilities, one row for each of the table's and a column `probability_<class or label>` for each outcome.

        Args:
            frame: the table.
            params: none are known; MLflow hands them over.

        Raises:
            UserError: a column that the model does not know, a cell that is no number, no list or no image, or time
                steps of unlike numbers.
        """
        known = list(portable.columns(self._profiles))
        for name in frame.columns:
            if name not in known:
                raise UserError(f"column '{name}': the model has no such input{suggest(str(name), known)}")
        if not len(frame):
            return pd.DataFrame(columns=self._outcomes, index=frame.index, dtype=np.float64)
        with tempfile.TemporaryDirectory() as working:  # for embeddings of texts and images
            table = _Table(Path(working), _manifest(self._profiles), frame, self._profiles)
            encoded = [name for name, profile in self._profiles.items() if profile.kind in ("image", "text")]
            given = {name: table.array(name) for name in self._profiles if name not in encoded}
            found = self._predictor.probabilities(given | self._predictor.inputs(table, encoded))
        return pd.DataFrame(found.reshape(len(frame), -1), columns=self._outcomes, index=frame.index)


def _manifest(profiles: Mapping[str, Profile]) -> dict[str, Any]:
    return {"modalities": {name: {"kind": profile.kind} for name, profile in profiles.items()}}


@dataclass(frozen=True)
class _Table(Prepared):
    """A table in place of prepared data.

    Attributes:
        frame: one row a unit.
        profiles: of the model's inputs.
    """

    frame: pd.DataFrame = field(default_factory=pd.DataFrame)
    profiles: Mapping[str, Profile] = field(default_factory=dict)

    def array(self, modality: str) -> ModalityArray:
        """One modality of the table."""
        profile = self.profiles[modality]
        if profile.kind == "image":
            return _images(self._cells(modality), modality, profile)
        given = [self.frame.get(f"{modality}|{column.name}") for column in profile.columns]
        if profile.kind == "sequence":
            return _sequence(given, modality, profile, len(self.frame))
        values = np.full((len(self.frame), len(given)), np.nan, dtype=np.float32)
        for place, column in enumerate(given):
            if column is not None:
                values[:, place] = _numbers(column)
        present = np.asarray((~np.isnan(values)).any(axis=1), dtype=np.bool_)
        return ModalityArray(profile.columns, _zero_filled(values, profile), present)

    def texts(self, modality: str) -> pl.Series:
        """(N,) null where there is none, or a blank one."""
        cells = [cell if isinstance(cell, str) and cell.strip() else None for cell in self._cells(modality)]
        return pl.Series(cells, dtype=pl.String)

    def _cells(self, name: str) -> list[Any]:
        return [None] * len(self.frame) if name not in self.frame else self.frame[name].tolist()


def _images(cells: list[Any], name: str, profile: Profile) -> ModalityArray:
    index = np.full(len(cells), -1, dtype=np.int64)
    pixels: list[npt.NDArray[np.uint8]] = []
    for row, cell in enumerate(cells):
        if isinstance(cell, bytes | bytearray | memoryview):
            try:
                square = images.square(io.BytesIO(cell), profile.size, profile.recipe)
            except Exception as error:  # decoders raise anything on damaged files
                raise UserError(
                    f"row {row}: column '{name}' holds no image that can be read ({type(error).__name__}); give the "
                    "content of a PNG, JPG or DICOM file"
                ) from None
            index[row] = len(pixels)
            pixels.append(square)
        elif not pd.api.types.is_scalar(cell) or not pd.isna(cell):
            raise UserError(f"row {row}: column '{name}' holds {type(cell).__name__}; give the bytes of an image file")
    values = np.stack(pixels)[:, None] if pixels else np.zeros((0, 1, profile.size, profile.size), dtype=np.uint8)
    return ModalityArray(profile.columns, values, index >= 0, kind="image", index=index)


def _numbers(column: "pd.Series[Any]") -> npt.NDArray[np.float32]:
    try:
        numbers: npt.NDArray[np.float32] = pd.to_numeric(column).to_numpy(dtype=np.float32, na_value=np.nan)
    except (TypeError, ValueError):
        raise UserError(
            f"column '{column.name}' holds a cell that is no number; give numbers, or leave cells empty"
        ) from None
    return numbers


def _steps(column: "pd.Series[Any] | None", row: int) -> Any:
    """The numbers of a cell; None where it is empty."""
    cell: Any = None if column is None else column.iloc[row]
    if np.ndim(cell):
        return cell
    if column is not None and not pd.isna(cell):
        raise UserError(
            f"row {row}: column '{column.name}' holds {type(cell).__name__}; give a list, one number a time step"
        )
    return None


def _sequence(given: list["pd.Series[Any] | None"], name: str, profile: Profile, units: int) -> ModalityArray:
    cells = [[_steps(column, row) for column in given] for row in range(units)]
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
