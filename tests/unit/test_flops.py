"""MACs against written-out formulas and the published counts; parameters that a gradient reaches."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from ovo_clinic.attention.multihead import MultiheadAttention
from ovo_clinic.attention.softmax import Softmax
from ovo_clinic.flops import count_macs, macs_against_modalities, model_costs, used_parameters
from ovo_clinic.model import FusionModel
from ovo_clinic.registry import FUSION
from ovo_clinic.types import Batch, Modality

B, N, C, H = 2, 5, 32, 4
MHA = 4 * N * C * C + 2 * N * N * C  # P + 2N^2C


@pytest.mark.parametrize("masked", [False, True])
def test_scaled_dot_product_attention_is_counted(masked: bool) -> None:
    q = torch.randn(B, H, N, C // H)
    mask = torch.ones(B, 1, 1, N, dtype=torch.bool) if masked else None
    assert count_macs(lambda: scaled_dot_product_attention(q, q, q, attn_mask=mask)).total == B * 2 * N * N * C


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("weights", [False, True])
def test_torch_attention_in_every_mode(training: bool, gradients: bool, weights: bool) -> None:
    layer = nn.MultiheadAttention(C, H, batch_first=True).train(training).requires_grad_(gradients)
    x = torch.randn(B, N, C)
    with torch.set_grad_enabled(gradients):
        assert count_macs(lambda: layer(x, x, x, need_weights=weights)).total == B * MHA
    assert torch.backends.mha.get_fastpath_enabled()


def test_our_attention_layer() -> None:
    layer = MultiheadAttention(Softmax(H, C // H), C, H)
    x, mask = torch.randn(B, N, C), torch.ones(B, N, dtype=torch.bool)
    assert count_macs(layer, x, x, mask, mask).total == B * MHA


def test_other_layers() -> None:
    found = count_macs(nn.Sequential(nn.Linear(8, 3), nn.ReLU()), torch.randn(7, 8))
    assert found.by_operator == {"addmm": 7 * 8 * 3} and found.total == 168 and found.elementwise == 7 * 3
    assert count_macs(nn.Conv1d(2, 3, 5), torch.randn(4, 2, 9)).total == 4 * 3 * 5 * 2 * 5
    assert count_macs(torch.mv, torch.randn(3, 8), torch.randn(8)).total == 24
    assert count_macs(torch.softmax, torch.randn(3, 8), 1).elementwise == 24
    assert count_macs(torch.sum, torch.randn(3, 8)).elementwise == 24


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_recurrent_layers(dtype: torch.dtype) -> None:
    """Input and recurrent weights of four gates, at each of 7 steps, in both directions."""
    lstm = nn.LSTM(8, 16, num_layers=2, bidirectional=True, batch_first=True).to(dtype)
    expected = 3 * 7 * 2 * (4 * 16 * (8 + 16) + 4 * 16 * (32 + 16))
    assert count_macs(lstm, torch.randn(3, 7, 8, dtype=dtype)).total == expected


def test_costs_against_the_number_of_modalities() -> None:
    options = {"tokens": 4, "heads": 2}
    table = macs_against_modalities(16, options, modalities=(2, 4), names=["concat", "ovo", "self_attention"])
    macs = table.pivot(index="head", columns="modalities", values="macs")
    for m in (2, 4):
        tokens = m * 4 * 16 * 16  # one learned map per token
        n = m * 4
        # Projection and W_i of every token, scores and values; the output projection acts on the mean over tokens.
        attention = m * (4 * 16 * 16 + 4 * 16 * 8 + 2 * 4 * 4 * 16 + 16 * 16)
        assert macs.loc["concat", m] == tokens
        assert macs.loc["self_attention", m] == tokens + 4 * n * 16 * 16 + 2 * n * n * 16
        assert macs.loc["ovo", m] == tokens + attention
    assert list(table.columns) == ["head", "modalities", "macs", "out_dim", "unsafe"]


@pytest.mark.parametrize(
    ("name", "macs"),
    [
        ("mean", 0),
        ("late", 0),
        ("missing_token", 0),
        ("gated", 48 * 48),
        ("low_rank", 3 * 4 * 16 * 16 + 16 * 4),
        ("mmtm", 48 * 12 + 3 * 12 * 16),
        ("mixture_of_experts", 51 * 4 + 4 * 48 * 16 + 4 * 16),
        # In 2 layers of 3 transformers over 4 + 4 tokens: projections, scores and values, a network 4 times as wide.
        ("bottleneck", 2 * 3 * (4 * 8 * 16 * 16 + 2 * 8 * 8 * 16 + 2 * 8 * 16 * 64)),
    ],
)
def test_costs_of_other_heads_beyond_their_tokens(name: str, macs: int) -> None:
    """M = 3, D = 16, n = 4; the maps to tokens cost M n D^2 in every head."""
    table = macs_against_modalities(16, {}, modalities=(3,), names=[name])
    assert table["macs"].item() == 3 * 4 * 16 * 16 + macs


def test_every_head_is_counted() -> None:
    every = macs_against_modalities(16, {"tokens": 2, "heads": 2}, modalities=(2,))
    assert set(every["head"]) == set(FUSION.names())
    assert set(every.loc[every["unsafe"], "head"]) == {"self_attention_reference", "cross_attention_reference"}


MODALITIES = [Modality("values", "vector", 10), Modality("labs", "sequence", 6)]


def batch_of(rows: int, steps: int) -> Batch:
    """Shapes alone, with everything absent: costs are those of a unit that has every modality."""
    return Batch(
        inputs={"values": torch.zeros(rows, 10), "labs": torch.zeros(rows, steps, 6)},
        masks={"values": torch.zeros(rows, 1, dtype=torch.bool), "labs": torch.zeros(rows, steps, dtype=torch.bool)},
        target=torch.zeros(rows),
        rows=torch.arange(rows),
    )


def test_model_costs_by_part() -> None:
    options = {"default": ("mlp", {"layers": 2, "width": 20})}
    model = FusionModel(MODALITIES, options, ("concat", {"tokens": 3}), dim=8, outputs=2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    costs = model_costs(model, batch_of(4, steps=7))
    encoders = {"values": 10 * 20 + 20 * 8, "labs": 7 * (6 * 20 + 20 * 8)}
    fusion = 2 * 3 * 7 * 8 + 2 * 3 * 8 * 8  # pooling: scores and values of 3 queries over 7 steps; a map per token
    output = 16 * 8 + 8 * 2
    assert costs["macs_encoders"] == encoders
    assert (costs["macs_fusion"], costs["macs_output"]) == (fusion, output)
    assert costs["macs_total"] == sum(encoders.values()) + fusion + output
    assert costs["batch"] == 2
    assert costs["parameters"] == costs["parameters_used"] == sum(p.numel() for p in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters()) and model.training
    assert json.loads(json.dumps(costs)) == costs


def test_parameters_that_no_gradient_reaches_are_not_counted_as_used() -> None:
    with pytest.warns(UserWarning, match="identity"):
        model = FusionModel(MODALITIES, {"default": ("mlp", {})}, ("ovo_reference", {"heads": 1}), dim=8)
    costs = model_costs(model, batch_of(4, steps=3))
    assert costs["parameters"] - costs["parameters_used"] == 8 * 8  # W: a softmax over one key is constant


def test_a_key_bias_is_not_used() -> None:
    layer = MultiheadAttention(Softmax(H, C // H), C, H, bias=True).double()
    nn.init.normal_(layer.query.bias)
    x = torch.randn(B, N, C, dtype=torch.float64)
    total, used = used_parameters(layer, layer(x, x))
    assert (total, used) == (4 * (C * C + C), 4 * C * C + 3 * C)


@pytest.mark.parametrize("head", ["concat", "self_attention", "cross_attention", "ovo", "ovo_reference"])
def test_costs_are_those_of_any_batch(head: str) -> None:
    """All but unsafe heads are counted on two rows: on nine the same MACs come out for each row."""
    model = FusionModel(MODALITIES, {"default": ("mlp", {})}, (head, {}), dim=8)
    given = batch_of(9, steps=3)
    costs = model_costs(model, given)
    batch = replace(given, masks={name: torch.ones_like(mask) for name, mask in given.masks.items()})
    tokens = model.encode(batch)
    assert count_macs(model.fusion, tokens).total == 9 * costs["macs_fusion"]
    assert count_macs(model, batch).total == 9 * costs["macs_total"]
    assert costs["elementwise"] == (
        sum(costs["elementwise_encoders"].values()) + costs["elementwise_fusion"] + costs["elementwise_output"]
    )


def test_counting_does_not_import_the_compiler() -> None:
    program = (
        "import sys, torch; from ovo_clinic.flops import count_macs; count_macs(torch.mm, torch.ones(2, 2), "
        "torch.ones(2, 2)); assert 'torch._dynamo' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
