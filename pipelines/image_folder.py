"""A folder of images (PNG, JPEG, TIFF, DICOM) and a csv file of their labels: X-rays of NIH, MIMIC-CXR or your own.

The spec declares the csv file in `tables`; the task's options say which columns name the image, the patient and the
label. A unit is an image.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Annotated, Literal

import polars as pl
from pydantic import AfterValidator, Field

from ovo_clinic.errors import UserError
from ovo_clinic.raw import RawFolder
from ovo_clinic.registry import Options, suggest
from ovo_clinic.spec import DatasetSpec
from ovo_clinic.tables import ImageTable, Step, Tables

Column = Annotated[str, AfterValidator(str.lower)]
Known = Literal["missing", "negative", "positive"]
_AS_LABEL: Mapping[Known, int | None] = {"missing": None, "negative": 0, "positive": 1}


class OneColumn(Options):
    """Labels that stand in one column.

    Attributes:
        column: of texts; a blank cell is no label.
    """

    column: Column

    @property
    def inputs(self) -> list[str]:
        """The columns that are read."""
        return [self.column]


class Normal(OneColumn):
    """Normal against abnormal: a column whose other values all mean that something was found.

    Attributes:
        normal: the values that mean that nothing was found.
        name: of the label, as in the task's target.
    """

    kind: Literal["normal"]
    normal: list[str] = Field(min_length=1)
    name: str

    def labels(self) -> dict[str, pl.Expr]:
        """0 = normal, 1 = anything else."""
        return {self.name: (~pl.col(self.column).is_in(self.normal)).cast(pl.Int8)}


class Classes(OneColumn):
    """One of several classes, each a value of a column.

    Attributes:
        classes: its values, in the order of the task's classes.
        name: of the label, as in the task's target.
    """

    kind: Literal["classes"]
    classes: list[str] = Field(min_length=2)
    name: str

    def labels(self) -> dict[str, pl.Expr]:
        """The place of the value among the classes; another value is no label."""
        places = {value: place for place, value in enumerate(self.classes)}
        return {self.name: pl.col(self.column).replace_strict(places, default=None, return_dtype=pl.Int8)}


class Findings(OneColumn):
    """Several findings in one cell, `Edema|Effusion`.

    Attributes:
        names: of the findings that are predicted, as in the cells and in the task's target.
        separator: between them; blanks around it count for nothing.
    """

    kind: Literal["findings"]
    names: list[str] = Field(min_length=1)
    separator: str = "|"

    def labels(self) -> dict[str, pl.Expr]:
        """1 = the finding is among those of the cell."""
        found = pl.col(self.column).str.split(self.separator).list.eval(pl.element().str.strip_chars())
        return {name: found.list.contains(name).cast(pl.Int8) for name in self.names}


class Columns(Options):
    """A column for each label: 1 present, 0 absent, -1 uncertain, blank not mentioned (CheXpert's form).

    Attributes:
        columns: their lower-case names, as in the task's target.
        uncertain: what -1 counts as.
        blank: what a blank cell counts as.
    """

    kind: Literal["columns"]
    columns: list[Column] = Field(min_length=1)
    uncertain: Known = "missing"
    blank: Known = "missing"

    @property
    def inputs(self) -> list[str]:
        """The columns that are read."""
        return self.columns

    def labels(self) -> dict[str, pl.Expr]:
        """0 or 1; what counts as missing, and any other number, is no label."""
        meanings = {1: 1, 0: 0, -1: _AS_LABEL[self.uncertain], None: _AS_LABEL[self.blank]}
        return {
            name: pl.col(name).cast(pl.Float64).replace_strict(meanings, default=None, return_dtype=pl.Int8)
            for name in self.columns
        }


Label = Annotated[Normal | Classes | Findings | Columns, Field(discriminator="kind")]


class Join(Options):
    """A further table, of images where that of the labels has none, or of their parts.

    Attributes:
        table: one of the spec's tables.
        by: columns that it has in common with the tables before.
    """

    table: str
    by: list[Column] = Field(min_length=1)


def tables(
    raw: RawFolder,
    spec: DatasetSpec,
    *,
    label: Label,
    patient: Column,
    file: str,
    table: str = "labels",
    joins: list[Join] = [],  # noqa: B006 - read as a schema, never changed
    keep: dict[Column, list[str]] = {},  # noqa: B006
    columns: list[Column] = [],  # noqa: B006
    size: Annotated[int, Field(ge=8)] = 64,
    recipe: Literal["squash", "crop"] = "squash",
) -> Tables:
    """Reads the labels and finds the image of each row.

    Args:
        raw: the folder of the csv file and of the images.
        spec: of one modality, the image.
        label: what is predicted.
        patient: the column that names the person.
        file: where an image lies in the folder, with columns in braces: `{file}`, or
            `files/p{subject_id:2}/p{subject_id}/s{study_id}/{dicom_id}.jpg` (`:2` = the first two characters). A name
            without a folder is also looked for in all sub-folders.
        table: of the labels.
        joins: further tables, row by row in this order; what is in only one of them is left out.
        keep: column -> values; rows with others are left out.
        columns: further columns for `split.column`, `split.by` and subgroups.
        size: side in pixels that images are brought to.
        recipe: see `images.RECIPES`.

    Raises:
        UserError: several modalities, a column that is not declared, a label that should be a number and is none, two
            rows of one image, or a name that several files have.
    """
    if len(spec.modalities) > 1:
        raise UserError(f"modalities: {', '.join(spec.modalities)}; a folder of images is one, the image: name only it")
    used = [table, *(join.table for join in joins)]
    for name in used:
        if name not in spec.tables:
            raise UserError(f"data: no table '{name}'{suggest(name, list(spec.tables))}")
    parts = _parts(file)
    named = [*(name for _, name, _ in parts if name), patient, *keep, *columns, *label.inputs]
    _check_columns(named, {name for table in used for name in spec.tables[table].all_columns})
    rows = _rows(raw, table, joins)
    if isinstance(label, Columns):
        _check_numbers(rows, label.columns, _name(raw, table))
    path = pl.concat_str([piece for part in parts for piece in _pieces(*part)])
    labels = label.labels()
    frame = rows.with_columns(unit_id=path, patient_id=pl.col(patient), **labels)
    steps = [_step(f"rows of {_name(raw, table)}", frame, labels)]
    for column, values in keep.items():
        frame = frame.filter(pl.col(column).cast(pl.String).is_in(values))
        steps.append(_step(f"{column} is {' or '.join(values)}", frame, labels))
    if not raw.unlabelled:
        frame = frame.filter(pl.any_horizontal(pl.col(list(labels)).is_not_null()))
        steps.append(_step("a label is known", frame, labels))
    nameless = pl.any_horizontal(pl.col("unit_id", "patient_id").is_null())
    notes = {"rows without a patient or the name of an image (left out)": frame.filter(nameless).height}
    frame = frame.filter(~nameless)
    repeated = frame.height - frame["unit_id"].n_unique()
    if repeated:
        raise UserError(f"{_name(raw, table)}: {repeated} row(s) name an image again; one row an image is needed")
    folder = raw.folder(spec.tables[table].source)
    assert folder is not None, "the table of labels lies in it"
    found, absent = _located(frame["unit_id"], folder)
    frame = frame.with_columns(path=found).drop_nulls("path")
    steps.append(_step("its image is in the folder", frame, labels))
    kept = dict.fromkeys(["unit_id", "patient_id", *labels, *columns])
    image = ImageTable(frame.select("unit_id", "path"), size, recipe, absent)
    return Tables(frame.select(*kept), {next(iter(spec.modalities)): image}, steps, notes)


def _parts(file: str) -> list[tuple[str, str | None, str]]:
    """(text, column after it, number of its characters) of a template."""
    try:
        return [(text, name and name.lower(), width or "") for text, name, width, _ in Formatter().parse(file)]
    except ValueError as error:
        raise UserError(f"data.file: '{file}' is no template ({error}); write columns in braces: {{file}}") from None


def _pieces(text: str, column: str | None, width: str) -> list[pl.Expr]:
    if column is None:
        return [pl.lit(text)]
    value = pl.col(column).cast(pl.String)
    if width and not width.isdigit():
        raise UserError(f"data.file: '{{{column}:{width}}}' should give a number of characters: {{{column}:2}}")
    return [pl.lit(text), value.str.head(int(width)) if width else value]


def _check_columns(names: list[str], known: set[str]) -> None:
    for name in names:
        if name not in known:
            raise UserError(f"data: no column '{name}' is declared{suggest(name, sorted(known))}")


def _rows(raw: RawFolder, table: str, joins: Sequence[Join]) -> pl.DataFrame:
    """The rows of the labels, or of the images that have some; texts without blanks around them."""
    query = raw.scan(table)
    for join in joins:
        query = query.join(raw.scan(join.table), on=join.by, how="inner", suffix=f" of {join.table}")
    stripped = pl.col(pl.String).str.strip_chars().replace("", None)
    return raw.collect(query.with_columns(stripped), table)


def _check_numbers(rows: pl.DataFrame, columns: Sequence[str], file: str) -> None:
    for name in columns:
        wrong = rows[name].cast(pl.Float64, strict=False).null_count() - rows[name].null_count()
        if wrong:
            raise UserError(
                f"{file}: column '{name}' holds {wrong} cell(s) that are no number; 1, 0, -1 or nothing should stand "
                "there (data.label of another kind takes texts)"
            )


def _name(raw: RawFolder, table: str) -> str:
    path = raw.path(table)
    return table if path is None else path.name


def _step(rule: str, frame: pl.DataFrame, labels: Mapping[str, pl.Expr]) -> Step:
    positives = int((frame[next(iter(labels))] == 1).sum()) if len(labels) == 1 else None
    return Step(rule, frame.height, frame["patient_id"].n_unique(), positives)


def _located(names: pl.Series, folder: Path) -> tuple[pl.Series, tuple[str, ...]]:
    """The absolute path of each image, null where there is none, and the paths that were looked for in vain."""
    deeper = _files_below(folder) if any("/" not in name for name in names) else {}
    found: list[str | None] = []
    absent: list[str] = []
    for name in names:
        direct = str(folder / name)
        places = [direct] if os.path.isfile(direct) else deeper.get(name, [])
        if len(places) > 1:
            raise UserError(f"{folder}: holds {len(places)} files of one name; give their folders in data.file")
        found += places or [None]
        absent += [] if places else [direct]
    return pl.Series(found, dtype=pl.String), tuple(absent)


def _files_below(folder: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for parent, _, files in os.walk(folder):
        for name in files:
            found.setdefault(name, []).append(os.path.join(parent, name))
    return found
