"""Condition numbers against numpy, the bound written out, and what preconditioning does to them."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ovo_clinic import figures, training
from ovo_clinic.attention.precondition import Preconditioned
from ovo_clinic.attention.softmax import Softmax
from ovo_clinic.condition import attention_cores, condition_metrics, conditions
from ovo_clinic.experiment import Experiment, load
from ovo_clinic.model import FusionModel
from ovo_clinic.prepare import Prepared, prepare_task
from ovo_clinic.types import Batch, Modality

KEYS = {"condition_number", "condition_bound_log10", "rank_deficient_share", "condition_number_layer_01"}


def bound_written_out(matrix: np.ndarray) -> float:
    """(2 / sqrt(det A^T A)) (||A||_F / sqrt k)^k of a tall matrix of full rank."""
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    k = tall.shape[1]
    return 2 / math.sqrt(np.linalg.det(tall.T @ tall)) * (np.linalg.norm(tall) / math.sqrt(k)) ** k


@pytest.mark.parametrize("shape", [(7, 3), (3, 7), (5, 5), (1, 4)])
def test_against_numpy_and_the_formula(shape: tuple[int, int]) -> None:
    matrices = np.random.default_rng(0).normal(size=(6, *shape))
    number, bound = conditions(torch.from_numpy(matrices))
    np.testing.assert_allclose(number, np.linalg.cond(matrices), rtol=1e-10)
    np.testing.assert_allclose(bound.exp(), [bound_written_out(matrix) for matrix in matrices], rtol=1e-10)
    assert (number.log() <= bound).all()


def test_masked_rows_count_as_deleted() -> None:
    matrices = torch.randn(3, 6, 8, dtype=torch.float64)
    matrices[:, [1, 4]] = 0
    found = conditions(matrices, torch.tensor([4, 4, 4]))
    kept = conditions(matrices[:, [0, 2, 3, 5]])
    torch.testing.assert_close(found, kept, rtol=1e-10, atol=0)


def test_deficient_rank_is_infinite_and_nothing_is_nan() -> None:
    equal_rows = torch.ones(4, 3) * torch.tensor([1.0, 2.0, 3.0])
    almost = equal_rows + 1e-8 * torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    number, bound = conditions(torch.stack([equal_rows, almost, torch.zeros(4, 3)]))
    assert number[:2].isinf().all() and bound[:2].isinf().all()
    assert number[2].isnan() and bound[2].isnan()
    assert conditions(torch.randn(2, 4, 3), torch.tensor([0, 0])).number.isnan().all()


def test_large_matrices_do_not_overflow() -> None:
    bound = conditions(1e-30 * torch.randn(1, 200, 64, dtype=torch.float64)).bound
    assert bound.isfinite().all() and bound > 0


def test_preconditioning_lowers_the_condition_number_of_softmax_attention() -> None:
    """Rows of very different length, as in the theorem: scaling them to one length helps."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(32, 4, 16, 8, generator=generator, dtype=torch.float64) for _ in range(3))
    v = v * torch.logspace(-2, 2, 16, dtype=torch.float64)[:, None]
    q, k = 6 * q, 6 * k  # rows near single values, so that their lengths differ
    core = Softmax(4, 8)
    plain, preconditioned = conditions(core(q, k, v)), conditions(Preconditioned(core)(q, k, v))
    assert preconditioned.number.mean() < plain.number.mean()
    assert preconditioned.bound.mean() < plain.bound.mean()


MODALITIES = [Modality("a", "vector", 5), Modality("b", "vector", 3), Modality("steps", "sequence", 4)]


def batch(units: int = 9) -> Batch:
    inputs = {"a": torch.randn(units, 5), "b": torch.randn(units, 3), "steps": torch.randn(units, 6, 4)}
    masks = {name: torch.ones(units, 6 if name == "steps" else 1, dtype=torch.bool) for name in inputs}
    return Batch(inputs, masks, torch.zeros(units), torch.arange(units))


