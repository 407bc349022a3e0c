"""Self-attention over the tokens of all modalities."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from ovo_clinic.attention.multihead import attention_layer
from ovo_clinic.attention.routing import SOFTMAX, Eps, Routing, build_core
from ovo_clinic.fusion.tokens import ModalityTokens, mean_tokens
from ovo_clinic.registry import FUSION, Choice
from ovo_clinic.types import Modality, Tokens


@FUSION.register("self_attention")
class SelfAttention(nn.Module):
    """Self-attention over the tokens of all modalities in one sequence; quadratic in the modalities.

    Args:
        dim: D.
        modalities: in the spec's order.
        tokens: n, tokens per modality.
        heads: H, a divisor of D.
        attention: the mechanism, by name or with options: `{name: performer, features: 64}`.
        precondition: divides each row of each head's output by its norm.
        precondition_eps: the least norm that is divided by.

    Raises:
        UserError: see `routing.build_core`.
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
        routing = Routing("self_attention", tokens, keys=len(modalities) * tokens)
        eps = precondition_eps if precondition else None
        self.attention = attention_layer(build_core(routing, dim, heads, attention, eps), dim, heads)
        self.tokens = ModalityTokens(dim, modalities, tokens)
        self.out_dim = len(modalities) * dim

    def forward(self, tokens: Mapping[str, Tokens]) -> Tensor:
        """Tokens (B,T,D) by modality name -> (B,M*D), zero where a modality is absent."""
        x, present = self.tokens(tokens)
        sequence = x.flatten(1, 2)
        mask = present.repeat_interleave(x.shape[2], dim=1)
        attended = self.attention(sequence, sequence, mask, mask).view_as(x)
        return mean_tokens(attended, present).flatten(1)
