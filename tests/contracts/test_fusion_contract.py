"""The contract of every fusion head, over the registry: with each mechanism it accepts, plain and preconditioned."""

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from ovo_clinic.registry import ATTENTION, FUSION
from ovo_clinic.types import Tokens
from tests.contracts.combinations import DIM, MODALITIES, Case, combinations

BATCH, STEPS = 6, 5
Given = dict[str, Tokens]
ROUTINGS = ("self_attention", "cross_attention", "ovo", "bottleneck")
NARROW = {"mean", "gated", "low_rank", "mixture_of_experts"}
"""Heads whose fused vector is as wide as one modality; that of the others has a place for each of them."""


def build(case: Case, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    name, options = case
    head = FUSION.build(name, DIM, MODALITIES, options=options)
    assert isinstance(head, nn.Module)
    return head.eval()


def label(case: Case) -> str:
    name, options = case
    mechanism = options.get("attention", "")
    parts = mechanism.items() if isinstance(mechanism, dict) else [("name", mechanism)]
    words = [str(value) if key == "name" else f"{key}={value}" for key, value in parts if value]
    return "-".join([name, *words, *(["preconditioned"] if options.get("precondition") else [])])


COMBINATIONS = combinations()
WITH_OPTIONS: list[Case] = [
    (name, {"attention": mechanism, "precondition": True})
    for name in ROUTINGS
    for mechanism in (
        {"name": "nystrom", "landmarks": 2, "kernel": 3},
        {"name": "xca", "precondition_rows": "channel"},
        {"name": "xca", "precondition_rows": "attn"},
    )
]
CASES = [*COMBINATIONS.accepted, *COMBINATIONS.other, *WITH_OPTIONS]
SAFE = [case for case in CASES if FUSION.get(case[0]).unsafe is None]
UNSAFE = [case for case in CASES if FUSION.get(case[0]).unsafe is not None]
every_head = pytest.mark.parametrize("case", CASES, ids=label)
every_safe_head = pytest.mark.parametrize("case", SAFE, ids=label)


def tokens(seed: int = 1, dtype: torch.dtype = torch.float32) -> Given:
    """A batch in which every modality is absent somewhere; the last unit has none and the sequence is padded."""
    generator = torch.Generator().manual_seed(seed)
    present = torch.ones(BATCH, len(MODALITIES), dtype=torch.bool)
    present[1, 0] = present[2, 1] = present[3, 2] = present[4, :2] = present[5, :] = False
    given = {}
    for column, modality in enumerate(MODALITIES):
        steps = STEPS if modality.kind == "sequence" else 1
        lengths = torch.randint(1, steps + 1, (BATCH, 1), generator=generator)
        mask = (torch.arange(steps) < lengths) & present[:, column : column + 1]
        values = torch.randn(BATCH, steps, DIM, generator=generator).to(dtype)
        given[modality.name] = Tokens(values * mask[..., None], mask)
    return given


def rows(given: Given, chosen: slice | list[int]) -> Given:
    return {name: Tokens(item.values[chosen], item.mask[chosen]) for name, item in given.items()}


def probe(out: Tensor, seed: int = 2) -> Tensor:
    """A loss that weighs every output differently."""
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).to(out.dtype)
    return (out * weights).sum() + (out**2).sum()


def test_registry_holds_the_heads_and_mechanisms() -> None:
    expected = {"concat", "late", "missing_token", "mmtm", *NARROW, *ROUTINGS}
    references = {"self_attention_reference", "cross_attention_reference", "ovo_reference"}
    assert expected | references <= set(FUSION.names())
    mechanisms = {"softmax", "linformer", "efficient", "performer", "xca", "fastformer", "nystrom"}
    assert mechanisms | {"window", "lpi", "nystrom_reference"} <= set(ATTENTION.names())
    assert {case[0] for case in CASES} == set(FUSION.names()), "a head accepts no mechanism at all"
    assert {case[0] for case in UNSAFE} == {"self_attention_reference", "cross_attention_reference"}


