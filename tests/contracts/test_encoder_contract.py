"""The contract of every encoder, over the registry and every kind of modality."""

import atexit
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from ovo_clinic.errors import UserError
from ovo_clinic.registry import ATTENTION, ENCODERS
from ovo_clinic.types import Modality, ModalityKind, Tokens
from tests.tiny_models import WORDS, tiny_bert, tiny_image_model

DIM, BATCH, STEPS, FEATURES, SIZE = 16, 6, 5, 7, (32, 24)
KINDS: tuple[ModalityKind, ...] = ("vector", "sequence", "image", "text")

# Softmax is blind to a key bias, which the checkpoints of others have.
KEY_BIASES = ("key.bias", "k_lin.bias", "k_proj.bias")
RAGGED = ("sequence", "text")

# Images are encoded with small networks; ViTs with every mechanism that fits (a grid has no place for a class token).
SMALL_VIT = {"patch": 8, "width": 16, "depth": 2, "heads": 2}
XCIT = {**SMALL_VIT, "lpi": True, "class_layers": 1, "positions": "sinusoidal", "layer_scale": 1.0, "attention": "xca"}
NO_CLASS = {**SMALL_VIT, "class_token": False}
SMALL_SWIN = {"patch": 2, "width": 32, "depths": [2, 2], "heads": [2, 4], "window": 4}
WINDOW = {"name": "window", "window": 2}
SMALL_SERIES = {"width": 16, "heads": 2, "length": STEPS + 1}
PRECONDITIONED, OUTPUTS = ("softmax", "linformer", "xca", "nystrom", "fastformer"), ("mean", "cls", "tokens")
CHECKPOINTS = Path(tempfile.mkdtemp())
atexit.register(shutil.rmtree, CHECKPOINTS, ignore_errors=True)
BERT = {"checkpoint": str(tiny_bert(CHECKPOINTS / "bert"))}
DISTILBERT = {"checkpoint": str(tiny_bert(CHECKPOINTS / "distilbert", "distilbert"))}
VIT = {"checkpoint": str(tiny_image_model(CHECKPOINTS / "vit", channels=FEATURES))}
RESNET = {"checkpoint": str(tiny_image_model(CHECKPOINTS / "resnet", "resnet", channels=FEATURES))}
FROZEN = {"checkpoint": "is read by `inputs`", "frozen": True}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "vit": {
        **{name: {"shape": SMALL_VIT, "attention": name} for name in ATTENTION.names()},
        **{f"{name}-pre": {"shape": SMALL_VIT, "attention": name, "precondition": True} for name in ("softmax", "xca")},
        "tokens": {"shape": SMALL_VIT, "output": "tokens"},
        "mean": {"shape": NO_CLASS},
        "mean-tokens": {"shape": NO_CLASS, "output": "tokens"},
        "xcit": {"shape": XCIT},
        "xcit-tokens": {"shape": XCIT, "output": "tokens", "precondition": True},
        "window": {"shape": NO_CLASS, "attention": WINDOW},
        "window-pre": {"shape": NO_CLASS, "attention": WINDOW, "precondition": True},
        "lpi": {"shape": NO_CLASS, "attention": "lpi"},
    },
    "swin": {
        "sdpa": {"shape": SMALL_SWIN},
        "tokens": {"shape": SMALL_SWIN, "output": "tokens"},
        "preconditioned": {"shape": SMALL_SWIN, "attention": "preconditioned"},
    },
    "deit": {
        "sdpa": {"shape": SMALL_VIT},
        "tokens": {"shape": SMALL_VIT, "output": "tokens"},
        "preconditioned": {"shape": SMALL_VIT, "attention": "preconditioned"},
    },
    "multi_scale": {
        "xca": {"shape": XCIT},
        "softmax-pre": {"shape": {**SMALL_VIT, "depth": 4}, "precondition": True, "blocks": (1, 1, 2, 3)},
    },
    "lstm": {
        "": {},
        "tokens": {"output": "tokens"},
        "both-ways": {"layers": 2, "bidirectional": True},
        "both-ways-tokens": {"layers": 2, "bidirectional": True, "output": "tokens"},
    },
    "sequence": {
        **{name: {**SMALL_SERIES, "attention": name} for name in ATTENTION.names()},
        **{f"{name}-pre": {**SMALL_SERIES, "attention": name, "precondition": True} for name in PRECONDITIONED},
        **{f"{output}-learned": {**SMALL_SERIES, "output": output, "positions": "learned"} for output in OUTPUTS},
        "cls": {**SMALL_SERIES, "output": "cls", "length": None},
        "tokens": {**SMALL_SERIES, "output": "tokens", "length": None},
        "tokens-linformer": {**SMALL_SERIES, "output": "tokens", "attention": "linformer"},
        "cls-nystrom": {**SMALL_SERIES, "output": "cls", "attention": {"name": "nystrom", "landmarks": 2}},
    },
    "cnn": {"": {}, "tokens": {"output": "tokens", "grid": 2}},
    "pretrained_image": {
        **{f"vit-{output}": {**VIT, "output": output} for output in ("cls", "mean", "tokens")},
        **{f"resnet-{output}": {**RESNET, "output": output} for output in ("mean", "tokens")},
        **{name: {**VIT, "attention": name} for name in ("preconditioned", "ovo_efficient")},
        "frozen": FROZEN,
    },
    "precomputed": {"": {"file": "is read by `inputs`"}},
    "text": {
        **{output: {**BERT, "output": output} for output in ("cls", "mean", "tokens")},
        **{f"distilbert-{output}": {**DISTILBERT, "output": output} for output in ("cls", "tokens")},
        **{name: {**BERT, "attention": name} for name in ("eager", "preconditioned", "ovo_efficient")},
        "frozen": FROZEN,
    },
}


