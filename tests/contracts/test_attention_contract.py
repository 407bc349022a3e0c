"""The contract of every attention mechanism on (B,H,N,d), over the registry, and of the two that need a grid."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from ovo_clinic.attention.precondition import Preconditioned
from ovo_clinic.registry import ATTENTION

BATCH, HEADS, LENGTH, WIDTH = 3, 2, 9, 8
Case = tuple[str, dict[str, Any]]
CORES = [name for name in ATTENTION.names() if not getattr(ATTENTION.get(name), "needs_grid", False)]
GRIDS = sorted(set(ATTENTION.names()) - set(CORES))
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "nystrom": [{"landmarks": 3}, {"landmarks": 4, "kernel": 3}],
    "nystrom_reference": [{"landmarks": 3}, {"landmarks": 4, "kernel": 3}],
    "performer": [{}, {"features": 3}],
    "xca": [{}, {"precondition_rows": "channel"}, {"precondition_rows": "attn"}],
    "xca_fair": [{}, {"tau": "root"}],
}
CASES: list[Case] = [(name, options) for name in CORES for options in OPTIONS.get(name, [{}])]
SAFE = [case for case in CASES if getattr(ATTENTION.get(case[0]), "unsafe", None) is None]


def label(case: Case) -> str:
    return "-".join([case[0], *(f"{key}={value}" for key, value in case[1].items())])


every_core = pytest.mark.parametrize("case", CASES, ids=label)
every_safe_core = pytest.mark.parametrize("case", SAFE, ids=label)


def build(case: Case, length: int = LENGTH, seed: int = 0, width: int = WIDTH) -> Any:
    torch.manual_seed(seed)
    name, options = case
    lengths = {"length": length} if ATTENTION.get(name).fixed_length else {}  # type: ignore[attr-defined]
    core = ATTENTION.build(name, HEADS, width, options={**options, **lengths})
    with torch.no_grad():  # away from values (0, 1) that would hide a parameter
        for parameter in core.parameters():
            parameter.add_(0.3 * torch.rand_like(parameter))
    return core.eval()


def inputs(length: int = LENGTH, seed: int = 1, **kind: Any) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(BATCH, HEADS, length, WIDTH, generator=generator).to(**kind) for _ in range(3)]


def some_mask() -> Tensor:
    """Padding at the end, gaps in the middle, everything valid."""
    mask = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    mask[0, 6:] = False
    mask[1, [0, 3, 4]] = False
    return mask


def doubled(case: Case, **options: Any) -> Any:
    return build(case, **options).double()


@every_core
def test_declarations_are_true(case: Case) -> None:
    core, (q, k, v) = doubled(case), inputs(dtype=torch.float64)
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(3))
    moved = core(q, k[:, :, order], v[:, :, order])
    assert ((moved - core(q, k, v)).abs().max() > 1e-6) == core.position_dependent
    assert core.fixed_length == ("length" in ATTENTION.schema(case[0]).model_fields)
    if core.fixed_length:
        with pytest.raises(RuntimeError):
            core(q, k[:, :, 1:], v[:, :, 1:])
    if not core.paired_tokens:
        shorter = core(q[:, :, :4], k, v)
        assert shorter.shape == (BATCH, HEADS, 4, WIDTH) and shorter.isfinite().all()


@every_safe_core
def test_a_masked_token_counts_as_deleted(case: Case) -> None:
    core, (q, k, v), mask = doubled(case), inputs(dtype=torch.float64), some_mask()
    out = core(q, k, v, mask, mask)
    for row, kept in enumerate(mask):
        alone = with_columns(case, core, kept) if core.fixed_length else core
        part = slice(row, row + 1)
        expected = alone(q[part, :, kept], k[part, :, kept], v[part, :, kept])
        assert_close(out[part, :, kept], expected, rtol=1e-9, atol=1e-9)
        assert (out[part, :, ~kept] == 0).all()


def with_columns(case: Case, core: nn.Module, kept: Tensor) -> Any:
    """A linformer of another length: positions own columns, so that deleting a token deletes its column."""
    state = {key: value[:, kept] if value.shape[-1] == LENGTH else value for key, value in core.state_dict().items()}
    rows = next(len(value) for value in state.values())
    options = {"length": int(kept.sum()), "mixtures": rows}
    shorter = ATTENTION.build(case[0], HEADS, WIDTH, options=options).double()
    shorter.load_state_dict(state)
    return shorter


@every_core
@pytest.mark.parametrize("garbage", [1e4, float("nan")], ids=["large", "nan"])
def test_what_stands_under_a_mask_changes_nothing(case: Case, garbage: float) -> None:
    core, given, mask = build(case), inputs(), some_mask()
    dirty = [torch.where(mask[:, None, :, None], x, garbage) for x in given]
    assert torch.equal(core(*dirty, mask, mask), core(*given, mask, mask))


@every_core
@pytest.mark.parametrize("preconditioned", [False, True])
def test_nothing_to_attend_to_is_zero_with_finite_gradients(case: Case, preconditioned: bool) -> None:
    core = Preconditioned(build(case)) if preconditioned else build(case)
    given = [x.requires_grad_() for x in inputs()]
    mask = some_mask()
    mask[2] = False
    out = core(*given, mask, mask)
    assert (out[2] == 0).all() and out[:2].abs().max() > 0.01
    (out**2).sum().backward()
    gradients = [x.grad for x in given] + [parameter.grad for parameter in core.parameters()]
    assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)
    assert given[2].grad is not None and (given[2].grad[2] == 0).all()


@every_safe_core
def test_no_unit_depends_on_its_batch(case: Case) -> None:
    core, given, mask = doubled(case), inputs(dtype=torch.float64), some_mask()
    together = core(*given, mask, mask)
    alone = [core(*(x[row : row + 1] for x in given), mask[row : row + 1], mask[row : row + 1]) for row in range(BATCH)]
    assert_close(torch.cat(alone), together, rtol=1e-9, atol=1e-9)


def test_nystrom_reference_mixes_the_units_of_a_batch_and_says_so() -> None:
    core, (q, k, v) = doubled(("nystrom_reference", {"landmarks": 3})), inputs(dtype=torch.float64)
    assert "who else is in it" in str(core.unsafe)
    alone = core(q[:1], k[:1], v[:1])
    assert (core(q, k, v)[:1] - alone).abs().max() > 1e-4


@every_core
def test_the_output_is_linear_in_the_values_so_that_the_identity_shows_the_matrix(case: Case) -> None:
    """Affine with the bias of linformer_fair, for which 2 - 1 = 1."""
    core, (q, k, v), mask = doubled(case), inputs(dtype=torch.float64), some_mask()
    other = inputs(seed=7, dtype=torch.float64)[2]
    expected = 2 * core(q, k, v, mask, mask) - core(q, k, other, mask, mask)
    assert_close(core(q, k, 2 * v - other, mask, mask), expected, rtol=1e-9, atol=1e-9)
    assert (core(q, k, torch.zeros_like(v), mask, mask) == 0).all() == (case[0] != "linformer_fair")


@every_core
def test_preconditioned_rows_have_norm_one_and_masked_ones_zero(case: Case) -> None:
    core, given, mask = Preconditioned(doubled(case)), inputs(dtype=torch.float64), some_mask()
    plain, out = core.core(*given, mask, mask), core(*given, mask, mask)
    declared = [(one.paired_tokens, one.fixed_length, one.position_dependent) for one in (core, core.core)]
    assert declared[0] == declared[1]
    assert (out.movedim(2, 1)[~mask] == 0).all()
    if case[1].get("kernel") or case[1].get("precondition_rows", "token") != "token":
        assert (out - plain).abs().max() > 0.01  # normalised inside, see test_attention_vectors.py
        return
    assert_close(out.norm(dim=-1), mask[:, None].expand(-1, HEADS, -1).double())
    assert_close(out * plain.norm(dim=-1, keepdim=True), plain)


def test_nystrom_is_preconditioned_before_the_convolution_is_added() -> None:
    case, given, mask = ("nystrom", {"kernel": 3}), inputs(dtype=torch.float64), some_mask()
    core = doubled(case)
    both = Preconditioned(core)(*given, mask, mask)
    convolved = core(*given, mask, mask)
    core.convolution = None
    assert_close(both - convolved, Preconditioned(core)(*given, mask, mask) - core(*given, mask, mask))


@pytest.mark.parametrize("case", [case for case in CASES if any(True for _ in build(case).parameters())], ids=label)
def test_gradients_reach_every_parameter(case: Case) -> None:
    core = doubled(case)
    (core(*inputs(dtype=torch.float64)) ** 2).sum().backward()
    assert all(parameter.grad is not None and (parameter.grad != 0).all() for parameter in core.parameters())


@every_core
def test_a_state_dict_restores_the_core(case: Case) -> None:
    core, other, given = build(case), build(case, seed=5), inputs()
    other.load_state_dict(core.state_dict())
    assert torch.equal(other(*given), core(*given))


@every_core
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_half_precision_is_near_float32(case: Case, dtype: torch.dtype) -> None:
    core, given, mask = build(case), inputs(dtype=dtype), some_mask()
    exact = core(*(x.float() for x in given), mask, mask)
    with torch.autocast("cpu", dtype=dtype):
        mixed = core(*given, mask, mask)
    half = core.to(dtype)(*given, mask, mask)
    assert half.dtype == dtype
    for out in (mixed, half):
        assert (out.float() - exact).norm() / exact.norm() < 0.02


@every_core
def test_float16_does_not_overflow(case: Case) -> None:
    """Keys and queries alike, of standard deviation 20: sums over the tokens exceed 65504.

    Less for fastformer, whose results are products of three, and for performer_fair, whose denominator drowns in its
    eps.
    """
    length, spread = 300, {"fastformer": 4.0, "performer_fair": 1.0}.get(case[0], 20.0)
    core = build(case, length=length).to(torch.float16)
    generator = torch.Generator().manual_seed(1)
    x = spread * torch.randn(1, HEADS, length, WIDTH, generator=generator)
    given = [part.half().requires_grad_() for part in (x, x, x)]
    out = core(*given)
    assert out.isfinite().all() and out.abs().max() > 0
    out.float().pow(2).mean().backward()
    assert all(part.grad is not None and part.grad.isfinite().all() for part in given)


@pytest.mark.parametrize("std", [3.0, 6.0, 30.0])
def test_performer_is_finite_where_its_features_would_underflow(std: float) -> None:
    torch.manual_seed(0)
    core = ATTENTION.build("performer", 1, 64, options={"features": 64})
    q, k, v = (std * torch.randn(2, 1, 8, 64) for _ in range(3))
    out = core(q, k, v)
    assert out.isfinite().all() and (out.norm(dim=-1) > 0.1).all()


def test_performer_draws_anew_in_training_only_and_goes_on_after_a_restart() -> None:
    def draws(core: Any, calls: int) -> list[Tensor]:
        found = []
        for _ in range(calls):
            core(*inputs())
            found.append(core.omega.clone())
        return found

    core, again = build(("performer", {"redraw": 2})), build(("performer", {"redraw": 2}), seed=9)
    start = core.omega.clone()
    assert all(torch.equal(omega, start) for omega in draws(core, 4))
    first = draws(core.train(), 3)
    again.load_state_dict(core.state_dict())
    assert torch.equal(first[0], start) and not torch.equal(first[1], start) and torch.equal(first[2], first[1])
    after, resumed = draws(core, 3), draws(again.train(), 3)
    assert not torch.equal(after[-1], first[-1])
    assert all(torch.equal(one, other) for one, other in zip(after, resumed, strict=True))


def layers() -> dict[str, Any]:
    torch.manual_seed(0)
    options = {"plain": {}, "shifted": {"shift": 1}, "preconditioned": {"shift": 1, "precondition": True}}
    found = {f"window-{key}": ATTENTION.build("window", 2, 4, options={"window": 3, **o}) for key, o in options.items()}
    return {**found, "lpi": ATTENTION.build("lpi", 2, 4)}


GRID, DIM = (5, 4), 8


def image() -> tuple[Tensor, Tensor]:
    """A grid of 5 x 4 that does not divide into windows of 3 x 3; the second image is partly, the third all masked."""
    generator = torch.Generator().manual_seed(1)
    mask = torch.ones(3, 20, dtype=torch.bool)
    mask[1, ::3] = False
    mask[2] = False
    return torch.randn(3, 20, DIM, generator=generator), mask


def test_every_mechanism_is_tested() -> None:
    assert GRIDS == ["lpi", "window"]
    assert {"softmax", "linformer", "efficient", "performer", "xca", "fastformer", "nystrom"} <= set(CORES)


@pytest.mark.parametrize("name", list(layers()))
@pytest.mark.parametrize("garbage", [1e4, float("nan")], ids=["large", "nan"])
def test_masked_patches_change_nothing_and_are_zero(name: str, garbage: float) -> None:
    layer, (x, mask) = layers()[name].eval(), image()
    out = layer(x, GRID, mask)
    assert torch.equal(layer(torch.where(mask[..., None], x, garbage), GRID, mask), out)
    assert (out[~mask] == 0).all() and (out[mask].abs().amax(dim=1) > 0).all()


@pytest.mark.parametrize("name", list(layers()))
def test_no_image_depends_on_its_batch(name: str) -> None:
    layer, (x, mask) = layers()[name].eval(), image()
    alone = [layer(x[row : row + 1], GRID, mask[row : row + 1]) for row in range(3)]
    assert_close(torch.cat(alone), layer(x, GRID, mask))
    assert_close(layer(x[:1], GRID), layer(x, GRID, mask)[:1])


@pytest.mark.parametrize("name", list(layers()))
def test_gradients_of_a_masked_image_are_finite_and_reach_every_parameter(name: str) -> None:
    layer, (x, mask) = layers()[name].double(), image()
    (layer(x.double(), GRID, mask) ** 2).sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all()
        assert parameter.grad.flatten(1 if parameter.ndim > 1 else 0).abs().amax(dim=-1).min() > 0


@pytest.mark.parametrize("name", list(layers()))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_layers_on_a_grid_in_half_precision(name: str, dtype: torch.dtype) -> None:
    layer, (x, mask) = layers()[name].eval(), image()
    exact = layer(x, GRID, mask)
    half = layer.to(dtype)(x.to(dtype), GRID, mask)
    assert half.dtype == dtype and (half.float() - exact).norm() / exact.norm() < 0.02


def test_lpi_normalises_a_single_patch_by_the_running_statistics() -> None:
    layer, x = layers()["lpi"].train(), torch.randn(1, 1, DIM)
    found = layer(x, (1, 1))
    assert torch.equal(found, layer.eval()(x, (1, 1)))
