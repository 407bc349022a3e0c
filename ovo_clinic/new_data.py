"""New raw data, prepared as a trained model takes them: nothing is fitted, split or dropped for want of a label."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from ovo_clinic import arrays, checks, drift, modality_files, raw
from ovo_clinic.arrays import Column, ModalityArray, TabularTable
from ovo_clinic.drift import Profile
from ovo_clinic.errors import UserError
from ovo_clinic.experiment import DataRequest
from ovo_clinic.prepare import run_pipeline
from ovo_clinic.prepared import TASK_FIELDS, Prepared
from ovo_clinic.spec import TableSpec
from ovo_clinic.tables import (
    CodesTable,
    ImageTable,
    ModalityTable,
    SequenceTable,
    SummariesTable,
    TextTable,
    Vocabulary,
)

PART = "new"
"""The one part of the split."""


def prepare_new(
    request: DataRequest, folders: Mapping[str, Path], trained: Mapping[str, Profile], folder: Path
) -> Prepared:
    """Runs the pipeline on new raw files and writes the columns that a model was trained on.

    Args:
        request: of the task that the model was trained for.
        folders: raw folders by source; files may lack the label's column.
        trained: by modality, what training saw; others are left out.
        folder: exists and is empty; gets the prepared data, patient-level.

    Raises:
        UserError: anything wrong with the raw files, or data unlike those of the training, saying how.
    """
    tables = _without_need_of(request.task.target, request.spec.tables)
    raw_folder = raw.RawFolder(folders, tables).working_in(folder / "work").for_prediction()
    result = run_pipeline(request, raw_folder)
    cohort = checks.checked_cohort(result, request, labelled=False)
    modalities: dict[str, Any] = {}
    found: list[str] = []
    for name, profile in trained.items():
        table = result.modalities.get(name) or _nothing(profile, cohort["unit_id"])  # a download that is not there
        modalities[name], different = _write(name, table, profile, cohort["unit_id"], folder, raw_folder)
        found += different
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise UserError(f"--raw: the data are unlike those the model was trained on: {found[0]}{more}")
    modality_files.take_images(raw_folder, folder, modalities)
    cohort.write_parquet(folder / "cohort.parquet")
    cohort.select("unit_id").with_columns(split=pl.lit(PART)).write_parquet(folder / "split.parquet")
    manifest = {
        "dataset": request.spec.name,
        "task": request.task_name,
        **request.task.model_dump(include=set(TASK_FIELDS)),
        "modalities": modalities,
        "attrition": [{"rule": step.rule, "units": step.units} for step in result.attrition],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest) + "\n", encoding="utf-8")
    return Prepared.open(folder)


def _without_need_of(labels: Sequence[str], tables: Mapping[str, TableSpec]) -> dict[str, TableSpec]:
    """The tables, whose files may lack the columns of labels: what is to be predicted need not be known."""
    names = {label.lower() for label in labels}
    found = {}
    for name, table in tables.items():
        needed = {column: kind for column, kind in table.columns.items() if column not in names}
        optional = {column: kind for column, kind in table.columns.items() if column in names}
        update = {"columns": needed, "optional_columns": {**table.optional_columns, **optional}}
        found[name] = table.model_copy(update=update)
    return found


def _nothing(profile: Profile, units: pl.Series) -> ModalityTable | None:
    """The table of a modality that no unit has; None where it is made of numbers."""
    rows = pl.DataFrame(schema={"unit_id": units.dtype, "path": pl.String, "text": pl.String})
    if profile.kind == "image":
        return ImageTable(rows.drop("text"), profile.size, profile.recipe)
    return TextTable(rows.drop("path")) if profile.kind == "text" else None


def _absent(profile: Profile, units: int) -> ModalityArray:
    """The array of a modality of numbers that no unit has."""
    sequence = profile.kind == "sequence"
    values = np.full((0 if sequence else units, len(profile.columns)), np.nan, dtype=np.float32)
    offsets = np.zeros(units + 1, dtype=np.int64) if sequence else None
    kind: Literal["vector", "sequence"] = "sequence" if sequence else "vector"
    return ModalityArray(profile.columns, values, np.zeros(units, dtype=np.bool_), offsets, kind=kind)


def _write(
    name: str, table: ModalityTable | None, profile: Profile, units: pl.Series, folder: Path, raw_folder: raw.RawFolder
) -> tuple[dict[str, Any], list[str]]:
    """Writes a modality; its entry of the manifest, and how it is unlike what training saw."""
    if isinstance(table, TextTable | ImageTable):
        written = modality_files.write(name, table, units, np.zeros(units.len(), np.bool_), folder, raw_folder)
        return {**written.entry, "present": {PART: int(written.present.sum())}}, []
    if table is None:
        array = _absent(profile, units.len())
    else:
        # Every value may become a column here: those of the training are picked out below.
        everything = np.ones(units.len(), dtype=np.bool_)
        array = aligned(name, arrays.build(_with_vocabulary(table, profile), units, everything), profile.columns)
    array.write(folder, name)
    entry = {**array.describe(), "present": {PART: int(array.present.sum())}}
    return entry, drift.differences(name, profile, array) if array.present.any() else []


def _with_vocabulary(table: TabularTable, profile: Profile) -> TabularTable:
    """The table with the codes or variables of the training in place of those that are frequent enough here."""
    if not isinstance(table, CodesTable | SummariesTable | SequenceTable):
        return table
    groups = dict.fromkeys(column.group for column in profile.columns)
    if isinstance(table, SequenceTable):
        del groups["hours"]
    return replace(table, vocabulary=Vocabulary(0, fixed=tuple(groups)))


def aligned(name: str, array: ModalityArray, columns: list[Column]) -> ModalityArray:
    """The array with the given columns, in their order; a category that is not there is one that no unit has.

    Raises:
        UserError: a column that is no category is not there.
    """
    places = {column.name: place for place, column in enumerate(array.columns)}
    groups = {column.group for column in array.columns}
    lacking = [
        column.name
        for column in columns
        if column.name not in places and not (column.group in groups and column.name.startswith(f"{column.group}="))
    ]
    if lacking:
        raise UserError(
            f"--raw: the data are unlike those the model was trained on: {name} has no column "
            f"{', '.join(lacking[:3])}; use the data spec, the options and the pipeline of the training"
        )
    if [column.name for column in array.columns] == [column.name for column in columns]:
        return replace(array, columns=columns)
    values = np.zeros((len(array.values), len(columns)), dtype=array.values.dtype)
    for place, column in enumerate(columns):
        if column.name in places:
            values[:, place] = array.values[:, places[column.name]]
    return replace(array, columns=columns, values=values)
