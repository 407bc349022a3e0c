"""Softmax, preconditioned and one-versus-others attention against the numbers of the published code (float64)."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from ovo_clinic.attention.multihead import MultiheadAttention, split_heads
from ovo_clinic.attention.precondition import Preconditioned, unit_rows
from ovo_clinic.attention.softmax import Softmax
from ovo_clinic.fusion.ovo import Ovo, mean_of_others, one_versus_others
from ovo_clinic.fusion.ovo_reference import OvoReference
from ovo_clinic.types import AttentionCore, Modality, Tokens

Vector = dict[str, Tensor]
pytestmark = pytest.mark.filterwarnings("ignore:ovo_reference with heads=1")


def load(folder: Path, name: str) -> Vector:
    with np.load(folder / "attention" / f"{name}.npz") as file:
        return {key: torch.from_numpy(np.asarray(file[key], dtype=np.float64)) for key in file.files}


def assert_near(found: Tensor, expected: Tensor) -> None:
    """Within 1e-9, relative to the largest expected value where that is above 1."""
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 1e-9 * max(1.0, float(expected.abs().max()))


def gradient(function, x: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
    """Gradient of the sum of squares of the function's output with respect to x."""
    leaf = x.clone().requires_grad_()
    (found,) = torch.autograd.grad((function(leaf) ** 2).sum(), leaf)
    return found


def layer_of(vector: Vector, core: AttentionCore) -> MultiheadAttention:
    """A layer with the vector's weights and biases."""
    layer = MultiheadAttention(core, vector["x"].shape[-1], int(vector["heads"]), bias=True).double()
    weights = {"query": "q", "key": "k", "value": "v", "out": "o"}
    state = {f"{part}.weight": vector[f"W_{letter}"] for part, letter in weights.items()}
    layer.load_state_dict(state | {f"{part}.bias": vector[f"b_{letter}"] for part, letter in weights.items()})
    return layer


def core_output(layer: MultiheadAttention, x: Tensor, mask: Tensor | None = None, attention: bool = False) -> Tensor:
    """Each head's output (B,H,N,d), or with `attention` the matrix (B,H,N,N): the core applied to the identity."""
    q, k, v = (split_heads(part(x), layer.heads) for part in (layer.query, layer.key, layer.value))
    if attention:
        v = torch.eye(k.shape[2], dtype=k.dtype).expand(*k.shape[:3], -1)
    out: Tensor = layer.core(q, k, v, None, mask, q.shape[-1] ** -0.5)
    return out


def test_softmax_self(vectors: Path) -> None:
    vector = load(vectors, "softmax_self")
    x, mask = vector["x"], vector["mask"].bool()
    layer = layer_of(vector, Softmax(4, 4))
    assert_near(layer(x, x), vector["out"])
    assert_near(core_output(layer, x, attention=True), vector["attn"])
    assert_near(layer(x, x, mask, mask), vector["out_masked"])
    assert_near(core_output(layer, x, mask, attention=True), vector["attn_masked"])
    assert_near(gradient(lambda leaf: layer(leaf, leaf), x), vector["grad_x"])


def test_softmax_self_causal(vectors: Path) -> None:
    """Causal attention is one query at a time with the later keys masked."""
    vector = load(vectors, "softmax_self")
    x, steps = vector["x"], vector["x"].shape[1]
    layer = layer_of(vector, Softmax(4, 4))
    masks = [(torch.arange(steps) <= step).expand(len(x), -1) for step in range(steps)]
    out = [layer(x[:, step : step + 1], x, key_mask=mask) for step, mask in enumerate(masks)]
    assert_near(torch.cat(out, dim=1), vector["out_causal"])
    rows = [core_output(layer, x, mask, attention=True)[:, :, step] for step, mask in enumerate(masks)]
    assert_near(torch.stack(rows, dim=2), vector["attn_causal"])


