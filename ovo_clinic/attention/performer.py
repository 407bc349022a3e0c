"""Performer: softmax attention estimated with positive orthogonal random features (FAVOR+)."""

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from ovo_clinic.attention.masks import zero_masked, zero_rows
from ovo_clinic.attention.precision import at_least_float32, no_autocast
from ovo_clinic.registry import ATTENTION

Features = Annotated[int, Field(ge=1)]


@ATTENTION.register("performer")
class Performer(nn.Module):
    """Performer: softmax attention estimated with random features; linear in the tokens.

    phi(u) = exp(omega u' - |u'|^2 / 2), u' = u d^-1/4, whose products estimate exp(q k^T d^-1/2). Computed in at least
    float32, every exponential relative to a maximum, so that the ratio never is 0 / 0.

    Args:
        heads: H; all share the features.
        head_dim: d.
        features: r, by default d log d as in the paper, but at least d: below d the estimate gets coarse.
        redraw: in training, features are drawn anew after so many calls; 0 = never.

    Source:
        Choromanski et al. 2021, Eq. 5 and section 2.4.
    """

    paired_tokens = False
    fixed_length = False
    position_dependent = False
    omega: Tensor
    seed: Tensor
    calls: Tensor

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        features: Features | None = None,
        redraw: Annotated[int, Field(ge=0)] = 0,
    ) -> None:
        super().__init__()
        self.features = default_features(head_dim) if features is None else features
        self.redraw = redraw
        self.register_buffer("omega", torch.empty(self.features, head_dim))
        # What is drawn when is part of the state: a resumed run goes on alike, and all devices draw alike.
        self.register_buffer("seed", torch.randint(2**31, ()))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self._draw()

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
        if self.training and self.redraw:
            self.calls += 1
            if self.calls % self.redraw == 0:
                self._draw()
        q, k, values = (at_least_float32(x) for x in (q, zero_masked(k, key_mask), zero_masked(v, key_mask)))
        with no_autocast(q):
            q_log, k_log = (log_features(x, self.omega, scale)[0] for x in (q, k))
            out = _kernel_attention(q_log, k_log, values, key_mask)
        return zero_rows(out.to(v.dtype), query_mask, key_mask)

    def _draw(self) -> None:
        if self.omega.is_meta:  # built to check its options; there is nothing to draw, nor a seed to draw from
            return
        generator = torch.Generator().manual_seed(int(self.seed) + int(self.calls))
        with torch.no_grad():
            self.omega.copy_(orthogonal_features(self.features, self.omega.shape[1], generator))


@ATTENTION.register("performer_fair")
class PerformerFair(nn.Module):
    """Performer as in "Fair Comparison between Efficient Attentions": d / 2 features a head, of length r^1/2.

    With fewer features than channels their length should be d^1/2: these flatten the softmax (biased by design). What
    the published code adds to the denominator is kept, its overflow is not.

    Args:
        heads: H; each has its own features.
        head_dim: d.
        features: r, d / 2 by default.
        eps: added to the denominator.
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
        eps: Annotated[float, Field(ge=0)] = 1e-6,
    ) -> None:
        super().__init__()
        self.eps = eps
        rows = max(1, head_dim // 2) if features is None else features
        directions = torch.stack([orthogonal_directions(rows, head_dim) for _ in range(heads)])
        self.register_buffer("omega", math.sqrt(rows) * directions)

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
            q_log, k_log = (log_features(x, self.omega, scale)[0] for x in (q, k))
            out = _kernel_attention(q_log, k_log, values, key_mask, eps=self.eps * self.omega.shape[-2])
        return zero_rows(out.to(v.dtype), query_mask, key_mask)


def default_features(head_dim: int) -> int:
    """d log d, but at least d."""
    return max(head_dim, math.ceil(head_dim * math.log(head_dim)))


def orthogonal_directions(rows: int, dim: int, generator: torch.Generator | None = None) -> Tensor:
    """Unit vectors (rows,dim), orthogonal within each block of dim, each block uniform over the rotations.

    `orthogonal_` fixes the signs of the QR decomposition, without which the block is not uniform.
    """
    blocks = [nn.init.orthogonal_(torch.empty(dim, dim), generator=generator) for _ in range(math.ceil(rows / dim))]
    directions: Tensor = torch.cat(blocks)[:rows]
    return directions


def orthogonal_features(rows: int, dim: int, generator: torch.Generator | None = None) -> Tensor:
    """Orthogonal directions (rows,dim) with the lengths of Gaussian vectors, so that each row alone is Gaussian."""
    lengths: Tensor = torch.linalg.vector_norm(torch.randn(rows, dim, generator=generator), dim=1, keepdim=True)
    return orthogonal_directions(rows, dim, generator) * lengths


def log_features(x: Tensor, omega: Tensor, scale: float | None) -> tuple[Tensor, Tensor]:
    """log phi(x), and the products omega x' alone, both (B,H,N,r); x' = x scale^1/2, omega (r,d) or (H,r,d)."""
    x = x * math.sqrt(x.shape[-1] ** -0.5 if scale is None else scale)
    products = x @ omega.to(x.dtype).mT
    return products - (x * x).sum(dim=-1, keepdim=True) / 2, products


def _kernel_attention(q_log: Tensor, k_log: Tensor, v: Tensor, key_mask: Tensor | None, eps: float = 0.0) -> Tensor:
    """phi(q) (phi(k)^T v) / (phi(q) sum phi(k) + eps) from the logarithms of phi, (B,H,N,r), without overflow.

    Keys are taken relative to the largest key of each feature, queries (with that offset) relative to their largest
    feature. So every sum has a term that is 1, and the denominator is at least 1 wherever there is a valid key.
    """
    if key_mask is not None:
        k_log = k_log.masked_fill(~key_mask[:, None, :, None], -torch.inf)
    largest = k_log.detach().amax(dim=2, keepdim=True)
    largest = largest.masked_fill(largest.isneginf(), 0)
    keys = (k_log - largest).exp()
    q_log = q_log + largest
    offset = q_log.detach().amax(dim=-1, keepdim=True)
    queries = (q_log - offset).exp()
    denominator = (queries @ keys.sum(dim=2)[..., None]).clamp_min(1)
    if eps:
        denominator = denominator + eps * (-offset).exp()
    out: Tensor = (queries @ (keys.mT @ v)) / denominator
    return out
