"""Nystrom attention: the softmax matrix rebuilt from landmarks, means of segments of tokens."""

from typing import Annotated, NamedTuple

import torch
from pydantic import AfterValidator, Field
from torch import Tensor, nn

from ovo_clinic.attention.masks import masked_softmax, zero_masked, zero_rows
from ovo_clinic.attention.precision import at_least_float32, no_autocast
from ovo_clinic.attention.precondition import RowMap
from ovo_clinic.registry import ATTENTION


def _odd(kernel: int) -> int:
    if kernel and kernel % 2 == 0:
        raise ValueError("needs a middle: choose an odd number, or 0 for no convolution")
    return kernel


Landmarks = Annotated[int, Field(ge=2)]
"""At least two: a softmax over one landmark is constant and would leave the keys without a gradient."""
Iterations = Annotated[int, Field(ge=1)]
Kernel = Annotated[int, Field(ge=0), AfterValidator(_odd)]


@ATTENTION.register("nystrom")
class Nystrom(nn.Module):
    """Nystrom attention: softmax attention rebuilt from landmarks; linear in the tokens.

    softmax(q kl^T) Z softmax(ql k^T) v, where Z approximates the pseudo-inverse of softmax(ql kl^T). Landmarks ql, kl
    are means of segments that are cut by rank among the valid tokens, and the iteration for Z starts per unit and head:
    neither padding nor the rest of the batch matters. Computed in at least float32.

    Args:
        heads: H.
        head_dim: d.
        landmarks: m; with no more valid tokens than that, each is its own landmark.
        iterations: of the pseudo-inverse; more than 10 or so lose digits in float32.
        kernel: width of a depthwise convolution of the values over the valid tokens, added to the output; 0 = none.

    Source:
        Xiong et al. 2021, Eq. 13-14. Preconditioning normalises the rows before the convolution is added.
    """

    fixed_length = False
    position_dependent = True
    preconditions_itself = True

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        landmarks: Landmarks = 16,
        iterations: Iterations = 6,
        kernel: Kernel = 0,
    ) -> None:
        super().__init__()
        self.landmarks = landmarks
        self.iterations = iterations
        self.convolution = token_convolution(heads, kernel)
        self.paired_tokens = kernel > 0

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        query_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        scale: float | None = None,
        unit: RowMap | None = None,
    ) -> Tensor:
        """Attends; see AttentionCore for the shapes."""
        v = zero_masked(v, key_mask)
        queries, keys = at_least_float32(zero_masked(q, query_mask)), at_least_float32(zero_masked(k, key_mask))
        with no_autocast(queries):
            query_landmarks = segment_means(queries, query_mask, self.landmarks)
            key_landmarks = segment_means(keys, key_mask, self.landmarks)
            scale = q.shape[-1] ** -0.5 if scale is None else scale
            left = scores_softmax(queries, key_landmarks.values, key_landmarks.used, scale)
            middle = scores_softmax(query_landmarks.values, key_landmarks.values, key_landmarks.used, scale)
            middle = zero_masked(middle, query_landmarks.used)
            right = scores_softmax(query_landmarks.values, keys, key_mask, scale)
            columns = middle.sum(dim=-2).amax(dim=-1)[..., None, None]
            inverse = pseudo_inverse(middle, columns, self.iterations)
            out = left @ (inverse @ (right @ at_least_float32(v)))
        out = zero_rows(out.to(v.dtype), query_mask, key_mask)
        out = unit(out) if unit else out
        if self.convolution is None:
            return out
        return zero_masked(out + over_valid_tokens(self.convolution, v, key_mask), query_mask)


class Segments(NamedTuple):
    """Landmarks.

    Attributes:
        values: (B,H,m,d).
        used: (B,m) bool, True = valid; None = all.
    """

    values: Tensor
    used: Tensor | None


def segment_means(x: Tensor, mask: Tensor | None, landmarks: int) -> Segments:
    """Means of m segments of nearly equal size, cut by rank among the valid tokens.

    Args:
        x: (B,H,N,d), zero where masked.
        mask: (B,N), True = valid.
        landmarks: m; with fewer valid tokens than that, each is a segment of its own and the rest are not used.
    """
    tokens = x.shape[2]
    landmarks = min(landmarks, tokens)
    if mask is None and tokens % landmarks == 0:
        return Segments(torch.unflatten(x, 2, (landmarks, -1)).mean(dim=3), None)
    valid = torch.ones(1, tokens, dtype=torch.bool, device=x.device) if mask is None else mask
    rank = valid.cumsum(dim=1) - 1
    segment = rank * landmarks // valid.sum(dim=1, keepdim=True).clamp_min(1)
    numbers = torch.arange(landmarks, device=x.device)[:, None]
    members = (segment[:, None] == numbers) & valid[:, None]
    sizes = members.sum(dim=-1)
    weights = members.to(x.dtype) / sizes.clamp_min(1)[..., None]
    return Segments(weights[:, None] @ x, sizes > 0)


def scores_softmax(q: Tensor, k: Tensor, key_mask: Tensor | None, scale: float) -> Tensor:
    """softmax(scale q k^T) over the valid keys, (B,H,Nq,Nk)."""
    return masked_softmax(scale * q @ k.mT, None if key_mask is None else key_mask[:, None, None])


def pseudo_inverse(matrix: Tensor, start: Tensor, iterations: int) -> Tensor:
    """Iterative pseudo-inverse, cubic in the landmarks.

    Args:
        matrix: (B,H,m,m), rows that sum to 1 (or are zero).
        start: what its transpose is divided by; largest column sum times largest row sum makes the iteration converge.
        iterations: number of them.

    Source:
        Xiong et al. 2021, Eq. 11-12 (Razavi et al. 2014).
    """
    identity = torch.eye(matrix.shape[-2], dtype=matrix.dtype, device=matrix.device)
    inverse = matrix.mT / start.clamp_min(torch.finfo(matrix.dtype).tiny)
    for _ in range(iterations):
        product = matrix @ inverse
        inverse = inverse @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product))) / 4
    return inverse


def token_convolution(heads: int, kernel: int) -> nn.Conv2d | None:
    """A convolution along the tokens of (B,H,N,d), one filter a head; None for no width."""
    if not kernel:
        return None
    return nn.Conv2d(heads, heads, (kernel, 1), padding=(kernel // 2, 0), groups=heads, bias=False)


def over_valid_tokens(convolution: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Convolves the valid tokens of x (B,H,N,d) as if those that mask (B,N) leaves out were not there."""
    if mask is None:
        out: Tensor = convolution(x)
        return out
    order = torch.argsort((~mask).long(), dim=1, stable=True)  # valid ones first
    back = torch.argsort(order, dim=1)
    forth, back = (index[:, None, :, None].expand_as(x) for index in (order, back))
    return zero_masked(convolution(x.gather(2, forth)).gather(2, back), mask)
