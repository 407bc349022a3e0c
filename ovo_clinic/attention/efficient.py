"""Efficient attention: queries and keys normalised apart, so that keys and values meet first."""

from torch import Tensor, nn

from ovo_clinic.attention.masks import masked_softmax, zero_masked, zero_rows
from ovo_clinic.registry import ATTENTION


@ATTENTION.register("efficient")
class Efficient(nn.Module):
    """Efficient attention: softmax over channels of q, over tokens of k; linear in the tokens.

    softmax_channels(q) (softmax_tokens(k)^T v), without a scale. The implied matrix over tokens has rows that sum to 1.

    Args:
        heads: H; the core has no weights, so that any number fits.
        head_dim: d; likewise.

    Source:
        Shen et al. 2021, Eq. 5 (without the residual of the authors' module).
    """

    paired_tokens = False
    fixed_length = False
    position_dependent = False

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        query_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        scale: float | None = None,
    ) -> Tensor:
        """Attends; see AttentionCore for the shapes. `scale` has no place in this mechanism and is not used."""
        v = zero_masked(v, key_mask)
        weights = masked_softmax(k, None if key_mask is None else key_mask[:, None, :, None], dim=-2)
        context = weights.to(v.dtype).mT @ v
        return zero_rows(q.softmax(dim=-1).to(v.dtype) @ context, query_mask, key_mask)
