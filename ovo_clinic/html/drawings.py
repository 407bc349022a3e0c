"""Figures of the study report that no other part of the package draws."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ovo_clinic import figures, metrics
from ovo_clinic.outcomes import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

MOST_PANELS = 9
RECALIBRATIONS = {"none": "as predicted", "temperature": "temperature scaling", "isotonic": "isotonic regression"}
_WIDTH = 7.4
_FAR_APART = 20


def timeline(options: Mapping[str, Any], index_time: str = "index time") -> "Figure | None":
    """The task's window on a time line: what is looked at, when is predicted, what is predicted.

    Args:
        options: of the task; those in hours that it may have are lookback_hours, prediction_hours, gap_hours.
        index_time: what hour 0 is.

    Returns:
        None where the task has no prediction time in hours.
    """
    prediction = options.get("prediction_hours")
    if prediction is None:
        return None
    start = -float(options.get("lookback_hours") or 0)
    outcome = float(prediction) + float(options.get("gap_hours") or 0)
    end = outcome + max(12.0, 0.5 * (float(prediction) - start))
    figure, axes = figures.panel(width=_WIDTH, height=1.5)
    axes.axis("off")
    bars = [
        (start, float(prediction), figures.COLOURS[0], "records that count"),
        (outcome, end, figures.COLOURS[1], "outcome"),
    ]
    if outcome > float(prediction):
        bars.insert(1, (float(prediction), outcome, "0.55", "gap"))
    for left, right, colour, text in bars:
        axes.barh(0, right - left, left=left, height=0.5, color=colour, alpha=0.35, linewidth=0)
        axes.text((left + right) / 2, 0, text, ha="center", va="center")
    axes.annotate("", (end * 1.03, -0.5), (start, -0.5), arrowprops={"arrowstyle": "->", "color": "#000000"})
    marks = {start: f"{start:g} h", 0.0: f"0 h\n{index_time}", float(prediction): f"{prediction:g} h\nprediction"}
    for hour, text in marks.items():
        axes.plot([hour, hour], [-0.62, 0.35], color="#000000", linewidth=1)
        axes.text(hour, -0.75, text, ha="center", va="top")
    axes.set(xlim=(start - 0.04 * (end - start), end * 1.05), ylim=(-1.35, 0.5))
    return figure


def difference_figure(p_values: pd.DataFrame, metric: str, label: str) -> "Figure":
    """Each head's metric minus that of the best of the others, with its interval over patients.

    Args:
        p_values: of `report.ComparisonTable`.
        metric: one of its metrics.
        label: of the metric on the axis.
    """
    rows = p_values[p_values["metric"] == metric]
    names = [f"{row.model} − {row.against}" for row in rows.itertuples()]
    values = rows[["difference", "difference_low", "difference_high"]].to_numpy(dtype=np.float64)
    return forest(
        [("", name, *(100 * value)) for name, value in zip(names, values, strict=True)],
        f"difference of {label}, points",
        0.0,
    )


def forest(
    lines: Sequence[tuple[str, str, float, float, float]], label: str, reference: float | None, key: Sequence[str] = ()
) -> "Figure":
    """Estimates with their intervals, one below the other; those of one name share a row.

    Args:
        lines: (group, name, estimate, low, high). Groups are told apart by colour, and the first line of a new `name`
            begins a row.
        label: of the axis.
        reference: where a line of reference stands.
        key: the groups, for the legend; none = no legend.
    """
    names = list(dict.fromkeys(name for _, name, *_ in lines))
    groups = list(dict.fromkeys(group for group, *_ in lines))
    height = 1.0 + 0.2 * len(names) * (1 + 0.55 * (len(groups) - 1)) + (0.4 if len(groups) == 1 else 0)
    figure, axes = figures.panel(width=_WIDTH, height=height)
    if reference is not None:
        axes.axvline(reference, **figures.CHANCE)
    step = 0.8 / len(groups)
    for place, (group, (colour, _)) in enumerate(zip(groups, figures.styles(), strict=False)):
        own = [(names.index(name), *numbers) for found, name, *numbers in lines if found == group]
        row, middle, low, high = np.array(own, dtype=np.float64).T
        heights = -row - step * (place - (len(groups) - 1) / 2)
        axes.hlines(heights, low, high, color=colour, linewidth=1.5)
        axes.plot(middle, heights, "osD^v<>"[place % 7], color=colour, markersize=4, label=group, linestyle="none")
    axes.set_yticks(-np.arange(len(names)), names)
    axes.set(ylim=(-len(names) + 0.4, 0.6), xlabel=label)
    if key:
        figures.legend(figure, axes, "")
    return figure


def curve_panels(found: Sequence[Outcome], kind: str) -> "Figure":
    """ROC (`roc`) or precision-recall (`pr`) curves of several outcomes, a panel each; mean over seeds with its sd.

    Outcomes of one class only are left out; of many, the most frequent ones are drawn.
    """
    curve, area = {
        "roc": (figures.true_positive_rate, metrics.auroc),
        "pr": (figures.precision, metrics.auprc),
    }[kind]
    labels = {"roc": ("1 - specificity", "sensitivity"), "pr": ("recall", "precision")}[kind]

    def draw(axes: "Axes", outcome: Outcome) -> None:
        y = outcome.target["test"]
        if kind == "roc":
            axes.plot([0, 1], [0, 1], **figures.CHANCE)
        else:
            axes.axhline(y.mean(), **figures.CHANCE)
        figures.draw_curves(axes, outcome.predictions["test"], y, curve, area)
        axes.legend(fontsize=7, frameon=False, loc="lower right" if kind == "roc" else "upper right")
        axes.set(xlim=(0, 1), ylim=(0, 1.01))

    return _panels(chosen(found), draw, labels)


def chosen(found: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes that are drawn: with both classes, the most frequent ones, in their order."""
    usable = [outcome for outcome in found if outcome.has_classes]
    frequent = sorted(usable, key=lambda outcome: -outcome.target["test"].mean())[:MOST_PANELS]
    return [outcome for outcome in usable if any(outcome is other for other in frequent)]