def test_accepted_and_refused_combinations() -> None:
    """All seven mechanisms in all four routings, but fastformer in ovo; nothing unsafe, nothing that needs a grid."""
    refused = {(name, options["attention"]) for (name, options), _ in COMBINATIONS.refused}
    expected = {(name, mechanism) for name in ROUTINGS for mechanism in ("window", "lpi", "nystrom_reference")}
    assert refused == expected | {("ovo", "fastformer")}
    every = [(name, mechanism) for name in ROUTINGS for mechanism in ATTENTION.names()]
    assert len(COMBINATIONS.accepted) == 2 * (len(every) - len(refused))
    assert all(reason.startswith(f"attention: '{case[1]['attention']}' ") for case, reason in COMBINATIONS.refused)


@every_head
@pytest.mark.parametrize("garbage", [1e4, float("nan")], ids=["large", "nan"])
def test_a_value_under_a_false_mask_changes_nothing(case: Case, garbage: float) -> None:
    head, given = build(case), tokens()
    dirty = {
        name: Tokens(torch.where(item.mask[..., None], item.values, garbage), item.mask) for name, item in given.items()
    }
    assert torch.equal(head(dirty), head(given))


@every_head
def test_an_absent_modality_equals_one_not_given(case: Case) -> None:
    head, given = build(case), tokens()
    for name, item in given.items():
        absent = {**given, name: Tokens(torch.zeros_like(item.values), torch.zeros_like(item.mask))}
        missing = {key: value for key, value in given.items() if key != name}
        assert torch.equal(head(absent), head(missing))


@every_head
def test_more_padding_changes_nothing(case: Case) -> None:
    head, given = build(case), tokens()
    item = given["vitals"]
    values = torch.cat([item.values, torch.full((BATCH, 3, DIM), 7.0)], dim=1)
    padded = {**given, "vitals": Tokens(values, torch.cat([item.mask, torch.zeros(BATCH, 3, dtype=torch.bool)], dim=1))}
    assert_close(head(padded), head(given), rtol=1e-5, atol=1e-6)


@every_safe_head
def test_a_unit_does_not_depend_on_its_batch(case: Case) -> None:
    head, given = build(case), tokens()
    out = head(given)
    assert_close(torch.cat([head(rows(given, [row])) for row in range(BATCH)]), out, rtol=1e-5, atol=1e-6)
    assert_close(head(rows(given, [0, 4, 3])), out[[0, 4, 3]], rtol=1e-5, atol=1e-6)
    assert other_units_gradient(head, given) == 0


@pytest.mark.parametrize("case", UNSAFE, ids=label)
def test_unsafe_heads_do_mix_the_units_of_a_batch(case: Case) -> None:
    head, given = build(case), tokens()
    assert "depends on who else is in it" in str(FUSION.get(case[0]).unsafe)
    assert (head(rows(given, [0, 1]))[0] - head(given)[0]).abs().max() > 1e-3
    assert other_units_gradient(head, given) > 1e-4


def other_units_gradient(head: nn.Module, given: Given) -> float:
    """Largest gradient of the first unit's output with respect to any other unit's input."""
    leaves = {name: item.values.clone().requires_grad_() for name, item in given.items()}
    out = head({name: Tokens(leaves[name], given[name].mask) for name in given})
    gradients = torch.autograd.grad(probe(out[:1]), list(leaves.values()))
    assert max(float(gradient[0].abs().max()) for gradient in gradients) > 1e-4
    return max(float(gradient[1:].abs().max()) for gradient in gradients)


@every_head
def test_the_order_in_which_modalities_are_given_is_irrelevant(case: Case) -> None:
    head, given = build(case), tokens()
    assert torch.equal(head(dict(reversed(given.items()))), head(given))


@every_head
def test_nothing_present_is_finite_and_so_are_its_gradients(case: Case) -> None:
    head = build(case)
    nothing = {
        name: Tokens(torch.zeros_like(item.values), torch.zeros_like(item.mask)) for name, item in tokens().items()
    }
    out = head(nothing)
    assert out.isfinite().all()
    if case[0] == "missing_token":
        assert out.abs().max() > 0 and (out == out[0]).all()
    elif case in SAFE:
        assert (out == 0).all()
    probe(out).backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in head.parameters())


