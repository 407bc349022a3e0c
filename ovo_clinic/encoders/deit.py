"""DeiT encoder, as transformers builds it, with random weights."""

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ovo_clinic.attention.hf import use_attention
from ovo_clinic.encoders.shapes import VIT_TI, VitShape
from ovo_clinic.errors import UserError
from ovo_clinic.registry import ENCODERS
from ovo_clinic.types import Modality, Tokens

SPECIAL = 2
"""The class and the distillation token, which stand before the patches."""


@ENCODERS.register("deit")
class Deit(nn.Module):
    """DeiT with its distillation token, built by transformers; softmax, preconditioned and other attention.

    Queries, keys and values have no bias (softmax is blind to that of the keys). There is no teacher: the pooled output
    is the mean of class and distillation token, as DeiT predicts once it is trained.

    Args:
        modality: an image with a known size that the patches divide.
        dim: D, the width of the tokens that are given out.
        shape: vit_ti, deit_b, ... or settings: see VitShape; of these patch, width, depth and heads are used.
        attention: `sdpa`, `eager`, `preconditioned`, ...: see attention/hf.py.
        dropout: after each layer.
        initializer_range: standard deviation of the weights at the start; the authors' 0.02 is for widths of several
            hundred: at a width of 64 all tokens attend nearly alike, and outputs lack full rank.
        output: `pooled` = one token an image; `tokens` = class and distillation token, then the patches.

    Source:
        Touvron et al. 2021.

    Raises:
        UserError: not an image, a size that the patches do not divide, a shape or an attention that does not fit.
    """

    def __init__(
        self,
        modality: Modality,
        dim: int,
        *,
        shape: VitShape = VIT_TI,
        attention: str = "sdpa",
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1,
        initializer_range: Annotated[float, Field(gt=0)] = 0.02,
        output: Literal["pooled", "tokens"] = "pooled",
    ) -> None:
        super().__init__()
        from transformers import DeiTConfig, DeiTModel

        config = DeiTConfig(
            image_size=_size(modality, shape),
            patch_size=shape.patch,
            num_channels=modality.features,
            hidden_size=shape.width,
            num_hidden_layers=shape.depth,
            num_attention_heads=shape.heads,
            intermediate_size=4 * shape.width,
            qkv_bias=False,
            layer_norm_eps=1e-6,
            hidden_dropout_prob=dropout,
            initializer_range=initializer_range,
        )
        self.model: Any = DeiTModel(config, add_pooling_layer=False)
        embeddings = self.model.embeddings
        # transformers starts them at zero, where layer norm has a gradient without bound; the authors' code does not.
        for start in (embeddings.cls_token, embeddings.distillation_token, embeddings.position_embeddings):
            nn.init.trunc_normal_(start, std=initializer_range)
        use_attention(self.model, attention)
        self.pooled = output == "pooled"
        self.out = nn.Linear(shape.width, dim)

    def forward(self, x: Tensor, mask: Tensor) -> Tokens:
        """Encodes x (B,C,H,W) with mask (B,1), True = valid, into Tokens (B,1,D), or (B,T,D) for `output: tokens`."""
        hidden = self.model(torch.where(mask[..., None, None], x, 0)).last_hidden_state
        if self.pooled:
            hidden = hidden[:, :SPECIAL].mean(dim=1, keepdim=True)
        values = self.out(hidden).masked_fill(~mask[..., None], 0)
        return Tokens(values, mask.expand(-1, values.shape[1]))


def _size(modality: Modality, shape: VitShape) -> tuple[int, int]:
    """The image's size, checked against the shape."""
    if modality.kind != "image" or modality.size is None:
        raise UserError(f"encoder: deit takes images of one size, and {modality.name} is none; choose mlp")
    height, width = modality.size
    if height % shape.patch or width % shape.patch:
        raise UserError(f"shape.patch: {shape.patch} does not divide the size {height} x {width} of {modality.name}")
    if shape.width % shape.heads:
        raise UserError(f"shape.heads: {shape.heads} does not divide the width {shape.width}")
    if shape.lpi or shape.class_layers or not shape.class_token or shape.positions != "learned":
        raise UserError("shape: deit has class tokens from the start, learned positions and no lpi; choose vit")
    return height, width
