"""Cross-covariance attention: channels attend to channels."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ovo_clinic.attention.masks import both_masks, zero_masked
from ovo_clinic.attention.precision import at_least_float32, no_autocast
from ovo_clinic.attention.precondition import RowMap
from ovo_clinic.registry import ATTENTION


@ATTENTION.register("xca")
class Xca(nn.Module):
    """Cross-covariance attention (XCA): channels attend to channels; linear in the tokens.

    A = softmax(t q^T k) over the channels of k, with the channels of q and k normalised over the tokens, and
    out = v A^T. Token i of q meets token i of k, and row i of the output comes from token i of v.

    Args:
        heads: H; each has a learned temperature t, 1 at the start.
        head_dim: d.
        precondition_rows: what a row is under preconditioning: a `token` of the output (as for all other mechanisms), a
            `channel` of it (a row in this mechanism's own layout), or a row of A (`attn`), before the values.

    Source:
        El-Nouby et al. 2021 (XCiT), section 3.2.
    """

    paired_tokens = True
    fixed_length = False
    position_dependent = True
    preconditions_itself = True

    def __init__(
        self, heads: int, head_dim: int, *, precondition_rows: Literal["token", "channel", "attn"] = "token"
    ) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))
        self.precondition_rows = precondition_rows

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        query_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        scale: float | None = None,
        unit: RowMap | None = None,
    ) -> Tensor:
        """Attends; see AttentionCore for the shapes. `scale` has no place beside the temperature and is not used."""
        mask = both_masks(query_mask, key_mask)
        q, k = (normalize(at_least_float32(zero_masked(x, mask)), dim=-2, eps=1e-12) for x in (q, k))
        with no_autocast(q):
            attention = (at_least_float32(self.temperature) * (q.mT @ k)).softmax(dim=-1)
        if unit and self.precondition_rows == "attn":
            attention = unit(attention)
        out = zero_masked(v, mask) @ attention.to(v.dtype).mT
        if unit and self.precondition_rows == "channel":
            out = unit(out.mT).mT
        return unit(out) if unit and self.precondition_rows == "token" else out


@ATTENTION.register("xca_fair")
class XcaFair(nn.Module):
    """XCA as in "Fair Comparison between Efficient Attentions": softmax(q^T k / tau), no norm and no temperature.

    Args:
        heads: H; the core has no weights, so that any number fits.
        head_dim: d; likewise.
        tau: N / 2 (`half`, the paper's text) or N^1/2 (`root`, its code), with N the number of valid tokens.
    """

    paired_tokens = True
    fixed_length = False
    position_dependent = True

    def __init__(self, heads: int, head_dim: int, *, tau: Literal["half", "root"] = "half") -> None:
        super().__init__()
        self.tau = tau

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        query_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        scale: float | None = None,
    ) -> Tensor:
        """Attends; see AttentionCore for the shapes. `scale` has no place beside tau and is not used."""
        mask = both_masks(query_mask, key_mask)
        q, k = (at_least_float32(zero_masked(x, mask)) for x in (q, k))
        tokens: Tensor | int = q.shape[2]
        if mask is not None:
            tokens = mask.sum(dim=1).clamp_min(1).to(q.dtype)[:, None, None, None]
        tau = tokens / 2 if self.tau == "half" else tokens**0.5
        with no_autocast(q):
            attention = (q.mT @ k / tau).softmax(dim=-1)
        return zero_masked(v, mask) @ attention.to(v.dtype).mT
