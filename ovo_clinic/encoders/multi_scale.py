"""Feature maps at four scales from an XCiT-style encoder: a backbone for detection and segmentation, and an encoder."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from ovo_clinic.attention.routing import Eps
from ovo_clinic.encoders.shapes import VitShape
from ovo_clinic.encoders.vit import Block, grid_of, mixer, positions_of
from ovo_clinic.errors import UserError
from ovo_clinic.registry import ENCODERS, Choice
from ovo_clinic.types import Modality, Tokens

STRIDES = (4, 8, 16, 32)
"""Pixels between neighbours of each map."""
XCIT_S12 = VitShape.model_validate("xcit_s12")


@ENCODERS.register("multi_scale")
class MultiScale(nn.Module):
    """XCiT-style blocks whose features are brought to strides 4, 8, 16 and 32; a token a scale.

    As a backbone, `maps` gives the four maps. Finer ones than the patches come from transposed convolutions, coarser
    ones from max pooling. The norm between two transposed convolutions is of each image alone (over all channels and
    places), so that an image does not depend on its batch.

    Args:
        modality: an image with a known size that the patches divide.
        dim: D, the width of the tokens that are given out.
        shape: as in `vit`, with patches of 4, 8, 16 or 32 pixels; it has no use for class tokens.
        attention: the mechanism; default: the shape's.
        precondition: divides each row of each head's output by its norm.
        precondition_eps: the least norm that is divided by.
        dropout: after each layer.
        blocks: the blocks, from 1, whose output becomes the map of stride 4, 8, 16 and 32; default: the last of each
            quarter.

    Source:
        El-Nouby et al. 2021 (XCiT), section 4.2, for detection and segmentation.

    Raises:
        UserError: not an image, patches that do not fit, a block that is not there, or a mechanism that does not fit.
    """

    def __init__(
        self,
        modality: Modality,
        dim: int,
        *,
        shape: VitShape = XCIT_S12,
        attention: Choice | None = None,
        precondition: bool = False,
        precondition_eps: Eps = 1e-6,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1,
        blocks: tuple[int, int, int, int] | None = None,
    ) -> None:
        super().__init__()
        shape = shape.model_copy(update={"class_token": False, "class_layers": 0})
        self.grid = grid_of(modality, shape.patch)
        self.taken = blocks or tuple(-(-shape.depth * quarter // 4) for quarter in (1, 2, 3, 4))
        _check(shape, self.taken)
        attention, eps = attention or shape.attention, precondition_eps if precondition else None
        self.patches = nn.Conv2d(modality.features, shape.width, shape.patch, stride=shape.patch)
        self.positions = positions_of(self.grid, shape)
        self.blocks = nn.ModuleList(
            Block(shape, mixer(shape, attention, eps, self.grid, number), dropout) for number in range(max(self.taken))
        )
        self.scales = nn.ModuleList(_to_stride(stride, shape) for stride in STRIDES)
        self.outs = nn.ModuleList(nn.Linear(shape.width, dim) for _ in STRIDES)

    def maps(self, x: Tensor, mask: Tensor) -> list[Tensor]:
        """The backbone: images (B,C,H,W) with mask (B,1), True = valid, to one map for each of STRIDES.

        Returns:
            Four maps (B,width,H/s,W/s), sides rounded up, the finest first; that of an absent image means nothing.
        """
        x = torch.where(mask[..., None, None], x, 0)
        tokens, valid = self.patches(x).flatten(2).mT + self.positions, None if mask.all() else mask
        after = {}
        for number, block in enumerate(self.blocks, start=1):
            tokens = block(tokens, self.grid, valid)
            after[number] = tokens
        on_grid = [after[number].mT.unflatten(2, self.grid) for number in self.taken]
        return [scale(features) for scale, features in zip(self.scales, on_grid, strict=True)]

    def forward(self, x: Tensor, mask: Tensor) -> Tokens:
        """Encodes x (B,C,H,W) with mask (B,1), True = valid, into Tokens (B,4,D), each the mean of a map."""
        maps = self.maps(x, mask)
        values = torch.stack([out(one.mean(dim=(2, 3))) for out, one in zip(self.outs, maps, strict=True)], dim=1)
        return Tokens(values.masked_fill(~mask[..., None], 0), mask.expand(-1, len(STRIDES)))


def _to_stride(stride: int, shape: VitShape) -> nn.Module:
    """From the patches' stride to another one, (B,width,h,w) -> (B,width,h',w')."""
    if stride >= shape.patch:
        return nn.MaxPool2d(stride // shape.patch, ceil_mode=True)
    doublings = (shape.patch // stride).bit_length() - 1
    layers: list[nn.Module] = []
    for number in range(doublings):
        layers += [nn.GroupNorm(1, shape.width), nn.GELU()] if number else []
        layers.append(nn.ConvTranspose2d(shape.width, shape.width, 2, stride=2))
    return nn.Sequential(*layers)


def _check(shape: VitShape, taken: tuple[int, ...]) -> None:
    if shape.patch not in STRIDES:
        raise UserError(f"shape.patch: {shape.patch} leads to none of the strides 4, 8, 16, 32; choose one of these")
    for block in taken:
        if not 1 <= block <= shape.depth:
            raise UserError(f"blocks: there is no block {block} among {shape.depth}")