@pytest.mark.parametrize("case", [case for case in SAFE if not case[0].startswith("cross")], ids=label)
def test_a_single_modality_is_not_lost(case: Case) -> None:
    """Cross-attention, which has pairs only, has nothing to say on such a unit."""
    head, given = build(case), rows(tokens(), [4])
    assert [bool(item.present) for item in given.values()] == [False, False, True]
    values = given["codes"].values
    out, other = head(given)[0], head({"codes": Tokens(values + torch.randn(values.shape), given["codes"].mask)})[0]
    assert out.abs().max() > 0.01 and (out - other).abs().max() > 0.01
    if case[0] not in NARROW:
        others = [*range(2 * DIM), *range(3 * DIM, head.out_dim)]
        assert torch.equal(out[others], other[others])
        assert case[0] == "missing_token" or (out[: 2 * DIM] == 0).all()


@every_safe_head
def test_gradients_reach_every_row_of_every_parameter(case: Case) -> None:
    head = build(case)
    probe(head(tokens())).backward()
    gradients = {name: parameter.grad for name, parameter in head.named_parameters()}
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients.values())
    largest = max((float(gradient.abs().max()) for gradient in gradients.values() if gradient is not None), default=0.0)
    for name, gradient in gradients.items():
        assert gradient is not None
        by_row = gradient.flatten(1).abs().amax(dim=1) if gradient.ndim > 1 else gradient.abs().max()
        assert (by_row > 1e-6 * largest).all(), name


@every_head
def test_a_state_dict_restores_the_head(case: Case) -> None:
    head, other, given = build(case), build(case, seed=5), tokens()
    if any(True for _ in head.parameters()):
        assert not torch.equal(other(given), head(given))
    other.load_state_dict(head.state_dict())
    assert torch.equal(other(given), head(given))


@every_head
def test_bfloat16_is_near_float32(case: Case) -> None:
    head = build(case)
    exact = head(tokens())
    given = tokens(dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = head(tokens())
    half = head.to(torch.bfloat16)(given)
    assert half.dtype == torch.bfloat16
    for out in (mixed, half):
        assert (out.float() - exact).norm() / exact.norm() < 0.03


@every_head
def test_float16_is_finite_and_near_float32(case: Case) -> None:
    exact = build(case)(tokens())
    half = build(case).to(torch.float16)(tokens(dtype=torch.float16))
    assert half.dtype == torch.float16 and half.isfinite().all()
    assert (half.float() - exact).norm() / exact.norm() < 0.03


@every_head
def test_a_batch_of_one_works_and_out_dim_is_right(case: Case) -> None:
    head = build(case)
    out = head(rows(tokens(), [0]))
    assert out.shape == (1, head.out_dim)
    assert out.isfinite().all() and out.abs().max() > 0
    modalities = len(MODALITIES)
    widths = {**dict.fromkeys(NARROW, DIM), "late": modalities * (DIM + 1)}
    pairs = modalities * (modalities - 1) if case[0].startswith("cross") else modalities
    assert head.out_dim == widths.get(case[0], pairs * DIM)


def test_ovo_reference_with_one_head_is_the_identity_and_says_so() -> None:
    with pytest.warns(UserWarning, match="heads=1 is the identity"):
        head = build(("ovo_reference", {"heads": 1}))
    x = torch.randn(BATCH, len(MODALITIES), DIM, dtype=torch.float64)
    present = torch.ones(BATCH, 1, dtype=torch.bool)
    given = {modality.name: Tokens(x[:, i : i + 1], present) for i, modality in enumerate(MODALITIES)}
    out = head.double()(given)
    assert torch.equal(out, x.flatten(1))
    probe(out).backward()
    (weight,) = head.parameters()
    assert weight.grad is not None and weight.grad.abs().max() < 1e-12


def test_ovo_reference_with_more_heads_is_not_the_identity() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        head = build(("ovo_reference", {"heads": 4}))
    given = rows(tokens(), [0])
    vectors = [item.values.sum(1) / item.mask.sum(1, keepdim=True) for item in given.values()]
    assert (head(given) - torch.cat(vectors, dim=1)).abs().max() > 0.1
