"""Multiply-accumulates (MACs) that see attention, and parameters that are really used.

torch's counter reports nothing for scaled_dot_product_attention and for the fused kernels of nn.MultiheadAttention and
nn.LSTM on the CPU. So everything is counted on the CPU with those kernels taken apart or given a formula of their own.
MACs are half the FLOPs that torch counts; elementwise work is listed apart.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypedDict

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from ovo_clinic.model import FusionModel
from ovo_clinic.registry import FUSION
from ovo_clinic.types import Batch, Modality, Tokens

REFERENCE_BATCH = 16
"""Batch size at which costs are counted: the OvO paper's, which the `*_reference` heads depend on."""


@dataclass(frozen=True)
class Macs:
    """What a call costs.

    Attributes:
        total: multiply-accumulates in matrix products and convolutions.
        by_operator: the same by torch operator (`addmm`, `bmm`, ...).
        elementwise: elements that pointwise operations write and that sums, softmaxes and norms read; no MACs.
    """

    total: int
    by_operator: Mapping[str, int]
    elementwise: int


class Costs(TypedDict):
    """Costs of a model, ready for JSON.

    Attributes:
        batch: size at which they were counted.
        macs_encoders: per sample, by modality.
        macs_fusion, macs_output, macs_total: per sample.
        elementwise: per sample, see Macs.
        parameters: trainable ones.
        parameters_used: those in tensors that a gradient reaches.
    """

    batch: int
    macs_encoders: dict[str, int]
    macs_fusion: int
    macs_output: int
    macs_total: int
    elementwise: int
    parameters: int
    parameters_used: int


