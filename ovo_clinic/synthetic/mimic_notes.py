"""Rows of the synthetic MIMIC-IV-Note folder; every sentence is invented.

Radiology reports inside an ICU stay tell the topics and the wording of its latents, those before or after it noise.
Discharge notes are written afterwards and name the diagnoses: the leak that the tasks warn of.
"""

import numpy as np
import polars as pl

from ovo_clinic.synthetic.mimic_signal import Integers
from ovo_clinic.synthetic.mimic_stays import DAY, HOUR, MINUTE, Chunk, Stays, moments
from ovo_clinic.synthetic.mimic_targets import PHENOTYPES

FINDINGS = (
    (
        ("The upper fields are clear.", "No veil is seen over the fields.", "The fields are as bright as before."),
        ("A thin veil lies over both fields.", "There is a patchy veil on one side.", "A new veil is seen above."),
    ),
    (
        ("The bases are dry.", "Both bases reach down freely.", "No layering is seen at the bases."),
        ("The bases are blunted.", "There is layering at the left base.", "Both bases are covered."),
    ),
    (
        ("The outline is of normal width.", "The outline is sharp.", "The middle outline is unchanged and narrow."),
        ("The outline is wide.", "The outline is wider than before.", "The middle outline is blurred and broad."),
    ),
    (
        ("No lines are in place.", "All lines have been removed.", "There is no line on this view."),
        ("Lines are in place.", "A line ends in the usual position.", "Two lines are seen, neither has moved."),
    ),
)
"""Sentences on each topic of `mimic_signal.TOPICS`, where it is absent and where it is present."""
SERIES = (
    ("Compared with the cobalt series.", "The cobalt series serves as reference.", "Read beside the cobalt series."),
    ("Compared with the amber series.", "The amber series serves as reference.", "Read beside the amber series."),
)
INDICATIONS = ("evaluate interval change", "check position", "new cough", "short of breath", "after procedure")
EXAMS = ("CHEST (PORTABLE AP)", "CHEST (PA AND LAT)", "CT CHEST W/O CONTRAST", "ABDOMEN (SUPINE ONLY)")
COURSES = (
    "The stay went on without further remarks.",
    "The plan was reviewed each morning and changed twice.",
    "The team met the family and agreed on the next steps.",
    "Treatment was tapered as the numbers settled.",
)


def radiology_table(rng: np.random.Generator, chunk: Chunk) -> pl.DataFrame:
    """Rows of radiology: reports (RR) and a few addenda (AR)."""
    stays = chunk.stays
    stay, time = _report_times(rng, stays)
    inside = (time >= stays.start[stay]) & (time <= stays.end[stay])
    count = len(stay)
    topics = np.where(inside[:, None], stays.latents.topics[stay], rng.random((count, len(FINDINGS))) < 0.5)
    amber = np.where(inside, stays.latents.amber[stay], rng.random(count) < 0.5)
    variants = rng.integers(0, 3, (count, len(FINDINGS) + 1))
    exams, reasons = rng.integers(0, len(EXAMS), count), rng.integers(0, len(INDICATIONS), count)
    texts = []
    for row in range(count):
        sentences = [FINDINGS[topic][int(topics[row, topic])][variants[row, topic]] for topic in range(len(FINDINGS))]
        series = SERIES[int(amber[row])][variants[row, -1]]
        texts.append(
            f"EXAMINATION: {EXAMS[exams[row]]}\n\nINDICATION: ___ year old, {INDICATIONS[reasons[row]]}\n\n"
            f"COMPARISON: {series}\n\nFINDINGS:\n{' '.join(sentences[:2])}\n{' '.join(sentences[2:])}\n\n"
            f"IMPRESSION:\n1. {sentences[variants[row, 0]]}\n"
        )
    addendum = rng.random(count) < 0.03
    keys = chunk.keys(stay)
    linked = pl.Series(rng.random(count) < 0.85)
    return _notes(
        keys["subject_id"],
        pl.Series(keys["hadm_id"]).set(~linked, None),
        np.where(addendum, "AR", "RR"),
        time,
        time + rng.integers(10, 30 * 60, count) * MINUTE,
        texts,
    )


def exam_table(reports: pl.DataFrame) -> pl.DataFrame:
    """Rows of radiology_detail: the name of each exam, as the report gives it."""
    return reports.select(
        "note_id",
        "subject_id",
        pl.lit("exam_name").alias("field_name"),
        pl.col("text").str.extract("EXAMINATION: (.*)").alias("field_value"),
        pl.lit(1).alias("field_ordinal"),
    )


