"""Synthetic folder of chest-like images with a csv file of labels in the form of NIH ChestX-ray14, and a known signal.

No image comes from a real person. What is abnormal is a bright nodule in a lung, alone or with haze below it.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ovo_clinic.errors import UserError
from ovo_clinic.registry import SYNTHETIC
from ovo_clinic.synthetic.folders import appearing

NORMAL = "No Finding"
FINDINGS = ("Nodule", "Infiltration|Nodule", "Infiltration")
"""Labels of abnormal images; a part of each draws what it names."""
Floats = NDArray[np.float32]


@SYNTHETIC.register("image_folder")
def write(out: Path, *, patients: int = 500, size: int = 64, contrast: float = 0.35, seed: int = 0) -> dict[str, Any]:
    """Chest-like images of one or two a person as PNG, and nih_labels.csv; label normal against abnormal.

    Args:
        out: folder that is new or empty; it appears when all is written.
        patients: number of people.
        size: side of the square images in pixels.
        contrast: of nodule and haze against a lung, from 0 (no signal) to 1.
        seed: of all randomness.

    Returns:
        seed, options, counts and the signal, as in `SYNTHETIC.json`.

    Raises:
        UserError: a number out of range, or `out` is not a new or empty folder.
    """
    for name, value, least in (("patients", patients, 1), ("size", size, 16), ("seed", seed, 0)):
        if value < least:
            raise UserError(f"{name}: {value} is too small; give {least} or more")
    if not 0 <= contrast <= 1:
        raise UserError(f"contrast: {contrast:g} is not between 0 and 1")
    rng = np.random.default_rng(seed)
    table = _table(rng, patients)
    with appearing(out) as folder:
        _draw_all(rng, table, folder, size, contrast)
        table.write_csv(folder / "nih_labels.csv")
        abnormal = table.filter(pl.col("Finding Labels") != NORMAL).height
        report = {
            "data_set": "image_folder",
            "note": "synthetic: no image comes from a real person",
            "seed": seed,
            "options": {"patients": patients, "size": size, "contrast": contrast},
            "counts": {"patients": patients, "images": table.height, "abnormal": abnormal},
            "signal": {"Nodule": "a bright disc inside a lung", "Infiltration": "haze in the lower half of both lungs"},
        }
        (folder / "SYNTHETIC.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


def _table(rng: np.random.Generator, patients: int) -> pl.DataFrame:
    """The csv file: one or two images a person, half of them abnormal."""
    images = 1 + (rng.random(patients) < 0.4)
    person = np.repeat(np.arange(1, patients + 1), images)
    visit = np.concatenate([np.arange(count) for count in images])
    abnormal = rng.random(person.size) < 0.5
    findings = np.where(abnormal, rng.choice(FINDINGS, person.size), NORMAL)
    names = [f"{number:08}_{follow_up:03}.png" for number, follow_up in zip(person, visit, strict=True)]
    return pl.DataFrame(
        {
            "file": [f"images/{name}" for name in names],
            "Image Index": names,
            "Finding Labels": findings,
            "Follow-up #": visit,
            "Patient ID": person,
            "Patient Age": np.repeat(rng.integers(18, 90, patients), images) + visit,
            "Patient Gender": np.repeat(rng.choice(["F", "M"], patients), images),
            "View Position": rng.choice(["PA", "AP"], person.size),
        }
    )


def _draw_all(rng: np.random.Generator, table: pl.DataFrame, folder: Path, size: int, contrast: float) -> None:
    from PIL import Image

    (folder / "images").mkdir()
    for file, findings in table.select("file", "Finding Labels").iter_rows():
        drawn = np.rint(255 * draw(rng, findings, size, contrast)).astype(np.uint8)
        Image.fromarray(drawn).save(folder / file)


def draw(rng: np.random.Generator, findings: str, size: int, contrast: float) -> Floats:
    """One image (size,size) from 0 (black) to 1: two lungs in a bright body, a heart, and what `findings` names."""
    y, x = np.meshgrid(*(np.linspace(-1, 1, size, dtype=np.float32),) * 2, indexing="ij")
    shift, width = rng.normal(0, 0.05, 2), 0.3 * rng.uniform(0.9, 1.1)
    lungs = sum(_ellipse(x, y, side * 0.42 + shift[0], shift[1] - 0.05, width, 0.62) for side in (-1, 1))
    image = 0.75 * _ellipse(x, y, shift[0], 0.1, 0.95, 1.1) - 0.5 * lungs
    image += 0.3 * _ellipse(x, y, 0.12 + shift[0], 0.3, rng.uniform(0.22, 0.3), 0.25)
    if "Infiltration" in findings:
        image += 0.5 * contrast * lungs * (y > shift[1])
    if "Nodule" in findings:
        side, place = rng.choice([-1, 1]), rng.uniform([-0.15, -0.45], [0.15, 0.35])
        image += contrast * _ellipse(x, y, side * 0.42 + shift[0] + place[0], shift[1] + place[1], 0.13, 0.13)
    image += rng.normal(0, 0.05, image.shape)
    return np.asarray(np.clip(image, 0, 1), dtype=np.float32)


def _ellipse(x: Floats, y: Floats, left: float, top: float, width: float, height: float) -> Floats:
    """1 inside, 0 outside, with a soft edge."""
    distance = np.hypot((x - left) / width, (y - top) / height)
    return np.asarray(1 / (1 + np.exp(np.clip((distance - 1) * 12, -30, 30))), dtype=np.float32)
