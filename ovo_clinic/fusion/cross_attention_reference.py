"""Cross-attention as the OvO authors' code has it, for comparison."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from ovo_clinic.attention.routing import check_heads, check_modalities
from ovo_clinic.fusion.cross_attention import directed_pairs
from ovo_clinic.fusion.tokens import stack_vectors
from ovo_clinic.registry import FUSION
from ovo_clinic.types import Modality, Tokens, modality_names


@FUSION.register("cross_attention_reference")
class CrossAttentionReference(nn.Module):
    """Cross-attention as coded by the OvO authors: for each pair, the batch is the sequence. UNSAFE.

    Args:
        dim: D.
        modalities: in the spec's order.
        heads: H, a divisor of D.

    Raises:
        UserError: fewer than two modalities, or heads that do not divide dim.
    """

    unsafe: str | None = "patients of one batch attend to each other, so that a prediction depends on who else is in it"
    querying: Tensor
    queried: Tensor

    def __init__(self, dim: int, modalities: Sequence[Modality], *, heads: int = 4) -> None:
        super().__init__()
        check_modalities("cross_attention_reference", len(modalities))
        check_heads(dim, heads)
        self.names = modality_names(modalities)
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        querying, queried = directed_pairs(len(modalities))
        self.register_buffer("querying", querying, persistent=False)
        self.register_buffer("queried", queried, persistent=False)
        self.out_dim = len(querying) * dim

    def forward(self, tokens: Mapping[str, Tokens]) -> Tensor:
        """Tokens (B,T,D) by modality name -> (B,M(M-1)*D); one layer for all pairs, each a sequence of B patients."""
        x = stack_vectors(tokens, self.names)[0].transpose(0, 1)
        others = x.index_select(0, self.queried)
        out: Tensor = self.attention(x.index_select(0, self.querying), others, others)[0]
        return out.transpose(0, 1).flatten(1)