def reliability_figure(table: pd.DataFrame, outcomes: Sequence[str]) -> "Figure":
    """Predicted against observed: a panel per recalibration, a row of them per outcome, a line per head.

    Args:
        table: of `calibration_tables.reliability_table`.
        outcomes: which of its outcomes.
    """
    from matplotlib.figure import Figure

    rows = table[table["outcome"].isin(outcomes)]
    shape = (len(outcomes), len(RECALIBRATIONS))
    figure = Figure(figsize=(8.6, 0.7 + 2.7 * shape[0]), layout="constrained", dpi=150)
    panels = figure.subplots(*shape, sharex="row", sharey="row", squeeze=False)
    for outcome, line in zip(outcomes, panels, strict=True):
        own = rows[rows["outcome"] == outcome]
        top = min(1.0, 1.05 * float(own[["predicted", "high"]].to_numpy(dtype=np.float64).max()))
        for method, axes in zip(RECALIBRATIONS, line, strict=True):
            figures.tidy(axes)
            axes.plot([0, 1], [0, 1], **figures.CHANCE)
            axes.set(xlim=(0, top), ylim=(0, top), xlabel="predicted", title=RECALIBRATIONS[method])
            drawn = own[own["recalibration"] == method]
            for (head, points), (colour, dashes) in zip(
                drawn.groupby("model", sort=False), figures.styles(), strict=False
            ):
                axes.fill_between(points["predicted"], points["low"], points["high"], color=colour, alpha=0.1, lw=0)
                axes.plot(
                    points["predicted"], points["observed"], dashes, color=colour, marker="o", markersize=3, label=head
                )
        line[0].set_ylabel(f"observed\n{outcome}" if len(outcomes) > 1 else "observed")
    figures.legend(figure, panels[0, 0], "")
    return figure


def decision_figure(table: pd.DataFrame, outcomes: Sequence[str]) -> "Figure":
    """Net benefit against the threshold, a panel per outcome; dotted: treat everyone, and no one.

    Args:
        table: of `calibration_tables.decision_table`.
        outcomes: which of its outcomes.
    """

    def draw(axes: "Axes", outcome: str) -> None:
        own = table[table["outcome"] == outcome]
        everyone = own[own["model"] == "treat everyone"]
        heads = own[own["model"] != "treat everyone"]
        axes.axhline(0, **figures.CHANCE)
        axes.plot(everyone["threshold"], everyone["net_benefit"], **figures.CHANCE)
        for (head, line), (colour, dashes) in zip(heads.groupby("model", sort=False), figures.styles(), strict=False):
            axes.fill_between(line["threshold"], line["low"], line["high"], color=colour, alpha=0.08, lw=0)
            axes.plot(line["threshold"], line["net_benefit"], dashes, color=colour, linewidth=1.6, label=head)
        top = float(heads["high"].max())
        axes.set(xlim=(0, float(own["threshold"].max())), ylim=(-0.25 * top, 1.1 * top))

    return _panels(list(outcomes), draw, ("threshold probability", "net benefit per unit"), legend=True)


