"""Writes a first data spec and config for a private data set held in flat files, from a look at the files.

Only names of columns and files are written, never a value from a row. What was guessed is marked CHECK in the spec.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from ovo_clinic.errors import UserError
from ovo_clinic.flat_inspection import ID, SUFFIX, ColumnFacts, FlatFile, Parts, Wishes, find, look

_TIME = re.compile(r"hour|time|offset|minute")
_VARIABLE = re.compile(r"variable|name|test|item|label|parameter|measurement")
_VALUE = re.compile(r"value|result|number|reading")
_CODE = re.compile(r"code|icd|drug|diagnos|procedure|medication|treatment")
_MOST_LEVELS = 50


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
) -> list[Path]:
    """Writes `NAME.spec.yaml` and `NAME.yaml`, a config that the other commands take by its path.

    Args:
        name: of the data set and its task.
        files: csv, csv.gz or parquet files of one folder, which is later given as `--raw`.
        out: folder to write to; made where it is absent.
        unit: column that names the unit (a stay, a visit) in every file; guessed by default.
        patient: column of the label's file that names the person; guessed by default.
        label: column to predict; guessed by default.
        classes: the label's values in order, the negative one first; needed unless it is 0 and 1.
        prediction_hours: records from this time on are dropped.

    Returns:
        The two files.

    Raises:
        UserError: one of them exists, or something cannot be guessed; the message lists the candidates.
    """
    wishes = Wishes(unit, patient, label, tuple(classes), prediction_hours)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise UserError(f"NAME: '{name}' should be made of letters, digits, _ and -")
    written = [out / f"{name}.spec.yaml", out / f"{name}.yaml"]
    for path in written:
        if path.exists():
            raise UserError(f"{path}: exists already; choose another name or --out, or remove it")
    looked_at = look(files)
    parts = find(looked_at, wishes)
    text = "\n".join(_lines(name, looked_at, parts, wishes)) + "\n"
    out.mkdir(parents=True, exist_ok=True)
    written[0].write_text(text, encoding="utf-8")
    written[1].write_text(f"# Differences from the defaults only.\ndataset: {name}.spec.yaml\n", encoding="utf-8")
    return written


def _features(file: FlatFile, parts: Parts) -> tuple[dict[str, Any] | None, list[str]]:
    """(the options of the file's modality or None where none is seen, the columns that were left out)."""
    candidates = {name: column for name, column in file.columns.items() if name not in parts.never}
    if file.unique(parts.unit):
        return _vector(file.table, candidates)
    texts = [name for name, column in candidates.items() if column.type != "number"]
    numbers = [name for name, column in candidates.items() if column.type != "text"]
    time = next((name for name in numbers if _TIME.search(name)), None)
    variable = next((name for name in texts if _VARIABLE.search(name) and name != time), None)
    value = next((name for name in numbers if _VALUE.search(name) and name not in (time, variable)), None)
    code = next((name for name in texts if _CODE.search(name) and name != time), None)
    options: dict[str, Any]
    if variable and value:
        statistics = [*(["last"] if time else []), "min", "max", "mean", "count"]
        options = {"kind": "summaries", "table": file.table, "variable": variable, "value": value}
        options |= {"statistics": statistics}
    elif code:
        options = {"kind": "codes", "table": file.table, "code": code}
    else:
        return None, list(candidates)
    options |= {"time": time} if time else {}
    return options, [name for name in candidates if name not in options.values()]


def _vector(table: str, columns: dict[str, ColumnFacts]) -> tuple[dict[str, Any] | None, list[str]]:
    roles: dict[str, list[str]] = {"numeric": [], "binary": [], "categorical": []}
    left_out = []
    for name, column in columns.items():
        if column.type != "number" and (ID.search(name) or column.type == "text" and column.distinct > _MOST_LEVELS):
            left_out.append(name)
        elif column.type == "text":
            roles["categorical"].append(name)
        else:
            roles["binary" if column.zero_one and column.full else "numeric"].append(name)
    filled = {role: names for role, names in roles.items() if names}
    return ({"kind": "vector", "table": table, **filled} if filled else None), left_out


def _lines(name: str, files: Sequence[FlatFile], parts: Parts, wishes: Wishes) -> Iterator[str]:
    """The spec, line by line."""
    modalities = {file.table: _features(file, parts) for file in files}
    used = {table: options for table, (options, _) in modalities.items() if options is not None}
    if not used:
        raise UserError("--csv: no file has a column that could be a feature; see docs of the flat_files pipeline")
    zero_one = parts.cohort.columns[parts.label].zero_one
    types = {file.table: {name: column.type for name, column in file.columns.items()} for file in files}
    if not zero_one:
        types[parts.cohort.table][parts.label] = "text"
    for table, options in used.items():  # names and codes are read as they are spelt
        types[table] |= {options[part]: "text" for part in ("code", "variable") if part in options}
    yield "# Written by `ovo-clinic new-dataset` from the files' headers and types. Lines with CHECK are guesses."
    yield f"name: {_flow(name)}"
    yield f"title: {_flow(name)}"
    yield "pipeline: flat_files"
    yield "tables:"
    for file in files:
        needed = {parts.unit, *_named(used.get(file.table, {}))}
        needed |= {parts.patient, parts.label} if file is parts.cohort else set()
        if file.table in used or file is parts.cohort:
            columns = {column: kind for column, kind in types[file.table].items() if column in needed}
            stem = SUFFIX.sub("", file.path.name)
            yield f"  {_flow(file.table)}: {_flow({'file': stem, 'columns': columns})}"
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
    cohort |= {"labels": [parts.label]} | ({} if zero_one else {"classes": list(wishes.classes)})
    yield from (f"        {key}: {_flow(value)}" for key, value in cohort.items())
    yield "      modalities:"
    for file in files:
        yield from _modality_lines(file, *modalities[file.table])


def _modality_lines(file: FlatFile, options: dict[str, Any] | None, left_out: list[str]) -> Iterator[str]:
    if options is None:
        if left_out:
            yield f"        # CHECK: nothing was guessed for {file.path.name} (columns {', '.join(left_out)})."
        return
    if options["kind"] == "summaries":
        yield "        # CHECK: `kind: sequence` (without `statistics`) keeps the time series instead."
    if "time" in options:
        yield "        # CHECK: `time` is in hours since the index time; `time_unit: minutes` or `days` says otherwise."
    if left_out:
        yield f"        # CHECK: left out as ids, free text or of unknown use: {', '.join(left_out)}"
    yield f"        {_flow(file.table)}:"
    yield from (f"          {key}: {_flow(value)}" for key, value in options.items())


def _named(options: dict[str, Any]) -> Iterator[str]:
    """Columns that a modality's options name."""
    for key, value in options.items():
        if key not in ("kind", "table", "statistics"):
            yield from value if isinstance(value, list) else [value]


def _flow(value: Any) -> str:
    """A value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6)
    return text.removesuffix("...\n").strip()