@pytest.mark.parametrize("name", ["precond_softmax", "precond_softmax_zero_row"])
def test_preconditioned_softmax(vectors: Path, name: str) -> None:
    vector = load(vectors, name)
    x = vector["x"]
    eps = float(vector["eps"])
    assert_near(core_output(layer_of(vector, Softmax(4, 4)), x), vector["core"])
    assert_near(unit_rows(vector["core"], eps), vector["core_pre"])
    layer = layer_of(vector, Preconditioned(Softmax(4, 4), eps))
    assert_near(core_output(layer, x), vector["core_pre"])
    assert_near(layer(x, x), vector["out"])
    found = gradient(lambda leaf: layer(leaf, leaf), x)
    assert_near(found, vector["grad_x"])
    if name == "precond_softmax":
        assert (found - vector["grad_x_not_detached"]).abs().max() > 1e-3, "a gradient flows through the norm"
    else:
        assert (core_output(layer, x)[0] == 0).all()


def ovo_reference(vector: Vector) -> OvoReference:
    modalities = [Modality(f"m{i}", "vector", 1) for i in range(vector["x"].shape[1])]
    head = OvoReference(vector["x"].shape[2], modalities, heads=int(vector["heads"])).double()
    head.load_state_dict({"weight": vector["W"]})
    return head


def given(x: Tensor, mask: Tensor | None = None) -> dict[str, Tokens]:
    """x (B,M,D) and presence (B,M) as one token per modality."""
    present = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask.bool()
    return {f"m{i}": Tokens(x[:, i : i + 1], present[:, i : i + 1]) for i in range(x.shape[1])}


@pytest.mark.parametrize("heads", [1, 2, 4, 8])
def test_ovo_reference(vectors: Path, heads: int) -> None:
    vector = load(vectors, f"ovo_h{heads}")
    x, head = vector["x"], ovo_reference(vector)
    assert_near(head(given(x)).view_as(x), vector["out"])
    assert_near(head(given(x, vector["mask"])).view_as(x), vector["out_masked"])
    assert_near(gradient(lambda leaf: head(given(leaf)), x), vector["grad_x"])
    slices = x.view(*x.shape[:2], heads, -1)
    query = mean_of_others(slices, torch.ones(x.shape[:2], dtype=torch.bool)) @ vector["W"]
    identity = torch.eye(heads, dtype=x.dtype).expand(*x.shape[:2], -1, -1)
    assert_near(head.core(query, slices, identity, scale=1.0), vector["attn"])


def test_core_of_ovo_is_the_equation_with_one_matrix_per_modality(vectors: Path) -> None:
    vector = load(vectors, "ovo_per_modality_h4")
    x = vector["x"].view(*vector["x"].shape[:2], 1, 4, 16)
    modalities = [Modality(f"m{i}", "vector", 1) for i in range(4)]
    head = Ovo(16, modalities, tokens=4, heads=1).double()
    with torch.no_grad():
        head.weight.copy_(vector["W"][:, None])
    present = torch.ones(x.shape[:2], dtype=torch.bool)

    def attend(leaf: Tensor) -> Tensor:
        return one_versus_others(leaf, present, head.weight, head.core, scale=1.0)

    assert_near(attend(x).reshape(vector["out"].shape), vector["out"])
    assert_near(gradient(attend, x).reshape(vector["grad_x"].shape), vector["grad_x"])


@pytest.mark.parametrize("heads", [1, 4])
def test_preconditioned_ovo(vectors: Path, heads: int) -> None:
    vector = load(vectors, f"precond_ovo_h{heads}")
    x, head = vector["x"], ovo_reference({**vector, "heads": torch.tensor(heads)})
    assert_near(head(given(x)).view_as(vector["core"]), vector["core"])
    head.core = Preconditioned(head.core, float(vector["eps"]))
    out = head(given(x)).view_as(x)
    assert_near(out, vector["out"])
    assert_near(out @ vector["W_probe"].T, vector["out_proj"])
    assert_near(gradient(lambda leaf: head(given(leaf)).view_as(x) @ vector["W_probe"].T, x), vector["grad_x"])
