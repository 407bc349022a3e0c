"""Multimodal transfer: each modality's channels are scaled by what all modalities tell."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ovo_clinic.fusion.tokens import Count, ModalityTokens, mean_tokens, stacked_maps
from ovo_clinic.registry import FUSION
from ovo_clinic.types import Modality, Tokens


@FUSION.register("mmtm")
class Mmtm(nn.Module):
    """Multimodal transfer module (MMTM): squeeze all modalities into one vector, which scales the channels of each.

    Z = W [S_1, ..., S_M] + b with S_i the mean over the tokens of a modality, E_i = W_i Z + b_i, and the modality's
    tokens are multiplied by 2 sigmoid(E_i). The scale is the same for all tokens of a modality, so that it is applied
    to their mean. The paper puts the module between the layers of convolutional networks; here it stands once, after
    the encoders. As in the paper's equations, Z has no activation (the authors' code has a ReLU).

    Args:
        dim: D.
        modalities: in the spec's order.
        tokens: n, tokens per modality, the same for every head of a comparison.
        ratio: Z is this many times smaller than the modalities together.

    Source:
        Joze et al. 2020, MMTM: Multimodal Transfer Module for CNN Fusion.
    """

    unsafe: str | None = None

    def __init__(self, dim: int, modalities: Sequence[Modality], *, tokens: Count = 4, ratio: Count = 4) -> None:
        super().__init__()
        self.out_dim = len(modalities) * dim
        self.tokens = ModalityTokens(dim, modalities, tokens)
        squeezed = max(1, self.out_dim // ratio)
        self.squeeze = nn.Linear(self.out_dim, squeezed)
        self.excite = stacked_maps(len(modalities), squeezed, dim)
        self.bias = nn.Parameter(torch.zeros(len(modalities), dim))

    def forward(self, tokens: Mapping[str, Tokens]) -> Tensor:
        """Tokens (B,T,D) by modality name -> (B,M*D), zero where a modality is absent."""
        x, present = self.tokens(tokens)
        vectors = mean_tokens(x, present)
        excited = torch.einsum("bs,msd->bmd", self.squeeze(vectors.flatten(1)), self.excite) + self.bias
        return (2 * torch.sigmoid(excited) * vectors).flatten(1)
