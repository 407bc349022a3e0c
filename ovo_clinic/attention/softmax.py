"""Softmax attention, by torch's scaled_dot_product_attention."""

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from ovo_clinic.attention.masks import zero_masked, zero_rows
from ovo_clinic.registry import ATTENTION


@ATTENTION.register("softmax")
class Softmax(nn.Module):
    """Softmax of the scaled dot products: softmax(q k^T d^-1/2) v (Vaswani et al. 2017, Eq. 1).

    Args:
        heads: H; the core has no weights, so that any number fits.
        head_dim: d; likewise.
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
        """Attends; see AttentionCore for the shapes. Masked keys are left out; a row without a valid key is 0."""
        allowed = None
        if key_mask is not None:
            k, v = zero_masked(k, key_mask), zero_masked(v, key_mask)
            # A row without a valid key attends to all keys and is zeroed: a softmax of nothing is NaN on some backends.
            allowed = (key_mask | ~key_mask.any(dim=1, keepdim=True))[:, None, None, :]
        out = scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=scale)
        return zero_rows(out, query_mask, key_mask)
