"""TADPOLE (ADNI): diagnosis as normal (CN), mild impairment (MCI) or Alzheimer's disease (AD), from six modalities.

The raw file has one row a visit and joins every source of the study. `tables` is the leak-free task: a person's latest
complete visit, and only what was measured then. `paper_text_tables` is what the text of the OvO paper says, and
`paper_code_tables` what its notebooks do.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

import polars as pl
from polars import col
from pydantic import Field

from ovo_clinic import events
from ovo_clinic.errors import UserError
from ovo_clinic.raw import RawFolder
from ovo_clinic.registry import Options, check
from ovo_clinic.spec import DatasetSpec
from ovo_clinic.tables import ModalityTable, Step, Tables, VectorTable
from pipelines.tadpole_visits import (
    CROSS_SECTIONAL,
    LONGITUDINAL,
    PERSON,
    VISIT,
    Notes,
    as_finite,
    at_visit,
    chronological,
    columns_unread,
    quality_column,
    read,
    values_of,
    visits_of,
    without_missing,
)

CLASSES = ("CN", "MCI", "AD")
# The notebooks' single blank, and what pandas takes for missing in a file that it reads as text.
_MISSING_IN_NOTEBOOKS = (
    " |#N/A|#N/A N/A|#NA|-1.#IND|-1.#QNAN|-NaN|-nan|1.#IND|1.#QNAN|<NA>|N/A|NA|NULL|NaN|None|n/a|nan|null".split("|")
)
_MOST_MISSING = 0.7
_UNREADABLE_DATE = -9223372037.0  # seconds since 1970 that pandas makes of one
_BY_ROWS = "{} makes features by the rows at hand and takes visits of known diagnosis; use a model of tadpole_clean"

Rule = tuple[str, pl.Expr]

_DATED: list[Rule] = [("visit", pl.lit(True)), ("exam date known", col("date").is_not_null())]
_LATEST: Rule = ("latest such visit of the person", col("place") == col("place").max().over(PERSON))


class Settings(Options):
    """Settings of the data spec: what its list of columns does not say, and the published figures."""

    moved: dict[str, str]
    diagnostic_criteria: list[str]
    published_classes: dict[str, int]
    published_widths: dict[str, int]


def tables(
    raw: RawFolder,
    spec: DatasetSpec,
    *,
    exclude_diagnostic_criteria: bool = True,
    mri_regions: bool = True,
    mri_quality: Literal["any", "pass"] = "any",
    censor_columns: bool = False,
    allow_missing_modalities: bool = False,
    carry_forward_days: Annotated[float, Field(ge=0)] = 0,
    unknown_diagnosis: Literal["earlier_visit", "drop"] = "earlier_visit",
) -> Tables:
    """The current diagnosis at each person's latest complete visit, from what was measured at that visit.

    A modality is there at a visit if at least one of its features is. The feature AGE, in the file the age at baseline,
    is the age at the visit: AGE + Years_bl.

    Args:
        raw: the raw file.
        spec: the data spec.
        exclude_diagnostic_criteria: leave out the scores that the diagnosis is made from (CDRSB, MMSE, FAQ, MOCA).
        mri_regions: also use the 346 regional measures of cross-sectional FreeSurfer.
        mri_quality: `pass` = FreeSurfer's measures count only where its overall quality control says Pass.
        censor_columns: for each biomarker also a 0/1 feature: whether its value is a limit of detection (`<80`).
        allow_missing_modalities: take a person's latest visit, whether or not it is complete.
        carry_forward_days: a modality absent at a visit is taken, whole, from the person's latest earlier visit that
            has it, if that is at most this many days older; 0 = never.
        unknown_diagnosis: a person whose latest complete visit has no known diagnosis is represented by an
            `earlier_visit`, or `drop`ped.

    Raises:
        UserError: a wrong option, or a mistake in the raw file.
    """
    settings = _settings(spec)
    columns = _clean_columns(spec, settings.diagnostic_criteria if exclude_diagnostic_criteria else [], mri_regions)
    text = read(raw, [*VISIT, *map(quality_column, (LONGITUDINAL, CROSS_SECTIONAL)), *_flat(columns)])
    visits, notes = visits_of(text, raw)
    read_values, more = values_of(text, spec, columns, mri_quality, censor_columns)
    values = at_visit(read_values, text)
    visits = _with_sources(chronological(visits), values, carry_forward_days).with_columns(diagnosis="current")
    known = ("current diagnosis known", col("diagnosis").is_not_null())
    last = [_LATEST] if raw.unlabelled else [known, _LATEST]
    rules = [*_DATED, *([] if allow_missing_modalities else _complete(values))]
    cohort, steps = _select(visits, rules + (last if unknown_diagnosis == "earlier_visit" else last[::-1]))
    notes |= more
    criteria = ", ".join(settings.diagnostic_criteria)
    notes["scores that the diagnosis is made from"] = (
        f"{'left out' if exclude_diagnostic_criteria else 'among the features'}: {criteria}"
    )
    modalities: dict[str, ModalityTable] = {}
    for name, frame in values.items():
        rows = cohort.select("unit_id", "row", source=_source(name)).drop_nulls()
        modalities[name] = VectorTable(pl.concat([rows.select("unit_id"), frame[rows["source"]]], how="horizontal"))
        notes[f"{name}: units with values carried forward"] = rows.filter(col("source") != col("row")).height
    return Tables(_cohort(cohort), modalities, steps, notes)


def paper_text_tables(
    raw: RawFolder, spec: DatasetSpec, *, label: Literal["baseline", "current"] = "baseline"
) -> Tables:
    """One visit a person as the text of the OvO paper says: the latest one at which every modality was measured.

    The features are those of the notebooks without the diagnosis itself, with missing values, numbers and limits read
    as such: a category is the number of its text among all sorted ones, a date is seconds since 1970.

    Args:
        raw: the raw file.
        spec: the data spec.
        label: the diagnostic group at `baseline`, which the published counts imply, or the `current` diagnosis.

    Raises:
        UserError: a mistake in the raw file.
    """
    raw.not_for_prediction(_BY_ROWS.format("tadpole_paper_text"))
    measured, listed = _clean_columns(spec, [], mri_regions=True), _paper_columns(spec)
    text = read(raw, [*VISIT, *_flat(measured), *_flat(listed)])
    visits, notes = visits_of(text, raw)
    values, more = values_of(text, spec, measured, "any", False)
    visits = _with_sources(chronological(visits), values, 0).with_columns(diagnosis=label)
    known = (f"{label} diagnosis known", col("diagnosis").is_not_null())
    cohort, steps = _select(visits, [*_DATED, *_complete(values), known, _LATEST])
    # Measurements as they were read above: one `<80` would make a category of the whole column.
    measurements = [frame[cohort["row"]].select(pl.col(pl.Float64)) for frame in values.values()]
    chosen = without_missing(text[cohort["row"]]).with_columns(pl.concat(measurements, how="horizontal"))
    modalities: dict[str, ModalityTable] = {}
    for name, columns in listed.items():
        kept = [column for column in _mostly_filled(chosen, columns) if column != "DXCHANGE"]
        modalities[name] = VectorTable(
            cohort.select("unit_id").with_columns(_encoded(chosen[column]) for column in kept)
        )
    return Tables(_cohort(cohort), modalities, steps, notes | more | _beside_published(spec, cohort, modalities))


def paper_code_tables(raw: RawFolder, spec: DatasetSpec) -> Tables:
    """Visits with at least one value of each modality, as the OvO notebooks have them: group at baseline, all filled.

    Gaps are filled with the person's previous and then next visit in the order of the file, so for this task alone that
    order counts, and what is still missing is -1. Nothing but a blank counts as missing.

    Source: rsinghlab/OvO, tadpole/find_columns.py and tadpole/create_torch_datasets.ipynb.

    Args:
        raw: the raw file.
        spec: the data spec.

    Raises:
        UserError: a mistake in the raw file.
    """
    raw.not_for_prediction(_BY_ROWS.format("tadpole_paper_code"))
    held: dict[str, list[str]] = {name: [] for name in spec.modalities}
    for row in spec.lists["columns"]:
        held.get(row["modality"], []).append(row["column"])
    text = read(raw, [*VISIT, *_flat(held)])
    words = col(columns_unread(text, as_finite(text)))
    text = text.with_columns(pl.when(~words.is_in(_MISSING_IN_NOTEBOOKS)).then(words))
    visits, notes = visits_of(text, raw)
    filled = [
        pl.any_horizontal(col(columns).is_not_null()).alias(_source(name)) for name, columns in held.items() if columns
    ]
    visits = pl.concat([visits.with_columns(diagnosis="baseline"), text.select(filled)], how="horizontal")
    complete = [(f"with a value in a column of {name}", col(_source(name))) for name in held]
    joined, steps = _select(visits, [("visit", pl.lit(True)), *complete])
    gaps = pl.exclude("PTID").forward_fill().backward_fill().over("PTID")
    rows = text[joined["row"]]
    joined = joined.with_columns(col("diagnosis").forward_fill().backward_fill().over(PERSON))
    modalities: dict[str, ModalityTable] = {}
    for name, columns in _paper_columns(spec).items():
        frame = rows.select("PTID", *_mostly_filled(rows, columns)).with_columns(gaps).drop("PTID")
        encoded = [_encoded_as_notebooks(column) for column in frame.iter_columns()]
        modalities[name] = VectorTable(joined.select("unit_id").with_columns(encoded))
    cohort, known = _select(joined, [("baseline diagnosis known", col("diagnosis").is_not_null())])
    return Tables(_cohort(cohort), modalities, steps + known, notes | _beside_published(spec, cohort, modalities))


def _settings(spec: DatasetSpec) -> Settings:
    return check(Settings, spec.settings, "settings")


def _source(modality: str) -> str:
    """Name of the column that says which row of the file a visit's values of a modality stand in; null = absent."""
    return f"row of {modality}"


