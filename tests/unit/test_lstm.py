"""The LSTM encoder against its formulas written out in numpy."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from ovo_clinic.encoders.lstm import Lstm
from ovo_clinic.errors import UserError
from ovo_clinic.flops import count_macs
from ovo_clinic.types import Modality

FEATURES, WIDTH, DIM = 3, 5, 4
LABS = Modality("labs", "sequence", FEATURES)


def encoder(**options: Any) -> Lstm:
    torch.manual_seed(0)
    return Lstm(LABS, DIM, width=WIDTH, **options).double().eval()


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def one_direction(x: Any, weights: dict[str, Any], name: str) -> Any:
    """States (T,width) of steps (T,F): Hochreiter and Schmidhuber's cell with a forget gate (Gers et al. 2000)."""
    h, c, states = np.zeros(WIDTH), np.zeros(WIDTH), []
    for step in x:
        gates = weights[f"weight_ih_{name}"] @ step + weights[f"bias_ih_{name}"]
        gates = gates + weights[f"weight_hh_{name}"] @ h + weights[f"bias_hh_{name}"]
        i, f, g, o = np.split(gates, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        states.append(h)
    return np.array(states)


def reference(model: Lstm, x: Any, layers: int, both: bool) -> tuple[Any, Any]:
    """(state after the last step, state at every step), through the output layer."""
    weights = {name: value.detach().numpy() for name, value in model.lstm.named_parameters()}
    last = np.empty(0)
    for layer in range(layers):
        states = one_direction(x, weights, f"l{layer}")
        last = states[-1]
        if both:
            back = one_direction(x[::-1], weights, f"l{layer}_reverse")
            last = np.concatenate([states[-1], back[-1]])
            states = np.concatenate([states, back[::-1]], axis=1)
        x = states
    weight, bias = model.out.weight.detach().numpy(), model.out.bias.detach().numpy()
    return weight @ last + bias, x @ weight.T + bias


@pytest.mark.parametrize("both", [False, True], ids=["one-way", "both-ways"])
@pytest.mark.parametrize("layers", [1, 2])
def test_padded_series_of_any_length_follow_the_formulas(layers: int, both: bool) -> None:
    rng = np.random.default_rng(1)
    lengths, steps = [4, 1, 6, 6], 6
    x = rng.normal(size=(4, steps, FEATURES))
    mask = np.arange(steps) < np.array(lengths)[:, None]
    x[~mask] = 7.0  # what stands in the padding is none of the encoder's business
    given = torch.from_numpy(x), torch.from_numpy(mask)
    options: dict[str, Any] = {"layers": layers, "bidirectional": both}
    last, tokens = encoder(**options)(*given), encoder(**options, output="tokens")(*given)
    assert last.values.shape == (4, 1, DIM) and tokens.mask.equal(given[1])
    for row, length in enumerate(lengths):
        expected, each = reference(encoder(**options), x[row, :length], layers, both)
        np.testing.assert_allclose(last.values[row, 0].detach(), expected, atol=1e-12)
        np.testing.assert_allclose(tokens.values[row, :length].detach(), each, atol=1e-12)


@pytest.mark.parametrize("both", [False, True], ids=["one-way", "both-ways"])
@pytest.mark.parametrize("output", ["last", "tokens"])
def test_masked_steps_anywhere_are_passed_over(both: bool, output: str) -> None:
    model = encoder(bidirectional=both, output=output)
    short = torch.randn(2, 3, FEATURES, dtype=torch.float64)
    places = [1, 4, 6]
    x = torch.full((2, 9, FEATURES), torch.nan, dtype=torch.float64)
    mask = torch.zeros(2, 9, dtype=torch.bool)
    x[:, places], mask[:, places] = short, True
    found, expected = model(x, mask), model(short, torch.ones(2, 3, dtype=torch.bool))
    values = found.values if output == "last" else found.values[:, places]
    assert_close(values, expected.values, rtol=0, atol=1e-12)
    if output == "tokens":
        assert found.mask.equal(mask) and (found.values[~mask] == 0).all()


@pytest.mark.parametrize("layers", [1, 2])
def test_macs_are_those_of_the_four_gates_and_the_output_layer(layers: int) -> None:
    model, steps = encoder(layers=layers), 8
    given = torch.randn(2, steps, FEATURES, dtype=torch.float64), torch.ones(2, steps, dtype=torch.bool)
    cells = sum(4 * WIDTH * (width + WIDTH) for width in [FEATURES, WIDTH][:layers])
    assert count_macs(model, *given).total == 2 * (steps * cells + WIDTH * DIM)


def test_it_takes_sequences_only() -> None:
    with pytest.raises(UserError, match="lstm takes sequences, and age is of kind vector"):
        Lstm(Modality("age", "vector", 2), DIM)
