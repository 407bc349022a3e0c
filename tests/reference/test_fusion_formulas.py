"""Every head against its formula, written out in numpy for one patient and one modality at a time (float64)."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import ndtr
from torch import nn

from ovo_clinic.fusion.ovo import mean_of_others
from ovo_clinic.registry import FUSION
from ovo_clinic.types import Modality, Tokens

Array = NDArray[np.float64]
DIM, HEADS, TOKENS, BATCH, STEPS = 12, 3, 4, 5, 6
WIDTH = DIM // HEADS
KINDS = ("vector", "sequence", "vector", "sequence")
MODALITIES = [Modality(f"m{i}", kind, 1) for i, kind in enumerate(KINDS)]  # type: ignore[arg-type]


@pytest.fixture
def given() -> dict[str, Tokens]:
    """A batch in which modalities are absent and sequences padded; the last patient has one modality only."""
    generator = torch.Generator().manual_seed(3)
    present = torch.rand(BATCH, len(KINDS), generator=generator) < 0.7
    present[0] = True
    present[-1] = torch.tensor([False, True, False, False])
    tokens = {}
    for column, modality in enumerate(MODALITIES):
        steps = STEPS if modality.kind == "sequence" else 1
        mask = (torch.rand(BATCH, steps, generator=generator) < 0.6) | (torch.arange(steps) == steps - 1)
        mask &= present[:, column : column + 1]
        values = torch.randn(BATCH, steps, DIM, generator=generator, dtype=torch.float64)
        tokens[modality.name] = Tokens(values * mask[..., None], mask)
    return tokens


def softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def numbers(head: nn.Module) -> dict[str, Array]:
    return {name: value.detach().numpy() for name, value in head.state_dict().items()}


def modality_tokens(given: dict[str, Tokens], weights: dict[str, Array], patient: int) -> list[Array | None]:
    """n tokens (n,D) of each modality of one patient, None where absent."""
    found: list[Array | None] = []
    sequences = 0
    for column, modality in enumerate(MODALITIES):
        mask = given[modality.name].mask[patient].numpy()
        steps = given[modality.name].values[patient].numpy()[mask]
        row = sequences
        sequences += modality.kind == "sequence"
        if not mask.any():
            found.append(None)
            continue
        pooled = np.repeat(steps, TOKENS, axis=0)
        if modality.kind == "sequence":
            pooled = softmax(weights["tokens.queries"][row] @ steps.T / np.sqrt(DIM)) @ steps
        maps = zip(pooled, weights["tokens.weight"][column], strict=True)
        found.append(np.stack([token @ matrix for token, matrix in maps]) + weights["tokens.bias"][column])
    return found


def concat(x: list[Array | None], weights: dict[str, Array], unit: Callable[[Array], Array]) -> Array:
    return np.concatenate([np.zeros(DIM) if item is None else item.mean(axis=0) for item in x])


def multihead(x: Array, y: Array, weights: dict[str, Array], prefix: str, unit: Callable[[Array], Array]) -> Array:
    """Tokens x (Nq,D) query tokens y (Nk,D)."""
    q, k, v = (
        tokens @ weights[f"{prefix}{part}.weight"].T for tokens, part in ((x, "query"), (y, "key"), (y, "value"))
    )
    heads = [slice(head * WIDTH, (head + 1) * WIDTH) for head in range(HEADS)]
    merged = [unit(softmax(q[:, part] @ k[:, part].T / np.sqrt(WIDTH)) @ v[:, part]) for part in heads]
    return np.concatenate(merged, axis=1) @ weights[f"{prefix}out.weight"].T


def self_attention(x: list[Array | None], weights: dict[str, Array], unit: Callable[[Array], Array]) -> Array:
    sequence = np.concatenate([item for item in x if item is not None])
    rows = iter(multihead(sequence, sequence, weights, "attention.", unit).reshape(-1, TOKENS, DIM))
    return np.concatenate([np.zeros(DIM) if item is None else next(rows).mean(axis=0) for item in x])


def cross_attention(x: list[Array | None], weights: dict[str, Array], unit: Callable[[Array], Array]) -> Array:
    out = []
    for i, querying in enumerate(x):
        for j, queried in enumerate(x):
            if i == j:
                continue
            if querying is None or queried is None:
                out.append(np.zeros(DIM))
            else:
                out.append(multihead(querying, queried, weights, "", unit).mean(axis=0))
    return np.concatenate(out)


def ovo(x: list[Array | None], weights: dict[str, Array], unit: Callable[[Array], Array]) -> Array:
    out = []
    for i, main in enumerate(x):
        if main is None:
            out.append(np.zeros(DIM))
            continue
        heads = []
        for head in range(HEADS):
            own = main @ weights["project"][i, head]
            others = [other @ weights["project"][j, head] for j, other in enumerate(x) if j != i and other is not None]
            mean = np.mean(others, axis=0) if others else np.zeros_like(own)
            heads.append(unit(softmax(mean @ weights["weight"][i, head] @ own.T / np.sqrt(WIDTH)) @ own))
        out.append((np.concatenate(heads, axis=1) @ weights["out.weight"].T).mean(axis=0))
    return np.concatenate(out)


def vectors(x: list[Array | None]) -> list[Array]:
    return [np.zeros(DIM) if item is None else item.mean(axis=0) for item in x]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def gelu(x: Array) -> Array:
    return x * ndtr(x)


def linear(x: Array, weights: dict[str, Array], name: str) -> Array:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def mean(x: list[Array | None], weights: dict[str, Array], unit: Callable[[Array], Array]) -> Array:
    return np.mean([item.mean(axis=0) for item in x if item is not None], axis=0)


def gated(x: list[Array | None], weights: dict[str, Array], unit: Callable[[Array], Array]) -> Array:
    gates = np.split(sigmoid(weights["gate.weight"] @ np.concatenate(vectors(x))), len(x))
    return np.sum([gate * np.tanh(vector) for gate, vector in zip(gates, vectors(x), strict=True)], axis=0)


def low_rank(x: list[Array | None], weights: dict[str, Array], unit: Callable[[Array], Array]) -> Array:
    """The sum over r of the contraction of the tensor of all products with w_1r x ... x w_Mr, cell by cell."""
    present = [(i, np.append(item.mean(axis=0), 1.0)) for i, item in enumerate(x) if item is not None]
    out = weights["bias"].copy()
    for r, weight in enumerate(weights["weights"]):
        factors = [np.vstack([weights["factors"][i, r], weights["ones"][i, r]]) for i, _ in present]
        for column in range(DIM):
            tensor, low = np.ones(()), np.ones(())
            for (_, vector), factor in zip(present, factors, strict=True):
                tensor, low = np.multiply.outer(tensor, vector), np.multiply.outer(low, factor[:, column])
            out[column] += weight * (tensor * low).sum()
    return out


def normed(x: Array, weights: dict[str, Array], name: str) -> Array:
    scaled = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def bottleneck(x: list[Array | None], weights: dict[str, Array], unit: Callable[[Array], Array]) -> Array:
    own, shared = list(x), weights["bottlenecks"]
    for layer in range(2):
        parts = []
        for i, tokens in enumerate(own):
            if tokens is None:
                continue
            block = f"layers.{layer}.{i}."
            both = np.concatenate([tokens, shared])
            query = normed(both, weights, f"{block}attention_norm")
            both = both + multihead(query, query, weights, f"{block}attention.", unit)
            hidden = gelu(linear(normed(both, weights, f"{block}network_norm"), weights, f"{block}network.0"))
            both = both + linear(hidden, weights, f"{block}network.2")
            own[i] = both[:TOKENS]
            parts.append(both[TOKENS:])
        shared = np.mean(parts, axis=0)
    return np.concatenate(vectors(own))


def mmtm(x: list[Array | None], weights: dict[str, Array], unit: Callable[[Array], Array]) -> Array:
    z = linear(np.concatenate(vectors(x)), weights, "squeeze")
    out = []
    for i, tokens in enumerate(x):
        scale = 2 * sigmoid(z @ weights["excite"][i] + weights["bias"][i])
        out.append(np.zeros(DIM) if tokens is None else (scale * tokens).mean(axis=0))
    return np.concatenate(out)


def mixture_of_experts(x: list[Array | None], weights: dict[str, Array], unit: Callable[[Array], Array]) -> Array:
    vector = np.concatenate(vectors(x))
    seen = np.append(vector, [item is not None for item in x])
    gates = softmax(linear(seen, weights, "gate"))
    experts = zip(weights["experts"], weights["bias"], strict=True)
    return np.sum([gate * gelu(vector @ e + b) for gate, (e, b) in zip(gates, experts, strict=True)], axis=0)


def missing_token(x: list[Array | None], weights: dict[str, Array], unit: Callable[[Array], Array]) -> Array:
    pairs = zip(x, weights["missing"], strict=True)
    return np.concatenate([learned if item is None else item.mean(axis=0) for item, learned in pairs])


def late(x: list[Array | None], weights: dict[str, Array], unit: Callable[[Array], Array]) -> Array:
    return np.concatenate([*vectors(x), [item is not None for item in x]])


def unit_rows(rows: Array) -> Array:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


ATTENDING = {
    "self_attention": self_attention,
    "cross_attention": cross_attention,
    "ovo": ovo,
    "bottleneck": bottleneck,
}
OTHERS = {
    "concat": concat,
    "mean": mean,
    "gated": gated,
    "low_rank": low_rank,
    "mmtm": mmtm,
    "mixture_of_experts": mixture_of_experts,
    "missing_token": missing_token,
    "late": late,
}
FORMULAS = ATTENDING | OTHERS
CASES = [(name, False) for name in FORMULAS] + [(name, True) for name in ATTENDING]


@pytest.mark.parametrize(("name", "precondition"), CASES)
def test_head_equals_its_formula(name: str, precondition: bool, given: dict[str, Tokens]) -> None:
    torch.manual_seed(4)
    options = {"heads": HEADS, "precondition": precondition} if name in ATTENDING else {}
    head = FUSION.build(name, DIM, MODALITIES, options={"tokens": TOKENS, **options}).double()
    with torch.no_grad():  # sharper attention, and no weight left as it starts, so that a wrong place would show
        head.tokens.queries.mul_(50)
        head.tokens.weight.mul_(2)
        for parameter in head.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    weights = numbers(head)
    unit: Callable[[Array], Array] = unit_rows if precondition else np.asarray
    out = head(given).detach().numpy()
    for patient in range(BATCH):
        expected = FORMULAS[name](modality_tokens(given, weights, patient), weights, unit)
        np.testing.assert_allclose(out[patient], expected, rtol=0, atol=1e-9)


def test_mean_of_others_keeps_its_digits_in_bfloat16() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 5, 4, 8, generator=generator)
    x[:, 2] *= 300
    half = x.to(torch.bfloat16)
    present = torch.ones(64, 5, dtype=torch.bool)
    expected = np.delete(half.double().numpy(), 2, axis=1).mean(axis=1)
    found = mean_of_others(half, present)[:, 2]
    assert found.dtype == torch.bfloat16
    assert np.abs(found.double().numpy() - expected).max() < 0.005 * np.abs(expected).max()
