"""Figures as matplotlib Figure objects: ROC and PR curves, intervals, MACs against modalities, training curves.

Colours are Okabe and Ito's, told apart with any colour vision; line styles repeat the distinction in print. matplotlib
is imported when the first figure is drawn, and never through pyplot: nothing global, no window.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ovo_clinic.report import ComparisonTable
    from ovo_clinic.study import Comparison

Floats = NDArray[np.float64]
Histories = Mapping[str, Sequence[Sequence[Mapping[str, float]]]]
"""Head -> seed -> epoch -> quantity -> value."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = ("-", "--", "-.", ":")
CHANCE: Mapping[str, Any] = {"color": "0.55", "linewidth": 1, "linestyle": (0, (2, 2)), "zorder": 1}
GRID = np.linspace(0, 1, 501)
_METRICS = {"auroc": "AUROC", "auprc": "AUPRC", "mauc": "mAUC", "bca": "BCA"}
_CONDITION_PANELS = {
    "condition number": "condition_number",
    "log10 of its bound": "condition_bound_log10",
    "share without full rank": "rank_deficient_share",
}


def roc_curves(predictions: Mapping[str, ArrayLike], target: ArrayLike, title: str = "") -> "Figure":
    """ROC curves: mean over seeds with a band of one standard deviation, AUROC in the legend.

    Args:
        predictions: head -> (S,N), probability of the positive class by seed and unit.
        target: (N,) 0/1; NaN = not labelled.
        title: over all.

    Raises:
        UndefinedMetric: the labelled units are all of one class.
    """
    from ovo_clinic import metrics

    figure, axes = _curve_axes(title, xlabel="1 - specificity", ylabel="sensitivity")
    axes.plot([0, 1], [0, 1], label="chance  50.0", **CHANCE)
    draw_curves(axes, predictions, target, true_positive_rate, metrics.auroc)
    legend(figure, axes, "AUROC, %\n(mean ± sd over seeds)")
    return figure


def pr_curves(predictions: Mapping[str, ArrayLike], target: ArrayLike, title: str = "") -> "Figure":
    """Precision-recall curves of the positive class: as `roc_curves`, with the prevalence as the line of chance."""
    from ovo_clinic import metrics

    figure, axes = _curve_axes(title, xlabel="recall", ylabel="precision")
    prevalence = float(np.nanmean(np.asarray(target, dtype=np.float64)))
    axes.axhline(prevalence, label=f"prevalence  {100 * prevalence:.1f}", **CHANCE)
    draw_curves(axes, predictions, target, precision, metrics.auprc)
    legend(figure, axes, "AUPRC, %\n(mean ± sd over seeds)")
    return figure


def macs_figure(table: pd.DataFrame, title: str = "") -> "Figure":
    """MACs per sample against the number of modalities, both axes logarithmic, so that a slope is an exponent.

    Args:
        table: of `flops.macs_against_modalities`; a head that costs nothing somewhere is named under the axes instead.
        title: over all.
    """
    figure, axes = panel(width=7.0, height=4.6)
    free = sorted(set(table.loc[table["macs"] <= 0, "head"]))
    lines = table[~table["head"].isin(free)]
    numbers = sorted(set(table["modalities"]))
    figure.suptitle(title)
    axes.set(xscale="log", yscale="log", xlabel="modalities", ylabel="MACs per sample, fusion head alone")
    if free:
        axes.set_xlabel(f"modalities\n(no MACs: {', '.join(free)})")
    axes.set_xticks(numbers, [str(number) for number in numbers])
    axes.minorticks_off()
    ends: dict[str, tuple[float, str]] = {}
    for (head, rows), (colour, dashes) in zip(lines.groupby("head"), styles(), strict=False):
        rows = rows.sort_values("modalities")
        axes.plot(rows["modalities"], rows["macs"], color=colour, linestyle=dashes, marker="o", markersize=3.5)
        label = f"{head} (batch of 16)" if rows["unsafe"].any() else str(head)
        ends[label] = (float(rows["macs"].iloc[-1]), colour)
    _label_ends(axes, ends, x=float(max(numbers)))
    return figure


