"""Every mechanism against the numbers of the published code (float64): outputs, matrices, masked outputs, gradients.

Nothing here depends on the sizes in the files, so that other vectors can be tried (OVO_CLINIC_VECTORS).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ovo_clinic.attention.efficient import Efficient
from ovo_clinic.attention.fastformer import Fastformer, FastformerFair
from ovo_clinic.attention.linformer import Linformer, LinformerFair
from ovo_clinic.attention.lpi import LocalPatchInteraction
from ovo_clinic.attention.multihead import attention_layer, split_heads
from ovo_clinic.attention.nystrom_reference import NystromReference
from ovo_clinic.attention.performer import Performer, PerformerFair
from ovo_clinic.attention.performer_reference import PerformerReference
from ovo_clinic.attention.precondition import Preconditioned, unit_rows
from ovo_clinic.attention.softmax import Softmax
from ovo_clinic.attention.window import WindowAttention
from ovo_clinic.attention.xca import Xca, XcaFair
from ovo_clinic.fusion.ovo import Ovo, mean_of_others, one_versus_others
from ovo_clinic.fusion.ovo_reference import OvoReference
from ovo_clinic.types import Modality, Tokens

Vector = dict[str, Tensor]
pytestmark = pytest.mark.filterwarnings("ignore:ovo_reference with heads=1")
USED: set[str] = set()


def reproduces(*names: str) -> pytest.MarkDecorator:
    """The test takes each of these files as the fixture `vector`."""
    USED.update(names)
    return pytest.mark.parametrize("vector", names, indirect=True)


@pytest.fixture
def vector(request: pytest.FixtureRequest, vectors: Path) -> Vector:
    with np.load(vectors / "attention" / f"{request.param}.npz") as file:
        return {key: torch.from_numpy(np.asarray(file[key], dtype=np.float64)) for key in file.files}


def assert_near(found: Tensor, expected: Tensor) -> None:
    """Within 1e-9, relative to the largest expected value where that is above 1."""
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 1e-9 * max(1.0, float(expected.abs().max()))


def gradient(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Gradient of the sum of squares of the function's output with respect to x."""
    leaf = x.clone().requires_grad_()
    (found,) = torch.autograd.grad((function(leaf) ** 2).sum(), leaf)
    return found


def sizes(vector: Vector) -> tuple[int, int]:
    """(H, d)."""
    heads = int(vector["heads"])
    return heads, vector["x"].shape[-1] // heads


def layer_of(vector: Vector, core: nn.Module, **weights: Tensor) -> Any:
    """A layer with the vector's projections (a bias that it has not is zero) and the core's weights."""
    dim, heads = vector["x"].shape[-1], int(vector["heads"])
    core = core.double()
    core.load_state_dict({**core.state_dict(), **weights})
    layer: nn.Module = attention_layer(core, dim, heads, bias=True).double()  # type: ignore[arg-type]
    load_projections(layer, vector)
    return layer


def load_projections(layer: nn.Module, vector: Vector) -> None:
    dim = vector["x"].shape[-1]
    state = {}
    for part, letter in {"query": "q", "key": "k", "value": "v", "out": "o"}.items():
        if getattr(layer, part) is not None:
            state[f"{part}.weight"] = vector.get(f"W_{letter}", torch.eye(dim, dtype=torch.float64))
            state[f"{part}.bias"] = vector.get(f"b_{letter}", torch.zeros(dim, dtype=torch.float64))
    assert not layer.load_state_dict(state, strict=False).unexpected_keys


def core_output(layer: Any, x: Tensor, mask: Tensor | None = None, v: Tensor | None = None) -> Tensor:
    """Each head's output (B,H,N,d), or with other values v (rows,columns) for all heads."""
    q, k = (split_heads(part(x), layer.heads) for part in (layer.query, layer.key))
    values = split_heads(layer.value(x), layer.heads) if v is None else v.expand(*q.shape[:2], -1, -1)
    out: Tensor = layer.core(q, k, values, None, mask, q.shape[-1] ** -0.5)
    return out