def count_macs(function: Callable[..., Any], *arguments: Any) -> Macs:
    """Counts what `function(*arguments)` costs, attention included; on CPU tensors."""
    elementwise = _ElementwiseCounter()
    counter = FlopCounterMode(display=False, custom_mapping=_FORMULAS)
    # With gradients: the counter's hooks on modules fail on views of parameters without.
    with torch.enable_grad(), _kernels_taken_apart(), elementwise, counter:
        function(*arguments)
    operators = counter.get_flop_counts().get("Global", {})
    by_operator = {str(operator).removeprefix("aten."): flops // 2 for operator, flops in operators.items()}
    return Macs(sum(by_operator.values()), by_operator, elementwise.elements)


def model_costs(model: FusionModel, batch: Batch) -> Costs:
    """Costs per sample of a model, with every modality present.

    Args:
        model: is not changed; a copy is counted.
        batch: gives the shapes only; its values and masks are replaced.
    """
    counted = copy.deepcopy(model).cpu().double().eval()
    batch = _with_everything_present(batch)
    with torch.no_grad():
        tokens = counted.encode(batch)
        fused = counted.fusion(tokens)
    parts = {
        name: count_macs(encoder, batch.inputs[name], batch.masks[name])
        for name, encoder in zip(counted.names, counted.encoders, strict=True)
    }
    fusion, output = count_macs(counted.fusion, tokens), count_macs(counted.output, fused)
    everything = [*parts.values(), fusion, output]
    size = len(batch.rows)
    parameters, used = used_parameters(counted, batch)
    return Costs(
        batch=size,
        macs_encoders={name: macs.total // size for name, macs in parts.items()},
        macs_fusion=fusion.total // size,
        macs_output=output.total // size,
        macs_total=sum(macs.total for macs in everything) // size,
        elementwise=sum(macs.elementwise for macs in everything) // size,
        parameters=parameters,
        parameters_used=used,
    )


def used_parameters(model: nn.Module, *arguments: Any) -> tuple[int, int]:
    """Trainable parameters, and how many of them lie in tensors that a gradient reaches.

    A gradient below 1e-10 of the model's largest is none: rounding gives one to parameters that have no influence, such
    as a key bias under softmax. So the model should be in float64.

    Args:
        model: its output is a tensor.
        arguments: of its forward.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    output: Tensor = model(*arguments)
    # Uneven weights: a plain sum would hide what a softmax or a norm at the end keeps constant.
    weights = torch.linspace(0.5, 1.5, output.numel(), dtype=output.dtype).view_as(output)
    gradients = torch.autograd.grad((output * weights).sum(), parameters, allow_unused=True)
    largest = [0.0 if gradient is None else float(gradient.abs().max()) for gradient in gradients]
    threshold = 1e-10 * max(largest, default=0.0)
    used = sum(p.numel() for p, size in zip(parameters, largest, strict=True) if size > threshold)
    return sum(p.numel() for p in parameters), used


def macs_against_modalities(
    dim: int,
    options: Mapping[str, Any],
    modalities: Sequence[int] = (2, 5, 10, 15, 20),
    names: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Costs of fusion heads alone against the number of modalities, one token from every encoder.

    Args:
        dim: D.
        options: `tokens`, `heads`, ...: each head takes those that it has.
        modalities: numbers of them.
        names: of the heads, every registered one by default.

    Returns:
        One row per head and number: head, modalities, macs (per sample at batch REFERENCE_BATCH, which matters only for
        heads marked unsafe), out_dim (width of the fused vector, which sets the output layer's cost), unsafe.
    """
    rows = []
    for name in FUSION.names() if names is None else names:
        known = {key: value for key, value in options.items() if key in FUSION.schema(name).model_fields}
        for number in modalities:
            inputs = [Modality(f"m{i}", "vector", dim) for i in range(number)]
            head = FUSION.build(name, dim, inputs, options=known).eval()
            valid = torch.ones(REFERENCE_BATCH, 1, dtype=torch.bool)
            tokens = {m.name: Tokens(torch.zeros(REFERENCE_BATCH, 1, dim), valid) for m in inputs}
            macs = count_macs(head, tokens).total // REFERENCE_BATCH
            rows.append((name, number, macs, head.out_dim, head.unsafe is not None))
    return pd.DataFrame(rows, columns=["head", "modalities", "macs", "out_dim", "unsafe"])


def _with_everything_present(batch: Batch) -> Batch:
    """Noise for values, so that no weight goes unused for want of data; integer inputs (token ids) stay."""
    generator = torch.Generator().manual_seed(0)
    inputs = {
        name: torch.randn(x.shape, generator=generator, dtype=torch.float64) if x.is_floating_point() else x.cpu()
        for name, x in batch.inputs.items()
    }
    masks = {name: torch.ones(mask.shape, dtype=torch.bool) for name, mask in batch.masks.items()}
    return Batch(inputs, masks, batch.target.cpu(), batch.rows.cpu())


@contextmanager
def _kernels_taken_apart() -> Iterator[None]:
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)


def _vector_product_flops(matrix: Sequence[int], *rest: Any, **_: Any) -> int:
    return 2 * math.prod(matrix)


def _added_vector_product_flops(bias: Sequence[int], matrix: Sequence[int], *rest: Any, **_: Any) -> int:
    return 2 * math.prod(matrix)


def _recurrent_layer_flops(x: Sequence[int], w_ih: Sequence[int], w_hh: Sequence[int], *rest: Any, **_: Any) -> int:
    return 2 * math.prod(x[:2]) * (math.prod(w_ih) + math.prod(w_hh))


_FORMULAS = {
    torch.ops.aten.mv: _vector_product_flops,
    torch.ops.aten.dot: _vector_product_flops,
    torch.ops.aten.addmv: _added_vector_product_flops,
    torch.ops.aten.mkldnn_rnn_layer: _recurrent_layer_flops,
}

_READERS = {torch.ops.aten._softmax, torch.ops.aten._log_softmax, torch.ops.aten.native_layer_norm}


class _ElementwiseCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts elements, see Macs.elementwise."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if torch.Tag.pointwise in func.tags:
            self.elements += out.numel()
        elif torch.Tag.reduction in func.tags or func.overloadpacket in _READERS:
            self.elements += args[0].numel()
        return out
