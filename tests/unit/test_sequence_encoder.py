"""The transformer over time steps against its formulas in numpy, and what it refuses."""

from math import erf
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ovo_clinic.encoders.sequence import Sequence
from ovo_clinic.errors import UserError
from ovo_clinic.flops import count_macs
from ovo_clinic.registry import ENCODERS, Choice
from ovo_clinic.types import Modality

FEATURES, WIDTH, HEADS, DIM = 3, 8, 2, 5
SERIES = Modality("series", "sequence", FEATURES)
Array = NDArray[np.float64]


def encoder(**options: Any) -> Sequence:
    torch.manual_seed(0)
    return Sequence(SERIES, DIM, width=WIDTH, heads=HEADS, **options).double().eval()


def normed(x: Array, weights: dict[str, Array], name: str) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def linear(x: Array, weights: dict[str, Array], name: str) -> Array:
    bias = weights.get(f"{name}.bias")
    return x @ weights[f"{name}.weight"].T + (0.0 if bias is None else bias)


def attended(x: Array, weights: dict[str, Array], name: str, precondition: bool) -> Array:
    q, k, v = (linear(x, weights, f"{name}.{part}") for part in ("query", "key", "value"))
    heads = []
    for columns in np.split(np.arange(WIDTH), HEADS):
        scores = q[:, columns] @ k[:, columns].T / np.sqrt(len(columns))
        rows = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True) @ v[:, columns]
        heads.append(rows / np.linalg.norm(rows, axis=1, keepdims=True) if precondition else rows)
    return linear(np.concatenate(heads, axis=1), weights, f"{name}.out")


