"""Vision transformer encoder on any attention mechanism."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ovo_clinic.attention.lpi import LocalPatchInteraction
from ovo_clinic.attention.multihead import attention_layer
from ovo_clinic.attention.routing import SOFTMAX, Eps, Routing, build_core, check_heads
from ovo_clinic.attention.window import Grid
from ovo_clinic.encoders.blocks import Branch, layer_scale, sinusoidal_positions, token_network
from ovo_clinic.encoders.shapes import VIT_TI, VitShape
from ovo_clinic.errors import UserError
from ovo_clinic.registry import ATTENTION, ENCODERS, Choice
from ovo_clinic.types import Modality, Tokens


@ENCODERS.register("vit")
class Vit(nn.Module):
    """Vision transformer (ViT, DeiT, XCiT shapes) on any attention mechanism.

    Patches are embedded by one convolution for every shape (XCiT's own has several), and projections inside attention
    have no bias. What attends is layer-normed before (pre-norm).

    Args:
        modality: an image with a known size that the patches divide.
        dim: D, the width of the tokens that are given out.
        shape: vit_ti, vit_s, vit_b, deit_b, xcit_s12 or xcit_m24, or settings: see VitShape.
        attention: the mechanism, by name or with options; default: the shape's. `window` is shifted in every second
            block, as in Swin, unless it is given a shift.
        precondition: divides each row of each head's output by its norm.
        precondition_eps: the least norm that is divided by.
        dropout: after each layer.
        output: `pooled` = one token an image; `tokens` = one a patch, after the class token where there is one.

    Source:
        Dosovitskiy et al. 2021 (ViT); Touvron et al. 2021 (DeiT); El-Nouby et al. 2021 (XCiT).

    Raises:
        UserError: not an image, a size that the patches do not divide, or a mechanism that does not fit.
    """

    def __init__(
        self,
        modality: Modality,
        dim: int,
        *,
        shape: VitShape = VIT_TI,
        attention: Choice | None = None,
        precondition: bool = False,
        precondition_eps: Eps = 1e-6,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1,
        output: Literal["pooled", "tokens"] = "pooled",
    ) -> None:
        super().__init__()
        self.grid = grid_of(modality, shape.patch)
        self.pooled = output == "pooled"
        width, eps = shape.width, precondition_eps if precondition else None
        self.patches = nn.Conv2d(modality.features, width, shape.patch, stride=shape.patch)
        self.positions = positions_of(self.grid, shape)
        self.class_token = nn.Parameter(0.02 * torch.randn(1, 1, width)) if shape.class_token else None
        attention = attention or shape.attention
        self.blocks = nn.ModuleList(
            Block(shape, mixer(shape, attention, eps, self.grid, number), dropout) for number in range(shape.depth)
        )
        self.class_blocks = nn.ModuleList(ClassBlock(shape, eps, dropout) for _ in range(shape.class_layers))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, dim)

    def forward(self, x: Tensor, mask: Tensor) -> Tokens:
        """Encodes x (B,C,H,W) with mask (B,1), True = valid, into Tokens (B,1,D), or (B,T,D) for `output: tokens`."""
        x = torch.where(mask[..., None, None], x, 0)
        hidden = self._hidden(self.patches(x).flatten(2).mT + self.positions, None if mask.all() else mask)
        if self.pooled and self.class_token is not None:
            hidden = hidden[:, :1]
        values = self.norm(hidden)
        if self.pooled:
            values = values.mean(dim=1, keepdim=True)
        values = self.out(values).masked_fill(~mask[..., None], 0)
        return Tokens(values, mask.expand(-1, values.shape[1]))

    def _hidden(self, patches: Tensor, mask: Tensor | None) -> Tensor:
        """Patches (B,N,width), mask (B,1) -> the class token, if any, and the patches, (B,T,width)."""
        token = None if self.class_token is None else self.class_token.expand(len(patches), -1, -1)
        together = token is not None and not self.class_blocks
        x = torch.cat([token, patches], dim=1) if token is not None and together else patches
        for block in self.blocks:
            x = block(x, self.grid, mask)
        if token is None or together:
            return x
        for block in self.class_blocks:
            token = block(token, x, mask)
        return torch.cat([token, x], dim=1)


class Block(nn.Module):
    """Attention, local patch interaction if the shape has it, and a network on each token."""

    def __init__(self, shape: VitShape, mixer: nn.Module, dropout: float) -> None:
        super().__init__()
        self.mixer = Branch(shape.width, mixer, dropout, shape.layer_scale)
        interaction = LocalPatchInteraction(1, shape.width) if shape.lpi else None
        self.interaction = None if interaction is None else Branch(shape.width, interaction, dropout, shape.layer_scale)
        self.network = Branch(shape.width, token_network(shape.width), dropout, shape.layer_scale)

    def forward(self, x: Tensor, grid: Grid, mask: Tensor | None) -> Tensor:
        """x (B,N,width), mask (B,1), True = valid -> (B,N,width)."""
        tokens = None if mask is None else mask.expand(-1, x.shape[1])
        x = self.mixer(x, grid, tokens)
        if self.interaction is not None:
            x = self.interaction(x, grid, tokens)
        out: Tensor = self.network(x)
        return out


class ClassBlock(nn.Module):
    """The class token attends to itself and the patches, which stay as they are (Touvron et al. 2021, CaiT)."""

    def __init__(self, shape: VitShape, eps: float | None, dropout: float) -> None:
        super().__init__()
        core = build_core(Routing("vit", 2, 2), shape.width, shape.heads, SOFTMAX, eps)
        self.norm = nn.LayerNorm(shape.width)
        self.attention = attention_layer(core, shape.width, shape.heads)
        self.dropout = nn.Dropout(dropout)
        self.scale = layer_scale(shape.width, shape.layer_scale)
        self.network = Branch(shape.width, token_network(shape.width), dropout, shape.layer_scale)

    def forward(self, token: Tensor, patches: Tensor, mask: Tensor | None) -> Tensor:
        """Token (B,1,width), patches (B,N,width), mask (B,1), True = valid -> (B,1,width)."""
        x = self.norm(torch.cat([token, patches], dim=1))
        added = self.dropout(self.attention(x[:, :1], x, mask, None if mask is None else mask.expand(-1, x.shape[1])))
        out: Tensor = self.network(token + (added if self.scale is None else self.scale * added))
        return out


class OnSequence(nn.Module):
    """Self-attention in the signature of layers that work on a grid."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, grid: Grid, mask: Tensor | None) -> Tensor:
        """x (B,N,width), mask (B,N), True = valid -> (B,N,width)."""
        out: Tensor = self.layer(x, x, mask, mask)
        return out


def grid_of(modality: Modality, patch: int) -> Grid:
    """Rows and columns of patches."""
    if modality.kind != "image":
        raise UserError(f"encoder: vit takes images, and {modality.name} is a {modality.kind}; choose mlp")
    if modality.size is None:
        raise UserError(f"encoder: vit needs images of one size, and that of {modality.name} is not known")
    if any(side % patch for side in modality.size):
        height, width = modality.size
        raise UserError(f"shape.patch: {patch} does not divide the size {height} x {width} of {modality.name}")
    return modality.size[0] // patch, modality.size[1] // patch


def mixer(shape: VitShape, attention: Choice, eps: float | None, grid: Grid, block: int) -> nn.Module:
    """What lets the tokens of block number `block` meet, called as layer(x, grid, mask)."""
    with_class = shape.class_token and not shape.class_layers
    if not getattr(ATTENTION.get(attention.name, "attention"), "needs_grid", False):
        tokens = grid[0] * grid[1] + with_class
        core = build_core(Routing("vit", tokens, tokens), shape.width, shape.heads, attention, eps)
        return OnSequence(attention_layer(core, shape.width, shape.heads))
    if with_class:
        raise UserError(
            f"attention: '{attention.name}' works on the grid of patches, where a class token has no place; set "
            "shape.class_token=false, or shape.class_layers"
        )
    schema, options = ATTENTION.schema(attention.name).model_fields, attention.options
    if "shift" in schema and "shift" not in options and block % 2:
        options["shift"] = ATTENTION.options(attention.name, options, "attention")["window"] // 2
    if eps is not None and "precondition" not in schema:
        raise UserError(f"precondition: '{attention.name}' has no heads whose rows could be divided by their norm")
    if eps is not None:
        options |= {"precondition": True, "precondition_eps": eps}
    check_heads(shape.width, shape.heads)
    layer: nn.Module = ATTENTION.build(
        attention.name, shape.heads, shape.width // shape.heads, options=options, path="attention"
    )
    return layer


def positions_of(grid: Grid, shape: VitShape) -> Tensor:
    """(1,N,width)."""
    if shape.positions == "learned":
        return nn.Parameter(0.02 * torch.randn(1, grid[0] * grid[1], shape.width))
    return nn.Buffer(sinusoidal_positions(grid, shape.width)[None], persistent=False)
