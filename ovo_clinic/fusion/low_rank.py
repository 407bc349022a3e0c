"""Low-rank multimodal fusion: a product over the modalities in place of the tensor of all their products."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ovo_clinic.fusion.tokens import Count, ModalityTokens, mean_tokens, stacked_maps
from ovo_clinic.registry import FUSION
from ovo_clinic.types import Modality, Tokens


@FUSION.register("low_rank")
class LowRank(nn.Module):
    """Low-rank multimodal fusion (LMF): the tensor product of all modalities through factors of rank R.

    h = sum over r of w_r * product over i of (F_ir x_i + f_ir) + b, where F_ir x_i + f_ir is the paper's factor applied
    to [x_i, 1]. An absent modality is left out of the product. f_ir starts at 1, so that the product of many modalities
    starts as their sum and neither vanishes nor explodes; the paper draws it like the rest.

    Args:
        dim: D.
        modalities: in the spec's order.
        tokens: n, tokens per modality, the same for every head of a comparison.
        rank: R.

    Source:
        Liu et al. 2018, Efficient Low-rank Multimodal Fusion with Modality-Specific Factors.
    """

    unsafe: str | None = None

    def __init__(self, dim: int, modalities: Sequence[Modality], *, tokens: Count = 4, rank: Count = 4) -> None:
        super().__init__()
        self.out_dim = dim
        self.tokens = ModalityTokens(dim, modalities, tokens)
        self.factors = stacked_maps(len(modalities), rank, dim, dim)
        self.ones = nn.Parameter(torch.ones(len(modalities), rank, dim))
        self.weights = nn.Parameter(torch.full((rank,), rank**-0.5))
        self.bias = nn.Parameter(torch.zeros(dim))
        with torch.no_grad():
            self.factors.mul_(len(modalities) ** -0.5)

    def forward(self, tokens: Mapping[str, Tokens]) -> Tensor:
        """Tokens (B,T,D) by modality name -> (B,D), zero where nothing is present."""
        x, present = self.tokens(tokens)
        factors = torch.einsum("bmd,mrde->bmre", mean_tokens(x, present), self.factors) + self.ones
        product = factors.masked_fill(~present[:, :, None, None], 1).prod(dim=1)
        fused = torch.einsum("bre,r->be", product, self.weights) + self.bias
        return fused.masked_fill(~present.any(dim=1, keepdim=True), 0)
