"""The mean over the modalities."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from ovo_clinic.fusion.tokens import Count, ModalityTokens, mean_present, mean_tokens
from ovo_clinic.registry import FUSION
from ovo_clinic.types import Modality, Tokens


@FUSION.register("mean")
class Mean(nn.Module):
    """Mean over the present modalities, each mapped into one common space; as wide as one modality.

    h = 1/|P| sum over i in P of W_i x_i + b_i, with P the modalities that are present.

    Args:
        dim: D.
        modalities: in the spec's order.
        tokens: n, tokens per modality, the same for every head of a comparison.

    Source:
        Havaei et al. 2016, HeMIS: the first moment over the modalities that are there.
    """

    unsafe: str | None = None

    def __init__(self, dim: int, modalities: Sequence[Modality], *, tokens: Count = 4) -> None:
        super().__init__()
        self.out_dim = dim
        self.tokens = ModalityTokens(dim, modalities, tokens)

    def forward(self, tokens: Mapping[str, Tokens]) -> Tensor:
        """Tokens (B,T,D) by modality name -> (B,D), zero where nothing is present."""
        x, present = self.tokens(tokens)
        return mean_present(mean_tokens(x, present), present)
