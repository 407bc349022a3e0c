"""Gated multimodal units: each modality's part in the sum is decided by all of them."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ovo_clinic.fusion.tokens import Count, ModalityTokens, mean_tokens
from ovo_clinic.registry import FUSION
from ovo_clinic.types import Modality, Tokens


@FUSION.register("gated")
class Gated(nn.Module):
    """Gated multimodal unit (GMU): a sum over modalities, each weighed channel by channel by a gate that sees all.

    h_i = tanh(W_i x_i + b_i), z_i = sigmoid(V_i [x_1, ..., x_M]), h = sum over i of z_i * h_i. W_i and b_i are the maps
    that every head has per modality; the gates see their results.

    Args:
        dim: D.
        modalities: in the spec's order.
        tokens: n, tokens per modality, the same for every head of a comparison.

    Source:
        Arevalo et al. 2017, Gated Multimodal Units for Information Fusion: the unit for any number of modalities.
    """

    unsafe: str | None = None

    def __init__(self, dim: int, modalities: Sequence[Modality], *, tokens: Count = 4) -> None:
        super().__init__()
        self.out_dim = dim
        self.tokens = ModalityTokens(dim, modalities, tokens)
        self.gate = nn.Linear(len(modalities) * dim, len(modalities) * dim, bias=False)

    def forward(self, tokens: Mapping[str, Tokens]) -> Tensor:
        """Tokens (B,T,D) by modality name -> (B,D); an absent modality adds nothing to the sum."""
        x, present = self.tokens(tokens)
        vectors = mean_tokens(x, present)
        gates = torch.sigmoid(self.gate(vectors.flatten(1))).view_as(vectors)
        return (gates * vectors.tanh()).sum(dim=1)
