"""A private data set held in flat files (csv, csv.gz, parquet): one YAML describes it, no code is needed.

The spec's `tables` declare the files and the types of their columns; the task's options say which table is the cohort
and what each modality is made of. `ovo-clinic new-dataset` writes a first version of such a spec.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import polars as pl
from pydantic import Field

from ovo_clinic.errors import UserError
from ovo_clinic.flat_options import Codes, Cohort, Modality, Sequence, Source, Summaries, Vector
from ovo_clinic.raw import RawFolder
from ovo_clinic.registry import suggest
from ovo_clinic.spec import DatasetSpec
from ovo_clinic.tables import (
    CodesTable,
    ModalityTable,
    SequenceTable,
    Step,
    SummariesTable,
    Tables,
    VectorTable,
    Vocabulary,
)

_Records = Codes | Summaries | Sequence

_LATEST = "latest record"
_MOST_CLASSES = 20
_HOURS = {"minutes": 1 / 60, "hours": 1.0, "days": 24.0}


def tables(
    raw: RawFolder,
    spec: DatasetSpec,
    *,
    cohort: Cohort,
    modalities: dict[str, Modality],
    prediction_hours: Annotated[float, Field(allow_inf_nan=False)] | None = None,
) -> Tables:
    """Reads the cohort and every modality.

    Args:
        raw: the folder of the files.
        spec: declares the files in `tables`.
        cohort: who, and the labels.
        modalities: what each of the spec's modalities is made of.
        prediction_hours: records at or after this time since the index time, and those of unknown time, are dropped and
            counted.

    Raises:
        UserError: a table or column that is not declared, a column of the wrong type, a unit that stands in two rows,
            a label or a 0/1 column with other values, an id or label that is not UTF-8 text.
    """
    _check_names(spec, cohort, modalities)
    frame, attrition = _cohort(raw, cohort)
    units = frame.select("unit_id")
    found: dict[str, ModalityTable] = {}
    notes: dict[str, int | float | str] = {}
    for name in spec.modalities:
        settings = modalities[name]
        notes |= _uncut(name, settings, prediction_hours)
        if isinstance(settings, Vector):
            found[name], counts = _vector(raw, spec, cohort, settings, units)
        else:
            found[name], counts = _records(raw, cohort, settings, units, prediction_hours)
        notes |= {f"{name}: {reason}": count for reason, count in counts.items()}
    return Tables(frame, found, attrition, notes)


def _uncut(name: str, settings: Modality, prediction_hours: float | None) -> dict[str, str]:
    """A note on a modality that no prediction time cuts.

    Raises:
        UserError: records that should be cut have no time.
    """
    if isinstance(settings, Vector):
        told = "no column of times, every value is taken as known before the prediction time"
        return {} if prediction_hours is None else {name: told}
    if prediction_hours is None:
        return {name: "no prediction time, every record is used"}
    if settings.time is not None:
        return {}
    if not settings.known_before:
        raise UserError(
            f"data.modalities.{name}.time: is needed, as data.prediction_hours is given; name the column of times, "
            "or set known_before: true where every record was known before that time"
        )
    return {name: "known_before, every record is taken as known before the prediction time"}


def _check_names(spec: DatasetSpec, cohort: Cohort, modalities: Mapping[str, Modality]) -> None:
    """Every table and column that the options name is declared, has the right type, and is no outcome."""
    if set(modalities) != set(spec.modalities):
        raise UserError(
            f"data.modalities: names {', '.join(sorted(modalities))}, but the spec's `modalities` are "
            f"{', '.join(sorted(spec.modalities))}; the two lists should be the same"
        )
    sources: dict[str, Source] = {"data.cohort": cohort}
    sources |= {f"data.modalities.{name}": settings for name, settings in modalities.items()}
    for path, source in sources.items():
        if source.table not in spec.tables:
            raise UserError(f"{path}.table: no table '{source.table}'{suggest(source.table, list(spec.tables))}")
        types = spec.tables[source.table].columns
        for option, column in [("unit", source.unit or cohort.unit), *source.named(source.numbers + source.texts)]:
            if column not in types:
                table = f"table '{source.table}' has no column '{column}'"
                raise UserError(f"{path}.{option}: {table}{suggest(column, list(types))}")
            if option in source.numbers and types[column] == "text":
                raise UserError(f"{path}.{option}: column '{column}' is declared as text; a number is needed")
            if source is not cohort and option != "unit" and column in _never_features(spec, cohort):
                raise UserError(f"{path}.{option}: '{column}' is an id, a label or banned, and may not be a feature")
        unit = source.unit or cohort.unit
        if types[unit] != spec.tables[cohort.table].columns[cohort.unit]:
            raise UserError(f"{path}.unit: column '{unit}' is declared as {types[unit]}, unlike the cohort's")


def _never_features(spec: DatasetSpec, cohort: Cohort) -> set[str]:
    banned = {column.lower() for column in spec.banned}
    return banned | {cohort.unit, cohort.patient or cohort.unit, *cohort.labels}


def _cohort(raw: RawFolder, cohort: Cohort) -> tuple[pl.DataFrame, list[Step]]:
    file = _file(raw, cohort)
    extra = [*cohort.columns, *cohort.require]
    columns = {name: pl.col(name) for name in extra} | {name: _label(name, cohort) for name in cohort.labels}
    columns |= {"unit_id": pl.col(cohort.unit), "patient_id": pl.col(cohort.patient or cohort.unit)}
    source = raw.collect(_stripped(raw.scan(cohort.table)), cohort.table)
    _check_text(source, [cohort.unit, cohort.patient or cohort.unit, *cohort.labels], file)
    _check_labels(source, cohort, file)
    frame = source.select(expression.alias(name) for name, expression in columns.items())
    _check_one_row_a_unit(frame, cohort.unit, file)
    step = partial(_step, cohort=cohort, names=_class_names(frame, cohort))
    steps = [step(f"rows of {file.name}", frame)]
    for name in cohort.require:
        frame = frame.filter(pl.col(name).is_not_null())
        steps.append(step(f"{name} is filled", frame))
    if not raw.unlabelled:
        frame = frame.filter(pl.any_horizontal(pl.col(cohort.labels).is_not_null()))
        steps.append(step("a label is known", frame))
    return frame.select(*dict.fromkeys(["unit_id", "patient_id", *cohort.labels, *cohort.columns])), steps


def _stripped(table: pl.LazyFrame) -> pl.LazyFrame:
    """A table whose texts have no blanks around them: `yes ` is `yes`, and one person is not two."""
    return table.with_columns(pl.col(pl.String).str.strip_chars().replace("", None))


def _garbled(names: Iterable[str]) -> pl.Expr:
    """How many cells of text columns hold bytes that are no UTF-8 text (the reader puts U+FFFD in their place)."""
    counts = (pl.col(name).cast(pl.String).str.contains("\ufffd").sum() for name in names)
    return pl.sum_horizontal(pl.lit(0), *counts).alias("cells that are not UTF-8 text")


def _check_text(table: pl.DataFrame, names: Iterable[str], file: Path) -> None:
    for name in names:
        garbled = table.select(_garbled([name])).item()
        if garbled:
            raise UserError(
                f"{file}: column '{name}' holds {garbled} cell(s) that are not UTF-8 text, so that different values "
                "could read as the same; save the file as CSV (UTF-8)"
            )


def _file(raw: RawFolder, source: Source) -> Path:
    path = raw.path(source.table)
    if path is None:
        raise UserError(f"table '{source.table}' is optional and its file is absent, but the task reads it; add it")
    return path


def _label(name: str, cohort: Cohort) -> pl.Expr:
    if not cohort.classes:
        return pl.col(name)
    numbers = {value: number for number, value in enumerate(cohort.classes)}
    return pl.col(name).cast(pl.String).replace_strict(numbers, default=None, return_dtype=pl.Int8)


def _check_labels(source: pl.DataFrame, cohort: Cohort, file: Path) -> None:
    for name in cohort.labels:
        if cohort.classes:
            unknown = source[name].drop_nulls().cast(pl.String).is_in(cohort.classes).not_().sum()
            if unknown:
                raise UserError(
                    f"{file}: column '{name}' holds {unknown} value(s) that data.cohort.classes lacks; add them"
                )
        elif source.schema[name] == pl.String:
            raise UserError(
                f"{file}: column '{name}' is text; list its values in data.cohort.classes, the negative one first"
            )


def _check_one_row_a_unit(frame: pl.DataFrame, column: str, file: Path) -> None:
    repeated = frame.height - frame["unit_id"].n_unique()
    if repeated:
        raise UserError(
            f"{file}: column '{column}' holds {repeated} value(s) again; one row a unit is needed here "
            "(a modality of kind codes, summaries or sequence takes several)"
        )


def _class_names(frame: pl.DataFrame, cohort: Cohort) -> dict[int, str]:
    """Label -> name of a single label's classes; empty where there are several labels, or it is no whole number."""
    if len(cohort.labels) > 1:
        return {}
    if cohort.classes:
        return dict(enumerate(cohort.classes))
    values = frame[cohort.labels[0]].drop_nulls().unique().sort().head(_MOST_CLASSES + 1).to_list()
    if len(values) > _MOST_CLASSES or any(value != int(value) for value in values):
        return {}
    return {int(value): str(int(value)) for value in values}


