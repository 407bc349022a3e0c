"""Cross-attention between every directed pair of modalities."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ovo_clinic.attention.multihead import merge_heads, projection, split_heads
from ovo_clinic.attention.routing import SOFTMAX, Eps, Routing, build_core, check_modalities
from ovo_clinic.fusion.tokens import ModalityTokens, mean_tokens
from ovo_clinic.registry import FUSION, Choice
from ovo_clinic.types import Modality, Tokens


def directed_pairs(modalities: int) -> tuple[Tensor, Tensor]:
    """(querying, queried) indices of every directed pair of different modalities, M(M-1) each, rows first."""
    pairs = [(i, j) for i in range(modalities) for j in range(modalities) if i != j]
    querying, queried = torch.tensor(pairs).T
    return querying, queried


@FUSION.register("cross_attention")
class CrossAttention(nn.Module):
    """Cross-attention of every directed pair of modalities; quadratic in the modalities.

    All pairs share one set of projections, as in the paper's code; queries, keys and values are projected once per
    modality. The output projection comes after the mean over tokens, with which it commutes.

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
    querying: Tensor
    queried: Tensor

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
        check_modalities("cross_attention", len(modalities))
        routing = Routing("cross_attention", tokens, keys=tokens)
        eps = precondition_eps if precondition else None
        self.core = build_core(routing, dim, heads, attention, eps)
        self.heads = heads
        self.tokens = ModalityTokens(dim, modalities, tokens)
        self.query, self.key, self.value, self.out = (projection(dim) for _ in range(4))
        querying, queried = directed_pairs(len(modalities))
        self.register_buffer("querying", querying, persistent=False)
        self.register_buffer("queried", queried, persistent=False)
        self.out_dim = len(querying) * dim

    def forward(self, tokens: Mapping[str, Tokens]) -> Tensor:
        """Tokens (B,T,D) by modality name -> (B,M(M-1)*D), zero where either modality of a pair is absent."""
        x, present = self.tokens(tokens)
        q = self._of_pairs(self.query(x), self.querying)
        k = self._of_pairs(self.key(x), self.queried)
        v = self._of_pairs(self.value(x), self.queried)
        both = present[:, self.querying] & present[:, self.queried]
        # No mask for the core: the tokens of a pair are all valid or all masked, and then their mean is zeroed.
        attended = merge_heads(self.core(q, k, v)).view(*both.shape, *x.shape[2:])
        out: Tensor = self.out(mean_tokens(attended, both))
        return out.flatten(1)

    def _of_pairs(self, x: Tensor, members: Tensor) -> Tensor:
        """Picks one side of every pair: x (B,M,n,D) -> (B*pairs,H,n,d)."""
        return split_heads(x.index_select(1, members).flatten(0, 1), self.heads)
