"""Linformer: softmax attention to a fixed number of learned mixtures of the keys."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from ovo_clinic.attention.masks import zero_masked, zero_rows
from ovo_clinic.registry import ATTENTION

Length = Annotated[int, Field(ge=1)]
Mixtures = Annotated[int, Field(ge=2)]
"""At least two: a softmax over one key is constant and would leave queries and keys without a gradient."""


@ATTENTION.register("linformer")
class Linformer(nn.Module):
    """Linformer: keys and values mixed along the tokens into m rows, then softmax attention to these.

    softmax(q (E k)^T d^-1/2) F v with learned E, F (m,N) that all heads share. Masked keys and values are zeroed before
    E and F, so that their columns vanish; a row of E k stays a key even if it mixes masked tokens only.

    Args:
        heads: H.
        head_dim: d.
        length: N, the number of key tokens; column j of E and F belongs to key position j.
        mixtures: m, by default N / 4 as in the comparison of efficient attentions, but at least 2.

    Source:
        Wang et al. 2020, Eq. 7; initialised as in the linformer package.
    """

    paired_tokens = False
    fixed_length = True
    position_dependent = True

    def __init__(self, heads: int, head_dim: int, *, length: Length, mixtures: Mixtures | None = None) -> None:
        super().__init__()
        self.key_mixing, self.value_mixing = (mixing(length, mixtures) for _ in range(2))

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        query_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        scale: float | None = None,
    ) -> Tensor:
        """Attends; see AttentionCore for the shapes."""
        keys = self.key_mixing @ zero_masked(k, key_mask)
        values = self.value_mixing @ zero_masked(v, key_mask)
        return zero_rows(scaled_dot_product_attention(q, keys, values, scale=scale), query_mask, key_mask)


@ATTENTION.register("linformer_fair")
class LinformerFair(nn.Module):
    """Linformer as in "Fair Comparison between Efficient Attentions": one mixing, with a bias, for keys and values.

    Args:
        heads: H.
        head_dim: d.
        length: N, the number of key tokens.
        mixtures: m, by default N / 4 as in the paper, but at least 2.
    """

    paired_tokens = False
    fixed_length = True
    position_dependent = True

    def __init__(self, heads: int, head_dim: int, *, length: Length, mixtures: Mixtures | None = None) -> None:
        super().__init__()
        self.mixing = mixing(length, mixtures)
        self.bias = nn.Parameter(torch.zeros(len(self.mixing), 1))

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        query_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        scale: float | None = None,
    ) -> Tensor:
        """Attends; see AttentionCore for the shapes. The bias alone is not attended to: with no valid key, 0."""
        keys, values = (self.mixing @ zero_masked(x, key_mask) + self.bias for x in (k, v))
        return zero_rows(scaled_dot_product_attention(q, keys, values, scale=scale), query_mask, key_mask)


def mixing(length: int, mixtures: int | None) -> nn.Parameter:
    """A learned (m,N) matrix, uniform within m^-1/2."""
    rows = max(2, length // 4) if mixtures is None else mixtures
    return nn.Parameter(torch.empty(rows, length).uniform_(-(rows**-0.5), rows**-0.5))
