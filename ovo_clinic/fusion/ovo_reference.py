"""One-versus-others attention as the authors' code has it, for comparison."""

import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ovo_clinic.attention.precondition import Preconditioned
from ovo_clinic.attention.routing import Eps, check_heads, check_modalities
from ovo_clinic.attention.softmax import Softmax
from ovo_clinic.fusion.ovo import one_versus_others
from ovo_clinic.fusion.tokens import stack_vectors
from ovo_clinic.registry import FUSION
from ovo_clinic.types import Modality, Tokens, modality_names


@FUSION.register("ovo_reference")
class OvoReference(nn.Module):
    """One-versus-others as coded by its authors: slices of one vector play the tokens; one W, no projections.

    With one head the softmax has one key and the head is the identity, whatever W is.

    Args:
        dim: D.
        modalities: in the spec's order.
        heads: number of slices of each vector, a divisor of D.
        precondition: divides each slice of the output by its norm.
        precondition_eps: the least norm that is divided by.

    Raises:
        UserError: fewer than two modalities, or heads that do not divide dim.
    """

    unsafe: str | None = None

    def __init__(
        self,
        dim: int,
        modalities: Sequence[Modality],
        *,
        heads: int = 4,
        precondition: bool = False,
        precondition_eps: Eps = 1e-6,
    ) -> None:
        super().__init__()
        check_modalities("ovo_reference", len(modalities))
        check_heads(dim, heads)
        if heads == 1:
            warnings.warn("ovo_reference with heads=1 is the identity: its softmax has one key", stacklevel=2)
        self.names = modality_names(modalities)
        self.heads = heads
        core = Softmax(1, dim // heads)
        self.core = Preconditioned(core, precondition_eps) if precondition else core
        self.weight = nn.Parameter(torch.empty(dim // heads, dim // heads).uniform_(-0.1, 0.1))
        self.out_dim = len(modalities) * dim

    def forward(self, tokens: Mapping[str, Tokens]) -> Tensor:
        """Tokens (B,T,D) by modality name -> (B,M*D), zero where a modality is absent."""
        x, present = stack_vectors(tokens, self.names)
        slices = x.view(*x.shape[:2], 1, self.heads, -1)
        return one_versus_others(slices, present, self.weight, self.core, scale=1.0).flatten(1)
