"""DatasetSpec: what the data of one data set are and who is in the cohort of each task (data_specs/*.yaml)."""

import csv
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ovo_clinic import resources
from ovo_clinic.errors import UserError
from ovo_clinic.registry import Options, check, option_schema, suggest

ColumnType = Literal["integer", "number", "text"]


class TableSpec(Options):
    """One raw file.

    Attributes:
        file: its name without `.csv` / `.csv.gz`; matched in any case.
        columns: the columns that are read, by lower-case name, and their types; others are never looked at. A file may
            name one of the spec's `lists` instead: every `column` of that list, as text.
        optional_columns: columns that are read where the file has them, and null where it has not.
        renamed: other names that a column goes by, by its own (`race: [ethnicity]`).
        missing: texts that mean a missing value, beside the empty cell.
        unique: a column that may hold no value twice (a duplicate is an error).
        required: False = the file may be absent.
        source: which download it lies in, where there are several (`--raw iv=DIR cxr=DIR`).
        folders: sub-folders of the download that may hold it, in order; the download's own folder comes last.
    """

    file: str
    columns: dict[str, ColumnType]
    missing: list[str] = []
    unique: str | None = None
    required: bool = True
    source: str = ""
    folders: list[str] = []
    optional_columns: dict[str, ColumnType] = {}
    renamed: dict[str, list[str]] = {}

    @property
    def all_columns(self) -> dict[str, ColumnType]:
        """Required and optional columns with their types, in order."""
        return {**self.columns, **self.optional_columns}


class SplitSpec(Options):
    """How units are split; always by whole patients.

    Attributes:
        train, validation, test: shares of the patients (or groups), summing to 1.
        seed: of the shuffle.
        stratify: by whether any unit of the patient is positive (binary and multiclass tasks).
        by: a cohort column whose values are kept whole instead of single patients (`hospital_id`).
        whole_patients: False = single units are drawn, as the OvO notebooks do it, so that a patient may stand in
            several parts; how many do is recorded. Leaky tasks only.
        column: a cohort column that names the part of each unit (train, validation or test); nothing is drawn then.
        folds: cross-validation: the patients are cut into so many parts of like size; `test` is not used then.
        fold: which of them, from 0, is the test part.
    """

    train: float = Field(0.7, gt=0, lt=1)
    validation: float = Field(0.1, gt=0, lt=1)
    test: float = Field(0.2, gt=0, lt=1)
    seed: int = Field(42, ge=0)
    stratify: bool = True
    by: str = "patient_id"
    whole_patients: bool = True
    column: str | None = None
    folds: int | None = Field(None, ge=2)
    fold: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _sums_to_one(self) -> "SplitSpec":
        total = self.train + self.validation + self.test
        if abs(total - 1) > 1e-9:
            raise ValueError(f"train, validation and test should sum to 1, not {total:g}")
        if not self.whole_patients and (self.stratify or self.by != "patient_id"):
            raise ValueError("whole_patients: false goes only with stratify: false and without `by`")
        return self

    @model_validator(mode="after")
    def _fold_is_there(self) -> "SplitSpec":
        if self.fold and self.fold >= (self.folds or 0):
            raise ValueError(f"fold: {self.fold} is not one of folds 0 to {(self.folds or 1) - 1}")
        if self.folds and not self.whole_patients:
            raise ValueError("folds: are cut by patient; not with whole_patients: false")
        if self.column is not None and (self.folds or not self.whole_patients):
            raise ValueError("column: names the parts; not with folds, and not with whole_patients: false")
        return self


