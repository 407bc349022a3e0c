"""Multiply-accumulates (MACs) that see attention, and parameters that are really used.

torch's counter reports nothing for scaled_dot_product_attention and for the fused kernels of nn.MultiheadAttention and
nn.LSTM on the CPU. So everything is counted on the CPU with those kernels taken apart or given a formula of their own.
MACs are half the FLOPs that torch counts; elementwise work is listed apart.
"""

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypedDict

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

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
        elementwise: elements that pointwise operations write and that sums, softmaxes and norms read; no MACs, and
            copies are not counted.
    """

    total: int
    by_operator: Mapping[str, int]
    elementwise: int


class Costs(TypedDict):
    """Costs of a model, ready for JSON.

    Attributes:
        batch: size at which they were counted; the costs of a head marked unsafe depend on it.
        macs_encoders: per sample, by modality.
        macs_fusion, macs_output, macs_total: per sample.
        elementwise_encoders: per sample, by modality, see Macs.
        elementwise_fusion, elementwise_output, elementwise: per sample, the last one in all.
        parameters: trainable ones.
        parameters_used: those in tensors that a gradient reaches.
    """

    batch: int
    macs_encoders: dict[str, int]
    macs_fusion: int
    macs_output: int
    macs_total: int
    elementwise_encoders: dict[str, int]
    elementwise_fusion: int
    elementwise_output: int
    elementwise: int
    parameters: int
    parameters_used: int


def count_macs(function: Callable[..., Any], *arguments: Any) -> Macs:
    """Counts what `function(*arguments)` costs, attention included; on CPU tensors."""
    with _counting() as counter:
        function(*arguments)
    return counter.macs()


def model_costs(model: FusionModel, batch: Batch) -> Costs:
    """Costs per sample of a model, with every modality present.

    Args:
        model: is not changed; a copy is counted.
        batch: gives the shapes only; its values and masks are replaced. Only a head marked unsafe depends on its size:
            all others are counted on two rows.
    """
    counted = copy.deepcopy(model).cpu().double().eval()
    rows = len(batch.rows) if model.fusion.unsafe else 2
    batch = _with_everything_present(batch, rows)
    tokens: dict[str, Tokens] = {}
    encoders: dict[str, Macs] = {}
    for name, encoder in zip(counted.names, counted.encoders, strict=True):
        with _counting() as counter:
            tokens[name] = encoder(batch.inputs[name], batch.masks[name])
        encoders[name] = counter.macs(rows)
    with _counting() as counter:
        fused = counted.fusion(tokens)
    fusion = counter.macs(rows)
    with _counting() as counter:
        logits = counted.output(fused)
    output = counter.macs(rows)
    everything = [*encoders.values(), fusion, output]
    parameters, used = used_parameters(counted, logits)
    return Costs(
        batch=rows,
        macs_encoders={name: macs.total for name, macs in encoders.items()},
        macs_fusion=fusion.total,
        macs_output=output.total,
        macs_total=sum(macs.total for macs in everything),
        elementwise_encoders={name: macs.elementwise for name, macs in encoders.items()},
        elementwise_fusion=fusion.elementwise,
        elementwise_output=output.elementwise,
        elementwise=sum(macs.elementwise for macs in everything),
        parameters=parameters,
        parameters_used=used,
    )


def used_parameters(model: nn.Module, output: Tensor) -> tuple[int, int]:
    """Trainable parameters, and how many of them lie in tensors that a gradient reaches.

    A gradient below 1e-10 of the model's largest is none: rounding gives one to parameters that have no influence, such
    as a key bias under softmax. So the model should be in float64.

    Args:
        model: whose parameters are meant.
        output: of the model, with its graph.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
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
            head, tokens = head_alone(name, dim, number, REFERENCE_BATCH, known)
            macs = count_macs(head, tokens).total // REFERENCE_BATCH
            rows.append((name, number, macs, head.out_dim, head.unsafe is not None))
    return pd.DataFrame(rows, columns=["head", "modalities", "macs", "out_dim", "unsafe"])


