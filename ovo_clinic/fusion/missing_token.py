"""Concatenation with a learned token in the place of an absent modality."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ovo_clinic.fusion.tokens import Count, ModalityTokens, mean_tokens
from ovo_clinic.registry import FUSION
from ovo_clinic.types import Modality, Tokens


@FUSION.register("missing_token")
class MissingToken(nn.Module):
    """Concatenation of the modalities with a learned token in the place of an absent one.

    Beside `concat`, which has zeros there, it shows what such a token is worth. It learns from the units that lack the
    modality (or from `model.modality_dropout`): where all training units have it, the token stays as it was drawn.

    Args:
        dim: D.
        modalities: in the spec's order.
        tokens: n, tokens per modality, the same for every head of a comparison.

    Source:
        Hayat et al. 2022, MedFuse, whose early fusion baseline learns a vector in place of a missing X-ray.
    """

    unsafe: str | None = None

    def __init__(self, dim: int, modalities: Sequence[Modality], *, tokens: Count = 4) -> None:
        super().__init__()
        self.out_dim = len(modalities) * dim
        self.tokens = ModalityTokens(dim, modalities, tokens)
        self.missing = nn.Parameter(0.02 * torch.randn(len(modalities), dim))

    def forward(self, tokens: Mapping[str, Tokens]) -> Tensor:
        """Tokens (B,T,D) by modality name -> (B,M*D), never zero: the learned tokens where nothing is present."""
        x, present = self.tokens(tokens)
        vectors = mean_tokens(x, present)
        return torch.where(present[..., None], vectors, self.missing.to(vectors.dtype)).flatten(1)
