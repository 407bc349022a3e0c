"""Performer as in the published package, for comparison."""

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from ovo_clinic.attention.masks import zero_masked, zero_rows
from ovo_clinic.attention.performer import Features, default_features, log_features
from ovo_clinic.attention.precision import at_least_float32, no_autocast
from ovo_clinic.registry import ATTENTION


@ATTENTION.register("performer_reference")
class PerformerReference(nn.Module):
    """Performer as in performer-pytorch, for comparison: does not converge to softmax attention.

    The package takes the bare Q of a QR decomposition, whose signs make it no uniform rotation, and adds eps to every
    feature after the exponential. Both bias the estimate.

    Args:
        heads: H; all share the features.
        head_dim: d.
        features: r, by default d log d, but at least d.
        eps: added to every feature.
    """

    paired_tokens = False
    fixed_length = False
    position_dependent = False
    omega: Tensor

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        features: Features | None = None,
        eps: Annotated[float, Field(gt=0)] = 1e-4,
    ) -> None:
        super().__init__()
        self.eps = eps
        rows = default_features(head_dim) if features is None else features
        blocks = [torch.linalg.qr(torch.randn(head_dim, head_dim)).Q.T for _ in range(math.ceil(rows / head_dim))]
        self.register_buffer("omega", torch.cat(blocks)[:rows] * torch.randn(rows, head_dim).norm(dim=1, keepdim=True))

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
        q, k, values = (at_least_float32(x) for x in (q, zero_masked(k, key_mask), zero_masked(v, key_mask)))
        with no_autocast(q):
            q_log, q_products = log_features(q, self.omega, scale)
            k_log, k_products = log_features(k, self.omega, scale)
            if key_mask is not None:
                absent = ~key_mask[:, None, :, None]
                k_log = k_log.masked_fill(absent, -torch.inf)
                k_products = k_products.masked_fill(absent, torch.finfo(k_products.dtype).min)
            queries = (q_log - q_products.detach().amax(dim=-1, keepdim=True)).exp() + self.eps
            keys = (k_log - k_products.detach().amax(dim=(-2, -1), keepdim=True)).exp() + self.eps
            keys = zero_masked(keys, key_mask)
            # Without a valid key 0 / 1 instead of 0 / 0.
            denominator = queries @ keys.sum(dim=2)[..., None]
            out = (queries @ (keys.mT @ values)) / torch.where(denominator == 0, 1, denominator)
        return zero_rows(out.to(v.dtype), query_mask, key_mask)
