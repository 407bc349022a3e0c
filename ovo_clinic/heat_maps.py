"""Heat maps of what image encoders look at: means over the test units, and on demand pictures of single units.

Two maps. `occlusion`: how much the prediction changes when a square of the image is hidden behind the mean intensity of
the training images, which any encoder has. `attention`: how much the class token attends to each patch, for a ViT with
softmax attention and a class token.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ovo_clinic import disclosure, figures
from ovo_clinic.attention.softmax import Softmax
from ovo_clinic.encoders.vit import Vit
from ovo_clinic.prepared import Prepared
from ovo_clinic.study import Comparison
from ovo_clinic.trained import Trained
from ovo_clinic.types import Batch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
SQUARES = 8
"""Squares a side that are hidden in turn."""
UNITS = 64
"""Test units, the first ones with an image, over which maps are averaged."""
FOLDER = "heat_maps"


def table(comparison: Comparison) -> pd.DataFrame:
    """Mean maps of every head or encoder with an image, over its first seed's test units.

    Returns:
        One row per model, modality, map (`occlusion`, `attention`) and place: model, modality, map, row, column, value
        (a mean absolute change of the probability, or a share of the attention). Empty where the test units with an
        image are of fewer than disclosure.SMALLEST people: a mean over so few shows single ones.
    """
    found = []
    for label in comparison.heads:
        trained = Trained(comparison.run_folders[label][0], comparison.prepared)
        for name in image_modalities(trained):
            rows = units_with(comparison.prepared, name, UNITS)
            if comparison.prepared.cohort["patient_id"].gather(rows).n_unique() >= disclosure.SMALLEST:
                for kind, maps in maps_of(trained, name, rows).items():
                    found += _lines({"model": label, "modality": name, "map": kind}, maps.mean(axis=0))
    return pd.DataFrame(found)


def _lines(of: Mapping[str, str], mean: Floats) -> list[dict[str, Any]]:
    return [
        {**of, "row": row, "column": column, "value": float(value)} for (row, column), value in np.ndenumerate(mean)
    ]


def image_modalities(trained: Trained) -> list[str]:
    """Modalities of a trained model that are images."""
    return [modality.name for modality in trained.data.modalities if modality.kind == "image"]


def units_with(prepared: Prepared, modality: str, most: int) -> Rows:
    """Rows of the cohort: the first test units that have a modality."""
    rows = prepared.rows("test")
    return np.asarray(rows[prepared.present(modality)[rows]][:most])


def maps_of(trained: Trained, modality: str, rows: Rows) -> dict[str, Floats]:
    """Maps (N,rows,columns) of some units, by kind; `attention` only where the encoder has it."""
    found = {"occlusion": occlusion(trained, modality, rows)}
    encoder = trained.model.encoders[trained.model.names.index(modality)]
    attended = class_attention(encoder, *_images(trained, modality, rows))
    return found if attended is None else {**found, "attention": attended}


def _images(trained: Trained, modality: str, rows: Rows) -> tuple[Tensor, Tensor]:
    batch = trained.data.dataset[rows]
    return batch.inputs[modality], batch.masks[modality]


def occlusion(trained: Trained, modality: str, rows: Rows, squares: int = SQUARES) -> Floats:
    """Absolute change of the probability when each square of the image is hidden; the mean over several outcomes.

    Args:
        trained: the model.
        modality: of the images.
        rows: (N,) of the cohort.
        squares: a side.

    Returns:
        (N,squares,squares).
    """
    before = trained.probabilities(rows)
    changes = np.zeros((rows.size, squares, squares))
    for row, column in np.ndindex(squares, squares):
        after = trained.probabilities(rows, partial(_hidden, modality=modality, place=(row, column), squares=squares))
        changes[:, row, column] = np.abs(after - before).reshape(rows.size, -1).mean(axis=1)
    return changes


def _hidden(batch: Batch, *, modality: str, place: tuple[int, int], squares: int) -> Batch:
    """The batch with a square of each image at 0, which is the training images' mean."""
    x = batch.inputs[modality].clone()
    (top, bottom), (left, right) = (
        (number * side // squares, (number + 1) * side // squares)
        for number, side in zip(place, x.shape[2:], strict=True)
    )
    x[:, :, top:bottom, left:right] = 0
    return Batch({**batch.inputs, modality: x}, batch.masks, batch.target, batch.rows)


@torch.no_grad()
def class_attention(encoder: nn.Module, x: Tensor, mask: Tensor) -> Floats | None:
    """How much the class token attends to each patch in the last block in which it attends, mean over the heads.

    Args:
        encoder: in evaluation mode.
        x: images (B,C,H,W).
        mask: (B,1), True = valid.

    Returns:
        (B,rows,columns), of sum at most 1 (the token also attends to itself); None for an encoder without a class token
        or with other attention than softmax.
    """
    if not isinstance(encoder, Vit) or encoder.class_token is None:
        return None
    cores = [part for part in encoder.modules() if isinstance(part, Softmax)]
    blocks = encoder.class_blocks or encoder.blocks
    if not any(core is part for core in cores[-1:] for part in blocks[-1].modules()):
        return None
    taken: list[tuple[Tensor, Tensor]] = []
    handle = cores[-1].register_forward_pre_hook(lambda core, given: taken.append((given[0], given[1])))
    try:
        encoder(x, mask)
    finally:
        handle.remove()
    ((q, k),) = taken
    identity = torch.eye(k.shape[2], dtype=k.dtype, device=k.device).expand(*k.shape[:2], -1, -1)
    matrix: Tensor = cores[-1](q[:, :, :1], k, identity)
    patches = matrix[:, :, 0, 1:].mean(dim=1).view(-1, *encoder.grid)
    return np.asarray(patches.cpu(), dtype=np.float64)


def figure(maps: pd.DataFrame, title: str = "") -> "Figure":
    """A panel for each mean map, each with its own scale.

    Args:
        maps: of `table`.
        title: over all.
    """
    from matplotlib.figure import Figure

    groups = list(maps.groupby(["model", "modality", "map"], sort=False))
    columns = min(6, len(groups))
    lines = -(-len(groups) // columns)
    drawn = Figure(figsize=(1.9 * columns, 2.2 * lines), layout="constrained", dpi=150)
    panels = np.atleast_1d(drawn.subplots(lines, columns, squeeze=False).ravel())
    for axes in panels:
        axes.set_axis_off()
    for axes, ((model, _, kind), own) in zip(panels, groups, strict=False):
        axes.imshow(own.pivot(index="row", columns="column", values="value"), cmap="viridis")
        axes.set_title(f"{model}\n{kind}", fontsize=6)
    drawn.suptitle(title, fontsize=9)
    return drawn


def write_units(prepared: Prepared, folder: Path, units: int) -> list[Path]:
    """Pictures of single test units with their maps, readable by their owner only: patient-level, never uploaded.

    Args:
        prepared: the data.
        folder: of the finished run whose model looks; the pictures come into `heat_maps` there.
        units: how many, the first ones that have an image.

    Returns:
        One PNG a unit and image, named by its row of the cohort; none where no test unit has an image.
    """
    out, trained = folder / FOLDER, Trained(folder, prepared)
    written = []
    for name in image_modalities(trained):
        out.mkdir(mode=0o700, exist_ok=True)
        rows = units_with(prepared, name, units)
        if rows.size == 0:
            continue
        maps = maps_of(trained, name, rows)
        images = _images(trained, name, rows)[0][:, 0].numpy()
        for place, row in enumerate(rows):
            path = out / f"{name}-{row}.png"
            path.touch(mode=0o600)
            figures.save(_picture(images[place], {kind: own[place] for kind, own in maps.items()}), path)
            written.append(path)
    return written


def _picture(image: NDArray[np.float32], maps: Mapping[str, Floats]) -> "Figure":
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(2.6 * (1 + len(maps)), 2.8), layout="constrained", dpi=150)
    first, *others = drawn.subplots(1, 1 + len(maps))
    height, width = image.shape
    for axes in (first, *others):
        axes.set_axis_off()
        axes.imshow(image, cmap="gray")
    for axes, (kind, own) in zip(others, maps.items(), strict=True):
        axes.imshow(own, cmap="inferno", alpha=0.5, extent=(-0.5, width - 0.5, height - 0.5, -0.5))
        axes.set_title(kind, fontsize=8)
    return drawn