def _panels(
    items: Sequence[Any], draw: Callable[["Axes", Any], None], labels: tuple[str, str], legend: bool = False
) -> "Figure":
    """One panel per outcome, three abreast, each drawn by `draw`."""
    from matplotlib.figure import Figure

    across = min(3, len(items))
    down = -(-len(items) // across)
    size = (_WIDTH, 4.0) if len(items) == 1 else (3.3 * across + (1.4 if legend else 0), 3.0 * down)
    figure = Figure(figsize=size, layout="constrained", dpi=150)
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for axes, item in zip(panels, items, strict=False):
        figures.tidy(axes)
        draw(axes, item)
        name = item if isinstance(item, str) else item.name
        axes.set(xlabel=labels[0], ylabel=labels[1], title=_short(name) if len(items) > 1 else "")
    for axes in panels[len(items) :]:
        axes.axis("off")
    if legend:
        figures.legend(figure, panels[0], "")
    return figure


def _short(name: str, most: int = 38) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def cost_figure(costs: pd.DataFrame, rows: pd.DataFrame, metric: str, label: str) -> "Figure":
    """A metric with its interval against multiply-accumulates and against latency.

    Args:
        costs: of `latency.cost_table`: model, macs, parameters, milliseconds.
        rows: of `report.ComparisonTable`.
        metric: one of its metrics.
        label: of the metric on the axis.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, MaxNLocator

    both = rows.merge(costs[["model", "milliseconds"]], on="model")
    figure = Figure(figsize=(8.6, 3.5), layout="constrained", dpi=150)
    panels = figure.subplots(1, 2, sharey=True)
    quantities = {
        "macs": "multiply-accumulates per sample",
        "milliseconds": "milliseconds per batch of 128, one thread",
    }
    for axes, (column, name) in zip(panels, quantities.items(), strict=True):
        figures.tidy(axes)
        far_apart = both[column].max() > _FAR_APART * both[column].min() > 0
        axes.set(xscale="log" if far_apart else "linear", xlabel=name)
        if not far_apart:
            axes.xaxis.set_major_locator(MaxNLocator(5))
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        for row, (colour, _), marker in zip(both.itertuples(), figures.styles(), "osD^v<>" * len(both), strict=False):
            cost = getattr(row, column)
            middle, low, high = (100 * getattr(row, f"{metric}_{part}") for part in ("mean", "low", "high"))
            axes.vlines(cost, low, high, color=colour, linewidth=1.2)
            axes.plot(cost, middle, marker, color=colour, markersize=6, label=row.model)
    panels[0].set_ylabel(f"{label}, %")
    figures.legend(figure, panels[0], "")
    return figure


def pattern_figure(patterns: pd.DataFrame) -> "Figure":
    """Which modalities units have together: a dot where one is there, and how many units have the pattern.

    Args:
        patterns: of `cohort_tables.missing_patterns`.
    """
    from matplotlib.figure import Figure

    names = [column for column in patterns.columns if column not in ("units", "share")]
    figure = Figure(figsize=(_WIDTH, 1.6 + 0.27 * len(patterns)), layout="constrained", dpi=150)
    dots, bars = figure.subplots(1, 2, sharey=True, width_ratios=(0.35 * len(names) + 0.5, 4))
    figures.tidy(bars)
    heights = -np.arange(len(patterns))
    for column, name in enumerate(names):
        there = patterns[name].map(lambda value: value is True or value == 1).to_numpy(dtype=bool)
        known = patterns[name].notna().to_numpy()
        dots.scatter(np.full(there.sum(), column), heights[there], s=46, color=figures.COLOURS[0])
        dots.scatter(
            np.full((known & ~there).sum(), column), heights[known & ~there], s=46, facecolors="none", edgecolors="0.55"
        )
    for height in heights[patterns[names[0]].isna().to_numpy()]:
        dots.text((len(names) - 1) / 2, height, "rarer patterns", ha="center", va="center")
    dots.set_xticks(range(len(names)), names, rotation=40, ha="right")
    dots.set_yticks([])
    dots.set_xlim(-0.6, len(names) - 0.4)
    dots.spines[:].set_visible(False)
    bars.barh(heights, 100 * patterns["share"], color=figures.COLOURS[0], height=0.6)
    for height, row in zip(heights, patterns.to_dict("records"), strict=True):
        bars.text(100 * row["share"], height, f" {row['units']:,}", va="center")
    bars.set(xlabel="share of units, %", xlim=(0, 115 * patterns["share"].max()))
    return figure
