"""Where the mechanisms must equal softmax attention, or a formula written out in numpy; and their MACs."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.testing import assert_close

from ovo_clinic.attention.fastformer import Fastformer, FastformerFair
from ovo_clinic.attention.linformer import Linformer
from ovo_clinic.attention.lpi import LocalPatchInteraction
from ovo_clinic.attention.multihead import attention_layer
from ovo_clinic.attention.nystrom import Nystrom, segment_means
from ovo_clinic.attention.nystrom_reference import NystromReference
from ovo_clinic.attention.performer import Performer, orthogonal_directions, orthogonal_features
from ovo_clinic.attention.performer_reference import PerformerReference
from ovo_clinic.attention.softmax import Softmax
from ovo_clinic.attention.window import WindowAttention
from ovo_clinic.flops import count_macs
from ovo_clinic.registry import ATTENTION

Array = NDArray[np.float64]


def normal(*shape: int, std: float = 1.0, seed: int = 0) -> Tensor:
    return std * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs(tokens: int, width: int, std: float = 1.0) -> list[Tensor]:
    return [normal(2, 3, tokens, width, std=std, seed=seed) for seed in range(3)]


def softmax_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out: Tensor = Softmax(1, 1)(q, k, v)
    return out


def median_error(core: nn.Module, given: list[Tensor]) -> float:
    exact = softmax_attention(*given)
    error = (core.double()(*given) - exact).norm(dim=-1) / exact.norm(dim=-1)
    return float(error.median())


def mean_error(kind: type[nn.Module], features: int, draws: int = 8) -> float:
    found = []
    for seed in range(draws):
        torch.manual_seed(seed)
        found.append(median_error(kind(3, 4, features=features), inputs(16, 4, std=0.5)))
    return float(np.mean(found))


def test_performer_converges_to_softmax_as_features_grow() -> None:
    """The error falls with the root of the number of features."""
    errors = [mean_error(Performer, features) for features in (4, 64, 1024)]
    assert errors[0] > 2.5 * errors[1] and errors[1] > 2.5 * errors[2]
    assert errors[2] < 0.05


def test_performer_reference_does_not_converge() -> None:
    assert mean_error(PerformerReference, 1024) > 2.5 * mean_error(Performer, 1024)


def test_features_estimate_the_kernel_without_bias() -> None:
    """Mean of exp(w.x - |x|^2 / 2) exp(w.y - |y|^2 / 2) over features is exp(x.y); the diagonal of a rotation is 0."""
    generator = torch.Generator().manual_seed(0)
    omega = orthogonal_features(8_000, 8, generator)
    x, y = (0.4 * torch.randn(8, generator=generator) for _ in range(2))
    products = (omega @ (x + y) - (x @ x + y @ y) / 2).exp()
    assert abs(products.mean() - (x @ y).exp()) < 5 * products.std() / math.sqrt(len(products))
    directions = orthogonal_directions(8_000, 4, generator).view(-1, 4, 4)
    assert_close(directions @ directions.mT, torch.eye(4).expand(2_000, -1, -1), atol=1e-5, rtol=0)
    assert directions.diagonal(dim1=1, dim2=2).mean().abs() < 0.02


def test_linformer_with_identity_mixtures_is_softmax() -> None:
    given = inputs(7, 4)
    core = Linformer(3, 4, length=7, mixtures=7).double()
    core.load_state_dict({"key_mixing": torch.eye(7), "value_mixing": torch.eye(7)})
    assert_close(core(*given), softmax_attention(*given), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("masked", [False, True])
def test_nystrom_with_every_token_a_landmark_is_softmax(masked: bool) -> None:
    """More iterations than by default: the matrix must have been inverted."""
    given = inputs(7, 4)
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[1, [1, 4]] = not masked
    core = Nystrom(3, 4, landmarks=7, iterations=40)
    exact = Softmax(3, 4)(*given, mask, mask)
    assert_close(core(*given, mask, mask), exact, rtol=1e-6, atol=1e-6)
    assert_close(Nystrom(3, 4, landmarks=64, iterations=40)(*given, mask, mask), exact, rtol=1e-6, atol=1e-6)


def test_nystrom_equals_the_published_code_once_the_inverse_has_converged() -> None:
    """Without a mask, where segments by rank are segments by position; the starts differ until then."""
    given = inputs(12, 4)
    found = {
        (kind, iterations): kind(3, 4, landmarks=3, iterations=iterations)(*given)  # type: ignore[call-arg]
        for kind in (Nystrom, NystromReference)
        for iterations in (2, 40)
    }
    assert_close(found[Nystrom, 40], found[NystromReference, 40], rtol=1e-9, atol=1e-9)
    assert (found[Nystrom, 2] - found[NystromReference, 2]).abs().max() > 1e-3


def test_landmarks_are_means_by_rank_among_valid_tokens() -> None:
    x, mask = normal(3, 1, 9, 2), torch.ones(3, 9, dtype=torch.bool)
    mask[0, [0, 4, 8]] = False  # 6 valid: two a segment
    mask[1, 1:] = False  # 1 valid
    mask[2] = False
    x = x * mask[:, None, :, None]
    values, used = segment_means(x, mask, 3)
    assert used is not None and used.tolist() == [[True] * 3, [True, False, False], [False] * 3]
    tokens = x[0, 0].numpy()
    expected = [tokens[[1, 2]].mean(axis=0), tokens[[3, 5]].mean(axis=0), tokens[[6, 7]].mean(axis=0)]
    np.testing.assert_allclose(values[0, 0].numpy(), expected)
    np.testing.assert_allclose(values[1, 0, 0].numpy(), x[1, 0, 0].numpy())
    assert (values[2] == 0).all() and (values[1, 0, 1:] == 0).all()


def fastformer(q: Array, k: Array, v: Array, core: Any, fair: bool) -> Array:
    """One unit, head by head; fair: scores per head, and the keys are pooled instead of the products."""
    heads, width = len(q), q.shape[-1]
    w_q, w_k = core.query_scores.detach().numpy(), core.key_scores.detach().numpy()

    def weights(x: Array, w: Array, head: int) -> Array:
        joined = x[head] if fair else np.concatenate(list(x), axis=-1)
        scores = np.exp(joined @ w[head] / np.sqrt(width))
        return np.asarray(scores / scores.sum())

    mixed = np.stack([k[head] * (weights(q, w_q, head) @ q[head]) for head in range(heads)])
    pooled = k if fair else mixed
    return np.stack([v[head] * (weights(mixed, w_k, head) @ pooled[head]) for head in range(heads)])


@pytest.mark.parametrize("fair", [False, True])
def test_fastformer_core_takes_other_values_than_queries(fair: bool) -> None:
    torch.manual_seed(0)
    core = (FastformerFair if fair else Fastformer)(3, 4).double()
    given = inputs(6, 4)
    for unit in range(2):
        expected = fastformer(*(x[unit].numpy() for x in given), core, fair)
        np.testing.assert_allclose(core(*given)[unit].detach().numpy(), expected, rtol=1e-9)


def window_attention(layer: Any, x: Array, grid: tuple[int, int], mask: Array) -> Array:
    """One image, token by token: sees the valid tokens of its window, if not through a rolled edge."""
    side, shift, width = layer.window, layer.shift, x.shape[1] // layer.heads
    q, k, v, out = (part.weight.detach().numpy() for part in (layer.query, layer.key, layer.value, layer.out))
    table = layer.relative_bias.detach().numpy()
    full = [-(-length // side) * side for length in grid]
    rolled = [((r - shift) % full[0], (c - shift) % full[1], r < shift, c < shift) for r, c in np.ndindex(*grid)]
    found = np.zeros_like(x)
    for i, (r, c, *edge) in enumerate(rolled):
        window = (r // side, c // side, *edge)
        seen = [j for j, (a, b, *other) in enumerate(rolled) if (a // side, b // side, *other) == window and mask[j]]
        if not mask[i]:
            continue
        rows = [(r - rolled[j][0] + side - 1) * (2 * side - 1) + c - rolled[j][1] + side - 1 for j in seen]
        heads = []
        for head in range(layer.heads):
            part = slice(head * width, (head + 1) * width)
            scores = np.exp((x[seen] @ k[part].T) @ (q[part] @ x[i]) / np.sqrt(width) + table[rows, head])
            heads.append(scores / scores.sum() @ (x[seen] @ v[part].T))
        found[i] = out @ np.concatenate(heads)
    return found


@pytest.mark.parametrize("grid", [(6, 6), (5, 7), (2, 3)], ids=str)
@pytest.mark.parametrize("shift", [0, 1])
def test_window_attention_token_by_token(grid: tuple[int, int], shift: int) -> None:
    """Also on grids that do not divide into windows, with masked tokens."""
    torch.manual_seed(0)
    layer = WindowAttention(2, 4, window=3, shift=shift).double()
    nn.init.normal_(layer.relative_bias)
    tokens = grid[0] * grid[1]
    x, mask = normal(2, tokens, 8), torch.arange(2 * tokens).view(2, tokens) % 5 != 0
    out = layer(x, grid, mask)
    if min(grid) <= 3:  # a single window is not shifted
        layer.shift = 0
    for image in range(2):
        expected = window_attention(layer, x[image].numpy(), grid, mask[image].numpy())
        np.testing.assert_allclose(out[image].detach().numpy(), expected, rtol=0, atol=1e-12)


def test_lpi_takes_statistics_over_valid_tokens_only() -> None:
    torch.manual_seed(0)
    layer, x = LocalPatchInteraction(1, 3).double(), normal(2, 12, 3)
    mask = torch.arange(24).view(2, 12) % 5 != 0
    hidden = nn.functional.gelu(layer.first((x * mask[..., None]).mT.reshape(2, 3, 3, 4))).flatten(2).mT
    valid = hidden[mask].detach().numpy()
    normalised = np.zeros((2, 12, 3))
    normalised[mask.numpy()] = (valid - valid.mean(axis=0)) / np.sqrt(valid.var(axis=0) + layer.norm.eps)
    expected = layer.second(torch.from_numpy(normalised).mT.reshape(2, 3, 3, 4)).flatten(2).mT * mask[..., None]
    assert_close(layer(x, (3, 4), mask), expected)
    assert layer.norm.running_mean is not None
    np.testing.assert_allclose(layer.norm.running_mean.numpy(), 0.1 * valid.mean(axis=0))


B, N, C, H, M, R = 2, 12, 32, 4, 3, 16
D = C // H
P = 4 * N * C * C
MACS: dict[str, tuple[dict[str, int], int]] = {
    "softmax": ({}, P + 2 * N * N * C),
    "linformer": ({"length": N, "mixtures": M}, P + 2 * M * N * C + 2 * N * M * C),
    "linformer_fair": ({"length": N, "mixtures": M}, P + 2 * M * N * C + 2 * N * M * C),
    "efficient": ({}, P + 2 * N * C * D),
    "performer": ({"features": R}, P + H * (4 * N * R * D + N * R)),
    "performer_fair": ({"features": R}, P + H * (4 * N * R * D + N * R)),
    "performer_reference": ({"features": R}, P + H * (4 * N * R * D + N * R)),
    "xca": ({}, P + 2 * N * C * D),
    "xca_fair": ({}, P + 2 * N * C * D),
    "fastformer": ({}, 3 * N * C * C + 2 * N * C * H + 2 * N * C),
    "fastformer_fair": ({}, P + 2 * N * C),
    # The values meet the inverse before the queries do: M M D twice instead of M M D and N M M.
    "nystrom": ({"landmarks": M}, P + H * (4 * N * M * D + 2 * M * M * D + 24 * M**3)),
    "nystrom_reference": ({"landmarks": M}, P + H * (4 * N * M * D + M * M * D + 24 * M**3 + N * M * M)),
}


@pytest.mark.parametrize("name", MACS)
def test_multiply_accumulates_per_sample(name: str) -> None:
    options, expected = MACS[name]
    layer = attention_layer(ATTENTION.build(name, H, D, options=options), C, H)
    x = torch.randn(B, N, C)
    assert count_macs(layer, x, x).total == B * expected


def test_multiply_accumulates_on_a_grid() -> None:
    x, grid = torch.randn(B, 16, C), (4, 4)
    assert count_macs(ATTENTION.build("lpi", H, D), x, grid).total == B * 18 * 16 * C
    window = ATTENTION.build("window", H, D, options={"window": 2, "shift": 1})
    assert count_macs(window, x, grid).total == B * (4 * 16 * C * C + 2 * 16 * 4 * C)
    assert set(MACS) | {"lpi", "window"} == set(ATTENTION.names())
