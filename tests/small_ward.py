"""A small private data set of numbers, codes, notes and films, made by a pipeline into which a leak can be planted."""

from pathlib import Path

UNITS = 240
COPIES = 30
"""Planted copies: unit i + UNITS // 2 has the content of unit i, for i below this."""

PIPELINE = '''
from pathlib import Path

import numpy as np
import polars as pl
from PIL import Image

from ovo_clinic import events
from ovo_clinic.tables import CodesTable, ImageTable, Step, SummariesTable, Tables, TextTable, VectorTable, Vocabulary

UNITS, COPIES = 240, 30
FOLDER = Path(__file__).parent


def tables(raw, spec, *, leaks: list[str] = [], prediction_hours: float | None = 24.0) -> Tables:
    rng = np.random.default_rng(3)
    number = np.arange(UNITS)
    unit = 5_500_000 + rng.permutation(9 * UNITS)[:UNITS]
    severity = rng.normal(size=UNITS)
    died = (severity + rng.normal(size=UNITS) > 0.6).astype(np.int8)
    # Two units a person; copies are of other people.
    person = 880_000 + rng.permutation(UNITS // 2)[number // 2]
    cohort = pl.DataFrame({"unit_id": unit, "patient_id": person, "died": died})
    source = np.where((number >= UNITS // 2) & (number < UNITS // 2 + COPIES), number - UNITS // 2, number)
    vitals = {"age": 60 + 9 * severity, "pulse": rng.normal(80, 12, UNITS), "lactate": rng.gamma(2, 1, UNITS)}
    vitals |= {name: rng.normal(100, 20, UNITS) for name in ("sodium", "glucose", "urea", "pressure")}
    if "copied stay" in leaks:
        vitals = {name: values[source] for name, values in vitals.items()}
    found = {"vitals": VectorTable(pl.DataFrame({"unit_id": unit, **vitals}))}
    found["ward"] = VectorTable(pl.DataFrame({"unit_id": unit, **ward(unit, died, rng, leaks)}))
    found["labs"] = labs(unit, rng, leaks)
    found["orders"] = orders(unit, rng, leaks)
    found["note"] = notes(unit, rng, source if "note" in leaks else number)
    found["film"] = films(unit, source if "film" in leaks else number)
    return Tables(cohort, found, steps(cohort, leaks))


def ward(unit, died, rng, leaks) -> dict:
    columns = {"beds": rng.integers(8, 30, UNITS).astype(float)}
    if "label" in leaks:
        columns["score"] = 10.0 - 3.0 * died + rng.uniform(0, 1, UNITS)
    if "discharge" in leaks:
        columns["dischargeDestinationCode"] = rng.integers(1, 6, UNITS).astype(float)
    if "row number" in leaks:
        columns["visit"] = np.argsort(np.argsort(unit)) * 3.0 + rng.uniform(0, 2, UNITS)
    if "date" in leaks:
        columns["admitted"] = 20110000.0 + 100 * rng.integers(1, 13, UNITS) + rng.integers(1, 29, UNITS)
    return columns


def labs(unit, rng, leaks) -> SummariesTable:
    rows = 4 * UNITS
    measured = rng.uniform(0, 20, rows)
    revised = measured + rng.uniform(0, 3, rows)
    if "revised lab" in leaks:
        revised[:20] += 30
    records = pl.DataFrame({
        "unit_id": np.tile(unit, 4), "variable": np.repeat(["CRP", "Hb", "K", "Na"], UNITS),
        "hours": measured, "revised": revised, "value": rng.normal(5, 1, rows),
    })
    summary = records.group_by("unit_id", "variable").agg(last=pl.col("value").last(), count=pl.len())
    latest = events.latest(records, "hours", "revised", per_hour=1)
    return SummariesTable(summary, Vocabulary(0.05), latest=latest)


def orders(unit, rng, leaks) -> CodesTable:
    pairs = [(int(u), f"drug {code:02d}") for u in unit for code in np.flatnonzero(rng.random(40) < 0.06)]
    return CodesTable(pl.DataFrame(pairs, ["unit_id", "code"], orient="row"), Vocabulary(0.06))


def notes(unit, rng, source) -> TextTable:
    words = np.array([f"w{number}" for number in range(500)])
    texts = [" ".join(words[rng.integers(0, 500, 90)]) for _ in unit]
    header = "EXAMINATION of the chest. INDICATION short of breath. COMPARISON none. FINDINGS as follows here. "
    changed = [header + texts[s] if s == i else header + texts[s].replace(" w17", " x17") for i, s in enumerate(source)]
    hours = pl.DataFrame({"unit_id": unit, "hours": rng.uniform(0, 23, UNITS)})
    return TextTable(pl.DataFrame({"unit_id": unit, "text": changed}), latest=hours)


def films(unit, source) -> ImageTable:
    """Each of a noise of its own on a shape that all have in common; a copy is darker and of less contrast."""
    y, x = np.mgrid[-1:1:48j, -1:1:48j]
    shape = 140 * np.exp(-3 * (x**2 + y**2))
    paths = []
    for i, s in enumerate(source):
        coarse = np.random.default_rng(1000 + s).normal(0, 25, (12, 12)).repeat(4, 0).repeat(4, 1)
        pixels = shape + 60 + coarse
        pixels = pixels if s == i else 0.7 * pixels + 12 + np.random.default_rng(i).normal(0, 1, pixels.shape)
        path = FOLDER / f"film{i}{'' if s == i else 'copy'}.png"
        if not path.is_file():
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)
        paths.append(str(path))
    return ImageTable(pl.DataFrame({"unit_id": unit, "path": paths}), 48, "squash")


def steps(cohort, leaks) -> list[Step]:
    positives = int(cohort["died"].sum())
    negatives = cohort.height - positives
    first = Step("stay", 2 * UNITS, UNITS, positives + 4 if "selection" in leaks else 2 * positives,
                 negatives=2 * UNITS - positives - 4 if "selection" in leaks else 2 * negatives)
    people = cohort["patient_id"].n_unique()
    return [first, Step("with an autopsy report", UNITS, people, positives, negatives=negatives)]
'''
SPEC = """
name: small_ward
title: A made-up ward
pipeline: small_ward.py
raw: false
modalities: {vitals: measured, ward: about the place, labs: results, orders: drugs, note: written, film: pictures}
tasks:
  small_ward:
    title: Made-up deaths
    target: [died]
    classes: [alive, died]
    split: {train: 0.6, validation: 0.2, test: 0.2}
"""


def ward_config(folder: Path, more: str = "") -> str:
    """Writes the data set into a new folder; returns the path of its config.

    Args:
        folder: to be made.
        more: further lines of the task, indented by four.
    """
    folder.mkdir()
    (folder / "small_ward.py").write_text(PIPELINE)
    (folder / "small_ward.spec.yaml").write_text(SPEC + more)
    (folder / "small_ward.yaml").write_text("dataset: small_ward.spec.yaml\n")
    return str(folder / "small_ward.yaml")