def training_curves(histories: Histories, quantities: Sequence[str], title: str = "") -> "Figure":
    """One panel per quantity against the epoch: a thin line per seed, a bold mean as far as every seed has run.

    Args:
        histories: head -> seed -> epochs in order.
        quantities: keys of an epoch: `train_loss`, `validation_auroc`, ...
        title: over all.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(quantities) + 1.6, 3.6), layout="constrained", dpi=150)
    panels = np.atleast_1d(figure.subplots(1, len(quantities)))
    for axes, quantity in zip(panels, quantities, strict=True):
        tidy(axes)
        axes.set(xlabel="epoch", title=words(quantity))
        for (head, seeds), (colour, dashes) in zip(histories.items(), styles(), strict=False):
            draw_seeds(axes, [[epoch[quantity] for epoch in seed] for seed in seeds], head, colour, dashes)
        axes.xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(title)
    legend(figure, panels[-1], "mean over seeds")
    return figure


def condition_figure(histories: Histories, title: str = "") -> "Figure":
    """Condition numbers of attention outputs against the epoch, the paper's bound, and how many have no finite one.

    Args:
        histories: head -> seed -> epochs in order; a quantity may be missing from an epoch, and all from a head, which
            is left out.
        title: over all.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.4, 3.8), layout="constrained", dpi=150)
    panels = figure.subplots(1, 3)
    for axes, (name, quantity) in zip(panels, _CONDITION_PANELS.items(), strict=True):
        tidy(axes)
        axes.set(xlabel="epoch", title=name)
        for (head, seeds), (colour, dashes) in zip(histories.items(), styles(), strict=False):
            if any(quantity in epoch for seed in seeds for epoch in seed):
                values = [[epoch.get(quantity, np.nan) for epoch in seed] for seed in seeds]
                draw_seeds(axes, values, head, colour, dashes)
        axes.xaxis.get_major_locator().set_params(integer=True)
    panels[0].set_yscale("log")
    panels[2].set_ylim(-0.02, 1.02)
    figure.suptitle(title)
    legend(figure, panels[-1], "mean over seeds")
    return figure


def interval_figure(
    rows: pd.DataFrame, metric: str, title: str = "", *, label: str = "", chance: float | None = None
) -> "Figure":
    """One line per model: the mean over seeds of a test metric and its interval over patients.

    Args:
        rows: of `report.ComparisonTable`: model, and `metric` with _mean, _low and _high, as shares of 1.
        metric: its name in the columns.
        title: over all.
        label: of the metric on the axis; its name by default.
        chance: what a score that says nothing reaches, as a share of 1; drawn as a line.
    """
    figure, axes = panel(width=6.4, height=0.9 + 0.34 * len(rows))
    if chance is not None:
        axes.axvline(100 * chance, **CHANCE)
    mean, low, high = (100 * rows[f"{metric}_{part}"].to_numpy(dtype=np.float64) for part in ("mean", "low", "high"))
    heights = np.arange(len(rows))[::-1]
    axes.hlines(heights, low, high, color=COLOURS[0], linewidth=1.6)
    axes.plot(mean, heights, "o", color=COLOURS[0], markersize=5)
    axes.set_yticks(heights, rows["model"].astype(str).tolist())
    figure.suptitle(title)
    seeds = int(rows["seeds"].iloc[0])
    dashed = "" if chance is None else "; dotted: chance"
    over = "one seed" if seeds == 1 else f"mean of {seeds} seeds"
    axes.set_xlabel(f"{label or words(metric)}, %: {over}\n95 % interval over patients{dashed}")
    axes.set_ylim(-0.6, len(rows) - 0.4)
    return figure


def draw_comparison(comparison: "Comparison", table: "ComparisonTable") -> dict[str, Path]:
    """Draws the figures of a study into its folder, as PNG.

    Returns:
        Name -> file: training, where they were measured condition_numbers, and for binary tasks roc, pr, auroc, auprc.
    """
    from ovo_clinic import report

    title = comparison.prepared.manifest["title"]
    monitor = comparison.results[comparison.heads[0]][0]["monitor"]
    histories = {head: [result["history"] for result in comparison.results[head]] for head in comparison.heads}
    drawn = {"training": training_curves(histories, ["train_loss", "validation_loss", f"validation_{monitor}"], title)}
    measured = {head: seeds for head, seeds in histories.items() if "rank_deficient_share" in seeds[0][0]}
    if measured:
        drawn["condition_numbers"] = condition_figure(measured, title)
    if comparison.prepared.manifest["kind"] == "binary":
        predictions = {model: report.predictions(comparison, model)[0] for model in comparison.contenders}
        target = comparison.prepared.target[comparison.prepared.rows("test")]
        drawn["roc"] = roc_curves(predictions, target, title)
        drawn["pr"] = pr_curves(predictions, target, title)
        classes = comparison.prepared.manifest["classes"]
        for metric, chance in (("auroc", 0.5), ("auprc", table.prevalence)):
            label = report.metric_title(metric, classes)
            drawn[metric] = interval_figure(table.rows, metric, title, label=label, chance=chance)
    return {name: save(figure, comparison.folder / f"{name}.png") for name, figure in drawn.items()}


def true_positive_rate(scores: Floats, target: Floats) -> Floats:
    """ROC curve of labelled units: sensitivity at every false positive rate of GRID."""
    import sklearn.metrics

    false, true, _ = sklearn.metrics.roc_curve(target, scores)
    return np.concatenate([[0.0], np.interp(GRID[1:], false, true)])