def _flat(columns: Mapping[str, Sequence[str]]) -> list[str]:
    return [name for names in columns.values() for name in names]


def _clean_columns(spec: DatasetSpec, left_out: Sequence[str], mri_regions: bool) -> dict[str, list[str]]:
    """Names of the clean task's columns by modality, in the order of the spec's list."""
    settings, wanted = _settings(spec), ("in", "optional") if mri_regions else ("in",)
    columns: dict[str, list[str]] = {name: [] for name in spec.modalities}
    for row in spec.lists["columns"]:
        name = row["column"]
        if (row["clean_task"] in wanted or name in settings.moved) and name not in left_out:
            columns.get(settings.moved.get(name, row["modality"]), []).append(name)
    for modality, names in columns.items():
        if not names:
            raise UserError(f"modalities.{modality}: the spec's list of columns has none for it; leave it out")
    return columns


def _paper_columns(spec: DatasetSpec) -> dict[str, list[str]]:
    """Names of the notebooks' candidate inputs by modality."""
    columns: dict[str, list[str]] = {name: [] for name in spec.modalities}
    for row in spec.lists["columns"]:
        if row["paper_task"] not in ("key", "label", "dropped", "out"):
            columns.get(row["modality"], []).append(row["column"])
    return columns


def _complete(modalities: Iterable[str]) -> list[Rule]:
    return [(f"with {name}", col(_source(name)).is_not_null()) for name in modalities]