def states(model: Sequence, x: Array, precondition: bool, first: Array | None = None) -> Array:
    """The normed states of steps x (T,F), after a class token where there is one."""
    weights = {name: value.detach().numpy() for name, value in model.named_parameters()}
    if model.positions is None:
        angles = np.arange(len(x))[:, None] / 10000 ** (np.arange(WIDTH // 2) / (WIDTH // 2))
        places = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    else:
        places = weights["positions"][: len(x)]
    hidden = linear(x, weights, "embed") + places
    hidden = hidden if first is None else np.concatenate([first, hidden])
    for number in range(len(model.blocks)):
        name = f"blocks.{number}"
        hidden = hidden + attended(
            normed(hidden, weights, f"{name}.attention.norm"), weights, f"{name}.attention.layer.layer", precondition
        )
        inner = linear(normed(hidden, weights, f"{name}.network.norm"), weights, f"{name}.network.layer.0")
        inner = inner * (1 + np.vectorize(erf)(inner / np.sqrt(2))) / 2
        hidden = hidden + linear(inner, weights, f"{name}.network.layer.2")
    return normed(hidden, weights, "norm")


LENGTHS, STEPS = [4, 1, 6], 6


def series(seed: int = 1) -> tuple[Array, NDArray[np.bool_]]:
    x = np.random.default_rng(seed).normal(size=(len(LENGTHS), STEPS, FEATURES))
    mask = np.arange(STEPS) < np.array(LENGTHS)[:, None]
    x[~mask] = np.nan  # what stands in the padding is none of the encoder's business
    return x, mask


@pytest.mark.parametrize("precondition", [False, True], ids=["plain", "preconditioned"])
@pytest.mark.parametrize("output", ["mean", "cls", "tokens"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_padded_series_follow_the_formulas(output: str, positions: str, precondition: bool) -> None:
    length = STEPS if positions == "learned" else None
    model = encoder(output=output, positions=positions, length=length, precondition=precondition)
    x, mask = series()
    found = model(torch.from_numpy(x), torch.from_numpy(mask))
    first = None if model.class_token is None else model.class_token[0].detach().numpy()
    weight, bias = model.out.weight.detach().numpy(), model.out.bias.detach().numpy()
    for row, steps in enumerate(LENGTHS):
        expected = states(model, x[row, :steps], precondition, first)
        expected = {"mean": expected.mean(axis=0, keepdims=True), "cls": expected[:1], "tokens": expected}[output]
        values = found.values[row][found.mask[row]].detach().numpy()
        np.testing.assert_allclose(values, expected @ weight.T + bias, atol=1e-6)


@pytest.mark.parametrize("attention", ["softmax", "nystrom", "efficient", "fastformer"])
def test_masked_steps_anywhere_are_passed_over(attention: str) -> None:
    model = encoder(attention=Choice(name=attention), output="tokens")
    short = torch.randn(2, 3, FEATURES, dtype=torch.float64)
    places = [1, 4, 6]
    x = torch.full((2, 9, FEATURES), torch.nan, dtype=torch.float64)
    mask = torch.zeros(2, 9, dtype=torch.bool)
    x[:, places], mask[:, places] = short, True
    expected = model(short, torch.ones(2, 3, dtype=torch.bool))
    torch.testing.assert_close(model(x, mask).values[:, places], expected.values, rtol=0, atol=1e-12)


def test_the_order_of_the_steps_counts() -> None:
    x, mask = torch.randn(1, 5, FEATURES, dtype=torch.float64), torch.ones(1, 5, dtype=torch.bool)
    model = encoder()
    assert (model(x, mask).values - model(x.flip(1), mask).values).abs().max() > 1e-3


@pytest.mark.parametrize("attention", ["softmax", "linformer"])
def test_padding_beyond_the_length_is_cut_off_and_steps_are_refused(attention: str) -> None:
    model = encoder(attention=Choice(name=attention), length=4)
    x, mask = torch.randn(1, 9, FEATURES, dtype=torch.float64), torch.arange(9)[None] < 4
    expected = model(x[:, :4], mask[:, :4])
    assert torch.equal(model(x, mask).values, expected.values)
    with pytest.raises(UserError, match="model.encoders.series.length: a unit has 5 steps, more than 4"):
        model(x, torch.arange(9)[None] < 5)


def test_nystrom_is_linear_and_softmax_quadratic_in_the_steps() -> None:
    def macs(attention: str, steps: int) -> int:
        x, mask = torch.randn(1, steps, FEATURES, dtype=torch.float64), torch.ones(1, steps, dtype=torch.bool)
        return count_macs(encoder(attention=Choice(name=attention), layers=1), x, mask).total

    def bend(attention: str) -> int:
        """Of a + b N + c N^2 it leaves c alone."""
        low, middle, high = (macs(attention, steps) for steps in (128, 256, 512))
        return (high - 2 * middle) - (middle - 2 * low)

    assert bend("softmax") == 2 * WIDTH * (512**2 - 3 * 256**2 + 2 * 128**2)
    assert bend("nystrom") == 0


REFUSED: dict[str, tuple[Modality, dict[str, Any], str]] = {
    "vector": (Modality("age", "vector", 2), {}, "sequence takes sequences, and age is of kind vector"),
    "no length": (SERIES, {"attention": "linformer"}, "'linformer' has weights for each place; set length"),
    "learned": (SERIES, {"positions": "learned"}, "positions: learned ones are made for so many steps; set length"),
    "a grid": (SERIES, {"attention": "window"}, "'window' works on the grid of an image's patches and sequence has"),
    "unsafe": (SERIES, {"attention": "nystrom_reference"}, "is for comparison with published numbers only"),
    "odd": (SERIES, {"width": 9, "heads": 3}, "width: sinusoidal positions need an even one, not 9"),
    "heads": (SERIES, {"width": 8, "heads": 3}, "heads: 3 does not divide dim 8"),
    "mechanism": (SERIES, {"attention": "nystro"}, "'nystro' is not known; did you mean 'nystrom'?"),
    "option": (SERIES, {"attention": {"name": "nystrom", "landmark": 3}}, "attention.landmark: no such setting"),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_what_does_not_fit_is_refused_in_one_line(case: str) -> None:
    modality, options, message = REFUSED[case]
    with pytest.raises(UserError) as caught:
        ENCODERS.build("sequence", modality, DIM, options=options)
    assert message in str(caught.value) and "\n" not in str(caught.value)
