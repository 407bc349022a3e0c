"""The text of each ICU stay from MIMIC-IV-Note: radiology reports inside its window, or the discharge note.

A discharge note is written after the stay and names its diagnoses, the course and what was prescribed: it leaks labels.
Its sections can be left out, but what the others say of past diseases remains.
"""

import re
from collections.abc import Sequence
from typing import Literal

import polars as pl
from polars import col

from ovo_clinic.raw import RawFolder
from ovo_clinic.tables import TextTable

Section = Literal["diagnoses", "hospital_course", "discharge_medications", "discharge_condition", "past_history"]
"""What can be left out of a discharge note; `discharge_condition` is also where the patient went and was told to do."""

SEPARATOR = "\n\n"
"""Between the reports of a stay."""

_TITLES: dict[Section, tuple[str, ...]] = {
    "diagnoses": (
        "Discharge Diagnosis",
        "Discharge Diagnoses",
        "Final Diagnosis",
        "Final Diagnoses",
        "Primary Diagnosis",
        "Primary Diagnoses",
        "Secondary Diagnosis",
        "Secondary Diagnoses",
        "Admission Diagnosis",
    ),
    "hospital_course": (
        "Brief Hospital Course",
        "Hospital Course",
        "Summary of Hospital Course",
        "Brief Summary",
        "Active Issues",
        "Acute Issues",
        "Chronic Issues",
        "Transitional Issues",
    ),
    "discharge_medications": ("Discharge Medications", "Discharge Medication", "Medications on Discharge"),
    "discharge_condition": (
        "Discharge Condition",
        "Condition on Discharge",
        "Discharge Disposition",
        "Discharge Status",
        "Discharge Instructions",
        "Followup Instructions",
        "Follow-up Instructions",
    ),
    "past_history": ("Past Medical History", "Past Surgical History", "Past Psychiatric History"),
}
_OTHER_TITLES = (
    "Name",
    "Admission Date",
    "Date of Birth",
    "Service",
    "Allergies",
    "Attending",
    "Chief Complaint",
    "Major Surgical or Invasive Procedure",
    "History of Present Illness",
    "Social History",
    "Family History",
    "Physical Exam",
    "Physical Examination",
    "Pertinent Results",
    "Medications on Admission",
    "Facility",
)
_SECTION_OF = {title.lower(): section for section, titles in _TITLES.items() for title in titles}
_TITLE = re.compile(
    rf"^[ \t]*({'|'.join(sorted((*_SECTION_OF, *_OTHER_TITLES), key=len, reverse=True))})[ \t]*:",
    re.IGNORECASE | re.MULTILINE,
)


def select_notes(
    raw: RawFolder,
    stays: pl.DataFrame,
    kind: Literal["radiology", "discharge"],
    *,
    end_open: bool = False,
    without_sections: Sequence[Section] = (),
) -> tuple[TextTable, dict[str, int]]:
    """The notes of each stay, joined into one text, and counts worth telling.

    Args:
        raw: raw files with the table named by `kind`.
        stays: unit_id, subject_id, hadm_id, start, end (Datetime) of the window.
        kind: `radiology` = all different reports charted inside the window, in the order of their times; `discharge` =
            the one note of the admission (type DS before the addendum AD), whenever it was written.
        end_open: a prediction is made at `end`: reports charted then, or not known to be stored before it (stored
            later, or at an unknown time), do not count.
        without_sections: of discharge notes, sections that are left out.
    """
    assert kind == "radiology" or not end_open, "a discharge note is never known when a prediction is made"
    assert kind == "discharge" or not without_sections, "radiology reports have no such sections"
    if kind == "radiology":
        return _radiology(raw, stays, end_open)
    return _discharge(raw, stays, without_sections)


def _radiology(raw: RawFolder, stays: pl.DataFrame, end_open: bool) -> tuple[TextTable, dict[str, int]]:
    windows = stays.select("unit_id", "subject_id", "start", "end").lazy()
    charted, stored = _time("charttime"), _time("storetime")
    before_end = col("charted") < col("end") if end_open else col("charted") <= col("end")
    reports = (
        raw.scan("radiology")
        .join(windows, on="subject_id", how="inner")
        .with_columns(charted=charted, stored=stored)
        .filter((col("charted") >= col("start")) & before_end)
        .with_columns(
            hours=_hours_since(pl.max_horizontal("charted", "stored"), col("start")),
            late=~(col("stored") < col("end")).fill_null(False),
            text=_stripped(),
        )
        .select("unit_id", "note_seq", "note_id", "charted", "hours", "late", "text")
    )
    found = raw.collect(reports, "radiology").sort("unit_id", "charted", "note_seq", "note_id")
    late = found.filter("late") if end_open else found.clear()
    known = found.filter(~col("late")) if end_open else found
    written = known.filter(col("text").str.len_bytes() > 0)
    different = written.unique(["unit_id", "text"], keep="first", maintain_order=True)
    joined = different.group_by("unit_id", maintain_order=True).agg(col("text").str.join(SEPARATOR), col("hours").max())
    counts = {
        "text: radiology reports in the window": found.height,
        "text: reports said twice, or blank": known.height - different.height,
        "text: stays with reports": joined.height,
    }
    if end_open:
        counts["text: reports charted, but not known to be stored before the prediction"] = late.height
    return TextTable(joined.select("unit_id", "text"), latest=joined.select("unit_id", "hours")), counts


def _discharge(
    raw: RawFolder, stays: pl.DataFrame, without_sections: Sequence[Section]
) -> tuple[TextTable, dict[str, int]]:
    owners = stays.select("unit_id", "subject_id", "hadm_id").lazy()
    columns = ("unit_id", "note_type", "note_seq", "note_id")
    notes = raw.scan("discharge").join(owners, on=["subject_id", "hadm_id"], how="inner")
    found = raw.collect(notes.select(*columns, text=_stripped()), "discharge")
    written = found.filter(col("text").str.len_bytes() > 0)
    ordered = written.sort("unit_id", col("note_type") != "DS", "note_seq", "note_id", nulls_last=True)
    first = ordered.unique("unit_id", keep="first", maintain_order=True).select("unit_id", "text")
    counts = {
        "text: discharge notes of the admissions": found.height,
        "text: further or blank notes of an admission": found.height - first.height,
    }
    if without_sections:
        shortened = [without(text, without_sections) for text in first["text"]]
        first = first.with_columns(text=pl.Series(shortened, dtype=pl.String)).filter(col("text") != "")
    return TextTable(first), counts | {"text: stays with a discharge note": first.height}


def without(text: str, sections: Sequence[Section]) -> str:
    """A discharge note without some sections; each reaches from its title to the next one that is known.

    A title stands at the beginning of a line and ends with a colon; a line that is no known title ends no section, as
    the course of a stay has headings of its own.
    """
    titles = list(_TITLE.finditer(text))
    starts = [0, *(title.start() for title in titles)]
    ends = [*starts[1:], len(text)]
    kinds = [None, *(_SECTION_OF.get(title[1].lower()) for title in titles)]
    kept = [text[a:b] for a, b, kind in zip(starts, ends, kinds, strict=True) if kind not in sections]
    return "".join(kept).strip()


def _time(name: str) -> pl.Expr:
    """`2180-07-23 12:36:00`, of a csv or a parquet file; null where it cannot be read."""
    return col(name).str.slice(0, 19).str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="us", strict=False)


def _hours_since(time: pl.Expr, start: pl.Expr) -> pl.Expr:
    return (time - start).dt.total_seconds() / 3600


def _stripped() -> pl.Expr:
    return col("text").fill_null("").str.strip_chars()
