"""Nystrom attention as in the published code, for comparison."""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ovo_clinic.attention.masks import zero_masked
from ovo_clinic.attention.nystrom import Iterations, Kernel, Landmarks, Segments, pseudo_inverse, token_convolution
from ovo_clinic.attention.precision import at_least_float32, no_autocast
from ovo_clinic.attention.precondition import RowMap
from ovo_clinic.registry import ATTENTION


@ATTENTION.register("nystrom_reference")
class NystromReference(nn.Module):
    """Nystrom attention as in the published code (nystrom-attention, transformers), for comparison. UNSAFE.

    Segments are cut by position; tokens that do not divide into segments are filled up with zero tokens on the left,
    which count unless a mask is given. The mask of the keys serves for the queries too, and masked rows attend to
    everything alike.

    Args:
        heads: H.
        head_dim: d.
        landmarks: m.
        iterations: of the pseudo-inverse.
        kernel: width of a depthwise convolution of the values over the tokens, added to the output; 0 = none.
    """

    paired_tokens = True
    fixed_length = False
    position_dependent = True
    preconditions_itself = True
    unsafe = "its pseudo-inverse starts from maxima over the whole batch, so that a result depends on who else is in it"

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
        """Attends; see AttentionCore for the shapes. Rows of masked queries are 0 only if query_mask says so."""
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        filling = -q.shape[2] % self.landmarks
        q, k, v = (pad(zero_masked(x, key_mask), (0, 0, filling, 0)) for x in (q, k, v))
        mask = None if key_mask is None else pad(key_mask, (filling, 0))
        queries, keys = at_least_float32(q), at_least_float32(k)
        with no_autocast(queries):
            (query_landmarks, used), (key_landmarks, _) = (self._segments(x, mask) for x in (queries, keys))
            left = _reference_softmax(queries, key_landmarks, mask, used, scale)
            middle = _reference_softmax(query_landmarks, key_landmarks, used, used, scale)
            right = _reference_softmax(query_landmarks, keys, used, mask, scale)
            start = middle.sum(dim=-2).max() * middle.sum(dim=-1).max()
            inverse = pseudo_inverse(middle, start, self.iterations)
            out = (left @ inverse) @ (right @ at_least_float32(v))
        out = out.to(v.dtype)
        out = unit(out) if unit else out
        out = out if self.convolution is None else out + self.convolution(v)
        return zero_masked(out[:, :, filling:], query_mask)

    def _segments(self, x: Tensor, mask: Tensor | None) -> Segments:
        segments = torch.unflatten(x, 2, (self.landmarks, -1))
        if mask is None:
            return Segments(segments.mean(dim=3), None)
        count = torch.unflatten(mask, 1, (self.landmarks, -1)).sum(dim=2)
        return Segments(segments.sum(dim=3) / (count.to(x.dtype)[:, None, :, None] + 1e-8), count > 0)


def _reference_softmax(
    q: Tensor, k: Tensor, query_mask: Tensor | None, key_mask: Tensor | None, scale: float
) -> Tensor:
    """softmax(scale q k^T) with masked scores at the least finite number: uniform where nothing is valid."""
    scores = scale * q @ k.mT
    if query_mask is not None and key_mask is not None:
        valid = query_mask[:, None, :, None] & key_mask[:, None, None]
        scores = scores.masked_fill(~valid, torch.finfo(scores.dtype).min)
    return scores.softmax(dim=-1)