@dataclass(frozen=True)
class Case:
    """An encoder, by name and variant, of one kind of modality."""

    name: str
    kind: ModalityKind
    variant: str = ""

    def __str__(self) -> str:
        return "-".join(part for part in (self.name, self.kind, self.variant) if part)


def modality(kind: ModalityKind) -> Modality:
    return Modality("labs", kind, FEATURES, SIZE if kind == "image" else None)


def build(case: Case, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    options = VARIANTS.get(case.name, {}).get(case.variant, {})
    encoder = ENCODERS.build(case.name, modality(case.kind), DIM, options=options)
    assert isinstance(encoder, nn.Module)
    return encoder.eval()


def accepted_cases() -> list[Case]:
    cases = []
    for name in ENCODERS.names():
        for kind in KINDS:
            for variant in VARIANTS.get(name, [""]):
                try:
                    build(Case(name, kind, variant))
                except UserError:
                    continue
                cases.append(Case(name, kind, variant))
    return cases


CASES = accepted_cases()
UNSAFE = {name for name in ATTENTION.names() if getattr(ATTENTION.get(name), "unsafe", None)}
ON_A_GRID = {name for name in ATTENTION.names() if getattr(ATTENTION.get(name), "needs_grid", False)}
every_encoder = pytest.mark.parametrize("case", CASES, ids=str)


def inputs(case: Case, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """x and mask: unit 1 is absent; a sequence and a text are padded."""
    generator = torch.Generator().manual_seed(1)
    steps = STEPS if case.kind in RAGGED else 1
    mask = torch.arange(steps) < torch.randint(1, steps + 1, (BATCH, 1), generator=generator)
    mask[1] = False
    if case.kind == "text":
        return torch.randint(1, len(WORDS), (BATCH, steps), generator=generator).masked_fill(~mask, 0), mask
    shape = {"vector": (FEATURES,), "sequence": (steps, FEATURES), "image": (FEATURES, *SIZE)}[case.kind]
    x = torch.randn(BATCH, *shape, generator=generator)
    return x.masked_fill(~like(mask, x), 0).to(dtype), mask


def like(mask: Tensor, x: Tensor) -> Tensor:
    """The mask (B,T) in a shape that broadcasts to x."""
    return mask.view(*mask.shape, *[1] * (x.ndim - 2)) if x.ndim > 2 else mask


def test_every_registered_encoder_takes_some_kind_of_modality() -> None:
    assert {case.name for case in CASES} == set(ENCODERS.names())
    assert {Case("mlp", "vector"), Case("mlp", "sequence")} <= set(CASES)
    for mechanism in (
        "softmax",
        "linformer",
        "efficient",
        "performer",
        "xca",
        "fastformer",
        "nystrom",
        "window",
        "lpi",
    ):
        assert Case("vit", "image", mechanism) in CASES
    for name, variants in VARIANTS.items():
        impossible = UNSAFE | (ON_A_GRID if name == "sequence" else set())
        assert {case.variant for case in CASES if case.name == name} >= set(variants) - impossible


@every_encoder
def test_tokens_have_the_width_and_are_zero_where_masked(case: Case) -> None:
    tokens: Tokens = build(case)(*inputs(case))
    assert tokens.values.shape[0] == BATCH and tokens.values.shape[2] == DIM
    assert (tokens.values[~tokens.mask] == 0).all()
    assert tokens.present.tolist() == [True, False, True, True, True, True]
    assert (tokens.values[tokens.mask].abs().amax(dim=1) > 0).all()


@every_encoder
@pytest.mark.parametrize("garbage", [1e4, float("nan")], ids=["large", "nan"])
def test_a_value_under_a_false_mask_changes_neither_output_nor_gradient(case: Case, garbage: float) -> None:
    encoder, (x, mask) = build(case), inputs(case)
    dirty = torch.where(like(mask, x), x, garbage if x.is_floating_point() else len(WORDS) - 1)
    expected, found = encoder(x, mask), encoder(dirty, mask)
    assert torch.equal(found.values, expected.values) and torch.equal(found.mask, expected.mask)
    parameters = list(encoder.parameters())
    clean = torch.autograd.grad((expected.values**2).sum(), parameters)
    for gradient, reference in zip(torch.autograd.grad((found.values**2).sum(), parameters), clean, strict=True):
        assert torch.equal(gradient, reference)


@pytest.mark.parametrize("case", [case for case in CASES if case.kind in RAGGED], ids=str)
def test_more_padding_changes_nothing(case: Case) -> None:
    encoder, (x, mask) = build(case), inputs(case)
    tokens = encoder(x, mask)
    more = torch.full((BATCH, 2, *x.shape[2:]), 3, dtype=x.dtype)
    padded = encoder(torch.cat([x, more], dim=1), torch.cat([mask, torch.zeros(BATCH, 2, dtype=torch.bool)], dim=1))
    for row in range(BATCH):
        found, expected = padded.values[row][padded.mask[row]], tokens.values[row][tokens.mask[row]]
        assert_close(found, expected, rtol=1e-5, atol=1e-6)


@every_encoder
def test_a_unit_does_not_depend_on_its_batch_and_a_batch_of_one_works(case: Case) -> None:
    encoder, (x, mask) = build(case), inputs(case)
    together = encoder(x, mask)
    for row in range(BATCH):
        alone = encoder(x[row : row + 1], mask[row : row + 1])
        assert torch.equal(alone.mask, together.mask[row : row + 1])
        assert_close(alone.values, together.values[row : row + 1], rtol=1e-5, atol=1e-6)


@every_encoder
def test_nothing_present_is_zero_with_finite_gradients(case: Case) -> None:
    encoder, (x, mask) = build(case), inputs(case)
    tokens = encoder(torch.zeros_like(x), torch.zeros_like(mask))
    assert (tokens.values == 0).all() and not tokens.mask.any()
    tokens.values.sum().backward()
    assert all(parameter.grad is not None and (parameter.grad == 0).all() for parameter in encoder.parameters())


@every_encoder
def test_gradients_reach_every_parameter(case: Case) -> None:
    encoder = build(case)
    (encoder(*inputs(case)).values ** 2).sum().backward()
    gradients = {name: parameter.grad for name, parameter in encoder.named_parameters()}
    largest = max(float(gradient.abs().max()) for gradient in gradients.values() if gradient is not None)
    for name, gradient in gradients.items():
        assert gradient is not None, name
        if not name.endswith(KEY_BIASES):
            assert gradient.abs().max() > 1e-6 * largest, name


@every_encoder
def test_a_state_dict_restores_the_encoder(case: Case) -> None:
    encoder, other, given = build(case), build(case, seed=5), inputs(case)
    assert not torch.equal(other(*given).values, encoder(*given).values)
    other.load_state_dict(encoder.state_dict())
    assert torch.equal(other(*given).values, encoder(*given).values)


@every_encoder
def test_bfloat16_is_near_float32(case: Case) -> None:
    encoder = build(case)
    exact = encoder(*inputs(case)).values
    half = encoder.to(torch.bfloat16)(*inputs(case, torch.bfloat16)).values
    assert half.dtype == torch.bfloat16
    assert (half.float() - exact).norm() / exact.norm() < 0.03


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
def test_mlp_layers_and_width(layers: int) -> None:
    encoder = ENCODERS.build("mlp", Modality("labs", "vector", 7), DIM, options={"layers": layers, "width": 11})
    widths = [7, *[11] * (layers - 1), DIM]
    expected = sum((before + 1) * after for before, after in zip(widths, widths[1:], strict=False))
    assert sum(parameter.numel() for parameter in encoder.parameters()) == expected


@pytest.mark.parametrize("layers", [0, 5])
def test_mlp_refuses_other_numbers_of_layers(layers: int) -> None:
    with pytest.raises(UserError, match=r"model\.encoders\.labs\.layers: "):
        ENCODERS.options("mlp", {"layers": layers}, "model.encoders.labs")
