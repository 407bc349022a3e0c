"""Exact masking, shared by the mechanisms: a masked token counts as deleted, and nothing to attend to gives 0."""

import torch
from torch import Tensor


def zero_masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """x (B,H,N,d), zero (even where it was NaN) at tokens that mask (B,N), True = valid, leaves out."""
    return x if mask is None else torch.where(mask[:, None, :, None], x, 0)


def zero_rows(out: Tensor, query_mask: Tensor | None, key_mask: Tensor | None) -> Tensor:
    """An attention output (B,H,Nq,d), zero for masked queries and where no key (B,Nk) is valid."""
    valid = query_mask
    if key_mask is not None:
        some = key_mask.any(dim=1, keepdim=True)
        valid = some if valid is None else valid & some
    return zero_masked(out, valid)


def masked_softmax(scores: Tensor, mask: Tensor | None, dim: int = -1) -> Tensor:
    """Softmax over the valid entries of a dimension: exactly 0 at masked ones, and everywhere where none is valid.

    Args:
        scores: any shape.
        mask: broadcastable to it, True = valid.
        dim: that sums to 1.
    """
    if mask is None:
        return scores.softmax(dim)
    # Where nothing is valid all entries are let in, to be zeroed: a softmax of nothing is NaN, and so is its gradient.
    allowed = mask | ~mask.any(dim=dim, keepdim=True)
    return scores.masked_fill(~allowed, -torch.inf).softmax(dim).masked_fill(~mask, 0)


def both_masks(query_mask: Tensor | None, key_mask: Tensor | None) -> Tensor | None:
    """The mask (B,N) of a mechanism that pairs tokens: a pair is valid where both sides are."""
    if query_mask is None or key_mask is None:
        return key_mask if query_mask is None else query_mask
    return query_mask & key_mask
