"""Swin transformer encoder, as transformers builds it, with random weights."""

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ovo_clinic.attention.hf import use_attention
from ovo_clinic.encoders.shapes import SWIN_T, SwinShape
from ovo_clinic.errors import UserError
from ovo_clinic.registry import ENCODERS
from ovo_clinic.types import Modality, Tokens


@ENCODERS.register("swin")
class Swin(nn.Module):
    """Swin transformer built by transformers, softmax or preconditioned attention.

    Queries, keys and values have no bias (softmax is blind to that of the keys), and there is no stochastic depth.

    Args:
        modality: an image with a known size.
        dim: D, the width of the tokens that are given out.
        shape: swin_t or swin_b, or settings: see SwinShape.
        attention: `sdpa`, `eager`, `preconditioned`, ...: see attention/hf.py. The relative position bias leaves out
            mechanisms without scores.
        dropout: after each layer.
        initializer_range: standard deviation of the weights at the start; the authors' 0.02 is for widths of several
            hundred: at a width of 64 all tokens attend nearly alike, and outputs lack full rank.
        output: `pooled` = the mean over the last stage's tokens; `tokens` = these.

    Source:
        Liu et al. 2021.

    Raises:
        UserError: not an image, one whose last stage is smaller than a window, or an attention that does not fit.
    """

    def __init__(
        self,
        modality: Modality,
        dim: int,
        *,
        shape: SwinShape = SWIN_T,
        attention: str = "sdpa",
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1,
        initializer_range: Annotated[float, Field(gt=0)] = 0.02,
        output: Literal["pooled", "tokens"] = "pooled",
    ) -> None:
        super().__init__()
        from transformers import SwinConfig, SwinModel

        config = SwinConfig(
            image_size=_size(modality, shape),
            patch_size=shape.patch,
            num_channels=modality.features,
            embed_dim=shape.width,
            depths=list(shape.depths),
            num_heads=list(shape.heads),
            window_size=shape.window,
            qkv_bias=False,
            hidden_dropout_prob=dropout,
            initializer_range=initializer_range,
            drop_path_rate=0.0,
        )
        self.model: Any = SwinModel(config, add_pooling_layer=False)
        use_attention(self.model, attention)
        self.pooled = output == "pooled"
        self.out = nn.Linear(shape.width * 2 ** (len(shape.depths) - 1), dim)

    def forward(self, x: Tensor, mask: Tensor) -> Tokens:
        """Encodes x (B,C,H,W) with mask (B,1), True = valid, into Tokens (B,1,D), or (B,T,D) for `output: tokens`."""
        hidden = self.model(torch.where(mask[..., None, None], x, 0)).last_hidden_state
        if self.pooled:
            hidden = hidden.mean(dim=1, keepdim=True)
        values = self.out(hidden).masked_fill(~mask[..., None], 0)
        return Tokens(values, mask.expand(-1, values.shape[1]))


def _size(modality: Modality, shape: SwinShape) -> tuple[int, int]:
    """The image's size, checked."""
    if modality.kind != "image" or modality.size is None:
        raise UserError(f"encoder: swin takes images of one size, and {modality.name} is none; choose mlp")
    smallest = shape.window * shape.patch * 2 ** (len(shape.depths) - 1)
    if min(modality.size) < smallest:
        raise UserError(
            f"shape: {modality.name} has {modality.size[0]} x {modality.size[1]} pixels, and windows of {shape.window} "
            f"in {len(shape.depths)} stages need {smallest}; choose a smaller window or fewer stages"
        )
    return modality.size
