"""What compared encoders cost against the number of tokens: MACs, parameters, speed and memory, as table and figure."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd
import torch
from torch import Tensor, nn

from ovo_clinic import figures
from ovo_clinic.errors import UserError
from ovo_clinic.flops import count_macs
from ovo_clinic.measure import latencies, peak_memory
from ovo_clinic.registry import ENCODERS, Choice
from ovo_clinic.settings import TrainingConfig
from ovo_clinic.study import Arm, Comparison
from ovo_clinic.types import Modality, parameter_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCH = 8
"""Units in a measured step."""
_REPEATS = 3
_PANELS = {
    "MACs a unit": "macs",
    "units a second, training step": "train_units_per_second",
    "peak MiB, training step": "train_peak_mib",
}


def table(comparison: Comparison, sizes: Sequence[int]) -> pd.DataFrame:
    """Costs of every compared encoder at several sizes of its input, with random weights and values.

    Measured on the GPU where there is one and `training.accelerator` allows it, else on one CPU thread.

    Args:
        comparison: of encoders of one modality.
        sizes: sides of images in pixels, or numbers of time steps.

    Returns:
        One row per encoder and size: model, size, tokens (patches of an image; steps), macs (a unit), parameters,
        units_per_second and peak_mib of a forward pass of BATCH units, train_units_per_second and train_peak_mib of a
        training step.

    Raises:
        UserError: an encoder that does not take a size.
    """
    arms = [arm for arm in comparison.arms if arm.kind == "encoder"]
    (name,) = arms[0].experiment.compare.encoders
    trained = comparison.results[arms[0].label][0]["modalities"]
    (modality,) = (Modality(**entry) for entry in trained if entry["name"] == name)
    device = _device(arms[0].experiment.training)
    rows = []
    for size in sizes:
        encoders = [encoder_of(arm, modality, size) for arm in arms]
        x, mask = _input(modality, size)
        macs = [count_macs(encoder.eval(), x[:1], mask[:1]).total for encoder in encoders]
        measured = _measured([encoder.to(device) for encoder in encoders], x.to(device), mask.to(device))
        for place, arm in enumerate(arms):
            row = {"model": arm.label, "size": size, "tokens": tokens(arm, modality, size), "macs": macs[place]}
            rows.append(row | {"parameters": parameter_count(encoders[place])} | measured.iloc[place].to_dict())
    return pd.DataFrame(rows)


def check(arms: Sequence[Arm], modality: Modality, sizes: Sequence[int]) -> None:
    """Builds and runs every encoder at every size, so that a mistake shows before anything is trained.

    Raises:
        UserError: an encoder does not take a size, or the modality has none.
    """
    for size in sizes:
        for arm in arms:
            encoder = encoder_of(arm, modality, size).eval()
            x, mask = _input(modality, size)
            try:
                with torch.no_grad():
                    encoder(x[:1], mask[:1])
            except UserError as error:
                raise UserError(f"compare.sizes: {size}: {arm.label}: {error}") from None


def encoder_of(arm: Arm, modality: Modality, size: int) -> nn.Module:
    """The encoder of an arm for inputs of a size, its weights random.

    Raises:
        UserError: it does not take the size.
    """
    if modality.kind not in ("image", "sequence"):
        raise UserError(f"compare.sizes: {modality.name} is a {modality.kind}, which has no size; leave it out")
    choice = _choice(arm, modality)
    sized = replace(modality, size=(size, size) if modality.kind == "image" else None)
    try:
        encoder: nn.Module = ENCODERS.build(choice.name, sized, arm.experiment.model.dim, options=choice.options)
    except UserError as error:
        raise UserError(f"compare.sizes: {size}: {arm.label}: {error}") from None
    return encoder


def tokens(arm: Arm, modality: Modality, size: int) -> int:
    """Tokens of an input: time steps, or the patches of an image (its pixels, where an encoder cuts no patches)."""
    if modality.kind == "sequence":
        return size
    choice = _choice(arm, modality)
    shape = ENCODERS.options(choice.name, choice.options).get("shape")
    patch = shape["patch"] if isinstance(shape, dict) and "patch" in shape else 1
    return int((size // patch) ** 2)


def _choice(arm: Arm, modality: Modality) -> Choice:
    return arm.experiment.model.encoders[modality.name]


def _device(training: TrainingConfig) -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() and training.accelerator != "cpu" else "cpu")


def _input(modality: Modality, size: int) -> tuple[Tensor, Tensor]:
    """Noise for BATCH units, all present."""
    generator = torch.Generator().manual_seed(0)
    image = modality.kind == "image"
    shape = (modality.features, size, size) if image else (size, modality.features)
    return torch.randn(BATCH, *shape, generator=generator), torch.ones(BATCH, 1 if image else size, dtype=torch.bool)


def _measured(encoders: Sequence[nn.Module], x: Tensor, mask: Tensor) -> pd.DataFrame:
    """Speed and peak memory of forward passes and training steps, the encoders in turn."""
    forward = [_forward(encoder.eval(), x, mask) for encoder in encoders]
    found = {"units_per_second": [BATCH / took for took in latencies(forward, repeats=_REPEATS)]}
    found["peak_mib"] = [peak_memory(call, x.device) / 2**20 for call in forward]
    steps = [_step(encoder.train(), x, mask) for encoder in encoders]
    found["train_units_per_second"] = [BATCH / took for took in latencies(steps, repeats=_REPEATS)]
    found["train_peak_mib"] = [peak_memory(call, x.device) / 2**20 for call in steps]
    return pd.DataFrame(found)


def _forward(encoder: nn.Module, x: Tensor, mask: Tensor) -> Callable[[], object]:
    @torch.no_grad()
    def run() -> float:
        return float(encoder(x, mask).values.sum())

    return run


def _step(encoder: nn.Module, x: Tensor, mask: Tensor) -> Callable[[], object]:
    parameters = list(encoder.parameters())

    def run() -> float:
        # Some checkpoints have weights that only their pretraining uses.
        found = torch.autograd.grad(encoder(x, mask).values.square().sum(), parameters, allow_unused=True)
        return float(next(gradient for gradient in found if gradient is not None).sum())  # waits for a GPU

    return run


def figure(costs: pd.DataFrame, title: str = "") -> "Figure":
    """One panel each for MACs, speed and memory against the number of tokens, all axes logarithmic.

    Args:
        costs: of `table`.
        title: over all.
    """
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(12.4, 3.9), layout="constrained", dpi=150)
    panels = drawn.subplots(1, len(_PANELS))
    for axes, (name, column) in zip(panels, _PANELS.items(), strict=True):
        figures.tidy(axes)
        axes.set(xscale="log", yscale="log", xlabel="tokens", title=name)
        lines = costs.groupby("model", sort=False)
        for (model, rows), (colour, dashes) in zip(lines, figures.styles(), strict=False):
            axes.plot(rows["tokens"], rows[column], color=colour, linestyle=dashes, marker="o", ms=3, label=str(model))
    drawn.suptitle(title)
    figures.legend(drawn, panels[-1], "encoder")
    return drawn
