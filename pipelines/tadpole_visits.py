"""The rows of TADPOLE's file: which visit each one is, its diagnoses, and its values by modality."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date

import polars as pl
from polars import col

from ovo_clinic.errors import UserError
from ovo_clinic.raw import RawFolder
from ovo_clinic.spec import DatasetSpec

PERSON = "patient_id"
_KEYS = ["RID", "PTID", "VISCODE"]
VISIT = [*_KEYS, "EXAMDATE", "AGE", "Years_bl", "PTGENDER", "DX", "DXCHANGE", "DX_bl"]
_CATEGORICAL = ("PTGENDER", "PTETHCAT", "PTRACCAT", "PTMARRY")
_MISSING = ["", "NA", "nan", "NaN", "-4", "-4.0"]
_MISSING_NUMBER = -4
_CURRENT_CODES = {1.0: 0, 7.0: 0, 9.0: 0, 2.0: 1, 4.0: 1, 8.0: 1, 3.0: 2, 5.0: 2, 6.0: 2}  # DXCHANGE
_CURRENT_TEXTS = {"NL": 0, "CN": 0, "MCI": 1, "Dementia": 2, "AD": 2}  # DX, after its last " to "
_BASELINE_TEXTS = {"CN": 0, "SMC": 0, "EMCI": 1, "LMCI": 1, "MCI": 1, "AD": 2}  # DX_bl
LONGITUDINAL, CROSS_SECTIONAL = "UCSFFSL_02_01_16_UCSFFSL51ALL_08_01_16", "UCSFFSX_11_02_15_UCSFFSX51_08_01_16"
_SUMMARY_VOLUMES = ("Ventricles", "Hippocampus", "WholeBrain", "Entorhinal", "Fusiform", "MidTemp", "ICV")
_LIMIT = r"^\s*[<>]\s*"  # a laboratory's limit of detection, `<80`
_DATES = date(1990, 1, 1), date(2100, 1, 1)  # an exam on any other day is a mistake

Notes = dict[str, int | float | str]


def read(raw: RawFolder, names: Iterable[str]) -> pl.DataFrame:
    """The named columns as text, null where blank, in the order of the file."""
    raw.check_fields("visits")
    return raw.collect(
        raw.scan("visits").select(col(name.lower()).alias(name) for name in dict.fromkeys(names)), "visits"
    )


def without_missing(text: pl.DataFrame) -> pl.DataFrame:
    """Without blanks around, and null where the text means missing."""
    stripped = text.with_columns(pl.all().str.strip_chars())
    return stripped.with_columns(pl.when(~pl.all().is_in(_MISSING)).then(pl.all()))


def _number(name: str) -> pl.Expr:
    return col(name).cast(pl.Float64, strict=False)


def visits_of(text: pl.DataFrame, raw: RawFolder) -> tuple[pl.DataFrame, Notes]:
    """What identifies each row, and its diagnoses: now (`current`) and at `baseline`, null where unknown."""
    rid, code, words = _number("RID"), _number("DXCHANGE"), col("DX").str.split(" to ").list.last().str.strip_chars()
    by_code = code.replace_strict(_CURRENT_CODES, default=None, return_dtype=pl.Int8)
    by_text = words.replace_strict(_CURRENT_TEXTS, default=None, return_dtype=pl.Int8)
    baseline = col("DX_bl").replace_strict(_BASELINE_TEXTS, default=None, return_dtype=pl.Int8)
    day = col("EXAMDATE").str.to_date("%Y-%m-%d", strict=False)
    visit = without_missing(text.select(VISIT))
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


def chronological(visits: pl.DataFrame) -> pl.DataFrame:
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


def values_of(
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
        values[modality] = numbers.with_columns(without_missing(text.select(categories))).select(names).hstack(further)
    return values, notes


def at_visit(values: Mapping[str, pl.DataFrame], text: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """The values with the age at the visit in place of AGE, the age at baseline (unknown years since then count 0)."""
    years = as_finite(without_missing(text.select("Years_bl"))).to_series().fill_null(0)
    return {
        modality: frame.with_columns(col("AGE") + years) if "AGE" in frame.columns else frame
        for modality, frame in values.items()
    }


def _numbers(text: pl.DataFrame, names: Sequence[str], limited: Sequence[str]) -> tuple[pl.DataFrame, int]:
    """The named columns as finite numbers or null, a limit as its number; and how many texts are none of these."""
    finite = as_finite(text.select(names))
    lossy = columns_unread(text, finite)
    # Blanks, codes for missing and limits are looked for only where something did not read as a number.
    plain = without_missing(text.select(lossy)).with_columns(col(set(lossy) & set(limited)).str.replace(_LIMIT, ""))
    again = as_finite(plain)
    return finite.with_columns(again), sum(again[name].null_count() - plain[name].null_count() for name in lossy)


def columns_unread(text: pl.DataFrame, numbers: pl.DataFrame) -> list[str]:
    """The columns of `numbers` of which something was not read as a number."""
    return [name for name in numbers.columns if numbers[name].null_count() > text[name].null_count()]


def as_finite(text: pl.DataFrame) -> pl.DataFrame:
    """Texts as numbers, null where they are none or not finite."""
    numbers = text.with_columns(pl.all().cast(pl.Float64, strict=False))
    return numbers.with_columns(pl.when(pl.all().is_finite()).then(pl.all()))


def _passed(text: pl.DataFrame, numbers: pl.DataFrame) -> pl.DataFrame:
    """FreeSurfer's measures where its overall quality control says Pass; the summary volumes are cross-sectional."""
    checked = numbers
    for source in (LONGITUDINAL, CROSS_SECTIONAL):
        own = [
            name
            for name in numbers.columns
            if name.endswith(source) or (name in _SUMMARY_VOLUMES and source == CROSS_SECTIONAL)
        ]
        checked = checked.with_columns(pl.when(text[quality_column(source)].str.strip_chars() == "Pass").then(col(own)))
    return checked


def quality_column(source: str) -> str:
    """Name of the column with the overall quality control of a FreeSurfer table."""
    return f"OVERALLQC_{source}"


def _biomarkers(spec: DatasetSpec) -> set[str]:
    return {row["column"] for row in spec.lists["columns"] if row["kind"] == "biomarker"}