def precision(scores: Floats, target: Floats) -> Floats:
    """Precision at the highest threshold that reaches each recall of GRID, the steps of average precision."""
    import sklearn.metrics

    values, recall, _ = sklearn.metrics.precision_recall_curve(target, scores)
    # Ascending recall, without the point (recall 0, precision 1) that scikit-learn adds by convention.
    values, recall = values[-2::-1], recall[-2::-1]
    found: Floats = values[np.searchsorted(recall, GRID - 1e-12)]
    return found


def draw_curves(
    axes: "Axes",
    predictions: Mapping[str, ArrayLike],
    target: ArrayLike,
    curve: Callable[[Floats, Floats], Floats],
    area: Callable[[ArrayLike, ArrayLike], float],
) -> None:
    """A curve over GRID per head, the mean over seeds with a band of one sd, and its area in the legend.

    Args:
        axes: to draw on.
        predictions: head -> (S,N).
        target: (N,) 0/1; NaN = not labelled.
        curve: (scores, labels) -> values at GRID.
        area: (scores, labels) -> the area below it.
    """
    from ovo_clinic import metrics

    for (head, given), (colour, dashes) in zip(predictions.items(), styles(), strict=False):
        seeds = [metrics.labelled(scores, target) for scores in np.atleast_2d(np.asarray(given))]
        areas = 100 * np.array([area(scores, labels) for scores, labels in seeds])
        curves = np.array([curve(scores, labels) for scores, labels in seeds])
        mean = curves.mean(axis=0)
        label = f"{head}  {areas.mean():.1f}"
        if len(seeds) > 1:
            sd = curves.std(axis=0, ddof=1)
            axes.fill_between(GRID, np.clip(mean - sd, 0, 1), np.clip(mean + sd, 0, 1), color=colour, alpha=0.13, lw=0)
            label += f" ± {areas.std(ddof=1):.1f}"
        axes.plot(GRID, mean, color=colour, linestyle=dashes, linewidth=1.7, label=label)


def draw_seeds(axes: "Axes", values: Sequence[Sequence[float]], label: str, colour: str, dashes: str) -> None:
    """A thin line per seed against the epoch, and a bold mean as far as every seed has run."""
    for line in values:
        axes.plot(np.arange(1, len(line) + 1), line, color=colour, linewidth=0.7, alpha=0.35)
    common = min(map(len, values))
    mean = np.mean([line[:common] for line in values], axis=0)
    # Markers: a single epoch has no line.
    axes.plot(np.arange(1, common + 1), mean, dashes, color=colour, lw=1.8, marker="o", markersize=3, label=label)


def _label_ends(axes: "Axes", ends: Mapping[str, tuple[float, str]], x: float) -> None:
    """Names lines at their right end, moved apart as little as makes the names readable."""
    from sklearn.isotonic import isotonic_regression

    low, high = np.log10(axes.get_ylim())
    ordered = sorted(ends.items(), key=lambda end: end[1][0])
    wanted = np.array([np.log10(value) for _, (value, _) in ordered])
    steps = 0.055 * (high - low) * np.arange(len(ordered))
    # Least squares under a least distance is isotonic regression of the heights less that distance.
    heights = isotonic_regression(wanted - steps) + steps
    for (label, (value, colour)), height in zip(ordered, heights, strict=True):
        axes.annotate(
            label,
            xy=(x, value),
            xytext=(x * 1.12, 10**height),
            color=colour,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 3},
        )


def styles() -> Iterator[tuple[str, str]]:
    """Colour and dashes of each line in turn; a colour comes again with the next dashes."""
    index = 0
    while True:
        rounds, colour = divmod(index, len(COLOURS))
        yield COLOURS[colour], DASHES[(colour + rounds) % len(DASHES)]
        index += 1


def panel(width: float, height: float) -> tuple["Figure", "Axes"]:
    """A figure of one panel, sizes in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=150)
    axes = figure.subplots()
    tidy(axes)
    return figure, axes


def _curve_axes(title: str, **labels: str) -> tuple["Figure", "Axes"]:
    figure, axes = panel(width=7.6, height=4.4)
    figure.suptitle(title)
    axes.set(xlim=(0, 1), ylim=(0, 1.01), **labels)
    return figure, axes


def tidy(axes: "Axes") -> None:
    """No box, and a light grid behind the data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.92", linewidth=0.6)
    axes.set_axisbelow(True)


def legend(figure: "Figure", axes: "Axes", title: str) -> None:
    """Right of the axes, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, title=title, loc="outside right center", frameon=False, alignment="left")


def words(name: str) -> str:
    """`validation_auroc` -> `validation AUROC`."""
    return " ".join(_METRICS.get(word, word) for word in name.split("_"))


def save(figure: "Figure", path: Path) -> Path:
    """Writes a figure; returns the file."""
    figure.savefig(path, bbox_inches="tight")
    return path