def _step(rule: str, frame: pl.DataFrame, cohort: Cohort, names: Mapping[int, str]) -> Step:
    """One rule; with counts of positives and negatives where the labels are 0 and 1, else of each class."""
    units, people = frame.height, frame["patient_id"].n_unique()
    if not names:
        return Step(rule, units, people)
    counts = {label: frame.filter(pl.col(cohort.labels[0]) == label).height for label in (0, 1, *names)}
    if set(names) <= {0, 1}:
        return Step(rule, units, people, counts[1], negatives=counts[0])
    return Step(rule, units, people, classes={name: counts[label] for label, name in names.items()})


def _vector(
    raw: RawFolder, spec: DatasetSpec, cohort: Cohort, settings: Vector, units: pl.DataFrame
) -> tuple[VectorTable, dict[str, int]]:
    """The table of a modality of one row a unit, and what there is to count."""
    file = _file(raw, settings)
    unit = settings.unit or cohort.unit
    if not (settings.numeric or settings.binary or settings.categorical):
        settings = _by_type(spec, cohort, settings)
    columns = [column for _, column in settings.named(settings.numbers + settings.texts)]
    query = _stripped(raw.scan(settings.table)).select(pl.col(unit).alias("unit_id"), *columns)
    frame = raw.collect(query, settings.table)
    _check_text(frame["unit_id"].alias(unit).to_frame(), [unit], file)
    _check_one_row_a_unit(frame, unit, file)
    frame = frame.join(units, on="unit_id", how="semi")
    for column in settings.binary:
        wrong = int(frame[column].is_in([0, 1]).fill_null(False).not_().sum())
        if wrong:
            raise UserError(
                f"{file}: column '{column}' is declared binary, and {wrong} cell(s) are neither 0 nor 1; "
                "list it under numeric or categorical"
            )
    frame = frame.select(
        "unit_id",
        pl.col(settings.numeric).cast(pl.Float64).fill_nan(None),
        pl.col(settings.binary).cast(pl.Boolean),
        pl.col(settings.categorical).cast(pl.String),
    )
    return VectorTable(frame), frame.select(_garbled(settings.categorical)).row(0, named=True)


