"""What the figures show: numbers in legends, curves on their grid, labels that do not lie on each other."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from ovo_clinic import figures
from ovo_clinic.metrics import UndefinedMetric


@pytest.fixture(scope="module")
def target() -> np.ndarray:
    return (np.random.default_rng(0).random(400) < 0.2).astype(float)


@pytest.fixture(scope="module")
def predictions(target: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {head: rng.random((3, 400)) + lift * target for head, lift in (("concat", 0.3), ("ovo", 0.5))}


def legend_texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_legends_hold_mean_and_sd_over_seeds(predictions: dict[str, np.ndarray], target: np.ndarray) -> None:
    unlabelled = np.r_[target, np.nan]
    more = {head: np.c_[values, np.zeros(3)] for head, values in predictions.items()}
    for figure, area, chance in (
        (figures.roc_curves(more, unlabelled), sklearn.metrics.roc_auc_score, "chance  50.0"),
        (
            figures.pr_curves(more, unlabelled),
            sklearn.metrics.average_precision_score,
            f"prevalence  {100 * target.mean():.1f}",
        ),
    ):
        areas = {head: [100 * area(target, p) for p in values] for head, values in predictions.items()}
        expected = [f"{head}  {np.mean(a):.1f} ± {np.std(a, ddof=1):.1f}" for head, a in areas.items()]
        assert legend_texts(figure) == [chance, *expected]


def test_one_seed_has_neither_band_nor_sd(predictions: dict[str, np.ndarray], target: np.ndarray) -> None:
    figure = figures.roc_curves({"ovo": predictions["ovo"][0]}, target)
    assert "±" not in legend_texts(figure)[1]
    assert not figure.axes[0].collections


def test_curves_enclose_the_areas(predictions: dict[str, np.ndarray], target: np.ndarray) -> None:
    scores = predictions["ovo"][0]
    roc = figures.true_positive_rate(scores, target)
    assert roc[0] == 0 and roc[-1] == 1 and (np.diff(roc) >= 0).all()
    assert np.trapezoid(roc, figures.GRID) == pytest.approx(sklearn.metrics.roc_auc_score(target, scores), abs=0.005)
    precision = figures.precision(scores, target)
    assert precision[-1] == pytest.approx(target.sum() / (scores >= scores[target == 1].min()).sum())
    assert precision[1:].mean() == pytest.approx(sklearn.metrics.average_precision_score(target, scores), abs=0.01)


def test_curves_of_one_class_are_an_error() -> None:
    with pytest.raises(UndefinedMetric):
        figures.roc_curves({"ovo": np.array([[0.1, 0.2]])}, np.zeros(2))


def test_macs_figure_names_every_line_without_overlap() -> None:
    costs = {"self_attention": 2_400_000, "cross_attention": 2_500_000, "twin": 2_450_000, "ovo": 860_000, "idle": 0}
    table = pd.DataFrame(
        [(head, m, macs * m // 20, m, head == "twin") for head, macs in costs.items() for m in (2, 20)],
        columns=["head", "modalities", "macs", "out_dim", "unsafe"],
    )
    figure = figures.macs_figure(table, "title")
    axes = figure.axes[0]
    figure.draw_without_rendering()
    notes = [child for child in axes.get_children() if isinstance(child, Annotation)]
    assert {note.get_text() for note in notes} == {"self_attention", "cross_attention", "ovo", "twin (batch of 16)"}
    assert "idle" in axes.get_xlabel() and axes.get_yscale() == "log"
    boxes = sorted((Text.get_window_extent(note) for note in notes), key=lambda box: box.y0)
    for below, above in zip(boxes, boxes[1:], strict=False):
        assert below.y1 <= above.y0
    assert max(box.x1 for box in boxes) <= figure.bbox.x1


def test_training_curves_mean_ends_with_the_shortest_seed() -> None:
    histories = {"ovo": [[{"train_loss": 1.0}, {"train_loss": 0.5}, {"train_loss": 0.2}], [{"train_loss": 3.0}] * 2]}
    figure = figures.training_curves(histories, ["train_loss"])
    bold = max(figure.axes[0].lines, key=lambda line: line.get_linewidth())
    assert bold.get_ydata() == pytest.approx([2.0, 1.75])
    assert legend_texts(figure) == ["ovo"]


def test_interval_figure_shows_percent(tmp_path: Path) -> None:
    bounds = {"auroc_mean": [0.7, 0.8], "auroc_low": [0.6, 0.7], "auroc_high": [0.8, 0.9]}
    rows = pd.DataFrame({"model": ["a", "b"], "seeds": 3, **bounds})
    figure = figures.interval_figure(rows, "auroc", label="AUROC died", chance=0.5)
    axes = figure.axes[0]
    chance, points = axes.lines
    assert list(chance.get_xdata()) == [50, 50]
    assert points.get_xdata() == pytest.approx([70, 80])
    assert axes.get_xlabel() == "AUROC died, %: mean of 3 seeds\n95 % interval over patients; dotted: chance"
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["a", "b"]
    assert axes.get_yticks()[0] > axes.get_yticks()[1]  # the first model is at the top
    figure.savefig(tmp_path / "interval.png")
    assert (tmp_path / "interval.png").read_bytes().startswith(b"\x89PNG")
