"""Makes an attention layer from any core."""

from torch import Tensor, nn

from ovo_clinic.types import AttentionCore


def split_heads(x: Tensor, heads: int) -> Tensor:
    """x (B,N,D) -> (B,H,N,d); head j has the channels jd ... (j+1)d-1."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """x (B,H,N,d) -> (B,N,D), the inverse of `split_heads`."""
    return x.transpose(1, 2).flatten(2)


def projection(dim: int, bias: bool = False) -> nn.Linear:
    """A square linear map, Xavier uniform: it keeps the variance, so that scores start at a useful size."""
    linear = nn.Linear(dim, dim, bias=bias)
    nn.init.xavier_uniform_(linear.weight)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear


class MultiheadAttention(nn.Module):
    """Projects tokens into H heads, attends with any core, and projects the merged heads (Vaswani et al. 2017, 3.2.2).

    Args:
        core: what attends, on (B,H,N,d).
        dim: D, divisible by heads.
        heads: H.
        bias: of all four projections. Off, because softmax is blind to a bias of the keys (its gradient is exactly 0).
    """

    def __init__(self, core: AttentionCore, dim: int, heads: int, *, bias: bool = False) -> None:
        super().__init__()
        assert dim % heads == 0, (dim, heads)
        self.core = core
        self.heads = heads
        self.query, self.key, self.value, self.out = (projection(dim, bias) for _ in range(4))

    def forward(
        self, x_query: Tensor, x_key: Tensor, query_mask: Tensor | None = None, key_mask: Tensor | None = None
    ) -> Tensor:
        """x_query (B,Nq,D), x_key (B,Nk,D), masks (B,N) with True = valid -> (B,Nq,D); a masked query's row is 0."""
        q = split_heads(self.query(x_query), self.heads)
        k = split_heads(self.key(x_key), self.heads)
        v = split_heads(self.value(x_key), self.heads)
        out: Tensor = self.out(merge_heads(self.core(q, k, v, query_mask, key_mask)))
        return out if query_mask is None else out.masked_fill(~query_mask[..., None], 0)


def attention_layer(core: AttentionCore, dim: int, heads: int, *, bias: bool = False) -> nn.Module:
    """The layer that a core declares as its own (`layer`), else MultiheadAttention; same arguments and call."""
    own = getattr(core, "layer", None) or MultiheadAttention
    layer: nn.Module = own(core, dim, heads, bias=bias)
    return layer
