"""Writes a first data spec and config for a private data set held in flat files, from a look at the files.

Only names of columns and files are written, never a value from a row. What was guessed is marked CHECK in the spec.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ovo_clinic.errors import UserError
from ovo_clinic.flat_features import Guess, guess
from ovo_clinic.flat_inspection import SUFFIX, FlatFile, look
from ovo_clinic.flat_parts import Parts, Wishes, find, shown

_ALL = 10**6
_ONE_MODALITY = """# One modality: heads that relate modalities to each other, the default among them, need two.
model: {fusion: concat}
compare: {fusion: [concat, self_attention]}
"""


class Written(NamedTuple):
    """What was written, and what the user should know of it, line by line."""

    spec: Path
    config: Path
    told: list[str]


def new_dataset(
    name: str,
    files: Sequence[Path],
    out: Path,
    *,
    unit: str | None = None,
    patient: str | None = None,
    label: str | None = None,
    classes: Sequence[str] = (),
    prediction_hours: float | None = None,
) -> Written:
    """Writes `NAME.spec.yaml` and `NAME.yaml`, a config that the other commands take by its path.

    Args:
        name: of the data set and its task.
        files: csv, csv.gz or parquet files of one folder, which is later given as `--raw`.
        out: folder to write to; made where it is absent.
        unit: column that names the unit (a stay, a visit) in every file; guessed by default.
        patient: column of the label's file that names the person, or the unit's column where each row is a person of
            its own; guessed by default.
        label: column to predict; guessed by default.
        classes: the label's values in order, the negative one first; needed unless it is 0 and 1.
        prediction_hours: records from this time on are dropped.

    Raises:
        UserError: one of them exists, or something cannot be guessed; the message lists the candidates.
    """
    if prediction_hours is not None and not math.isfinite(prediction_hours):
        raise UserError(f"--prediction-hours: {prediction_hours} should be a number of hours")
    wishes = Wishes(unit, patient, label, tuple(classes), prediction_hours)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise UserError(f"NAME: '{name}' should be made of letters, digits, _ and -")
    written = Written(out / f"{name}.spec.yaml", out / f"{name}.yaml", [])
    for path in written[:2]:
        if path.exists():
            raise UserError(f"{path}: exists already; choose another name or --out, or remove it")
    looked_at = look(files)
    parts = find(looked_at, wishes)
    guesses = {file.table: guess(file, parts) for file in looked_at}
    modalities = sum(found.options is not None for found in guesses.values())
    if not modalities:
        raise UserError("--csv: no file has a column that could be a feature; see docs of the flat_files pipeline")
    text = "\n".join(_lines(name, looked_at, parts, guesses, wishes)) + "\n"
    config = f"# Differences from the defaults only.\ndataset: {name}.spec.yaml\n"
    out.mkdir(parents=True, exist_ok=True)
    written.spec.write_text(text, encoding="utf-8")
    written.config.write_text(config + (_ONE_MODALITY if modalities == 1 else ""), encoding="utf-8")
    return written._replace(told=list(_told(looked_at, parts, guesses, wishes)))


def _told(files: Sequence[FlatFile], parts: Parts, guesses: Mapping[str, Guess], wishes: Wishes) -> Iterator[str]:
    """What was guessed, what was left out and why, and what is not understood."""
    yield f"{parts.cohort.path.name}: unit {parts.unit}, patient {parts.patient}, label {parts.label}"
    if wishes.prediction_hours is None and any("time" in (found.options or {}) for found in guesses.values()):
        yield "no --prediction-hours: every record is used, whenever it was made"
    for file in files:
        found = guesses[file.table]
        about = [f"left out, {reason}: {shown(names)}" for reason, names in found.by_reason().items()]
        if found.options is None:
            about.append("no modality was guessed for this file")
        if found.uncut:
            about.append(_uncut(file, found))
        yield from (f"{file.path.name}: {line}" for line in [*about, *_doubtful(file, found)])


def _uncut(file: FlatFile, found: Guess) -> str:
    dates = [name for name in found.left_out if name in file.columns and file.columns[name].dates]
    why = f"times in {shown(dates)} are dates, not hours since the index time" if dates else "no column of times"
    return (
        f"records of this table are not cut at any prediction time ({why}); add such hours, or say known_before: true "
        "where all was known before"
    )


def _doubtful(file: FlatFile, found: Guess) -> Iterator[str]:
    """Cells that are not what their column seems to be."""
    for name in found.numbers():
        column = file.columns[name]
        if column.mixed:
            others = column.filled - column.numbers
            yield (
                f"column {shown([name])} holds {column.numbers} numbers and {others} other texts, refused by prepare; "
                f"correct them, list them under `missing` of table {file.table} in the spec, or drop the column"
            )
    missing = _missing(file, found)
    if missing:
        yield f"cells that read {' or '.join(missing)} are missing values"
    for name in found.columns():
        both = set(file.columns[name].not_available) & set(missing)
        if found.is_spelt(name) and both:
            yield f"column {shown([name])} holds {' and '.join(sorted(both))} too; say in the file what it means there"
        if garbled := file.columns[name].not_utf8:
            yield f"column {shown([name])} holds {garbled} cells that are not UTF-8 text; save the file as CSV (UTF-8)"


def _missing(file: FlatFile, found: Guess) -> list[str]:
    """Words such as NA that mean a missing value; not those of codes and variables, where NA may be sodium."""
    columns = [column for name, column in file.columns.items() if not found.is_spelt(name)]
    return sorted({word for column in columns for word in column.not_available})


def _lines(
    name: str, files: Sequence[FlatFile], parts: Parts, guesses: Mapping[str, Guess], wishes: Wishes
) -> Iterator[str]:
    """The spec, line by line."""
    used = {table: found.options for table, found in guesses.items() if found.options is not None}
    yield "# Written by `ovo-clinic new-dataset` from the files' headers and types. Lines with CHECK are guesses."
    yield f"name: {_flow(name)}"
    yield f"title: {_flow(name)}"
    yield "pipeline: flat_files"
    yield "tables:"
    for file in files:
        if file.table in used or file is parts.cohort:
            yield f"  {_flow(file.table)}: {_flow(_table(file, parts, guesses[file.table], wishes))}"
    yield "modalities:"
    for table, options in used.items():
        yield f"  {_flow(table)}: {_flow(table + ', as ' + options['kind'])}"
    yield "# CHECK: columns that state or follow the outcome; no feature may be made of them."
    yield f"banned: {_flow(parts.banned)}"
    yield "tasks:"
    yield f"  {_flow(name)}:"
    yield f"    title: {_flow(f'{parts.label} ({name})')}"
    yield f"    kind: {'multiclass' if len(wishes.classes) > 2 else 'binary'}"
    yield f"    target: {_flow([parts.label])}"
    yield f"    classes: {_flow(list(wishes.classes))}"
    yield "    options:"
    if wishes.prediction_hours is not None:
        yield f"      prediction_hours: {wishes.prediction_hours:g}"
    elif any("time" in options for options in used.values()):
        yield "      # CHECK: without a prediction time every record is used, whenever it was made."
        yield "      # prediction_hours: 24"
    yield "      cohort:  # CHECK: one row a unit; `patient` names the person, and no person stands in two splits"
    cohort: dict[str, Any] = {"table": parts.cohort.table, "unit": parts.unit, "patient": parts.patient}
    cohort |= {"labels": [parts.label]} | ({"classes": list(wishes.classes)} if _spelt_out(parts, wishes) else {})
    yield from (f"        {key}: {_flow(value)}" for key, value in cohort.items())
    yield "      modalities:"
    for file in files:
        yield from _modality_lines(file, guesses[file.table])


def _spelt_out(parts: Parts, wishes: Wishes) -> bool:
    """Whether the label is read as text with its values in order, since it is not 0 and 1, or 1 is the negative one."""
    return not parts.cohort.columns[parts.label].zero_one or wishes.classes == ("1", "0")


def _table(file: FlatFile, parts: Parts, found: Guess, wishes: Wishes) -> dict[str, Any]:
    """The file's entry in the spec's `tables`."""
    needed = {parts.unit, *found.columns()} | ({parts.patient, parts.label} if file is parts.cohort else set())
    types: dict[str, str] = {name: column.type for name, column in file.columns.items() if name in needed}
    types |= {name: "number" for name in found.numbers() if file.columns[name].mixed}
    types |= {name: "text" for name in found.columns() if found.is_spelt(name)}
    if file is parts.cohort and _spelt_out(parts, wishes):
        types[parts.label] = "text"
    missing = _missing(file, found)
    return {"file": SUFFIX.sub("", file.path.name), "columns": types} | ({"missing": missing} if missing else {})


def _modality_lines(file: FlatFile, found: Guess) -> Iterator[str]:
    for reason, names in found.by_reason().items():
        yield f"        # CHECK: left out of {file.path.name}, {reason}: {shown(names, _ALL)}"
    if found.options is None:
        return
    if found.options["kind"] == "summaries":
        yield "        # CHECK: `kind: sequence` (without `statistics`) keeps the time series instead."
    if found.uncut:
        yield f"        # CHECK: {_uncut(file, found)}."
    elif "time" in found.options:
        yield "        # CHECK: `time` is in hours since the index time; `time_unit: minutes` or `days` says otherwise."
    yield from (f"        # CHECK: {line}." for line in _doubtful(file, found))
    yield f"        {_flow(file.table)}:"
    yield from (f"          {key}: {_flow(value)}" for key, value in found.options.items())


def _flow(value: Any) -> str:
    """A value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6)
    return text.removesuffix("...\n").strip()
