"""Whatever MLflow stores of a whole study holds no identifier, no sentence of a note and no planted canary."""

import json
import re
import sqlite3
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import pytest

from ovo_clinic import verbs
from ovo_clinic.registry import SYNTHETIC
from tests.tiny_models import tiny_bert

pytestmark = pytest.mark.slow
CANARY = "canary-of-nobody"
NUMBER = re.compile(rb"(?<![\w.])\d{5,14}(?![\w.])")


def stored(home: Path) -> dict[str, bytes]:
    """Everything that the store holds: its files, and its database also as text."""
    database = home / "mlflow.db"
    with sqlite3.connect(database) as connection:
        dumped = "\n".join(connection.iterdump()).encode()
    files = [database, *(path for path in (home / "mlflow_artifacts").rglob("*") if path.is_file())]
    return {path.relative_to(home).as_posix(): path.read_bytes() for path in files} | {"mlflow.db as text": dumped}


def found_in(contents: dict[str, bytes], numbers: Iterable[object], words: Iterable[str]) -> list[tuple[str, str]]:
    """(file, secret) of whole numbers, and of words anywhere."""
    secret_numbers = {str(number).encode() for number in numbers}
    secret_words = [word.encode() for word in words]
    found = []
    for name, content in contents.items():
        found += [(name, number.decode()) for number in secret_numbers & set(NUMBER.findall(content))]
        found += [(name, word.decode()) for word in secret_words if word in content]
    return found


def test_the_search_finds_what_is_there() -> None:
    contents = {
        "a": b'{"stay": 30000123, "hash": "ab30000124cd", "loss": 0.30000125}',
        "b": b"said by canary-of-nobody",
    }
    assert found_in(contents, [30000123, 30000124, 30000125], [CANARY]) == [("a", "30000123"), ("b", CANARY)]


def test_nothing_of_a_patient_is_stored_of_the_demo(home: Path) -> None:
    raw = home / "demo" / "eicu-300"
    raw.parent.mkdir(parents=True)
    SYNTHETIC.build("eicu", raw, options={"patients": 300})
    file = raw / "patient.csv.gz"
    patients = pd.read_csv(file, dtype=str, keep_default_na=False)
    patients["uniquepid"] = CANARY + patients["uniquepid"]
    patients.to_csv(file, index=False)
    verbs.demo(patients=300, seeds=1, workers=1)
    contents = stored(home)
    assert any(name.endswith("report.html") for name in contents) and any("MLmodel" in name for name in contents)
    assert b"self_attention seed 0" in contents["mlflow.db as text"]
    numbers = [*patients["patientunitstayid"], *patients["patienthealthsystemstayid"]]
    assert len(set(numbers)) > 300
    assert found_in(contents, numbers, [CANARY, *patients["uniquepid"].str.removeprefix(CANARY)]) == []


def test_nothing_of_a_patient_is_stored_of_notes_and_x_rays(home: Path, tmp_path: Path) -> None:
    raw = tmp_path / "mimic"
    SYNTHETIC.build("mimic", raw, options={"patients": 90})
    file = raw / "note" / "radiology.csv.gz"
    notes = pd.read_csv(file, dtype=str, keep_default_na=False)
    notes["text"] = notes["text"] + f"\n{CANARY}\n"
    notes.to_csv(file, index=False)
    text = json.dumps({"name": "text", "checkpoint": str(tiny_bert(tmp_path / "bert")), "max_tokens": 24})
    settings = ["data.image_size=48", "model.dim=8", "training.epochs=1", f"model.encoders.text={text}"]
    settings += ["split.train=0.5", "split.validation=0.2", "split.test=0.3"]
    baselines = [{"name": "logistic", "budget": 1}]
    study = verbs.compare(
        "mimic_phenotyping", [*settings, f"compare.baselines={json.dumps(baselines)}"], raw=raw, fusion=["ovo"], seeds=1
    )
    assert {"image", "text"} <= set(study.comparison.prepared.modalities)
    contents = stored(home)
    assert any("checkpoints/text/vocab.txt" in name for name in contents)
    stays = pd.read_csv(raw / "iv" / "icu" / "icustays.csv.gz")
    films = pd.read_csv(raw / "cxr" / "mimic-cxr-2.0.0-metadata.csv.gz")
    columns = [stays["subject_id"], stays["hadm_id"], stays["stay_id"], films["study_id"]]
    sentences = {line.strip() for text in notes["text"] for line in text.splitlines() if len(line.strip()) > 25}
    assert len(sentences) > 20 and len(films) > 20
    words = [CANARY, *films["dicom_id"], *notes["note_id"], *sentences]
    assert found_in(contents, [number for column in columns for number in column], words) == []
