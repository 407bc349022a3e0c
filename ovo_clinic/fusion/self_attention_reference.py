"""Self-attention as the OvO authors' code has it, for comparison."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from ovo_clinic.attention.routing import check_heads
from ovo_clinic.fusion.tokens import stack_vectors
from ovo_clinic.registry import FUSION
from ovo_clinic.types import Modality, Tokens, modality_names


@FUSION.register("self_attention_reference")
class SelfAttentionReference(nn.Module):
    """Self-attention as coded by the OvO authors: each patient is one token, the batch the sequence. UNSAFE.

    Args:
        dim: D.
        modalities: in the spec's order.
        heads: H, a divisor of M*D.

    Raises:
        UserError: heads that do not divide M*D.
    """

    unsafe: str | None = "patients of one batch attend to each other, so that a prediction depends on who else is in it"

    def __init__(self, dim: int, modalities: Sequence[Modality], *, heads: int = 4) -> None:
        super().__init__()
        self.names = modality_names(modalities)
        self.out_dim = len(modalities) * dim
        check_heads(self.out_dim, heads)
        self.attention = nn.MultiheadAttention(self.out_dim, heads)

    def forward(self, tokens: Mapping[str, Tokens]) -> Tensor:
        """Tokens (B,T,D) by modality name -> (B,M*D); torch takes (B,M*D) for an unbatched sequence of B tokens."""
        x = stack_vectors(tokens, self.names)[0].flatten(1)
        out: Tensor = self.attention(x, x, x)[0]
        return out
