"""Keeps sums that would overflow or lose their digits in half precision in float32."""

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """Half precision as float32; float32 and float64 as they are."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def no_autocast(x: Tensor) -> torch.autocast:
    """A context in which products of float32 tensors on x's device stay float32."""
    return torch.autocast(x.device.type, enabled=False)
