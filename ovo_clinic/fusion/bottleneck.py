"""Bottleneck tokens: each modality attends to itself and to a few tokens that all modalities share."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from ovo_clinic.attention.multihead import attention_layer
from ovo_clinic.attention.routing import SOFTMAX, Eps, Routing, build_core
from ovo_clinic.fusion.tokens import Count, ModalityTokens, mean_present, mean_tokens
from ovo_clinic.registry import FUSION, Choice
from ovo_clinic.types import AttentionCore, Modality, Tokens

Layers = Annotated[int, Field(ge=2)]


class Block(nn.Module):
    """A transformer layer: attention and a network four times as wide, each after a LayerNorm and added to its input.

    Args:
        core: what attends.
        dim: D.
        heads: H.
    """

    def __init__(self, core: AttentionCore, dim: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.network_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = attention_layer(core, dim, heads)
        self.network = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B,N,D), all valid -> (B,N,D)."""
        normed = self.attention_norm(x)
        x = x + self.attention(normed, normed)
        out: Tensor = x + self.network(self.network_norm(x))
        return out


@FUSION.register("bottleneck")
class Bottleneck(nn.Module):
    """Multimodal bottleneck transformer (MBT): modalities exchange through a few shared tokens; linear in them.

    In every layer each modality has a transformer of its own over its tokens and the shared ones,
    [z_i, c_i] = Transformer_i([z_i, c]), and then c = mean over the present modalities of c_i. What one modality put
    into c reaches the others in the next layer, so that there are at least two. The fused vector is made as in the
    other heads, where the paper averages the predictions of one class token per modality.

    Args:
        dim: D.
        modalities: in the spec's order.
        tokens: n, tokens per modality.
        heads: H, a divisor of D.
        layers: of transformers.
        bottlenecks: number of shared tokens.
        attention: the mechanism, by name or with options: `{name: performer, features: 64}`.
        precondition: divides each row of each head's output by its norm.
        precondition_eps: the least norm that is divided by.

    Raises:
        UserError: see `routing.build_core`.

    Source:
        Nagrani et al. 2021, Attention Bottlenecks for Multimodal Fusion, Eq. 8 and 9.
    """

    unsafe: str | None = None

    def __init__(
        self,
        dim: int,
        modalities: Sequence[Modality],
        *,
        tokens: int = 4,
        heads: int = 4,
        layers: Layers = 2,
        bottlenecks: Count = 4,
        attention: Choice = SOFTMAX,
        precondition: bool = False,
        precondition_eps: Eps = 1e-6,
    ) -> None:
        super().__init__()
        routing = Routing("bottleneck", tokens, keys=tokens + bottlenecks)
        eps = precondition_eps if precondition else None
        self.layers = nn.ModuleList(
            nn.ModuleList(Block(build_core(routing, dim, heads, attention, eps), dim, heads) for _ in modalities)
            for _ in range(layers)
        )
        self.tokens = ModalityTokens(dim, modalities, tokens)
        self.bottlenecks = nn.Parameter(0.02 * torch.randn(bottlenecks, dim))
        self.out_dim = len(modalities) * dim

    def forward(self, tokens: Mapping[str, Tokens]) -> Tensor:
        """Tokens (B,T,D) by modality name -> (B,M*D), zero where a modality is absent."""
        x, present = self.tokens(tokens)
        n = x.shape[2]
        shared = self.bottlenecks.to(x.dtype).expand(len(x), -1, -1)
        for blocks in self.layers:
            assert isinstance(blocks, nn.ModuleList)
            # No mask: the tokens of a modality are all valid or all masked, and then what comes of them is left out.
            pairs = zip(x.unbind(dim=1), blocks, strict=True)
            both = torch.stack([block(torch.cat([own, shared], dim=1)) for own, block in pairs], dim=1)
            x, shared = both[:, :, :n], mean_present(both[:, :, n:], present)
        return mean_tokens(x, present).flatten(1)