def head_alone(
    name: str, dim: int, modalities: int, batch: int, options: Mapping[str, Any]
) -> tuple[nn.Module, dict[str, Tokens]]:
    """A fusion head on vectors, in evaluation mode, and an input for it: one random token (B,1,D) per modality."""
    inputs = [Modality(f"m{i}", "vector", dim) for i in range(modalities)]
    head: nn.Module = FUSION.build(name, dim, inputs, options=options).eval()
    valid = torch.ones(batch, 1, dtype=torch.bool)
    return head, {modality.name: Tokens(torch.randn(batch, 1, dim), valid) for modality in inputs}


def _with_everything_present(batch: Batch, rows: int) -> Batch:
    """Noise for values, so that no weight goes unused for want of data; integer inputs (token ids) stay."""
    generator = torch.Generator().manual_seed(0)
    inputs = {name: _resized(x, rows) for name, x in batch.inputs.items()}
    inputs = {
        name: torch.randn(x.shape, generator=generator, dtype=torch.float64) if x.is_floating_point() else x
        for name, x in inputs.items()
    }
    masks = {name: torch.ones_like(_resized(mask, rows)) for name, mask in batch.masks.items()}
    return Batch(inputs, masks, _resized(batch.target, rows), _resized(batch.rows, rows))


def _resized(x: Tensor, rows: int) -> Tensor:
    """As many rows as asked, the first ones over again where there are too few."""
    return x.cpu()[torch.arange(rows) % len(x)]


@contextmanager
def _counting() -> Iterator["_Counter"]:
    """Counts what is done inside, with fused kernels taken apart."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), _Counter() as counter:
            yield counter
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)


def _vector_product_flops(matrix: Tensor, *rest: Any, **_: Any) -> int:
    return 2 * matrix.numel()


def _added_vector_product_flops(bias: Tensor, matrix: Tensor, *rest: Any, **_: Any) -> int:
    return 2 * matrix.numel()


def _recurrent_layer_flops(x: Tensor, w_ih: Tensor, w_hh: Tensor, *rest: Any, **_: Any) -> int:
    return 2 * math.prod(x.shape[:2]) * (w_ih.numel() + w_hh.numel())


_FORMULAS: Mapping[Any, Callable[..., int]] = {
    **flop_registry,
    torch.ops.aten.mv: _vector_product_flops,
    torch.ops.aten.dot: _vector_product_flops,
    torch.ops.aten.addmv: _added_vector_product_flops,
    torch.ops.aten.mkldnn_rnn_layer: _recurrent_layer_flops,
}

_READERS = {torch.ops.aten._softmax, torch.ops.aten._log_softmax, torch.ops.aten.native_layer_norm}
_COPIES = {torch.ops.aten.clone, torch.ops.aten.copy_, torch.ops.aten._to_copy}


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts FLOPs by operator with torch's formulas, and elements, see Macs.

    torch's FlopCounterMode also follows modules, which takes most of its time.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._flops: Counter[str] = Counter()
        self._elements = 0

    def macs(self, samples: int = 1) -> Macs:
        """What was counted, per sample."""
        by_operator = {name: flops // 2 // samples for name, flops in self._flops.items()}
        return Macs(sum(self._flops.values()) // 2 // samples, by_operator, self._elements // samples)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        operator = func.overloadpacket
        if operator in _FORMULAS:
            self._flops[str(operator).removeprefix("aten.")] += _FORMULAS[operator](*args, **kwargs, out_val=out)
        if torch.Tag.pointwise in func.tags and operator not in _COPIES:
            self._elements += out.numel()
        elif torch.Tag.reduction in func.tags or operator in _READERS:
            self._elements += args[0].numel()
        return out

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; torch would import its compiler, for seconds, to say so."""
        return False
