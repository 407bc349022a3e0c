"""DatasetSpec: what the data of one data set are and who is in the cohort of each task (data_specs/*.yaml)."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from ovo_clinic import resources
from ovo_clinic.errors import UserError
from ovo_clinic.registry import Options, check, option_schema

ColumnType = Literal["integer", "number", "text"]


class TableSpec(Options):
    """One raw file.

    Attributes:
        file: its name without `.csv` / `.csv.gz`; matched in any case.
        columns: the columns that are read, by lower-case name, and their types; others are never looked at.
        unique: a column that may hold no value twice (a duplicate is an error).
        required: False = the file may be absent.
        source: which download it lies in, where there are several (`--raw iv=DIR cxr=DIR`).
    """

    file: str
    columns: dict[str, ColumnType]
    unique: str | None = None
    required: bool = True
    source: str = ""


class SplitSpec(Options):
    """How units are split; always by whole patients.

    Attributes:
        train, validation, test: shares of the patients (or groups), summing to 1.
        seed: of the shuffle.
        stratify: by whether any unit of the patient is positive (binary and multiclass tasks).
        by: a cohort column whose values are kept whole instead of single patients (`hospital_id`).
    """

    train: float = Field(0.7, gt=0, lt=1)
    validation: float = Field(0.1, gt=0, lt=1)
    test: float = Field(0.2, gt=0, lt=1)
    seed: int = 42
    stratify: bool = True
    by: str = "patient_id"

    @model_validator(mode="after")
    def _sums_to_one(self) -> "SplitSpec":
        total = self.train + self.validation + self.test
        if abs(total - 1) > 1e-9:
            raise ValueError(f"train, validation and test should sum to 1, not {total:g}")
        return self


class TaskSpec(Options):
    """One task on the data set: who, when, what is predicted.

    Attributes:
        title: one line for tables and lists.
        kind: of the prediction.
        target: label column(s) of the cohort table.
        classes: names of the classes, in order, for binary (negative, positive) and multiclass tasks.
        tables: name of the pipeline's function; its keyword-only arguments are the task's options.
        options: values for them that differ from their defaults.
        identifiers: further cohort columns whose values may not cross splits (a hospital admission).
        split: see SplitSpec.
        leaky: why the task's features know the outcome; printed, logged and shown wherever its numbers are.
    """

    title: str
    kind: Literal["binary", "multiclass", "multilabel"] = "binary"
    target: list[str] = Field(min_length=1)
    classes: list[str] = []
    tables: str = "tables"
    options: dict[str, Any] = {}
    identifiers: list[str] = []
    split: SplitSpec = SplitSpec()
    leaky: str | None = None


class DatasetSpec(Options):
    """A data set: its raw files, its modalities and its tasks.

    Attributes:
        name: of the data set.
        title: one line for lists.
        pipeline: a shipped pipeline's name, or a path ending in `.py`.
        raw: whether raw files are needed (`simulation` makes its own data).
        tables: the raw files that the pipeline reads, by the name it uses for them.
        modalities: name -> one line of what it holds; this order is the order everywhere.
        banned: raw columns that state the outcome; no pipeline may name a feature after them.
        settings: what the pipeline needs beyond that (unit conversions, plausible ranges, code lists).
        tasks: by name.
    """

    name: str
    title: str
    pipeline: str
    raw: bool = True
    tables: dict[str, TableSpec] = {}
    modalities: dict[str, str]
    banned: list[str] = []
    settings: dict[str, Any] = {}
    tasks: dict[str, TaskSpec]

    def task(self, name: str) -> TaskSpec:
        """The task called `name`.

        Raises:
            UserError: no such task.
        """
        if name not in self.tasks:
            raise UserError(f"task: data set '{self.name}' has no task '{name}'; valid: {', '.join(self.tasks)}")
        return self.tasks[name]

    def digest(self) -> str:
        """sha256 of the whole resolved spec."""
        return hashlib.sha256(json.dumps(self.model_dump(), sort_keys=True).encode()).hexdigest()


def load(name: str, relative_to: Path | None = None) -> tuple[DatasetSpec, Path]:
    """A spec and the file it came from.

    Args:
        name: a shipped spec's name, or a path ending in `.yaml`.
        relative_to: folder that a relative path starts from.

    Raises:
        UserError: no such spec, or a mistake in it, by its full path inside the file.
    """
    path = resources.find("data_specs", name, relative_to)
    return check(DatasetSpec, resources.read_yaml(path), str(path)), path


def task_options(spec: DatasetSpec, task: str, given: Mapping[str, Any], spec_path: Path) -> dict[str, Any]:
    """The task's options, resolved: the pipeline's defaults, then the spec's values, then the given ones.

    Raises:
        UserError: an unknown option or a wrong type.
    """
    function = pipeline_function(spec, task, spec_path)
    values = {**spec.task(task).options, **given}
    return check(option_schema(function), values, "data").model_dump()


def pipeline_function(spec: DatasetSpec, task: str, spec_path: Path) -> Any:
    """The function `(raw, spec, *, options) -> Tables` of a task."""
    module = resources.load_pipeline(spec.pipeline, spec_path.parent)
    name = spec.task(task).tables
    function = getattr(module, name, None)
    if function is None:
        raise UserError(f"{spec_path}: tasks.{task}.tables: pipeline '{spec.pipeline}' has no function '{name}'")
    return function