def model(head: str, **options: Any) -> FusionModel:
    torch.manual_seed(0)
    return FusionModel(MODALITIES, {"default": ("mlp", {})}, (head, options), dim=16).eval()


def test_the_metric_is_the_mean_over_heads_of_the_median_over_units() -> None:
    built, given = model("self_attention", heads=2), batch()
    seen: list[torch.Tensor] = []
    handle = built.fusion.attention.core.register_forward_hook(lambda *call: seen.append(call[-1].detach()))
    found = condition_metrics(built, given)
    handle.remove()
    expected = np.median(np.linalg.cond(seen[0].double().numpy()), axis=0).mean()
    assert found["condition_number"] == pytest.approx(expected, rel=1e-6)
    assert found["rank_deficient_share"] == 0
    assert not built.fusion.attention.core._forward_hooks


@pytest.mark.parametrize("head", ["self_attention", "cross_attention", "ovo", "ovo_reference"])
@pytest.mark.parametrize("precondition", [False, True])
def test_every_head_with_attention_is_measured(head: str, precondition: bool) -> None:
    built = model(head, precondition=precondition)
    assert [type(core) for core in attention_cores(built)] == [Preconditioned if precondition else Softmax]
    assert set(condition_metrics(built, batch())) == KEYS


def test_a_head_without_attention_has_no_condition_number() -> None:
    assert condition_metrics(model("concat"), batch()) == {}


@pytest.mark.parametrize("head", ["cross_attention", "ovo", "ovo_reference"])
def test_units_without_a_second_modality_are_not_counted(head: str) -> None:
    """There is nothing to attend to or from: attention is uniform and its rows are alike."""
    built, given = model(head, heads=4), batch()
    present = {name: mask.clone() for name, mask in given.masks.items()}
    for name in ("b", "steps"):
        present[name][3:] = False
    first = {name: x[:3] for name, x in given.inputs.items()}
    alone = Batch(first, {name: mask[:3] for name, mask in present.items()}, given.target[:3], given.rows[:3])
    found = condition_metrics(built, replace(given, masks=present))
    assert found == pytest.approx(condition_metrics(built, alone), rel=1e-2)
    for name in ("b", "steps"):
        present[name][:] = False
    assert condition_metrics(built, replace(given, masks=present)) == {}


def test_without_full_rank_there_is_a_share_and_no_number() -> None:
    built = model("self_attention", heads=2)
    with torch.no_grad():
        built.fusion.attention.value.weight[1:] = 0  # of each head's eight channels at most one is left
    assert condition_metrics(built, batch()) == {"rank_deficient_share": 1.0}


def experiment(*overrides: str) -> Experiment:
    settings = ["data.samples=200", "training.epochs=3", "training.batch_size=64", "training.condition_numbers=true"]
    return load("simulation", [*settings, *overrides])


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepared:
    monkeypatch.setenv("OVO_CLINIC_HOME", str(tmp_path / "home"))
    return prepare_task(experiment(), None)


def test_every_epoch_of_the_history_has_them_and_training_is_the_same(prepared: Prepared, tmp_path: Path) -> None:
    measured = training.train(experiment(), prepared, tmp_path / "measured")
    plain = training.train(experiment("training.condition_numbers=false"), prepared, tmp_path / "plain")
    assert all(set(epoch) >= KEYS for epoch in measured["history"])
    without = [{name: value for name, value in epoch.items() if name not in KEYS} for epoch in measured["history"]]
    assert without == plain["history"]
    text = (tmp_path / "measured" / "result.json").read_text()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_the_figure_has_a_line_for_every_head_and_leaves_gaps() -> None:
    epochs = [{"condition_number": 10.0, "condition_bound_log10": 3.0, "rank_deficient_share": 0.0}]
    gap = [{"rank_deficient_share": 1.0}]
    figure = figures.condition_figure({"ovo": [epochs * 3], "ovo(precondition=True)": [epochs + gap]})
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ovo", "ovo(precondition=True)"]
    line = figure.axes[0].get_lines()[-1]
    np.testing.assert_array_equal(line.get_ydata(), [10.0, np.nan])