def _by_type(spec: DatasetSpec, cohort: Cohort, settings: Vector) -> Vector:
    """The settings with every column that may be a feature, by its declared type."""
    never = _never_features(spec, cohort) | _parts_of_tasks(spec) | {settings.unit or cohort.unit}
    types = {name: kind for name, kind in spec.tables[settings.table].columns.items() if name not in never}
    if not types:
        raise UserError(f"table '{settings.table}' has no column left for a vector; leave its modality out")
    return settings.model_copy(
        update={
            "numeric": [name for name, kind in types.items() if kind != "text"],
            "categorical": [name for name, kind in types.items() if kind == "text"],
        }
    )


def _parts_of_tasks(spec: DatasetSpec) -> set[str]:
    """Columns with a part to play in a task of the spec: labels, identifiers, what is split by or names the part."""
    tasks = spec.tasks.values()
    names = [(*task.target, *task.identifiers, task.split.by, task.split.column or "") for task in tasks]
    return {name.lower() for of_task in names for name in of_task}


def _records(
    raw: RawFolder, cohort: Cohort, settings: _Records, units: pl.DataFrame, until: float | None
) -> tuple[ModalityTable, dict[str, int]]:
    """The table of a modality of many rows a unit, and how many of its records were dropped, by reason."""
    file, unit = _file(raw, settings), settings.unit or cohort.unit
    columns = {"unit_id": pl.col(unit)}
    if settings.time is not None:
        columns["hours"] = pl.col(settings.time).cast(pl.Float64) * _HOURS[settings.time_unit]
    if isinstance(settings, Codes):
        columns["code"] = pl.col(settings.code).cast(pl.String)
    else:
        columns["variable"] = pl.col(settings.variable).cast(pl.String)
        columns["value"] = pl.col(settings.value).cast(pl.Float64).fill_nan(None)
    source = _stripped(raw.scan(settings.table)).select(expression.alias(name) for name, expression in columns.items())
    if units.schema["unit_id"] == pl.String:
        garbled = source.select(pl.col("unit_id").alias(unit)).filter(pl.col(unit).str.contains("\ufffd"))
        _check_text(raw.collect(garbled, settings.table), [unit], file)
    source = source.join(units.lazy(), on="unit_id", how="semi")
    drops = _drops(settings, list(columns), until)
    frame = raw.collect(_reduced(source.filter(~rule for rule in drops.values()), settings), settings.table)
    latest = None
    if settings.time is not None:
        latest = frame.group_by("unit_id").agg(hours=pl.col(_LATEST).max())
        frame = frame.drop(_LATEST)
    # A second pass over the file: what is dropped need not fit into memory.
    counts = [
        *(rule.sum().alias(reason) for reason, rule in drops.items()),
        _garbled({"code", "variable"} & set(columns)),
    ]
    counted = raw.collect(source.select(counts), settings.table).row(0, named=True)
    vocabulary = Vocabulary(settings.share)
    table: ModalityTable
    match settings:
        case Codes():
            table = CodesTable(frame, vocabulary, latest=latest)
        case Summaries():
            table = SummariesTable(frame, vocabulary, latest=latest)
        case Sequence():
            table = SequenceTable(frame, vocabulary, latest=latest)
    return table, counted


