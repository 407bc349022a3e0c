"""MIMIC-IV with MIMIC-CXR and MIMIC-IV-Note: 25 phenotypes or death in hospital, from up to four modalities.

`tables` is the corrected form of MedFuse's phenotyping task, `replica_tables` what MedFuse's code does, `paper_tables`
the One-Versus-Others paper's four modalities, and `mortality_tables` a prediction at 48 hours. A download of X-rays or
notes that is not there leaves its modality out.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import polars as pl
from polars import col
from pydantic import Field

from ovo_clinic import events, provenance
from ovo_clinic.errors import UserError
from ovo_clinic.raw import RawFolder
from ovo_clinic.resources import load_pipeline
from ovo_clinic.spec import DatasetSpec
from ovo_clinic.staging import PART
from ovo_clinic.tables import ImageTable, ModalityTable, Step, StepsTable, Tables, TextTable

if TYPE_CHECKING:
    from pipelines import mimic_channels, mimic_cohort, mimic_notes, mimic_series
else:
    mimic_channels, mimic_cohort = load_pipeline("mimic_channels"), load_pipeline("mimic_cohort")
    mimic_notes, mimic_series = load_pipeline("mimic_notes"), load_pipeline("mimic_series")

_HOURS_PER_PART = 250_000
_BYTES_PER_HOUR = 8192  # while a part is worked on, generously
_MEDFUSE_MARGIN_SECONDS = 0.0036  # a millionth of an hour
_LISTS = ("phenotypes", "icd9", "icd10", "icd10_overrides")
_COMPLETED = (
    "{} takes stays that have ended and whose diagnoses are coded; use a model of mimic_mortality_48h or "
    "mimic_phenotyping"
)

StepHours = Annotated[float, Field(gt=0)]
ImageSize = Annotated[int, Field(ge=16)]
Layout = Literal["compact", "medfuse"]
Notes = dict[str, int | float | str]
Modalities = dict[str, ModalityTable]


@dataclass(frozen=True)
class ImageChoice:
    """Which X-ray of a stay, and what is made of it; see `mimic_images.select_images`."""

    view: str | None = "AP"
    which: Literal["first", "last"] = "last"
    size: int = 224
    recipe: Literal["crop", "squash"] = "crop"


def tables(
    raw: RawFolder,
    spec: DatasetSpec,
    *,
    timestep_hours: StepHours = 1.0,
    layout: Layout = "compact",
    same_unit: bool = True,
    count_after_unit_filter: bool = False,
    intubated: Literal["lowest", "missing"] = "lowest",
    image_view: Literal["AP", "PA"] | None = "AP",
    image_which: Literal["first", "last"] = "last",
    image_size: ImageSize = 224,
) -> Tables:
    """25 groups of the admission's diagnoses, from the whole ICU stay.

    Args:
        raw: the raw files.
        spec: the data spec.
        timestep_hours: length of a time step.
        layout: `compact` = 17 values and 17 columns of what was observed; `medfuse` = its 76 columns.
        same_unit: only stays that begin and end in the same unit.
        count_after_unit_filter: an admission may have further ICU stays as long as only one of them is in one unit.
        intubated: what the verbal score `No Response-ETT` counts as.
        image_view: of the X-ray; any where null.
        image_which: of several X-rays of a stay.
        image_size: side of the image in pixels.

    Raises:
        UserError: a wrong option, or a mistake in the raw files.
    """
    rules = mimic_cohort.clean_rules(
        same_unit=same_unit, count_after_unit_filter=count_after_unit_filter, unlabelled=raw.unlabelled
    )
    cohort, attrition = events.select(mimic_cohort.read_stays(raw), rules, mimic_cohort.PERSON)
    form = mimic_series.Clean(mimic_channels.Channels.of(spec, medfuse=False), layout, intubated == "missing")
    series = mimic_series.series(raw, _windows(raw, cohort, _stay_seconds(), _stay_hours()), form, timestep_hours)
    cohort, steps = events.select(cohort, [_with_events(series)], mimic_cohort.PERSON)
    stays = _span(cohort, col("outtime"))
    image, image_counts = _image(raw, stays, ImageChoice(image_view, image_which, image_size))
    text, text_counts = _radiology(raw, stays)
    groups = spec.settings["race_groups"]
    demographics = mimic_cohort.demographics(cohort, groups)
    modalities: Modalities = {"time_series": series.table, "demographics": demographics, **image, **text}
    labels = mimic_cohort.phenotypes(raw, spec, mapping="corrected")
    counts = {**series.counts, **image_counts, **text_counts}
    notes: Notes = {**counts, **_mapping(spec), **_release(raw, spec, cohort.height)}
    return Tables(mimic_cohort.cohort_table(cohort, labels, groups), modalities, attrition + steps, notes)


def replica_tables(raw: RawFolder, spec: DatasetSpec, *, timestep_hours: StepHours = 1.0) -> Tables:
    """25 groups of the admission's diagnoses as MedFuse's code makes them: time series and the last AP X-ray.

    Its statistics of another data set (MIMIC-III) are not used: values are scaled with those of the training stays.

    Args:
        raw: the raw files.
        spec: the data spec.
        timestep_hours: length of a time step.

    Raises:
        UserError: a wrong option, or a mistake in the raw files.
    """
    raw.not_for_prediction(_COMPLETED.format("mimic_phenotyping_replica"))
    found = _replica(raw, spec, timestep_hours)
    image, counts = _image(raw, _span(found.cohort, col("outtime")), ImageChoice())
    return found.tables({"time_series": found.series.table, **image}, counts)


def paper_tables(
    raw: RawFolder,
    spec: DatasetSpec,
    *,
    timestep_hours: StepHours = 1.0,
    without_sections: list[mimic_notes.Section] = [],  # noqa: B006  (a default of the schema, never changed)
) -> Tables:
    """25 groups of the admission's diagnoses from the One-Versus-Others paper's four modalities, complete cases only.

    Cohort, labels and time series are those of MedFuse's code, from which the paper started; its demographics are kept
    but for the time of discharge, the time of death and where the patient went.

    Args:
        raw: the raw files, X-rays and notes among them.
        spec: the data spec.
        timestep_hours: length of a time step; the paper's code has the rows as they were charted.
        without_sections: of the discharge note, sections that are left out.

    Raises:
        UserError: a wrong option, a download that is not there, or a mistake in the raw files.
    """
    raw.not_for_prediction(_COMPLETED.format("mimic_paper"))
    for source, is_there in {"cxr": raw.folder("cxr") is not None, "note": raw.path("discharge") is not None}.items():
        if not is_there:
            raise UserError(f"--raw: mimic_paper takes patients with every modality; give {source}=DIR too")
    found = _replica(raw, spec, timestep_hours)
    stays = _span(found.cohort, col("outtime"))
    image, image_counts = _image(raw, stays, ImageChoice(recipe="squash"))
    text, text_counts = mimic_notes.select_notes(raw, stays, "discharge", without_sections=without_sections)
    rules = [_with("an AP X-ray of the stay", image["image"]), _with("a discharge note", text)]
    cohort, steps = events.select(found.cohort, rules, mimic_cohort.PERSON)
    complete = replace(found, cohort=cohort, attrition=found.attrition + steps)
    demographics = mimic_cohort.paper_demographics(cohort)
    modalities: Modalities = {"time_series": found.series.table, "demographics": demographics, **image, "text": text}
    return complete.tables(modalities, image_counts | text_counts)


def mortality_tables(
    raw: RawFolder,
    spec: DatasetSpec,
    *,
    prediction_hours: StepHours = 48.0,
    timestep_hours: StepHours = 1.0,
    layout: Layout = "compact",
    image_size: ImageSize = 224,
) -> Tables:
    """Death in hospital of adults who are in the unit at the prediction; every modality ends before it.

    Args:
        raw: the raw files.
        spec: the data spec.
        prediction_hours: hours from admission to the unit to the prediction.
        timestep_hours: length of a time step.
        layout: as in `tables`.
        image_size: side of the image in pixels; the last AP X-ray counts.

    Raises:
        UserError: a wrong option, or a mistake in the raw files.
    """
    rules = mimic_cohort.mortality_rules(prediction_hours, raw.unlabelled)
    positive = col("hospital_expire_flag") == 1
    cohort, attrition = events.select(mimic_cohort.read_stays(raw), rules, mimic_cohort.PERSON, positive)
    form = mimic_series.Clean(mimic_channels.Channels.of(spec, medfuse=False), layout, end_open=True)
    last = pl.lit(math.ceil(prediction_hours * 3600) - 1)  # the last whole second before the prediction
    series = mimic_series.series(raw, _windows(raw, cohort, last, pl.lit(prediction_hours)), form, timestep_hours)
    stays = _span(cohort, col("intime") + pl.duration(seconds=last + 1))
    image, image_counts = _image(raw, stays, ImageChoice(size=image_size), end_open=True)
    text, text_counts = _radiology(raw, stays, end_open=True)
    groups = spec.settings["race_groups"]
    demographics = mimic_cohort.demographics(cohort, groups)
    modalities: Modalities = {"time_series": series.table, "demographics": demographics, **image, **text}
    labels = cohort.select("hadm_id", died="hospital_expire_flag")
    notes: Notes = {**series.counts, **image_counts, **text_counts, **_release(raw, spec, None)}
    return Tables(mimic_cohort.cohort_table(cohort, labels, groups), modalities, attrition, notes)


@dataclass(frozen=True)
class Replicated:
    """Cohort and time series of MedFuse's code; what more a task needs joins them in `tables`."""

    raw: RawFolder
    spec: DatasetSpec
    cohort: pl.DataFrame
    attrition: list[Step]
    series: "mimic_series.Series"

    def tables(self, modalities: Mapping[str, ModalityTable], notes: Mapping[str, int]) -> Tables:
        """With MedFuse's labels."""
        labels = mimic_cohort.phenotypes(self.raw, self.spec, mapping="medfuse")
        cohort = mimic_cohort.cohort_table(self.cohort, labels, self.spec.settings["race_groups"])
        told: Notes = {**self.series.counts, **notes, **_release(self.raw, self.spec, cohort.height)}
        return Tables(cohort, modalities, self.attrition, told)


