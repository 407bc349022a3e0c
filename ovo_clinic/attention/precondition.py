"""Preconditioned attention: every row of each head's output on the unit sphere."""

import torch
from torch import Tensor, nn

from ovo_clinic.types import AttentionCore


def unit_rows(rows: Tensor, eps: float = 1e-6) -> Tensor:
    """Divides each row by its own 2-norm, through which no gradient flows.

    Args:
        rows: (..., d); the norm is taken in at least float32.
        eps: the least norm that is divided by; a zero row stays zero. It bounds the gain on near-zero rows by 1/eps.

    Returns:
        (..., d) in the dtype of `rows`.

    Source:
        Preconditioned attention, Algorithm 1.
    """
    values = rows.to(torch.promote_types(rows.dtype, torch.float32))
    norm = torch.linalg.vector_norm(values.detach(), dim=-1, keepdim=True)
    unit: Tensor = values / norm.clamp_min(eps)
    return unit.to(rows.dtype)


class Preconditioned(nn.Module):
    """Any core with the rows of each head's output preconditioned; masked rows stay 0.

    Args:
        core: an AttentionCore; its declarations are taken over.
        eps: see `unit_rows`.
    """

    def __init__(self, core: AttentionCore, eps: float = 1e-6) -> None:
        super().__init__()
        self.core = core
        self.eps = eps
        self.paired_tokens = core.paired_tokens
        self.fixed_length = core.fixed_length
        self.position_dependent = core.position_dependent

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
        return unit_rows(self.core(q, k, v, query_mask, key_mask, scale), self.eps)
