"""A small private data set of vectors and notes whose words tell the outcome."""

from pathlib import Path

UNITS = 90

PIPELINE = '''
import numpy as np
import polars as pl

from ovo_clinic.tables import Step, Tables, TextTable, VectorTable

FINDINGS = [["acute", "fever", "cough"], ["lungs", "are", "clear"]]


def tables(raw, spec) -> Tables:
    """Every fourth unit has no note; half of the others a long one."""
    rng = np.random.default_rng(2)
    unit = np.arange(1000, 1090)
    label = np.arange(90) // 2 % 2
    cohort = pl.DataFrame({"unit_id": unit, "patient_id": unit, "label": label})
    vector = pl.DataFrame({"unit_id": unit, "age": rng.normal(60, 10, 90)})
    notes = [(int(u), " ".join(rng.permutation(FINDINGS[1 - y]).tolist() * (1 + 5 * (int(u) % 2))))
             for u, y in zip(unit, label) if u % 4]
    texts = pl.DataFrame(notes, ["unit_id", "text"], orient="row")
    return Tables(cohort, {"vitals": VectorTable(vector), "note": TextTable(texts)}, [Step("all", 90, 90)])
'''
SPEC = """
name: notes
title: Notes
pipeline: notes.py
raw: false
modalities: {vitals: measured, note: written}
tasks: {notes: {title: Notes, target: [label], split: {train: 0.5, validation: 0.25, test: 0.25}}}
"""


def notes_config(folder: Path) -> str:
    """Writes the data set into a new folder; returns the path of its config."""
    folder.mkdir()
    (folder / "notes.py").write_text(PIPELINE)
    (folder / "notes.spec.yaml").write_text(SPEC)
    (folder / "notes.yaml").write_text("dataset: notes.spec.yaml\n")
    return str(folder / "notes.yaml")
