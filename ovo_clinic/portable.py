"""A trained model as files that go elsewhere, what it takes as columns of a table, and a made-up example of these."""

import io
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ovo_clinic import drift, preprocessing, runs
from ovo_clinic.arrays import Column
from ovo_clinic.drift import Profile
from ovo_clinic.encoders.checkpoints import carry, checkpoint_folder
from ovo_clinic.predict import MODEL_FILES
from ovo_clinic.registry import ENCODERS

_EXAMPLE_STEPS = 3
_EXAMPLE_TEXT = "A made-up note of nobody."
_EXAMPLE_PIXELS = 64


def save(run: Path, out: Path) -> None:
    """Writes what a model needs anywhere, and no row of a unit, into a new folder: `MODEL_FILES`, checkpoints.

    Args:
        run: folder of the finished run.
        out: does not exist.

    Raises:
        UserError: a checkpoint that it reads is gone, or is another one by now.
    """
    runs.check_checkpoints(run)
    out.mkdir()
    for name in MODEL_FILES:
        shutil.copyfile(run / name, out / name)
    result = runs.read_result(run)
    used = drift.load(run / "inputs.json")
    for name, encoder in result["config"].get("model", {}).get("encoders", {}).items():
        known = ENCODERS.get(encoder["name"])
        for option in getattr(known, "files", ()):
            if name in (*used, "default") and not _of_rows(encoder["name"]):
                place = Path("checkpoints") / name
                carry(checkpoint_folder(encoder[option]), out / place)
                encoder[option] = place.as_posix()
            else:
                encoder[option] = Path(encoder[option]).name  # no machine's path
    runs.write_result(out, result)


def _of_rows(encoder: str) -> bool:
    return getattr(ENCODERS.get(encoder), "of_rows", False)


def inputs(folder: Path) -> dict[str, Profile]:
    """What the model takes of each modality; of one that is read as embeddings from elsewhere, the embeddings."""
    found = drift.load(folder / "inputs.json")
    result = runs.read_result(folder)
    encoders = result["config"].get("model", {}).get("encoders", {})
    scalings = preprocessing.load(folder / "preprocessing.json")
    for modality in result.get("modalities", []):
        name = modality["name"]
        if _of_rows(encoders.get(name, encoders.get("default", {"name": "mlp"}))["name"]):
            features = [Column(column, "numeric", column) for column in scalings[name].columns]
            width = len(features)
            found[name] = Profile(modality["kind"], features, [1.0] * width, [-1.0] * width, [1.0] * width)
    return found


def columns(profiles: Mapping[str, Profile]) -> dict[str, str]:
    """Name of every input column, and what its cells are: `number`, `numbers`, `text` or `file`."""
    found: dict[str, str] = {}
    for name, profile in profiles.items():
        match profile.kind:
            case "image":
                found[name] = "file"
            case "text":
                found[name] = "text"
            case kind:
                cells = "numbers" if kind == "sequence" else "number"
                found |= {f"{name}|{column.name}": cells for column in profile.columns}
    return found


def example(profiles: Mapping[str, Profile]) -> pd.DataFrame:
    """Two made-up rows, drawn from the profile alone; in the second one of several modalities is absent."""
    random = np.random.default_rng(0)
    cells: dict[str, list[Any]] = {}
    # Not an image: MLflow cannot read an example back whose bytes are absent.
    absent = next((name for name, profile in profiles.items() if profile.kind != "image"), None)
    for name, profile in profiles.items():
        drawn = _example(name, profile, random)
        if name == absent and len(profiles) > 1:
            number = profile.kind == "vector"
            drawn = {column: [values[0], float("nan") if number else None] for column, values in drawn.items()}
        cells |= drawn
    return pd.DataFrame(cells)


def _example(name: str, profile: Profile, random: np.random.Generator) -> dict[str, list[Any]]:
    """Two made-up cells for each column of a modality."""
    if profile.kind == "text":
        return {name: [_EXAMPLE_TEXT] * 2}
    if profile.kind == "image":
        return {name: [_example_file(random) for _ in range(2)]}
    steps = _EXAMPLE_STEPS if profile.kind == "sequence" else 1
    cells: dict[str, list[Any]] = {}
    for column, share, low, high in zip(profile.columns, profile.share, profile.low, profile.high, strict=True):
        drawn = [
            random.uniform(low, high, steps).round(3)
            if low is not None and high is not None
            else (random.random(steps) < share).astype(np.float64)
            for _ in range(2)
        ]
        cells[f"{name}|{column.name}"] = [
            row.tolist() if profile.kind == "sequence" else float(row[0]) for row in drawn
        ]
    return cells


def _example_file(random: np.random.Generator) -> bytes:
    """A PNG of noise."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(random.integers(0, 256, (_EXAMPLE_PIXELS,) * 2, dtype=np.uint8)).save(stream, "PNG")
    return stream.getvalue()
