"""TADPOLE (ADNI): diagnosis as normal (CN), mild impairment (MCI) or Alzheimer's disease (AD), from six modalities.

The raw file has one row a visit and joins every source of the study. `tables` is the leak-free task: a person's latest
complete visit, and only what was measured then. `paper_text_tables` is what the text of the OvO paper says, and
`paper_code_tables` what its notebooks do.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
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

CLASSES = ("CN", "MCI", "AD")
PERSON = "patient_id"
_KEYS = ["RID", "PTID", "VISCODE"]
_VISIT = [*_KEYS, "EXAMDATE", "AGE", "Years_bl", "PTGENDER", "DX", "DXCHANGE", "DX_bl"]
_CATEGORICAL = ("PTGENDER", "PTETHCAT", "PTRACCAT", "PTMARRY")
_MISSING = ["", "NA", "nan", "NaN", "-4", "-4.0"]
_MISSING_NUMBER = -4
# The notebooks' single blank, and what pandas takes for missing in a file that it reads as text.
_MISSING_IN_NOTEBOOKS = (
    " |#N/A|#N/A N/A|#NA|-1.#IND|-1.#QNAN|-NaN|-nan|1.#IND|1.#QNAN|<NA>|N/A|NA|NULL|NaN|None|n/a|nan|null".split("|")
)
_CURRENT_CODES = {1.0: 0, 7.0: 0, 9.0: 0, 2.0: 1, 4.0: 1, 8.0: 1, 3.0: 2, 5.0: 2, 6.0: 2}  # DXCHANGE
_CURRENT_TEXTS = {"NL": 0, "CN": 0, "MCI": 1, "Dementia": 2, "AD": 2}  # DX, after its last " to "
_BASELINE_TEXTS = {"CN": 0, "SMC": 0, "EMCI": 1, "LMCI": 1, "MCI": 1, "AD": 2}  # DX_bl
_LONGITUDINAL, _CROSS_SECTIONAL = "UCSFFSL_02_01_16_UCSFFSL51ALL_08_01_16", "UCSFFSX_11_02_15_UCSFFSX51_08_01_16"
_SUMMARY_VOLUMES = ("Ventricles", "Hippocampus", "WholeBrain", "Entorhinal", "Fusiform", "MidTemp", "ICV")
_LIMIT = r"^\s*[<>]\s*"  # a laboratory's limit of detection, `<80`
_MOST_MISSING = 0.7
_DATES = date(1990, 1, 1), date(2100, 1, 1)  # an exam on any other day is a mistake
_UNREADABLE_DATE = -9223372037.0  # seconds since 1970 that pandas makes of one

Rule = tuple[str, pl.Expr]
Notes = dict[str, int | float | str]

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

    A modality is there at a visit if at least one of its features is.

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
    text = _read(raw, [*_VISIT, *map(_quality, (_LONGITUDINAL, _CROSS_SECTIONAL)), *_flat(columns)])
    visits, notes = _visits(text, raw)
    values, more = _values(text, spec, columns, mri_quality, censor_columns)
    visits = _with_sources(_chronological(visits), values, carry_forward_days).with_columns(diagnosis="current")
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
    measured, listed = _clean_columns(spec, [], mri_regions=True), _paper_columns(spec)
    text = _read(raw, [*_VISIT, *_flat(measured), *_flat(listed)])
    visits, notes = _visits(text, raw)
    values, more = _values(text, spec, measured, "any", False)
    visits = _with_sources(_chronological(visits), values, 0).with_columns(diagnosis=label)
    known = (f"{label} diagnosis known", col("diagnosis").is_not_null())
    cohort, steps = _select(visits, [*_DATED, *_complete(values), known, _LATEST])
    # Measurements as they were read above: one `<80` would make a category of the whole column.
    measurements = [frame[cohort["row"]].select(pl.col(pl.Float64)) for frame in values.values()]
    chosen = _known(text[cohort["row"]]).with_columns(pl.concat(measurements, how="horizontal"))
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
    held: dict[str, list[str]] = {name: [] for name in spec.modalities}
    for row in spec.lists["columns"]:
        held.get(row["modality"], []).append(row["column"])
    text = _read(raw, [*_VISIT, *_flat(held)])
    words = col(_unread(text, _finite(text)))
    text = text.with_columns(pl.when(~words.is_in(_MISSING_IN_NOTEBOOKS)).then(words))
    visits, notes = _visits(text, raw)
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


def _quality(source: str) -> str:
    return f"OVERALLQC_{source}"


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


def _biomarkers(spec: DatasetSpec) -> set[str]:
    return {row["column"] for row in spec.lists["columns"] if row["kind"] == "biomarker"}


def _read(raw: RawFolder, names: Iterable[str]) -> pl.DataFrame:
    """The named columns as text, null where blank, in the order of the file."""
    raw.check_fields("visits")
    return raw.collect(
        raw.scan("visits").select(col(name.lower()).alias(name) for name in dict.fromkeys(names)), "visits"
    )


def _known(text: pl.DataFrame) -> pl.DataFrame:
    """Without blanks around, and null where the text means missing."""
    stripped = text.with_columns(pl.all().str.strip_chars())
    return stripped.with_columns(pl.when(~pl.all().is_in(_MISSING)).then(pl.all()))


def _number(name: str) -> pl.Expr:
    return col(name).cast(pl.Float64, strict=False)


def _visits(text: pl.DataFrame, raw: RawFolder) -> tuple[pl.DataFrame, Notes]:
    """What identifies each row, and its diagnoses: now (`current`) and at `baseline`, null where unknown."""
    rid, code, words = _number("RID"), _number("DXCHANGE"), col("DX").str.split(" to ").list.last().str.strip_chars()
    by_code = code.replace_strict(_CURRENT_CODES, default=None, return_dtype=pl.Int8)
    by_text = words.replace_strict(_CURRENT_TEXTS, default=None, return_dtype=pl.Int8)
    baseline = col("DX_bl").replace_strict(_BASELINE_TEXTS, default=None, return_dtype=pl.Int8)
    day = col("EXAMDATE").str.to_date("%Y-%m-%d", strict=False)
    visit = _known(text.select(_VISIT))
    visits = visit.select(
        ptid="PTID",
        viscode="VISCODE",
        patient_id=pl.when(rid.floor() == rid).then(rid).cast(pl.Int64, strict=False),
        row=pl.int_range(pl.len()),
        date=pl.when(day.is_between(*_DATES)).then(day),
        month=pl.when(col("VISCODE") == "bl")
        .then(0)
        .otherwise(col("VISCODE").str.extract(r"^m(\d{1,4})$").cast(pl.Int64)),
        age=_number("AGE") + _number("Years_bl").fill_null(0),
        gender="PTGENDER",
        current=by_code.fill_null(by_text),
        baseline=baseline,
    ).with_columns(unit_id=pl.format("{}_{}", PERSON, "viscode"))
    _check_keys(visits, f"{raw.path('visits')}")
    counts = visit.select(
        (by_code != by_text).sum().alias("visits whose DX and DXCHANGE disagree (DXCHANGE counts)"),
        (by_code.is_null() & by_text.is_not_null())
        .sum()
        .alias("visits with a diagnosis from DX, DXCHANGE being unknown"),
        (by_code.is_null() & col("DXCHANGE").is_not_null() & (code != -1).fill_null(True))
        .sum()
        .alias("visits with a DXCHANGE other than 1 to 9 and -1 (taken as unknown)"),
        (by_text.is_null() & col("DX").is_not_null()).sum().alias("visits with an unknown text in DX"),
        (baseline.is_null() & col("DX_bl").is_not_null()).sum().alias("visits with an unknown text in DX_bl"),
    )
    return visits, counts.row(0, named=True)


def _chronological(visits: pl.DataFrame) -> pl.DataFrame:
    """Visits by person and time, numbered (`place`), so that the order of the file counts for nothing."""
    return visits.sort(PERSON, "date", "month", "viscode").with_row_index("place")


def _check_keys(visits: pl.DataFrame, path: str) -> None:
    """One row a visit, and one PTID a person."""
    if blank := visits.filter(pl.any_horizontal(col(PERSON, "viscode").is_null())).height:
        raise UserError(f"{path}: RID is no whole number or VISCODE is blank in {blank} rows; remove or correct them")
    if twice := visits.height - visits["unit_id"].n_unique():
        raise UserError(
            f"{path}: {twice} rows repeat the RID and VISCODE of another; one row a visit is needed: remove the repeats"
        )
    pairs = visits.select(PERSON, "ptid").drop_nulls().unique()
    if crossed := max(pairs.height - pairs[name].n_unique() for name in pairs.columns):
        raise UserError(f"{path}: RID and PTID name different people in {crossed} cases; correct them")


def _values(
    text: pl.DataFrame, spec: DatasetSpec, columns: Mapping[str, Sequence[str]], quality: str, censored: bool
) -> tuple[dict[str, pl.DataFrame], Notes]:
    """The clean task's values of every row, by modality, and counts of cells that are no plain number."""
    values: dict[str, pl.DataFrame] = {}
    notes: Notes = {}
    limited = _biomarkers(spec)
    for modality, names in columns.items():
        markers = [name for name in names if name in limited]
        categories = [name for name in names if name in _CATEGORICAL]
        finite, unread = _numbers(text, [name for name in names if name not in _CATEGORICAL], markers)
        numbers = finite.with_columns(pl.when(pl.all() != _MISSING_NUMBER).then(pl.all()))
        limits = [(text[name].str.contains(_LIMIT) & numbers[name].is_not_null()).fill_null(False) for name in markers]
        notes[f"{modality}: cells with a text that is no number (taken as missing)"] = unread
        notes[f"{modality}: cells with a limit of detection (taken as that number)"] = sum(
            int(limit.sum()) for limit in limits
        )
        if quality == "pass":
            numbers = _passed(text, numbers)
        further = [limit.alias(f"{limit.name} is a limit") for limit in limits] if censored else []
        values[modality] = numbers.with_columns(_known(text.select(categories))).select(names).hstack(further)
    return values, notes


