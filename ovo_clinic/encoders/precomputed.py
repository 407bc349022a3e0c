"""Embeddings that were computed elsewhere, from a file, in place of a modality."""

import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import polars as pl
from pydantic import Field
from torch import Tensor, nn

from ovo_clinic import derived, resources
from ovo_clinic.arrays import Column, ModalityArray
from ovo_clinic.encoders.mlp import Mlp
from ovo_clinic.errors import UserError
from ovo_clinic.prepared import Prepared
from ovo_clinic.registry import ENCODERS
from ovo_clinic.types import Modality, Tokens

_UNIT, _VALUES = "unit_id", "values"


@ENCODERS.register("precomputed")
class Precomputed(nn.Module):
    """Embeddings from a .npz or .parquet file by unit id, in place of what the modality holds.

    A .npz holds `unit_id` (n,) and `values` (n,F); a .parquet a column unit_id, and numbers or lists of one length. A
    unit with several rows has as many tokens, in the order of the file; one without a row lacks the modality. Features
    are scaled as any other are.

    Args:
        modality: the embeddings.
        dim: D, the width of the tokens.
        file: the embeddings' file.
        layers: linear layers, as in `mlp`.
        width: of the layers before the last.
        dropout: between layers.
    """

    takes_text = True
    files = ("file",)
    of_rows = True

    def __init__(
        self,
        modality: Modality,
        dim: int,
        *,
        file: str,
        layers: Literal[1, 2, 3, 4] = 1,
        width: Annotated[int, Field(ge=1)] = 64,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1,
    ) -> None:
        super().__init__()
        if modality.kind not in ("vector", "sequence"):
            raise UserError(f"encoder: precomputed takes embeddings, and {modality.name} is of kind {modality.kind}")
        self.layers = Mlp(modality, dim, layers=layers, width=width, dropout=dropout)

    @classmethod
    def inputs(cls, name: str, prepared: Prepared, options: Mapping[str, Any]) -> ModalityArray:
        """The embeddings of the cohort's units.

        Raises:
            UserError: a file that is missing, damaged, or of other units.
        """
        file = resources.absolute(options["file"], f"model.encoders.{name}.file")
        if not file.is_file():
            raise UserError(f"model.encoders.{name}.file: {file} does not exist; give a .npz or .parquet file")
        identity = {"embeddings": derived.files_digest(file)}
        return derived.cached(prepared, name, identity, partial(embeddings, file, prepared.cohort["unit_id"]))

    def forward(self, x: Tensor, mask: Tensor) -> Tokens:
        """Encodes x (B,F) with mask (B,1), or (B,T,F) with (B,T), True = valid, into Tokens (B,1,D) or (B,T,D)."""
        tokens: Tokens = self.layers(x, mask)
        return tokens


def embeddings(file: Path, units: pl.Series) -> ModalityArray:
    """The embeddings of the given units (N,), a row each, or a token for every row of a unit where any has several.

    Raises:
        UserError: a file that is damaged or laid out otherwise, or of other units.
    """
    found = _read(file)
    features = [name for name in found.columns if name != _UNIT]
    try:
        found = found.with_columns(pl.col(_UNIT).cast(units.dtype))
    except pl.exceptions.PolarsError:
        raise UserError(
            f"{file}: {_UNIT} holds {found[_UNIT].dtype}, the cohort's ids are {units.dtype}; write them as those are"
        ) from None
    number = pl.DataFrame({_UNIT: units}).with_row_index("_row")
    rows = found.join(number, on=_UNIT, how="inner", maintain_order="left").sort("_row", maintain_order=True)
    if rows.is_empty():
        raise UserError(f"{file}: none of its {found.height} rows is of the cohort; write {_UNIT} as exported")
    values = np.ascontiguousarray(rows.select(features).to_numpy(), dtype=np.float32)
    if not np.isfinite(values).all():
        raise UserError(f"{file}: some values are missing or not finite; leave out the rows of those units")
    lengths = np.bincount(rows["_row"].to_numpy(), minlength=len(units))
    columns = [Column(name, "numeric", name) for name in features]
    if lengths.max() > 1:
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return ModalityArray(columns, values, lengths > 0, offsets, kind="sequence")
    placed = np.zeros((len(units), len(features)), dtype=np.float32)
    placed[lengths > 0] = values
    return ModalityArray(columns, placed, lengths > 0)


def _read(file: Path) -> pl.DataFrame:
    """unit_id and one numeric column a feature."""
    readers = {".npz": _read_npz, ".parquet": _read_parquet}
    if file.suffix not in readers:
        raise UserError(f"{file}: ends in neither .npz nor .parquet")
    try:
        found = readers[file.suffix](file)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, pl.exceptions.PolarsError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{file}: cannot be read ({' '.join(str(error).split())[:200]})") from None
    other = [name for name, dtype in found.schema.items() if name != _UNIT and not dtype.is_numeric()]
    if _UNIT not in found.columns or found.width < 2 or other:
        problem = f"column {other[0]} holds no numbers" if other else f"there is no {_UNIT}, or nothing beside it"
        raise UserError(f"{file}: {problem}; it should hold {_UNIT} and numbers")
    return found


def _read_npz(file: Path) -> pl.DataFrame:
    with np.load(file, allow_pickle=False) as arrays:
        if not {_UNIT, _VALUES} <= set(arrays):
            raise UserError(f"{file}: holds {sorted(arrays)[:5]}; it should hold {_UNIT} (n,) and {_VALUES} (n,F)")
        units, values = arrays[_UNIT], arrays[_VALUES]
    if units.ndim != 1 or values.ndim != 2 or len(units) != len(values):
        raise UserError(f"{file}: {_UNIT} is {units.shape} and {_VALUES} {values.shape}; they should be (n,) and (n,F)")
    return pl.DataFrame({_UNIT: units}).hstack(pl.from_numpy(values, schema=_names(_VALUES, values.shape[1])))


def _read_parquet(file: Path) -> pl.DataFrame:
    """As it is, with a column for every place of a list."""
    found = pl.read_parquet(file)
    for name, dtype in found.schema.items():
        if isinstance(dtype, pl.List | pl.Array):
            lists = found[name].cast(pl.List(dtype.inner))
            lengths = lists.list.len().unique().to_list()
            if len(lengths) != 1 or lengths[0] is None:
                raise UserError(f"{file}: the lists of column {name} differ in length; give one list of numbers a row")
            places = lists.list.to_struct(fields=_names(name, lengths[0])).struct.unnest()
            found = found.drop(name).hstack(places)
    return found


def _names(stem: str, count: int) -> list[str]:
    return [f"{stem} {index}" for index in range(count)]