def _drops(settings: _Records, columns: list[str], until: float | None) -> dict[str, pl.Expr]:
    """Reasons to drop a record; at most one is true."""
    needed = [name for name in columns if name not in ("unit_id", "hours")]
    blank = pl.any_horizontal(pl.col(needed).is_null())
    drops = {f"records with a blank {' or '.join(needed)}": blank}
    if until is not None and settings.time is not None:
        drops["records at or after the prediction time"] = ~blank & (pl.col("hours") >= until)
    if settings.time is not None and (until is not None or isinstance(settings, Sequence)):
        drops["records of unknown time"] = ~blank & pl.col("hours").is_null()
    return drops


def _reduced(records: pl.LazyFrame, settings: _Records) -> pl.LazyFrame:
    """One row for each code, variable, or variable and time of a unit, with the time of its last record."""
    last = [] if settings.time is None else [pl.col("hours").max().alias(_LATEST)]
    if isinstance(settings, Codes):
        return records.group_by("unit_id", "code").agg(last)
    # Sorted before it is averaged: the order of the file's rows may not change the last digit.
    mean = pl.col("value").sort().mean()
    if isinstance(settings, Sequence):
        return records.group_by("unit_id", "hours", "variable").agg(mean, pl.col("hours").first().alias(_LATEST))
    latest = pl.col("value").filter(pl.col("hours") == pl.col("hours").max())
    statistics = {
        "last": latest.sort().mean(),
        "min": pl.col("value").min(),
        "max": pl.col("value").max(),
        "mean": mean,
        "count": pl.col("value").len(),
    }
    chosen = [statistics[name].alias(name) for name in settings.statistics]
    return records.group_by("unit_id", "variable").agg(*chosen, *last)