def discharge_table(rng: np.random.Generator, chunk: Chunk) -> pl.DataFrame:
    """Rows of discharge: most admissions have a summary (DS), some a second one or an addendum (AD)."""
    admissions = chunk.admissions
    visits = len(admissions.died)
    first = np.flatnonzero(rng.random(visits) < 0.78)
    again = first[rng.random(len(first)) < 0.04]
    visit = np.concatenate([first, again])
    kind = np.where(np.arange(len(visit)) < len(first), "DS", rng.choice(["DS", "AD"], len(visit)))
    named = admissions.labels[visit, : len(PHENOTYPES)] & (rng.random((len(visit), len(PHENOTYPES))) < 0.92)
    courses = rng.integers(0, len(COURSES), (len(visit), 2))
    texts = [
        _summary(
            [PHENOTYPES[place].name for place in np.flatnonzero(named[row])], courses[row], admissions.died[position]
        )
        for row, position in enumerate(visit)
    ]
    discharge = chunk.ends.discharge[visit]
    return _notes(
        chunk.people.subject_id[admissions.person[visit]],
        pl.Series(admissions.hadm_id[visit]),
        kind,
        discharge // DAY * DAY,
        discharge + rng.integers(HOUR, 20 * DAY, len(visit)) // MINUTE * MINUTE,
        texts,
    )


def author_table(summaries: pl.DataFrame) -> pl.DataFrame:
    """Rows of discharge_detail: authors, who are not named."""
    return summaries.select(
        "note_id",
        "subject_id",
        pl.lit("author").alias("field_name"),
        pl.lit("___").alias("field_value"),
        pl.lit(1).alias("field_ordinal"),
    )


def _summary(names: list[str], courses: Integers, died: bool) -> str:
    listed = "\n".join(f"- {name}" for name in names) or "- none"
    history = ", ".join(names[::2]).lower() or "nothing of note"
    end = "Expired" if died else "Stable."
    return (
        f"Name: ___   Unit No: ___\n\nHistory of Present Illness:\n___ year old with {history}.\n\n"
        f"Brief Hospital Course:\n{COURSES[courses[0]]} {COURSES[courses[1]]}\n\nDischarge Medications:\n1. ___\n\n"
        f"Discharge Diagnosis:\n{listed}\n\nDischarge Condition:\n{end}\n\nFollowup Instructions:\n___\n"
    )


def _report_times(rng: np.random.Generator, stays: Stays) -> tuple[Integers, Integers]:
    """(stay, time) of reports: one on the first day of the stays that have reports, further ones, and noise outside."""
    length = stays.end - stays.start
    own = np.flatnonzero(stays.reported)
    more = np.repeat(own, rng.integers(0, 3, len(own)))
    before, after = (np.flatnonzero(rng.random(len(stays)) < share) for share in (0.35, 0.2))
    stay = np.concatenate([own, more, before, after])
    offset = np.concatenate(
        [
            np.floor(rng.random(len(own)) * np.minimum(length[own], DAY)),
            np.floor(rng.random(len(more)) * length[more]),
            -rng.integers(HOUR, 10 * DAY, len(before)),
            length[after] + rng.integers(HOUR, 5 * DAY, len(after)),
        ]
    ).astype(np.int64)
    time = (stays.start[stay] + offset + MINUTE - 1) // MINUTE * MINUTE
    time = np.where(
        (offset >= 0) & (offset <= length[stay]), np.minimum(time, stays.end[stay] // MINUTE * MINUTE), time
    )
    order = np.lexsort((time, stay))
    return stay[order], time[order]


def _notes(
    subject: Integers, hadm: pl.Series, kind: np.ndarray, charted: Integers, stored: Integers, texts: list[str]
) -> pl.DataFrame:
    """Notes by person, each numbered among those of its person and kind."""
    frame = pl.DataFrame(
        {
            "subject_id": subject,
            "hadm_id": hadm,
            "note_type": kind,
            "charttime": moments(charted),
            "storetime": moments(stored),
            "text": pl.Series(texts, dtype=pl.String),
        }
    ).sort("subject_id", "charttime", maintain_order=True)
    number = pl.int_range(1, pl.len() + 1).over("subject_id", "note_type")
    name = pl.format("{}-{}-{}", "subject_id", "note_type", "note_seq")
    frame = frame.with_columns(number.alias("note_seq")).with_columns(name.alias("note_id"))
    return frame.select("note_id", "subject_id", "hadm_id", "note_type", "note_seq", "charttime", "storetime", "text")