def _with_sources(visits: pl.DataFrame, values: Mapping[str, pl.DataFrame], days: float) -> pl.DataFrame:
    """Visits with the row that each modality's values are taken from."""
    return visits.with_columns(_source_rows(visits, frame, days).alias(_source(name)) for name, frame in values.items())


def _source_rows(visits: pl.DataFrame, values: pl.DataFrame, days: float) -> pl.Series:
    """The row in which each visit's values of a modality stand: its own, an earlier one within `days`, or null."""
    there = values.select(pl.any_horizontal(pl.exclude(pl.Boolean).is_not_null())).to_series().gather(visits["row"])
    own = visits.select(PERSON, "date", own=pl.when(there).then("row"))
    if not days:
        return own["own"]
    earlier = own.with_columns(
        row=col("own").forward_fill().over(PERSON),
        since=pl.when(col("own").is_not_null()).then("date").forward_fill().over(PERSON),
    )
    near = (col("date") - col("since")).dt.total_days() <= days
    return earlier.select(col("own").fill_null(pl.when(near).then("row"))).to_series()


def _select(visits: pl.DataFrame, rules: Iterable[Rule]) -> tuple[pl.DataFrame, list[Step]]:
    classes = {name: col("diagnosis") == code for code, name in enumerate(CLASSES)}
    return events.select(visits, rules, PERSON, classes=classes)


