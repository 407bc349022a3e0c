"""Transformer encoder of time steps on any attention mechanism."""

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import pad

from ovo_clinic.attention.multihead import attention_layer
from ovo_clinic.attention.routing import SOFTMAX, Eps, Routing, build_core
from ovo_clinic.encoders.blocks import Branch, sinusoidal_positions, token_network
from ovo_clinic.encoders.checkpoints import Output
from ovo_clinic.errors import UserError
from ovo_clinic.registry import ATTENTION, ENCODERS, Choice
from ovo_clinic.types import AttentionCore, Modality, Tokens

Count = Annotated[int, Field(ge=1)]


@ENCODERS.register("sequence")
class Sequence(nn.Module):
    """Transformer over the valid steps of a time series, on any attention mechanism that needs no image grid.

    What attends is layer-normed before (pre-norm). A step's position is its rank among the valid steps of its unit;
    the time itself, where it matters, is a feature.

    Args:
        modality: a sequence.
        dim: D, the width of the tokens that are given out.
        layers: blocks, each attention and a network four times as wide on each step.
        width: of the steps inside the encoder.
        heads: H, a divisor of width.
        attention: the mechanism, by name or with options.
        precondition: divides each row of each head's output by its norm.
        precondition_eps: the least norm that is divided by.
        positions: `sinusoidal` for any number of steps; `learned` for up to `length` of them.
        length: the most steps of a unit, needed for learned positions and for mechanisms whose weights belong to places
            (linformer); longer series are refused, padding is cut off.
        dropout: after each layer.
        output: `mean` = one token, the mean over the valid steps; `cls` = the state of a learned token before them;
            `tokens` = one a step.

    Source:
        Vaswani et al. 2017, in the pre-norm order of Xiong et al. 2020 ("On layer normalization").

    Raises:
        UserError: no sequence, or a mechanism or a setting that does not fit.
    """

    def __init__(
        self,
        modality: Modality,
        dim: int,
        *,
        layers: Count = 2,
        width: Count = 64,
        heads: Count = 4,
        attention: Choice = SOFTMAX,
        precondition: bool = False,
        precondition_eps: Eps = 1e-6,
        positions: Literal["sinusoidal", "learned"] = "sinusoidal",
        length: Annotated[int, Field(ge=2)] | None = None,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1,
        output: Output = "mean",
    ) -> None:
        super().__init__()
        _check(modality, positions, attention, width, length)
        with_class = output == "cls"
        tokens = (length or 2) + with_class
        eps = precondition_eps if precondition else None
        self.name, self.length, self.output = modality.name, length, output
        self.embed = nn.Linear(modality.features, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length or 0, width)) if positions == "learned" else None
        self.class_token = nn.Parameter(0.02 * torch.randn(1, 1, width)) if with_class else None
        cores = [build_core(Routing("sequence", tokens, tokens), width, heads, attention, eps) for _ in range(layers)]
        self.fixed = cores[0].fixed_length
        self.blocks = nn.ModuleList(Block(core, width, heads, dropout) for core in cores)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, dim)

    def forward(self, x: Tensor, mask: Tensor) -> Tokens:
        """Encodes x (B,T,F) with mask (B,T), True = valid, into Tokens (B,1,D), or (B,T',D) for `output: tokens`.

        T' is T, at most `length`, and exactly that for a mechanism of fixed length.

        Raises:
            UserError: a unit with more steps than `length`.
        """
        x, mask = self._fitted(x, mask)
        present = mask.any(dim=1, keepdim=True)
        hidden = self.dropout(self.embed(torch.where(mask[..., None], x, 0)) + self._places(mask).to(x.dtype))
        if self.class_token is not None:
            hidden = torch.cat([self.class_token.expand(len(x), -1, -1), hidden], dim=1)
            mask = torch.cat([present, mask], dim=1)
        attended = None if mask.all() else mask
        for block in self.blocks:
            hidden = block(hidden, attended)
        values = self.norm(hidden)
        if self.output == "cls":
            values, mask = values[:, :1], present
        elif self.output == "mean":
            weights = mask[..., None].to(values.dtype)
            values = (values * weights).sum(dim=1, keepdim=True) / weights.sum(dim=1, keepdim=True).clamp_min(1)
            mask = present
        return Tokens(self.out(values).masked_fill(~mask[..., None], 0), mask)

    def check_length(self, steps: int) -> None:
        """Raises UserError: a unit has so many steps, which are more than `length`."""
        if self.length is not None and steps > self.length:
            raise UserError(
                f"model.encoders.{self.name}.length: a unit has {steps} steps, more than {self.length}; train a model "
                "whose length is that of the longest series"
            )

    def _fitted(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The series without padding beyond `length`, and of exactly that length where the mechanism needs it."""
        if self.length is None:
            return x, mask
        if mask[:, self.length :].any():
            self.check_length(int(mask.nonzero()[:, 1].max()) + 1)
        x, mask = x[:, : self.length], mask[:, : self.length]
        lacking = self.length - x.shape[1] if self.fixed else 0
        return pad(x, (0, 0, 0, lacking)), pad(mask, (0, lacking))

    def _places(self, mask: Tensor) -> Tensor:
        """What is added to each step for its place, (B,T,width)."""
        table: Tensor
        if self.positions is not None:
            table = self.positions
        else:
            table = sinusoidal_positions((mask.shape[1],), self.embed.out_features).to(mask.device)
        return table[(mask.cumsum(dim=1) - 1).clamp_min(0)]


class Block(nn.Module):
    """Self-attention, and a network on each step."""

    def __init__(self, core: AttentionCore, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Branch(width, SelfAttention(attention_layer(core, width, heads)), dropout)
        self.network = Branch(width, token_network(width), dropout)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x (B,N,width), mask (B,N), True = valid -> (B,N,width)."""
        out: Tensor = self.network(self.attention(x, mask))
        return out


class SelfAttention(nn.Module):
    """An attention layer whose queries and keys are the same tokens."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x (B,N,width), mask (B,N), True = valid -> (B,N,width)."""
        out: Tensor = self.layer(x, x, mask, mask)
        return out


def _check(modality: Modality, positions: str, attention: Choice, width: int, length: int | None) -> None:
    if modality.kind != "sequence":
        raise UserError(f"encoder: sequence takes sequences, and {modality.name} is of kind {modality.kind}")
    if positions == "learned" and length is None:
        raise UserError("positions: learned ones are made for so many steps; set length to the longest series")
    if positions == "sinusoidal" and width % 2:
        raise UserError(f"width: sinusoidal positions need an even one, not {width}")
    mechanism: Any = ATTENTION.get(attention.name, "attention")
    if mechanism.fixed_length and length is None:
        raise UserError(f"attention: '{attention.name}' has weights for each place; set length to the longest series")