def _numbers(text: pl.DataFrame, names: Sequence[str], limited: Sequence[str]) -> tuple[pl.DataFrame, int]:
    """The named columns as finite numbers or null, a limit as its number; and how many texts are none of these."""
    finite = _finite(text.select(names))
    lossy = _unread(text, finite)
    # Blanks, codes for missing and limits are looked for only where something did not read as a number.
    plain = _known(text.select(lossy)).with_columns(col(set(lossy) & set(limited)).str.replace(_LIMIT, ""))
    again = _finite(plain)
    return finite.with_columns(again), sum(again[name].null_count() - plain[name].null_count() for name in lossy)


def _unread(text: pl.DataFrame, numbers: pl.DataFrame) -> list[str]:
    """The columns of `numbers` of which something was not read as a number."""
    return [name for name in numbers.columns if numbers[name].null_count() > text[name].null_count()]


def _finite(text: pl.DataFrame) -> pl.DataFrame:
    numbers = text.with_columns(pl.all().cast(pl.Float64, strict=False))
    return numbers.with_columns(pl.when(pl.all().is_finite()).then(pl.all()))


def _passed(text: pl.DataFrame, numbers: pl.DataFrame) -> pl.DataFrame:
    """FreeSurfer's measures where its overall quality control says Pass; the summary volumes are cross-sectional."""
    checked = numbers
    for source in (_LONGITUDINAL, _CROSS_SECTIONAL):
        own = [
            name
            for name in numbers.columns
            if name.endswith(source) or (name in _SUMMARY_VOLUMES and source == _CROSS_SECTIONAL)
        ]
        checked = checked.with_columns(pl.when(text[_quality(source)].str.strip_chars() == "Pass").then(col(own)))
    return checked


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
