"""Concatenation, the head that attends to nothing."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from ovo_clinic.fusion.tokens import Count, ModalityTokens, mean_tokens
from ovo_clinic.registry import FUSION
from ovo_clinic.types import Modality, Tokens


@FUSION.register("concat")
class Concat(nn.Module):
    """Concatenation of the modalities, no attention.

    Args:
        dim: D.
        modalities: in the spec's order.
        tokens: n, tokens per modality, the same for every head of a comparison.
    """

    unsafe: str | None = None

    def __init__(self, dim: int, modalities: Sequence[Modality], *, tokens: Count = 4) -> None:
        super().__init__()
        self.out_dim = len(modalities) * dim
        self.tokens = ModalityTokens(dim, modalities, tokens)

    def forward(self, tokens: Mapping[str, Tokens]) -> Tensor:
        """Tokens (B,T,D) by modality name -> (B,M*D), zero where a modality is absent."""
        return mean_tokens(*self.tokens(tokens)).flatten(1)