def _replica(raw: RawFolder, spec: DatasetSpec, timestep_hours: float) -> Replicated:
    cohort, attrition = events.select(mimic_cohort.read_stays(raw), mimic_cohort.replica_rules(), mimic_cohort.PERSON)
    form = mimic_series.Replica(mimic_channels.Channels.of(spec, medfuse=True))
    last = (col("los") * 86_400 + _MEDFUSE_MARGIN_SECONDS).floor()
    series = mimic_series.series(raw, _windows(raw, cohort, last, col("los") * 24), form, timestep_hours)
    cohort, steps = events.select(cohort, [_with_events(series)], mimic_cohort.PERSON)
    return Replicated(raw, spec, cohort, attrition + steps, series)


def _windows(raw: RawFolder, cohort: pl.DataFrame, last: pl.Expr, hours: pl.Expr) -> pl.DataFrame:
    """The stays in parts that fit into memory; see `mimic_series.series`."""
    per_part = min(_HOURS_PER_PART, max(1, raw.memory // _BYTES_PER_HOUR))
    stays = cohort.select(
        mimic_cohort.PERSON,
        "hadm_id",
        "stay_id",
        start="intime",
        last=last.cast(pl.Int32),
        hours=hours.cast(pl.Float64),
    )
    before = col("hours").cum_sum().shift(fill_value=0)
    return stays.with_columns((before // per_part).cast(pl.Int32).alias(PART)).with_row_index("unit")


def _stay_seconds() -> pl.Expr:
    return (col("outtime") - col("intime")).dt.total_seconds()


def _stay_hours() -> pl.Expr:
    return col("los") * 24


def _span(cohort: pl.DataFrame, end: pl.Expr) -> pl.DataFrame:
    """What images and notes need: unit_id, subject_id, hadm_id, and start and end of the window, both included."""
    return cohort.select(mimic_cohort.PERSON, "hadm_id", unit_id="stay_id", start="intime", end=end)


def _with_events(series: "mimic_series.Series") -> mimic_cohort.Rule:
    return _with("an event in the window", series.table)


def _with(what: str, table: StepsTable | ImageTable | TextTable) -> mimic_cohort.Rule:
    return f"with {what}", col("stay_id").is_in(table.frame["unit_id"].unique().implode())


def _image(
    raw: RawFolder, stays: pl.DataFrame, choice: ImageChoice, end_open: bool = False
) -> tuple[dict[str, ImageTable], dict[str, int]]:
    """The X-rays, where their download is there, and counts worth telling."""
    if raw.folder("cxr") is None:
        return {}, {}
    images = load_pipeline("mimic_images")  # loads pydicom
    table, counts = images.select_images(raw, stays, **asdict(choice), end_open=end_open)
    return {"image": table}, counts


def _radiology(
    raw: RawFolder, stays: pl.DataFrame, end_open: bool = False
) -> tuple[dict[str, TextTable], dict[str, int]]:
    """The radiology reports, where the notes are there, and counts worth telling."""
    if raw.path("radiology") is None:
        return {}, {}
    table, counts = mimic_notes.select_notes(raw, stays, "radiology", end_open=end_open)
    return {"text": table}, counts


def _mapping(spec: DatasetSpec) -> dict[str, str]:
    """Which lists of ICD codes the labels come from."""
    digest = provenance.digest_of({name: spec.lists[name] for name in _LISTS})[:12]
    return {"phenotype mapping": f"version {spec.settings['phenotype_mapping']} (sha256 {digest})"}


def _release(raw: RawFolder, spec: DatasetSpec, stays: int | None) -> dict[str, str]:
    """The version of MIMIC-IV; for a full release also what others counted, beside our number of stays."""
    called = "MIMIC-IV "
    full = {name.removeprefix(called): rows for name, rows in spec.releases.items() if name.startswith(called)}
    version, is_full = mimic_cohort.release(raw, full)
    notes = {"MIMIC-IV version": version if is_full else f"{version} (not the rows of a full release)"}
    if is_full and stays is not None:
        for source, count in spec.settings["published_counts"].items():
            notes[f"published: {source}"] = f"{count:,} stays; here {stays:,} ({stays / count - 1:+.1%})"
    return notes
