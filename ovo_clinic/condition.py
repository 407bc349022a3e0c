"""Condition numbers of attention outputs during training, and the bound that preconditioning lowers."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ovo_clinic.attention.hf import projections_of_heads
from ovo_clinic.attention.multihead import split_heads
from ovo_clinic.attention.precondition import Preconditioned
from ovo_clinic.attention.window import WindowAttention
from ovo_clinic.fusion.tokens import ModalityTokens
from ovo_clinic.registry import ATTENTION
from ovo_clinic.types import Batch


class Conditions(NamedTuple):
    """Of matrices (...,n,d); NaN for a matrix without a valid row, and for one of zeros (nothing was attended to).

    Attributes:
        number: (...), the largest over the smallest singular value; infinite where the rank is deficient.
        bound: (...), natural logarithm of an upper bound of it; infinite there, too.
    """

    number: Tensor
    bound: Tensor


def conditions(matrices: Tensor, rows: Tensor | None = None) -> Conditions:
    """Condition numbers in float64, and the bound (2 / prod s_i) (||A||_F / k^1/2)^k with k = min(rows, d).

    Args:
        matrices: (...,n,d), zero in rows that are not valid.
        rows: (...), number of valid rows of each; None = all.

    Source:
        Bound: Guggenheimer, Edelman and Johnson 1995, as used for preconditioned attention.
    """
    n, d = matrices.shape[-2:]
    singular = torch.linalg.svdvals(matrices.double())
    most = torch.full(matrices.shape[:-2], n, device=matrices.device) if rows is None else rows
    k = most.clamp(max=d)
    counted = torch.arange(singular.shape[-1], device=k.device) < k[..., None]
    largest = singular[..., 0]
    smallest = singular.gather(-1, (k - 1).clamp_min(0)[..., None])[..., 0]
    # A singular value below this is rounding. Half precision is exact here: only what computed the rows rounded.
    eps = torch.finfo(torch.promote_types(matrices.dtype, torch.float32)).eps
    full = smallest > max(n, d) * eps * largest
    logarithms = torch.where(counted & full[..., None], singular, 1).log().sum(dim=-1)
    mean_square = (singular.square().sum(dim=-1) / k.clamp_min(1)).clamp_min(torch.finfo(torch.float64).tiny)
    bound = math.log(2) - logarithms + k / 2 * mean_square.log()
    nothing = (k == 0) | (largest == 0)
    return Conditions(
        number=torch.where(full, largest / smallest, torch.inf).masked_fill(nothing, torch.nan),
        bound=torch.where(full, bound, torch.inf).masked_fill(nothing, torch.nan),
    )


@torch.no_grad()
def condition_metrics(model: nn.Module, batch: Batch) -> dict[str, float]:
    """Condition numbers of every attention head's output matrix, as finite numbers.

    Of each head the median over the units whose matrix has full rank (one nearly deficient unit would rule a mean),
    then the mean over heads, then over layers. The pooling of tokens.py does not count: it is the same in all heads.

    Args:
        model: a FusionModel in evaluation mode; may lie on any device.
        batch: the units, on the same device.

    Returns:
        `condition_number`, `condition_bound_log10` (missing where no matrix has full rank) and
        `rank_deficient_share` of the matrices; `condition_number_layer_01`, ... of single layers, in the order of
        computation; nothing where the model has no attention with heads of its own.
    """
    with _outputs_of_cores(model) as outputs:
        model(batch)
    if not outputs:
        return {}
    found = [conditions(*output) for output in outputs]
    known = torch.cat([number.flatten() for number, _ in found])
    known = known[~known.isnan()]
    values = {
        "condition_number": _mean_over_layers([number for number, _ in found]),
        "condition_bound_log10": _mean_over_layers([bound for _, bound in found]) / math.log(10),
        "rank_deficient_share": known.isinf().double().mean().item(),
    }
    layers = enumerate((number for number, _ in found), start=1)
    values |= {f"condition_number_layer_{place:02}": _of_layer(number).item() for place, number in layers}
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _mean_over_layers(layers: list[Tensor]) -> float:
    """Of each layer (units,H); NaN where none is finite."""
    return torch.stack([_of_layer(layer) for layer in layers]).nanmean().item()


def _of_layer(layer: Tensor) -> Tensor:
    """Of (units,H) the median over finite units, then the mean over heads."""
    return layer.masked_fill(layer.isinf(), torch.nan).nanquantile(0.5, dim=0).nanmean()


@contextmanager
def _outputs_of_cores(model: nn.Module) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Collects (output (units,H,n,d), number of valid rows (units,H)) of every call of a core inside.

    No row is valid where queries or values are all zero: a modality is absent, or OvO has no other one to compare with.
    """
    outputs: list[tuple[Tensor, Tensor]] = []

    def keep(core: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        # Window and lpi are whole layers, and only the former has heads: see below. A single row has no condition.
        if output.ndim != 4 or output.shape[2] == 1:
            return
        q, _, v, *rest = args
        mask = rest[0] if rest else kwargs.get("query_mask")
        given = (q != 0).flatten(1).any(dim=1) & (v != 0).flatten(1).any(dim=1)
        rows = given * (output.shape[2] if mask is None else mask.sum(dim=1))
        outputs.append((output, rows[:, None].expand(-1, output.shape[1])))

    def keep_merged(heads: int, _: nn.Module, args: tuple[Any, ...]) -> None:
        output = split_heads(args[0], heads)
        outputs.append((output, torch.full(output.shape[:2], output.shape[2], device=output.device)))

    handles = [core.register_forward_hook(keep, with_kwargs=True) for core in attention_cores(model)]
    merged: list[tuple[nn.Module, int]] = [
        (layer.out, layer.heads) for layer in model.modules() if isinstance(layer, WindowAttention)
    ]
    merged += projections_of_heads(model)
    handles += [layer.register_forward_pre_hook(partial(keep_merged, heads)) for layer, heads in merged]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def attention_cores(model: nn.Module) -> list[nn.Module]:
    """Every registered mechanism inside a model, in its preconditioning where it has one."""
    registered: tuple[Any, ...] = (Preconditioned, *(ATTENTION.get(name) for name in ATTENTION.names()))
    inner = {
        id(part)
        for module in model.modules()
        if isinstance(module, Preconditioned | ModalityTokens)
        for part in module.modules()
        if part is not module
    }
    return [module for module in model.modules() if isinstance(module, registered) and id(module) not in inner]
