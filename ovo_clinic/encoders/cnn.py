"""The small convolutional encoder of X-rays of the One-Versus-Others paper."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from ovo_clinic.errors import UserError
from ovo_clinic.registry import ENCODERS
from ovo_clinic.types import Modality, Tokens

KERNEL, CHANNELS, HIDDEN = 5, (20, 50), (128, 256)
SMALLEST = 16
"""Pixels a side that leave one position after two convolutions and poolings."""

Rate = Annotated[float, Field(ge=0, lt=1)]


@ENCODERS.register("cnn")
class Cnn(nn.Module):
    """The OvO paper's small CNN: two convolutions, then three linear layers over all positions, or a token a position.

    At 224 x 224 pixels the linear layers see 50 x 53 x 53 = 140,450 numbers, as in the paper's code, and nearly all
    parameters are theirs; other sizes have other numbers of positions. A grey image has one channel, not three equal
    ones.

    Args:
        modality: an image with a known size.
        dim: D, the width of the tokens; 256 in the paper.
        output: `pooled` = one token an image; `tokens` = one a position, after averaging over neighbours, with a
            learned embedding of where it is.
        grid: of `tokens`, at most so many positions a side.
        dropout: after each convolution, then after each linear layer.

    Source:
        rsinghlab/OvO, mimic_iv_cxr/models.py.

    Raises:
        UserError: not an image, one of unknown size, or one of less than 16 pixels a side.
    """

    def __init__(
        self,
        modality: Modality,
        dim: int,
        *,
        output: Literal["pooled", "tokens"] = "pooled",
        grid: Annotated[int, Field(ge=1)] = 7,
        dropout: tuple[Rate, Rate, Rate, Rate, Rate] = (0.3, 0.2, 0.2, 0.3, 0.1),
    ) -> None:
        super().__init__()
        height, width = _positions(modality)
        first, second, *after = dropout
        self.convolutions = nn.Sequential(
            *_convolution(modality.features, CHANNELS[0], first), *_convolution(*CHANNELS, second)
        )
        self.window = None if output == "pooled" else (-(-height // grid), -(-width // grid))
        self.places: nn.Parameter | None = None
        if self.window is None:
            widths = [CHANNELS[1] * height * width, *HIDDEN, dim]
            layers = zip(widths, widths[1:], after, strict=False)
            self.out = nn.Sequential(*(part for before, size, rate in layers for part in _linear(before, size, rate)))
        else:
            positions = -(-height // self.window[0]) * -(-width // self.window[1])
            self.places = nn.Parameter(0.02 * torch.randn(positions, dim))
            self.out = nn.Sequential(nn.Linear(CHANNELS[1], dim))

    def forward(self, x: Tensor, mask: Tensor) -> Tokens:
        """Encodes x (B,C,H,W) with mask (B,1), True = valid, into Tokens (B,1,D), or (B,T,D) for `output: tokens`."""
        hidden = self.convolutions(torch.where(mask[..., None, None], x, 0))
        if self.window is None or self.places is None:
            values = self.out(hidden.flatten(1))[:, None]
        else:
            averaged = avg_pool2d(hidden, self.window, ceil_mode=True)
            values = self.out(averaged.flatten(2).mT) + self.places
        return Tokens(values.masked_fill(~mask[..., None], 0), mask.expand(-1, values.shape[1]))


def _convolution(channels: int, out: int, dropout: float) -> list[nn.Module]:
    return [nn.Conv2d(channels, out, KERNEL), nn.ReLU(), nn.BatchNorm2d(out), nn.MaxPool2d(2), nn.Dropout(dropout)]


def _linear(width: int, out: int, dropout: float) -> list[nn.Module]:
    return [nn.Linear(width, out), nn.ReLU(), nn.Dropout(dropout)]


def _positions(modality: Modality) -> tuple[int, int]:
    """Rows and columns of positions after the convolutions."""
    if modality.kind != "image" or modality.size is None:
        raise UserError(f"encoder: cnn takes images of one size, and {modality.name} is none; choose mlp")
    height, width = modality.size
    if min(height, width) < SMALLEST:
        raise UserError(f"encoder: cnn needs {SMALLEST} pixels a side, and {modality.name} has {height} x {width}")
    rows, columns = (((side - 4) // 2 - 4) // 2 for side in (height, width))
    return rows, columns
