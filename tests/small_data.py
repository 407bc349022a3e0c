"""Small data sets for tests of whole studies."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

SIMULATION = ("data.samples=200", "data.modalities=3", "model.dim=8", "model.output=hidden", "training.epochs=2")
"""Overrides of the task `simulation`: 160 training, 20 validation, 20 test units; two epochs."""

QUICK = ("model.dim=8", "training.epochs=2")

FIRST_UNIT = 7_310_000_001
PERSON = "canary-person-"
KINDS = {
    "binary": {"target": ["died"], "classes": ["alive", "dead"]},
    "multiclass": {"target": ["stage"], "classes": ["none", "mild", "severe"]},
    "multilabel": {"target": ["pain", "fever"], "classes": []},
}


def flat_files(folder: Path, kind: str, stays: int = 240) -> Path:
    """Writes raw files, a spec and a config of a private data set whose ids are easy to find again.

    Args:
        folder: gets `raw/stays.csv`, `raw/labs.csv`, `ward.spec.yaml` and `ward.yaml`.
        kind: of the task.
        stays: about two a person.

    Returns:
        The config.
    """
    random = np.random.default_rng(5)
    unit = FIRST_UNIT + random.permutation(stays)
    severity = random.normal(size=stays)
    frame = pd.DataFrame(
        {
            "stay_id": unit,
            "person": [f"{PERSON}{number}" for number in random.integers(0, stays // 2, stays)],
            "age": 60 + 10 * severity + random.normal(size=stays),
            "died": (severity + random.normal(size=stays) > 0.5).astype(int),
            "stage": np.digitize(severity + random.normal(size=stays), [-0.5, 0.5]),
            "pain": (severity + random.normal(size=stays) > 0).astype(int),
            "fever": (random.random(stays) < 0.4).astype(int),
        }
    )
    measured = np.repeat(unit[: 2 * stays // 3], 2)
    labs = pd.DataFrame({"stay_id": measured, "variable": "sodium", "value": random.normal(140, 4, measured.size)})
    raw = folder / "raw"
    raw.mkdir(parents=True)
    frame.to_csv(raw / "stays.csv", index=False)
    labs.to_csv(raw / "labs.csv", index=False)
    (folder / "ward.spec.yaml").write_text(yaml.safe_dump(_spec(kind)))
    config = folder / "ward.yaml"
    config.write_text(yaml.safe_dump({"dataset": "ward.spec.yaml", "task": "ward"}))
    return config


def _spec(kind: str) -> dict[str, Any]:
    stays = dict.fromkeys(("stay_id", "died", "stage", "pain", "fever"), "integer") | {
        "person": "text",
        "age": "number",
    }
    labs = {"stay_id": "integer", "variable": "text", "value": "number"}
    cohort = {"table": "stays", "unit": "stay_id", "patient": "person", "labels": KINDS[kind]["target"]}
    modalities = {
        "demographics": {"kind": "vector", "table": "stays", "numeric": ["age"]},
        "labs": {"kind": "summaries", "table": "labs", "variable": "variable", "value": "value"},
    }
    return {
        "name": "ward",
        "title": "A ward with 100 % made-up stays & people_",
        "pipeline": "flat_files",
        "tables": {"stays": {"file": "stays", "columns": stays}, "labs": {"file": "labs", "columns": labs}},
        "modalities": {"demographics": "age", "labs": "sodium"},
        "tasks": {
            "ward": {
                "title": f"Made-up {kind} outcome_of 100 % [made-up] stays",
                "kind": kind,
                **KINDS[kind],
                "options": {"cohort": cohort, "modalities": modalities},
            }
        },
    }
