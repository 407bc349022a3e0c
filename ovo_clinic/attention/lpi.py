"""Local patch interaction (XCiT): depthwise convolutions that let neighbouring patches meet."""

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, gelu

from ovo_clinic.attention.window import Grid
from ovo_clinic.registry import ATTENTION


@ATTENTION.register("lpi")
class LocalPatchInteraction(nn.Module):
    """Local patch interaction: two depthwise 3 x 3 convolutions on an image grid, for XCA, which mixes no tokens.

    Convolution, GELU, batch norm, convolution. A layer of its own that takes the grid. Masked tokens are zero before
    each convolution and take no part in the statistics.

    Args:
        heads: H; only the width H d matters.
        head_dim: d.

    Source:
        El-Nouby et al. 2021 (XCiT), section 3.3, in the order of the authors' code.
    """

    needs_grid = True
    paired_tokens = True
    fixed_length = False
    position_dependent = True

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        dim = heads * head_dim
        self.first, self.second = (nn.Conv2d(dim, dim, 3, padding=1, groups=dim) for _ in range(2))
        self.norm = nn.BatchNorm1d(dim)

    def forward(self, x: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        """x (B,N,D), mask (B,N), True = valid, N = rows * columns of the grid -> (B,N,D); a masked token's row is 0."""
        valid = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
        x = torch.where(valid[..., None], x, 0)
        hidden = gelu(_on_grid(self.first, x, grid))
        normal = torch.zeros_like(hidden).masked_scatter(valid[..., None], self._normalise(hidden[valid]))
        return torch.where(valid[..., None], _on_grid(self.second, normal, grid), 0)

    def _normalise(self, rows: Tensor) -> Tensor:
        """Batch norm of the valid tokens (rows,D); a single one has no variance, so that the running one serves."""
        if len(rows) > 1:
            out: Tensor = self.norm(rows)
            return out
        norm = self.norm
        return batch_norm(rows, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)


def _on_grid(convolution: nn.Module, x: Tensor, grid: Grid) -> Tensor:
    """Convolves x (B,N,D) on the grid."""
    out: Tensor = convolution(torch.unflatten(x.mT, 2, grid))
    return out.flatten(2).mT
