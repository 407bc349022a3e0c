"""What every fusion head starts and ends with: n tokens per modality, and the mean over them."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from ovo_clinic.attention.softmax import Softmax
from ovo_clinic.types import Modality, Tokens

Count = Annotated[int, Field(ge=1)]


def stacked_maps(*shape: int) -> nn.Parameter:
    """A stack of linear maps (..., in, out); their variance is 1/in, as Xavier's is for a square map."""
    bound = math.sqrt(3 / shape[-2])
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


class ModalityTokens(nn.Module):
    """Brings every modality to the same n tokens.

    A sequence or an image is pooled with n learned queries under its mask (softmax attention over the encoder's tokens,
    one head); a vector has one token to pool. Then every modality has one learned map per token: for a vector this is a
    learned reshaping D -> nD, and whatever has a single valid token (a pooled image, too) is treated just as a vector.

    Args:
        dim: D.
        modalities: in the spec's order; `kind` says how each is pooled.
        tokens: n.
    """

    def __init__(self, dim: int, modalities: Sequence[Modality], tokens: int) -> None:
        super().__init__()
        self.names = [modality.name for modality in modalities]
        self.tokens = tokens
        # One row per sequence or image; a vector needs none, as a softmax over one key is constant.
        self.query_rows = {
            modality.name: row for row, modality in enumerate(m for m in modalities if m.kind != "vector")
        }
        self.queries = nn.Parameter(0.02 * torch.randn(len(self.query_rows), tokens, dim)) if self.query_rows else None
        self.weight = stacked_maps(len(modalities), tokens, dim, dim)
        self.bias = nn.Parameter(0.02 * torch.randn(len(modalities), tokens, dim))
        self.attention = Softmax(1, dim)

    def forward(self, given: Mapping[str, Tokens]) -> tuple[Tensor, Tensor]:
        """Tokens (B,T,D) by modality name, in any order; one that is not given is absent.

        Returns:
            x (B,M,n,D), zero where absent, in the spec's order, and presence (B,M).
        """
        present = stack_presence(given, self.names)
        batch, dim = present.shape[0], self.bias.shape[-1]
        empty = next(iter(given.values())).values.new_zeros(()).expand(batch, self.tokens, dim)
        pooled = torch.stack([self._pool(name, given[name]) if name in given else empty for name in self.names], dim=1)
        # Masked on both sides of the map: what stands under a mask reaches neither the output nor the map's gradient.
        pooled = pooled.masked_fill(~present[..., None, None], 0)
        x = torch.einsum("bmnd,mnde->bmne", pooled, self.weight) + self.bias
        return x.masked_fill(~present[..., None, None], 0), present

    def _pool(self, name: str, tokens: Tokens) -> Tensor:
        """Tokens (B,T,D) -> (B,n,D)."""
        values = tokens.values
        if name not in self.query_rows:
            assert values.shape[1] == 1, f"modality {name} is a vector but its encoder gave {values.shape[1]} tokens"
            return values.expand(-1, self.tokens, -1)
        assert self.queries is not None
        values = values.masked_fill(~tokens.mask[..., None], 0)
        queries = self.queries[self.query_rows[name]].to(values.dtype).expand(len(values), 1, -1, -1)
        keys = values[:, None]
        pooled: Tensor = self.attention(queries, keys, keys, key_mask=tokens.mask)
        return pooled[:, 0]


def stack_presence(given: Mapping[str, Tokens], names: Sequence[str]) -> Tensor:
    """(B,M) bool in the order of `names`; a modality that is not given is absent."""
    assert given, "no modality was given, so that the batch has no size"
    masks = [given[name].mask for name in names if name in given]
    if len(masks) == len(names) and all(mask.shape == masks[0].shape for mask in masks):
        return torch.stack(masks, dim=1).any(dim=2)  # one operation, not one per modality
    absent = torch.zeros_like(next(iter(given.values())).present)
    return torch.stack([given[name].present if name in given else absent for name in names], dim=1)


def mean_tokens(x: Tensor, present: Tensor) -> Tensor:
    """Mean over the tokens of each modality (or pair of modalities), zero where absent.

    Args:
        x: (B,M,n,D); the n tokens of a modality are all valid or all masked.
        present: (B,M) bool, True = valid.

    Returns:
        (B,M,D).
    """
    return x.mean(dim=2).masked_fill(~present[..., None], 0)


def mean_present(x: Tensor, present: Tensor) -> Tensor:
    """Mean over the present modalities, in at least float32; zero where none is.

    Args:
        x: (B,M,...); what stands where a modality is absent does not count.
        present: (B,M) bool, True = valid.

    Returns:
        (B,...).
    """
    mask = present.view(*present.shape, *[1] * (x.ndim - 2))
    total = x.masked_fill(~mask, 0).sum(dim=1, dtype=torch.promote_types(x.dtype, torch.float32))
    return (total / mask.sum(dim=1).clamp_min(1)).to(x.dtype)


def stack_vectors(given: Mapping[str, Tokens], names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """One vector per modality, the masked mean over its tokens, as the authors' heads take it.

    Returns:
        x (B,M,D), zero where absent, in the order of `names`, and presence (B,M).
    """
    present = stack_presence(given, names)
    first = next(iter(given.values())).values
    empty = first.new_zeros(()).expand(first.shape[0], 1, first.shape[2])
    x = torch.cat([_mean_token(given[name]) if name in given else empty for name in names], dim=1)
    return x.masked_fill(~present[..., None], 0), present


def _mean_token(tokens: Tokens) -> Tensor:
    """Tokens (B,T,D) -> (B,1,D), the masked mean; any value where absent."""
    if tokens.values.shape[1] == 1:
        return tokens.values
    total = tokens.values.masked_fill(~tokens.mask[..., None], 0).sum(dim=1, keepdim=True)
    return total / tokens.mask.sum(dim=1).clamp_min(1)[:, None, None]
