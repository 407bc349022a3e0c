"""What `prepare` refuses: promises of a pipeline that its tables break, labels that teach nothing, leaking columns."""

import numpy as np
import numpy.typing as npt
import polars as pl

from ovo_clinic import splitting, tables
from ovo_clinic.arrays import ModalityArray
from ovo_clinic.errors import UserError
from ovo_clinic.experiment import DataRequest
from ovo_clinic.spec import TaskSpec


def checked_cohort(result: tables.Tables, request: DataRequest, labelled: bool = True) -> pl.DataFrame:
    """The cohort sorted by unit, with every promise of the pipeline checked, and labels where they are needed.

    Raises:
        UserError: a missing column, no unit left, a unit without id or patient or in two rows, or a useless label.
    """
    needed = ["unit_id", "patient_id", *request.task.target]
    missing = [column for column in needed if column not in result.cohort.columns]
    if missing:
        raise UserError(
            f"{request.spec_path}: tasks.{request.task_name}: the cohort has no column {', '.join(missing)}; "
            f"it has {', '.join(result.cohort.columns)}"
        )
    cohort = result.cohort.sort("unit_id")
    if cohort.height == 0:
        raise UserError(f"task '{request.task_name}': no unit is left; {_attrition_line(result.attrition)}")
    for column in ("unit_id", "patient_id"):
        if cohort[column].null_count():
            raise UserError(f"task '{request.task_name}': {cohort[column].null_count()} units have no {column}")
    if cohort["unit_id"].n_unique() != cohort.height:
        raise UserError(f"task '{request.task_name}': a unit_id stands in two rows of the cohort")
    if labelled:
        _check_labels(cohort, request)
    unknown = [name for name in result.modalities if name not in request.spec.modalities]
    assert not unknown, f"the pipeline returned modalities that the spec does not name: {unknown}"
    assert result.modalities, "the pipeline returned no modality"
    return cohort


def _check_labels(cohort: pl.DataFrame, request: DataRequest) -> None:
    highest = len(request.task.classes) - 1 if request.task.kind == "multiclass" else 1
    for column in request.task.target:
        values = cohort[column].drop_nulls().cast(pl.Float64)
        wrong = values.filter(~values.is_in([float(value) for value in range(highest + 1)])).len()
        if wrong:
            raise UserError(
                f"task '{request.task_name}': label column '{column}' holds {wrong} values other than 0 to {highest}"
            )
    constant = constant_labels(cohort, request.task)
    if len(constant) == len(request.task.target):
        raise UserError(
            f"task '{request.task_name}': label column '{constant[0]}' has fewer than two different values among "
            f"{cohort.height} units; nothing can be learned from it"
        )


def constant_labels(cohort: pl.DataFrame, task: TaskSpec) -> list[str]:
    """Label columns with fewer than two different values; some of a multilabel task may be so in a small cohort."""
    return [column for column in task.target if cohort[column].drop_nulls().n_unique() < 2]


def _attrition_line(steps: list[tables.Step]) -> str:
    return ", ".join(f"{step.rule}: {step.units}" for step in steps)


def label_notes(cohort: pl.DataFrame, split: npt.NDArray[np.str_], task: TaskSpec) -> dict[str, str]:
    """Labels that never change, and classes of a multiclass task without a unit in a part: what has no metric there."""
    notes = {}
    if constant := constant_labels(cohort, task):
        notes["labels with one value only"] = ", ".join(constant)
    for part in splitting.SPLITS if task.kind == "multiclass" else ():
        seen = set(cohort.filter(pl.Series(split == part))[task.target[0]].drop_nulls().cast(pl.Int64))
        if absent := [name for code, name in enumerate(task.classes) if code not in seen]:
            notes[f"classes without a unit in {part}"] = ", ".join(absent)
    return notes


def check_columns(name: str, array: ModalityArray, request: DataRequest) -> None:
    """Looks at the features of one modality.

    Raises:
        UserError: one is named after a banned column, or holds a number that no measurement is.
    """
    banned = {column.lower() for column in request.spec.banned if column not in request.task.uses_banned}
    used = sorted({column.group for column in array.columns if column.group.lower() in banned})
    if used:
        raise UserError(
            f"{request.spec_path}: modality '{name}' uses columns that state the outcome: {', '.join(used)}"
        )
    if array.values.dtype == np.float32:
        infinite = np.isinf(array.values).any(axis=0)
        wrong = [column.name for column, bad in zip(array.columns, infinite, strict=True) if bad]
        if wrong:
            raise UserError(
                f"modality '{name}': {wrong[0]} holds values beyond 3e38, which no measurement is; mend them"
            )