def _cohort(visits: pl.DataFrame) -> pl.DataFrame:
    return visits.select("unit_id", PERSON, "diagnosis", "age", "gender", "viscode")


def _mostly_filled(rows: pl.DataFrame, columns: Sequence[str]) -> list[str]:
    """The columns of which at most 70 % are missing; in binary fractions, as the notebooks reckon."""
    return [name for name in columns if rows[name].null_count() <= _MOST_MISSING * rows.height]


def _is_category(column: pl.Series) -> bool:
    return "DATE" not in column.name and _as_number(column).null_count() > column.null_count()


def _as_number(column: pl.Series) -> pl.Series:
    return column.cast(pl.String).str.strip_chars().cast(pl.Float64, strict=False)


def _encoded(column: pl.Series) -> pl.Series:
    """A column as the notebooks make it a number, missing cells left missing.

    A column of numbers stays as it is; else one with DATE in its name becomes seconds since 1970, and any other the
    position of its text among the sorted distinct ones.
    """
    numbers = _as_number(column)
    if numbers.null_count() == column.null_count():
        return numbers
    if "DATE" in column.name:
        return column.str.to_datetime("%Y-%m-%d", strict=False).dt.epoch("s").cast(pl.Float64)
    return column.rank("dense").cast(pl.Float64) - 1


def _encoded_as_notebooks(column: pl.Series) -> pl.Series:
    """The same with missing cells as -1; among categories that -1 is one of them and sorts first."""
    encoded, missing = _encoded(column), column.is_null()
    if _is_category(column) and missing.any():
        return (encoded + 1).fill_null(0)
    return encoded.zip_with(~missing, pl.Series([-1.0])).fill_null(_UNREADABLE_DATE)


def _beside_published(spec: DatasetSpec, cohort: pl.DataFrame, modalities: Mapping[str, ModalityTable]) -> Notes:
    """Class counts and input widths beside the published ones."""
    settings, counts = _settings(spec), cohort["diagnosis"].value_counts()
    found = dict(counts.iter_rows())
    classes = {name: found.get(code, 0) for code, name in enumerate(CLASSES)}
    widths = {name: table.frame.width - 1 for name, table in modalities.items()}
    return {
        "units of each class": _compared(classes, settings.published_classes),
        "inputs of each modality": _compared(widths, settings.published_widths),
    }


def _compared(ours: Mapping[str, int], published: Mapping[str, int]) -> str:
    verdict = "the same" if dict(ours) == dict(published) else "DIFFERENT"
    texts = [", ".join(f"{name} {count:,}" for name, count in counts.items()) for counts in (ours, published)]
    return f"{texts[0]}; published: {texts[1]} ({verdict})"
