"""Preconditioned attention: every row of each head's output on the unit sphere."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ovo_clinic.attention.precision import at_least_float32
from ovo_clinic.types import AttentionCore

RowMap = Callable[[Tensor], Tensor]
"""Maps each row (last axis) of a tensor to one of the same length."""


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
    values = at_least_float32(rows)
    norm = torch.linalg.vector_norm(values.detach(), dim=-1, keepdim=True)
    unit: Tensor = values / norm.clamp_min(eps)
    return unit.to(rows.dtype)


class Preconditioned(nn.Module):
    """Any core with the rows of each head's output preconditioned; masked rows stay 0.

    A core for which a row is not simply a row of its output declares `preconditions_itself` and takes `unit_rows` as
    the argument `unit`.

    Args:
        core: an AttentionCore; its declarations are taken over.
        eps: see `unit_rows`.
    """

    def __init__(self, core: AttentionCore, eps: float = 1e-6) -> None:
        super().__init__()
        self.core: Any = core
        self.eps = eps
        self.paired_tokens = core.paired_tokens
        self.fixed_length = core.fixed_length
        self.position_dependent = core.position_dependent
        self.layer = getattr(core, "layer", None)

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
        if getattr(self.core, "preconditions_itself", False):
            out: Tensor = self.core(q, k, v, query_mask, key_mask, scale, unit=self._unit)
            return out
        return self._unit(self.core(q, k, v, query_mask, key_mask, scale))

    def _unit(self, rows: Tensor) -> Tensor:
        return unit_rows(rows, self.eps)
