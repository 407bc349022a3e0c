"""A mixture of experts: networks over all modalities, weighed by a gate that also sees which ones are present."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from ovo_clinic.fusion.tokens import Count, ModalityTokens, mean_tokens, stacked_maps
from ovo_clinic.registry import FUSION
from ovo_clinic.types import Modality, Tokens


@FUSION.register("mixture_of_experts")
class MixtureOfExperts(nn.Module):
    """Mixture of experts: networks over all modalities, weighed by a gate that sees which ones are present.

    h = sum over k of g_k * GELU(E_k x + e_k), g = softmax(G [x, p] + c), x the concatenation of the modalities and p
    their presence, so that experts can take over patterns of missing modalities. Every expert works on every unit: the
    gate is not sparse as in Shazeer et al. 2017, and needs no loss that balances the experts.

    Args:
        dim: D.
        modalities: in the spec's order.
        tokens: n, tokens per modality, the same for every head of a comparison.
        experts: number of them.

    Source:
        Jacobs et al. 1991, Adaptive Mixtures of Local Experts; the presence in the gate is this project's own.
    """

    unsafe: str | None = None

    def __init__(self, dim: int, modalities: Sequence[Modality], *, tokens: Count = 4, experts: Count = 4) -> None:
        super().__init__()
        self.out_dim = dim
        self.tokens = ModalityTokens(dim, modalities, tokens)
        width = len(modalities) * dim
        self.gate = nn.Linear(width + len(modalities), experts)
        self.experts = stacked_maps(experts, width, dim)
        self.bias = nn.Parameter(torch.zeros(experts, dim))

    def forward(self, tokens: Mapping[str, Tokens]) -> Tensor:
        """Tokens (B,T,D) by modality name -> (B,D), zero where nothing is present."""
        x, present = self.tokens(tokens)
        vectors = mean_tokens(x, present).flatten(1)
        gates = self.gate(torch.cat([vectors, present.to(vectors.dtype)], dim=1)).softmax(dim=1)
        experts = functional.gelu(torch.einsum("bi,kid->bkd", vectors, self.experts) + self.bias)
        fused = torch.einsum("bk,bkd->bd", gates.to(experts.dtype), experts)
        return fused.masked_fill(~present.any(dim=1, keepdim=True), 0)