class TaskSpec(Options):
    """One task on the data set: who, when, what is predicted.

    Attributes:
        title: one line for tables and lists.
        kind: of the prediction.
        target: label column(s) of the cohort table.
        classes: names of the classes, in order, for binary (negative, positive) and multiclass tasks.
        groups: of a multilabel task's labels, by name (acute, chronic), which get averages of their own.
        tables: name of the pipeline's function; its keyword-only arguments are the task's options.
        options: values for them that differ from their defaults.
        identifiers: further cohort columns whose values may not cross splits (a hospital admission).
        split: see SplitSpec.
        leaky: why the task's features know the outcome; printed, logged and shown wherever its numbers are.
        uses_banned: columns banned in the spec that this task uses all the same, as its source did; leaky tasks only.
        kept_on_purpose: features, by column, that tell the outcome and stay all the same, and why; `audit` then
            prints them as declared.
        beside: options under which `compare` runs the task once more, so that both results are seen together.
    """

    title: str
    kind: Literal["binary", "multiclass", "multilabel"] = "binary"
    target: list[str] = Field(min_length=1)
    classes: list[str] = []
    groups: dict[Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")], Annotated[list[str], Field(min_length=1)]] = {}
    tables: str = "tables"
    options: dict[str, Any] = {}
    identifiers: list[str] = []
    split: SplitSpec = SplitSpec()
    leaky: str | None = None
    uses_banned: list[str] = []
    kept_on_purpose: dict[str, str] = {}
    beside: dict[str, Any] = {}

    @model_validator(mode="after")
    def _leaks_say_so(self) -> "TaskSpec":
        if self.uses_banned and self.leaky is None:
            raise ValueError("uses_banned: needs a `leaky` reason")
        self.check_split(self.split)
        return self

    @model_validator(mode="after")
    def _multilabel_has_labels(self) -> "TaskSpec":
        if self.kind == "multilabel" and len(self.target) < 2:
            raise ValueError("kind: multilabel is for two labels or more; of one, say kind: binary")
        return self

    @model_validator(mode="after")
    def _groups_hold_labels(self) -> "TaskSpec":
        for group, labels in self.groups.items():
            unknown = [label for label in labels if label not in self.target]
            if self.kind != "multilabel" or unknown:
                problem = f"no label '{unknown[0]}'" if unknown else "are for multilabel tasks"
                raise ValueError(f"groups: {group}: {problem}{suggest(unknown[0], self.target) if unknown else ''}")
        return self

    def check_split(self, split: SplitSpec) -> None:
        """Refuses to cut patients apart where the task does not say that it leaks.

        Raises:
            ValueError: `split.whole_patients` is off in a task without a `leaky` reason.
        """
        if not split.whole_patients and self.leaky is None:
            raise ValueError("split.whole_patients: false puts patients on both sides; only a task marked `leaky` may")


class DatasetSpec(Options):
    """A data set: its raw files, its modalities and its tasks.

    Attributes:
        name: of the data set.
        title: one line for lists.
        pipeline: a shipped pipeline's name, or a path ending in `.py`.
        raw: whether raw files are needed (`simulation` makes its own data).
        tables: the raw files that the pipeline reads, by the name it uses for them.
        modalities: name -> one line of what it holds; this order is the order everywhere.
        lists: tables of codes or columns that lie beside the spec as csv files; in the YAML, name -> file name.
        banned: raw columns that state the outcome; no pipeline may name a feature after them.
        releases: rows of each table as published, by the name of the release; no part of `digest`.
        settings: what the pipeline needs beyond that (unit conversions, plausible ranges, code lists).
        tasks: by name.
    """

    name: str
    title: str
    pipeline: str
    raw: bool = True
    tables: dict[str, TableSpec] = {}
    modalities: dict[str, str]
    lists: dict[str, list[dict[str, str]]] = {}
    banned: list[str] = []
    releases: dict[str, dict[str, Annotated[int, Field(ge=0)]]] = {}
    settings: dict[str, Any] = {}
    tasks: dict[str, TaskSpec]

    @model_validator(mode="after")
    def _releases_name_tables(self) -> "DatasetSpec":
        for release, rows in self.releases.items():
            for table in rows:
                if table not in self.tables:
                    raise ValueError(f"releases: {release}: no table '{table}'{suggest(table, list(self.tables))}")
        return self

    def task(self, name: str) -> TaskSpec:
        """The task called `name`.

        Raises:
            UserError: no such task.
        """
        if name not in self.tasks:
            raise UserError(f"task: data set '{self.name}' has no task '{name}'; valid: {', '.join(self.tasks)}")
        return self.tasks[name]

    def digest(self) -> str:
        """sha256 of the resolved spec, of all that decides what is made of raw files."""
        decisive = self.model_dump(exclude={"releases"})
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def load(name: str, relative_to: Path | None = None) -> tuple[DatasetSpec, Path]:
    """A spec and the file it came from.

    Args:
        name: a shipped spec's name, or a path ending in `.yaml`.
        relative_to: folder that a relative path starts from.

    Raises:
        UserError: no such spec, or a mistake in it, by its full path inside the file.
    """
    path = resources.find("data_specs", name, relative_to)
    return check(DatasetSpec, _with_lists(resources.read_yaml(path), path), str(path)), path


def _with_lists(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """The content of a spec's file, with its lists in place of their names."""
    given, tables = values.get("lists", {}), values.get("tables", {})
    if not isinstance(given, dict) or not isinstance(tables, dict):
        return values  # the check of types that follows tells what is wrong
    lists = {name: _read_list(path.parent / str(file), path) for name, file in given.items()}
    tables = dict(tables)
    for name, table in tables.items():
        named = table.get("columns") if isinstance(table, dict) else None
        if isinstance(named, str):
            if named not in lists:
                raise UserError(f"{path}: tables.{name}.columns: no list '{named}'{suggest(named, list(lists))}")
            columns = {row.get("column", "").lower(): "text" for row in lists[named]}
            if "" in columns:
                raise UserError(f"{path}: lists.{named}: every row needs a name in its column `column`")
            tables[name] = {**table, "columns": columns}
    return {**values, "lists": lists, "tables": tables}


def _read_list(file: Path, path: Path) -> list[dict[str, str]]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            return list(csv.DictReader(stream, restval=""))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: lists: {file.name} cannot be read ({error}); put it beside the spec") from None


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
