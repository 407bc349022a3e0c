"""Multilayer perceptron encoder."""

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from ovo_clinic.errors import UserError
from ovo_clinic.registry import ENCODERS
from ovo_clinic.types import Modality, Tokens


@ENCODERS.register("mlp")
class Mlp(nn.Module):
    """Multilayer perceptron: a vector becomes one token, a sequence one token per time step.

    Args:
        modality: what is encoded.
        dim: D, the width of the tokens.
        layers: linear layers, each followed by GELU.
        width: of the layers before the last.
        dropout: between layers.

    Raises:
        UserError: the modality is an image or a text.
    """

    def __init__(
        self,
        modality: Modality,
        dim: int,
        *,
        layers: Literal[1, 2, 3, 4] = 2,
        width: Annotated[int, Field(ge=1)] = 64,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1,
    ) -> None:
        super().__init__()
        if modality.kind in ("image", "text"):
            article, other = ("an image", "vit") if modality.kind == "image" else ("a text", "text")
            raise UserError(
                f"encoder: mlp takes vectors and sequences, and {modality.name} is {article}; choose {other}"
            )
        widths = [modality.features, *[width] * (layers - 1), dim]
        steps: list[nn.Module] = []
        for before, after in zip(widths, widths[1:], strict=False):
            steps += [nn.Linear(before, after), nn.GELU(), nn.Dropout(dropout)]
        self.layers = nn.Sequential(*steps[:-1])

    def forward(self, x: Tensor, mask: Tensor) -> Tokens:
        """Encodes x (B,F) with mask (B,1), or (B,T,F) with (B,T), True = valid, into Tokens (B,1,D) or (B,T,D)."""
        steps = x if x.ndim == 3 else x[:, None]
        hidden = ~mask[..., None]
        # Masked at both ends: what stands under the mask reaches neither the output nor, were it NaN, a gradient.
        return Tokens(self.layers(steps.masked_fill(hidden, 0)).masked_fill(hidden, 0), mask)