def matrix(layer: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """The attention matrices (B,H,N,N): the core applied to the identity."""
    return core_output(layer, x, mask, torch.eye(x.shape[1], dtype=x.dtype))


def assert_reproduced(layer: Any, vector: Vector, suffix: str = "") -> None:
    """Output and input gradient, and the masked output where there is one."""
    x = vector["x"]
    assert_near(layer(x, x), vector[f"out{suffix}"])
    assert_near(gradient(lambda leaf: layer(leaf, leaf), x), vector[f"grad_x{suffix}"])
    if "out_masked" in vector and not suffix:
        mask = vector["mask"].bool()
        assert_near(layer(x, x, mask, mask), vector["out_masked"])


def test_every_file_is_used(vectors: Path) -> None:
    found = {path.stem for path in (vectors / "attention").glob("*.npz")}
    assert found and found <= USED, f"no test uses {sorted(found - USED)}"


@reproduces("softmax_self")
def test_softmax(vector: Vector) -> None:
    x, mask = vector["x"], vector["mask"].bool()
    layer = layer_of(vector, Softmax(*sizes(vector)))
    assert_reproduced(layer, vector)
    assert_near(matrix(layer, x), vector["attn"])
    assert_near(matrix(layer, x, mask), vector["attn_masked"])


@reproduces("softmax_self")
def test_causal_softmax_is_one_query_at_a_time(vector: Vector) -> None:
    x, steps = vector["x"], vector["x"].shape[1]
    layer = layer_of(vector, Softmax(*sizes(vector)))
    masks = [(torch.arange(steps) <= step).expand(len(x), -1) for step in range(steps)]
    out = [layer(x[:, step : step + 1], x, key_mask=mask) for step, mask in enumerate(masks)]
    assert_near(torch.cat(out, dim=1), vector["out_causal"])
    rows = [matrix(layer, x, mask)[:, :, step] for step, mask in enumerate(masks)]
    assert_near(torch.stack(rows, dim=2), vector["attn_causal"])


@reproduces("linformer")
def test_linformer(vector: Vector) -> None:
    mixtures, length = vector["E_k"].shape
    core = Linformer(*sizes(vector), length=length, mixtures=mixtures)
    layer = layer_of(vector, core, key_mixing=vector["E_k"], value_mixing=vector["E_v"])
    assert_reproduced(layer, vector)
    # Values that the mixing maps to the identity show the matrix over the mixtures.
    assert_near(core_output(layer, vector["x"], v=torch.linalg.pinv(vector["E_v"])), vector["attn"])


@reproduces("linformer_fair")
def test_linformer_fair(vector: Vector) -> None:
    mixtures, length = vector["E"].shape
    core = LinformerFair(*sizes(vector), length=length, mixtures=mixtures)
    assert_reproduced(layer_of(vector, core, mixing=vector["E"], bias=vector["b_E"][:, None]), vector)


@reproduces("efficient")
def test_efficient(vector: Vector) -> None:
    layer, x = layer_of(vector, Efficient(*sizes(vector))), vector["x"]
    assert_reproduced(layer, vector)
    assert_near(layer(x, x) + x, vector["out_residual"])
    assert_near(matrix(layer, x), vector["attn"])


@reproduces("performer_rhalf", "performer_r4")
def test_performer(vector: Vector) -> None:
    core = Performer(*sizes(vector), features=len(vector["omega"]))
    layer = layer_of(vector, core, omega=vector["omega"])
    assert_reproduced(layer, vector)
    assert_near(matrix(layer, vector["x"]), vector["attn"])


@reproduces("performer_rhalf", "performer_r4")
def test_performer_reference(vector: Vector) -> None:
    core = PerformerReference(*sizes(vector), features=len(vector["omega"]), eps=float(vector["eps_kernel"]))
    layer = layer_of(vector, core, omega=vector["omega"])
    assert_reproduced(layer, vector, "_eps")
    assert_near(matrix(layer, vector["x"]), vector["attn_eps"])


@reproduces("performer_fair")
def test_performer_fair(vector: Vector) -> None:
    core = PerformerFair(*sizes(vector), features=vector["omega"].shape[1], eps=float(vector["eps_den"]))
    assert_reproduced(layer_of(vector, core, omega=vector["omega"]), vector)


def channel_matrix(layer: Any, x: Tensor) -> Tensor:
    """The matrices over channels (B,H,d,d) of cross-covariance attention, whose values come from the right."""
    return core_output(layer, x, v=torch.eye(x.shape[-1] // layer.heads, dtype=x.dtype)).mT


@reproduces("xca")
def test_xca(vector: Vector) -> None:
    layer = layer_of(vector, Xca(*sizes(vector)), temperature=vector["temperature"][:, None, None])
    assert_reproduced(layer, vector)
    assert_near(channel_matrix(layer, vector["x"]), vector["attn"])


@reproduces("xca_fair")
@pytest.mark.parametrize(("tau", "suffix"), [("half", ""), ("root", "_code")])
def test_xca_fair(vector: Vector, tau: Any, suffix: str) -> None:
    layer = layer_of(vector, XcaFair(*sizes(vector), tau=tau))
    assert_reproduced(layer, vector, suffix)
    assert_near(channel_matrix(layer, vector["x"]), vector[f"attn{suffix}"])


@reproduces("fastformer")
def test_fastformer(vector: Vector) -> None:
    """The biases of the scores are left out: a softmax over tokens is blind to them."""
    core = Fastformer(*sizes(vector))
    assert_reproduced(layer_of(vector, core, query_scores=vector["W_qatt"], key_scores=vector["W_katt"]), vector)


@reproduces("fastformer_fair")
def test_fastformer_fair(vector: Vector) -> None:
    core = FastformerFair(*sizes(vector))
    assert_reproduced(layer_of(vector, core, query_scores=vector["w_q"], key_scores=vector["w_k"]), vector)


def nystrom(vector: Vector) -> Any:
    convolution = vector.get("res_conv", torch.empty(0, 0))
    core = NystromReference(
        *sizes(vector),
        landmarks=int(vector["landmarks"]),
        iterations=int(vector["iters"]),
        kernel=convolution.shape[1],
    )
    weights = {"convolution.weight": convolution[:, None, :, None]} if convolution.numel() else {}
    return layer_of(vector, core, **weights)


@reproduces("nystrom", "nystrom_conv", "nystrom_pad", "nystromformer_hf")
def test_nystrom_reference(vector: Vector) -> None:
    layer, x = nystrom(vector), vector["x"]
    assert_reproduced(layer, vector)
    if "attn" in vector:
        layer.core.convolution = None
        assert_near(matrix(layer, x), vector["attn"])
        assert_near(vector["f1"] @ vector["z"] @ vector["f3"], vector["attn"])


@reproduces("nystrom_mask")
def test_masked_nystrom_reference(vector: Vector) -> None:
    """The published code fills the rows of masked queries, too: no query mask."""
    layer, x, mask = nystrom(vector), vector["x"], vector["mask"].bool()
    assert_near(layer(x, x, key_mask=mask), vector["out"])
    assert_near(gradient(lambda leaf: layer(leaf, leaf, key_mask=mask), x), vector["grad_x"])


@reproduces("lpi")
def test_lpi(vector: Vector) -> None:
    x, grid = vector["x"], (int(vector["H"]), int(vector["W"]))
    layer = LocalPatchInteraction(1, x.shape[-1]).double()
    layer.norm.eps = float(vector["bn_eps"])
    parts = {"first": "conv1", "second": "conv2", "norm": "bn"}
    state = {f"{part}.{end}": vector[f"{name}_{end}"] for part, name in parts.items() for end in ("weight", "bias")}
    running = {f"norm.{name}": vector[f"bn_{name}"] for name in ("running_mean", "running_var")}
    layer.load_state_dict(state | running | {"norm.num_batches_tracked": torch.tensor(0)})
    layer.eval()
    assert_near(layer(x, grid), vector["out"])
    assert_near(gradient(lambda leaf: layer(leaf, grid), x), vector["grad_x"])
    layer.train()
    assert_near(layer(x, grid), vector["out_train"])
    assert_near(layer.norm.running_mean, vector["running_mean_after"])  # type: ignore[arg-type]
    assert_near(layer.norm.running_var, vector["running_var_after"])  # type: ignore[arg-type]
    assert_near(gradient(lambda leaf: layer(leaf, grid), x), vector["grad_x_train"])


@reproduces("swin_window", "swin_shifted")
def test_window(vector: Vector) -> None:
    """The published mask is -100 where ours is -infinity: e^-100 apart."""
    x, grid = vector["x"], (int(vector["H"]), int(vector["W"]))
    side, shift = int(vector["window"]), int(vector["shift"])
    layer = WindowAttention(*sizes(vector), window=side, shift=shift, bias=True).double()
    load_projections(layer, vector)
    with torch.no_grad():
        layer.relative_bias.copy_(vector["rel_bias_table"])
    assert torch.equal(layer.offsets, vector["rel_index"].long())
    assert_near(layer(x, grid), vector["out"])
    assert_near(gradient(lambda leaf: layer(leaf, grid), x), vector["grad_x"])

    rows, columns = grid[0] // side, grid[1] // side
    place = torch.arange(side**2).view(side, side).repeat(rows, columns).roll((shift, shift), (0, 1)).flatten()
    q, k = (split_heads(part(x), layer.heads) for part in (layer.query, layer.key))
    identity = torch.eye(side**2, dtype=x.dtype)[place].expand(*q.shape[:2], -1, -1)
    out = layer.attend(q, k, identity, grid).unflatten(2, grid).roll((-shift, -shift), (2, 3))
    windows = [part for row in out.split(side, dim=2) for part in row.split(side, dim=3)]
    found = torch.stack([window.flatten(2, 3) for window in windows], dim=1).flatten(0, 1)
    assert_near(found, vector["attn"])


@reproduces("precond_softmax", "precond_softmax_zero_row")
def test_preconditioned_softmax(vector: Vector) -> None:
    x, eps = vector["x"], float(vector["eps"])
    plain = core_output(layer_of(vector, Softmax(*sizes(vector))), x)
    assert_near(plain, vector["core"])
    assert_near(unit_rows(vector["core"], eps), vector["core_pre"])
    layer = layer_of(vector, Preconditioned(Softmax(*sizes(vector)), eps))
    assert_near(core_output(layer, x), vector["core_pre"])
    assert_reproduced(layer, vector)
    if "cond_before" in vector:
        assert_near(torch.linalg.cond(plain) / vector["cond_before"], torch.ones_like(vector["cond_before"]))
        after = torch.linalg.cond(core_output(layer, x)) / vector["cond_after"]
        assert_near(after, torch.ones_like(after))
        found = gradient(lambda leaf: layer(leaf, leaf), x)
        assert (found - vector["grad_x_not_detached"]).abs().max() > 1e-3, "a gradient flows through the norm"
    else:
        assert (core_output(layer, x)[0] == 0).all()


@reproduces("precond_xca")
@pytest.mark.parametrize("rows", ["token", "channel", "attn"])
def test_preconditioned_xca(vector: Vector, rows: Any) -> None:
    temperature = vector["temperature"][:, None, None]
    plain = layer_of(vector, Xca(*sizes(vector)), temperature=temperature)
    assert_near(core_output(plain, vector["x"]).mT, vector["core"])
    core = Preconditioned(Xca(*sizes(vector), precondition_rows=rows), float(vector["eps"]))
    assert_reproduced(layer_of(vector, core, **{"core.temperature": temperature}), vector, f"_{rows}")


@reproduces("precond_nystrom")
def test_preconditioned_nystrom(vector: Vector) -> None:
    layer = nystrom(vector)
    assert_near(core_output(layer, vector["x"]), vector["core"])
    layer.core = Preconditioned(layer.core, float(vector["eps"]))
    assert_reproduced(layer, vector)


def ovo_reference(vector: Vector, **options: Any) -> OvoReference:
    modalities = [Modality(f"m{i}", "vector", 1) for i in range(vector["x"].shape[1])]
    dim = vector["x"].shape[2]
    head = OvoReference(dim, modalities, heads=dim // len(vector["W"]), **options).double()
    head.load_state_dict({"weight": vector["W"]})
    return head


def given(x: Tensor, mask: Tensor | None = None) -> dict[str, Tokens]:
    """x (B,M,D) and presence (B,M) as one token per modality."""
    present = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask.bool()
    return {f"m{i}": Tokens(x[:, i : i + 1], present[:, i : i + 1]) for i in range(x.shape[1])}


@reproduces("ovo_h1", "ovo_h2", "ovo_h4", "ovo_h8")
def test_ovo_reference(vector: Vector) -> None:
    x, head, heads = vector["x"], ovo_reference(vector), int(vector["heads"])
    assert_near(head(given(x)).view_as(x), vector["out"])
    assert_near(head(given(x, vector["mask"])).view_as(x), vector["out_masked"])
    assert_near(gradient(lambda leaf: head(given(leaf)), x), vector["grad_x"])
    slices = x.view(*x.shape[:2], heads, -1)
    query = mean_of_others(slices, torch.ones(x.shape[:2], dtype=torch.bool)) @ vector["W"]
    identity = torch.eye(heads, dtype=x.dtype).expand(*x.shape[:2], -1, -1)
    assert_near(head.core(query, slices, identity, scale=1.0), vector["attn"])


@reproduces("ovo_per_modality_h4")
def test_core_of_ovo_is_the_equation_with_one_matrix_per_modality(vector: Vector) -> None:
    """The slices of the vectors play the tokens; heads 1, scale 1, identity projections."""
    number, width = vector["W"].shape[:2]
    tokens = vector["x"].shape[2] // width
    x = vector["x"].view(*vector["x"].shape[:2], 1, tokens, width)
    modalities = [Modality(f"m{i}", "vector", 1) for i in range(number)]
    head = Ovo(width, modalities, tokens=tokens, heads=1).double()
    with torch.no_grad():
        head.weight.copy_(vector["W"][:, None])
    present = torch.ones(x.shape[:2], dtype=torch.bool)

    def attend(leaf: Tensor) -> Tensor:
        return one_versus_others(leaf, present, head.weight, head.core, scale=1.0)

    assert_near(attend(x).reshape(vector["out"].shape), vector["out"])
    assert_near(gradient(attend, x).reshape(vector["grad_x"].shape), vector["grad_x"])


@reproduces("precond_ovo_h1", "precond_ovo_h4")
def test_preconditioned_ovo(vector: Vector) -> None:
    x = vector["x"]
    assert_near(ovo_reference(vector)(given(x)).view_as(vector["core"]), vector["core"])
    head = ovo_reference(vector, precondition=True, precondition_eps=float(vector["eps"]))
    out = head(given(x)).view_as(x)
    assert_near(out, vector["out"])
    assert_near(out @ vector["W_probe"].T, vector["out_proj"])
    assert_near(gradient(lambda leaf: head(given(leaf)).view_as(x) @ vector["W_probe"].T, x), vector["grad_x"])
