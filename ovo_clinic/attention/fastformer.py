"""Fastformer: one global query and one global key multiply every token."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ovo_clinic.attention.masks import masked_softmax, zero_masked
from ovo_clinic.attention.multihead import merge_heads, projection, split_heads
from ovo_clinic.attention.precision import at_least_float32, no_autocast
from ovo_clinic.registry import ATTENTION
from ovo_clinic.types import AttentionCore


class FastformerLayer(nn.Module):
    """Fastformer's own layer: the queries are added to its output, and (tied) serve as the values.

    Projections start as those of every other mechanism, so that a comparison differs in the mechanism only.

    Args:
        core: Fastformer or FastformerFair.
        dim: D, divisible by heads.
        heads: H.
        bias: of the projections.
        tied: values are the queries; else they have a projection of their own.
    """

    def __init__(self, core: AttentionCore, dim: int, heads: int, *, bias: bool = False, tied: bool = True) -> None:
        super().__init__()
        assert dim % heads == 0, (dim, heads)
        self.core = core
        self.heads = heads
        self.query, self.key, self.out = (projection(dim, bias) for _ in range(3))
        self.value = None if tied else projection(dim, bias)

    def forward(
        self, x_query: Tensor, x_key: Tensor, query_mask: Tensor | None = None, key_mask: Tensor | None = None
    ) -> Tensor:
        """x_query and x_key (B,N,D), masks (B,N) with True = valid -> (B,N,D); a masked query's row is 0."""
        query = self.query(x_query)
        q, k = split_heads(query, self.heads), split_heads(self.key(x_key), self.heads)
        v = q if self.value is None else split_heads(self.value(x_key), self.heads)
        out: Tensor = self.out(merge_heads(self.core(q, k, v, query_mask, key_mask))) + query
        return out if query_mask is None else out.masked_fill(~query_mask[..., None], 0)


@ATTENTION.register("fastformer")
class Fastformer(nn.Module):
    """Fastformer: values times one global key, pooled from keys times one global query; linear in the tokens.

    a = softmax_tokens(s W_a q), g = sum a q; p = k g; b = softmax_tokens(s W_b p); out = v sum b p. W_a and W_b map all
    channels to the heads; without a bias, to which a softmax over tokens is blind. Row i of the output is token i of v.

    Args:
        heads: H.
        head_dim: d.

    Source:
        Wu et al. 2021, Eq. 3-8; weights N(0, 0.02) as in the authors' code.
    """

    paired_tokens = True
    fixed_length = False
    position_dependent = True
    zero_query_gives_zero = True
    layer = FastformerLayer

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        shape = (heads, heads * head_dim)
        self.query_scores = nn.Parameter(torch.empty(shape).normal_(std=0.02))
        self.key_scores = nn.Parameter(torch.empty(shape).normal_(std=0.02))

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        query_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        scale: float | None = None,
    ) -> Tensor:
        """Attends; see AttentionCore for the shapes. A row is 0 where its own key is masked, too."""
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        queries, keys = at_least_float32(zero_masked(q, query_mask)), at_least_float32(zero_masked(k, key_mask))
        with no_autocast(queries):
            scores = linear(merge_heads(queries), at_least_float32(self.query_scores)).mT
            mixed = keys * pool(queries, scale * scores, query_mask)
            scores = linear(merge_heads(mixed), at_least_float32(self.key_scores)).mT
            out = at_least_float32(zero_masked(v, key_mask)) * pool(mixed, scale * scores, key_mask)
        return zero_masked(out.to(v.dtype), query_mask)


@ATTENTION.register("fastformer_fair")
class FastformerFair(nn.Module):
    """Fastformer as in "Fair Comparison between Efficient Attentions": per-head scores, and b pools the keys.

    The global key is sum b k, where the Fastformer paper has sum b p. Values have a projection of their own.

    Args:
        heads: H.
        head_dim: d.
    """

    paired_tokens = True
    fixed_length = False
    position_dependent = True
    layer = partial(FastformerLayer, tied=False)

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        self.query_scores = nn.Parameter(torch.randn(heads, head_dim))
        self.key_scores = nn.Parameter(torch.randn(heads, head_dim))

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        query_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        scale: float | None = None,
    ) -> Tensor:
        """Attends; see AttentionCore for the shapes. A row is 0 where its own key is masked, too."""
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        queries, keys = at_least_float32(zero_masked(q, query_mask)), at_least_float32(zero_masked(k, key_mask))
        with no_autocast(queries):
            scores = (queries * at_least_float32(self.query_scores)[:, None]).sum(dim=-1)
            mixed = keys * pool(queries, scale * scores, query_mask)
            scores = (mixed * at_least_float32(self.key_scores)[:, None]).sum(dim=-1)
            out = at_least_float32(zero_masked(v, key_mask)) * pool(keys, scale * scores, key_mask)
        return zero_masked(out.to(v.dtype), query_mask)


def pool(x: Tensor, scores: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of x (B,H,N,d) weighted by the softmax of scores (B,H,N) over the valid tokens -> (B,H,1,d)."""
    weights = masked_softmax(scores, None if mask is None else mask[:, None])
    return weights[:, :, None] @ x
