"""Window attention on an image grid, with shifted windows and relative position bias (Swin)."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from ovo_clinic.attention.multihead import merge_heads, projection, split_heads
from ovo_clinic.attention.precondition import unit_rows
from ovo_clinic.errors import UserError
from ovo_clinic.registry import ATTENTION

Grid = tuple[int, int]
"""(rows, columns) of an image's patches; token r * columns + c stands at row r and column c."""


@ATTENTION.register("window")
class WindowAttention(nn.Module):
    """Softmax attention within windows of an image grid, shifted or not, with a learned relative position bias.

    A layer of its own that takes the grid. The grid is filled up to whole windows with masked tokens; after the shift,
    tokens that came round the edge do not see the others of their window.

    Args:
        heads: H.
        head_dim: d; the layer's width is H d.
        window: side of a window in tokens.
        shift: by which the windows are moved, less than `window`; Swin alternates 0 and window // 2.
        bias: of the projections (softmax is blind to that of the keys).
        precondition: divides each row of each head's output by its norm.
        precondition_eps: the least norm that is divided by.

    Source:
        Liu et al. 2021 (Swin), Eq. 4; bias table truncated normal 0.02 as in the authors' code.
    """

    needs_grid = True
    paired_tokens = True
    fixed_length = False
    position_dependent = True
    offsets: Tensor

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        window: Annotated[int, Field(ge=2)] = 7,
        shift: Annotated[int, Field(ge=0)] = 0,
        bias: bool = False,
        precondition: bool = False,
        precondition_eps: Annotated[float, Field(gt=0)] = 1e-6,
    ) -> None:
        super().__init__()
        if shift >= window:
            raise UserError(f"shift: {shift} is not less than window {window}; choose window // 2, or 0 for no shift")
        self.heads, self.window, self.shift = heads, window, shift
        self.eps = precondition_eps if precondition else None
        self.query, self.key, self.value, self.out = (projection(heads * head_dim, bias) for _ in range(4))
        self.relative_bias = nn.Parameter(nn.init.trunc_normal_(torch.empty((2 * window - 1) ** 2, heads), std=0.02))
        self.register_buffer("offsets", _offsets(window), persistent=False)

    def forward(self, x: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        """x (B,N,D), mask (B,N), True = valid, N = rows * columns of the grid -> (B,N,D); a masked token's row is 0."""
        x = x if mask is None else torch.where(mask[..., None], x, 0)
        q, k, v = (split_heads(part(x), self.heads) for part in (self.query, self.key, self.value))
        out: Tensor = self.out(merge_heads(self.attend(q, k, v, grid, mask)))
        return out if mask is None else out.masked_fill(~mask[..., None], 0)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        """The attention without the projections: q and k (B,H,N,d), v (B,H,N,any), mask (B,N) -> (B,H,N,any)."""
        shift = self.shift if min(grid) > self.window else 0  # in a single window everything sees everything
        q, k, v = (_to_windows(x, grid, self.window, shift) for x in (q, k, v))
        allowed = self._allowed(grid, shift, mask, q.device)
        some = allowed.any(dim=-1, keepdim=True)
        bias = self.relative_bias[self.offsets].permute(2, 0, 1).repeat(q.shape[1] // self.heads, 1, 1)
        bias = bias.to(q.dtype).masked_fill(~(allowed | ~some), -torch.inf)
        out = torch.where(some, scaled_dot_product_attention(q, k, v, attn_mask=bias), 0)
        out = out if self.eps is None else unit_rows(out, self.eps)
        return _from_windows(out, grid, self.window, shift)

    def _allowed(self, grid: Grid, shift: int, mask: Tensor | None, device: torch.device) -> Tensor:
        """(1 or B,windows*H,w*w,w*w) bool: valid keys that lie on the same side of the edges that were rolled over."""
        valid = torch.ones(1, grid[0] * grid[1], dtype=torch.bool, device=device) if mask is None else mask
        keys = _to_windows(valid[:, None, :, None].to(torch.uint8), grid, self.window, shift).bool().mT
        allowed = keys.expand(-1, -1, self.window**2, -1)
        if shift:
            region = _to_windows(_regions(grid, shift, device), grid, self.window, shift)
            allowed = allowed & (region == region.mT)
        return allowed.repeat_interleave(self.heads, dim=1)


def _to_windows(x: Tensor, grid: Grid, side: int, shift: int) -> Tensor:
    """x (B,C,N,e) -> (B,windows*C,w*w,e), windows in row order, each with all C; filled up with zeros."""
    image = pad(torch.unflatten(x, 2, grid), (0, 0, 0, -grid[1] % side, 0, -grid[0] % side))
    image = image.roll((-shift, -shift), dims=(2, 3))
    cells = torch.unflatten(torch.unflatten(image, 3, (-1, side)), 2, (-1, side))  # (B,C,rows,w,columns,w,e)
    return cells.permute(0, 2, 4, 1, 3, 5, 6).flatten(4, 5).flatten(1, 3)


def _from_windows(windows: Tensor, grid: Grid, side: int, shift: int) -> Tensor:
    """The inverse of `_to_windows`: (B,windows*C,w*w,e) -> (B,C,N,e)."""
    rows, columns = (-(-length // side) for length in grid)
    cells = torch.unflatten(torch.unflatten(windows, 2, (side, side)), 1, (rows, columns, -1))
    image = cells.permute(0, 3, 1, 4, 2, 5, 6).flatten(4, 5).flatten(2, 3).roll((shift, shift), dims=(2, 3))
    return image[:, :, : grid[0], : grid[1]].flatten(2, 3)


def _regions(grid: Grid, shift: int, device: torch.device) -> Tensor:
    """(1,1,N,1) numbers of the parts that rolling by `shift` brings together: beyond it or before, both ways."""
    rows, columns = (torch.arange(length, device=device) < shift for length in grid)
    return (1 + 2 * rows[:, None].long() + columns).reshape(1, 1, -1, 1)


def _offsets(window: int) -> Tensor:
    """(w*w,w*w) row of the bias table for every pair of places in a window."""
    places = torch.cartesian_prod(torch.arange(window), torch.arange(window))
    rows, columns = (places[:, None] - places).add(window - 1).unbind(dim=-1)
    return rows * (2 * window - 1) + columns
