"""One-versus-others attention: the mean of the other modalities queries each modality."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ovo_clinic.attention.multihead import projection
from ovo_clinic.attention.routing import SOFTMAX, Eps, Routing, build_core, check_modalities
from ovo_clinic.fusion.tokens import ModalityTokens, mean_tokens, stacked_maps
from ovo_clinic.registry import FUSION, Choice
from ovo_clinic.types import AttentionCore, Modality, Tokens


def mean_of_others(x: Tensor, present: Tensor) -> Tensor:
    """For each modality the mean of the present others, all at once, so that the cost is linear in M.

    Args:
        x: (B,M,...), zero where absent.
        present: (B,M) bool, True = valid.

    Returns:
        (B,M,...); zero where no other modality is present. Computed in at least float32: as the total minus the own
        part it would lose digits in half precision.
    """
    values = x.to(torch.promote_types(x.dtype, torch.float32))
    others = values.sum(dim=1, keepdim=True) - values
    count = present.sum(dim=1, keepdim=True) - present.long()
    return (others / count.clamp_min(1).view(*count.shape, *[1] * (x.ndim - 2))).to(x.dtype)


def one_versus_others(
    x: Tensor, present: Tensor, weight: Tensor, core: AttentionCore, scale: float | None = None
) -> Tensor:
    """Attends from c_i W_i to x_i, where c_i is the mean of the others: softmax(c_i W_i x_i^T) x_i for a softmax core.

    Args:
        x: (B,M,H,n,d), zero where absent.
        present: (B,M) bool, True = valid.
        weight: W, (M,H,d,d), or (d,d) for all modalities and heads.
        core: what attends; queries c_i W_i, keys and values x_i.
        scale: of the scores, d^-1/2 by default.

    Returns:
        (B,M,H,n,d), zero where absent.

    Source:
        One-versus-Others attention, Eq. 3-5, with rows = tokens of the others' mean as in the authors' code.
    """
    others = mean_of_others(x, present)
    query = others @ weight if weight.ndim == 2 else torch.einsum("bmhnd,mhde->bmhne", others, weight)
    keys = x.flatten(0, 1)
    # No mask for the core: the tokens of a modality are all valid or all masked, and then the whole is zeroed.
    attended = core(query.flatten(0, 1), keys, keys, scale=scale).view_as(x)
    return attended.masked_fill(~present[:, :, None, None, None], 0)


@FUSION.register("ovo")
class Ovo(nn.Module):
    """One-versus-others: the mean of the other modalities queries each modality; linear in the modalities.

    Every modality has its own projection into heads and its own W_i per head; one output projection for all, applied
    after the mean over tokens, with which it commutes.

    Args:
        dim: D.
        modalities: in the spec's order.
        tokens: n, tokens per modality.
        heads: H, a divisor of D.
        attention: the mechanism, by name or with options: `{name: performer, features: 64}`.
        precondition: divides each row of each head's output by its norm.
        precondition_eps: the least norm that is divided by.

    Raises:
        UserError: fewer than two modalities, and see `routing.build_core`.
    """

    unsafe: str | None = None

    def __init__(
        self,
        dim: int,
        modalities: Sequence[Modality],
        *,
        tokens: int = 4,
        heads: int = 4,
        attention: Choice = SOFTMAX,
        precondition: bool = False,
        precondition_eps: Eps = 1e-6,
    ) -> None:
        super().__init__()
        check_modalities("ovo", len(modalities))
        routing = Routing("ovo", tokens, keys=tokens, empty_queries=True)
        eps = precondition_eps if precondition else None
        self.core = build_core(routing, dim, heads, attention, eps)
        self.tokens = ModalityTokens(dim, modalities, tokens)
        self.project = stacked_maps(len(modalities), heads, dim, dim // heads)
        self.weight = stacked_maps(len(modalities), heads, dim // heads, dim // heads)
        self.out = projection(dim)
        self.out_dim = len(modalities) * dim

    def forward(self, tokens: Mapping[str, Tokens]) -> Tensor:
        """Tokens (B,T,D) by modality name -> (B,M*D), zero where a modality is absent."""
        x, present = self.tokens(tokens)
        projected = torch.einsum("bmnd,mhde->bmhne", x, self.project)
        attended = one_versus_others(projected, present, self.weight, self.core)
        out: Tensor = self.out(mean_tokens(attended.transpose(2, 3).flatten(3), present))
        return out.flatten(1)
