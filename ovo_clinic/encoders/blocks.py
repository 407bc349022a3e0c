"""What the blocks of every transformer encoder here are made of."""

from typing import Any

import torch
from torch import Tensor, nn


class Branch(nn.Module):
    """Adds a layer of the normed input: x + scale * dropout(layer(norm(x))).

    Args:
        width: of x.
        layer: from (B,N,width), and what else it takes, to (B,N,width).
        dropout: of what is added.
        scale: see `layer_scale`.
    """

    def __init__(self, width: int, layer: nn.Module, dropout: float, scale: float | None = None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layer = layer
        self.dropout = nn.Dropout(dropout)
        self.scale = layer_scale(width, scale)

    def forward(self, x: Tensor, *arguments: Any) -> Tensor:
        """x (B,N,width), and what else the layer takes -> (B,N,width)."""
        added = self.dropout(self.layer(self.norm(x), *arguments))
        out: Tensor = x + (added if self.scale is None else self.scale * added)
        return out


def token_network(width: int) -> nn.Module:
    """The network on each token, four times as wide inside."""
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


def layer_scale(width: int, start: float | None) -> nn.Parameter | None:
    """A learned factor for every channel of what a layer adds (Touvron et al. 2021, CaiT); None for no start."""
    return None if start is None else nn.Parameter(torch.full((width,), start))


def sinusoidal_positions(lengths: tuple[int, ...], width: int) -> Tensor:
    """Sines and cosines of the place along each axis, at wavelengths from 2 pi to 20000 pi, (N,width).

    Args:
        lengths: of the axes: steps, or rows and columns; N is their product.
        width: divisible by twice the number of axes, each of which has its share of the channels.

    Source:
        Vaswani et al. 2017, section 3.5.
    """
    share = width // (2 * len(lengths))
    frequencies = 10000.0 ** (-torch.arange(share) / share)
    places = torch.cartesian_prod(*(torch.arange(length) for length in lengths)).float().view(-1, len(lengths))
    angles = places[..., None] * frequencies  # (N,axes,share)
    return torch.cat([angles.sin(), angles.cos()], dim=-1).flatten(1)
