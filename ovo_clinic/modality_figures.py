"""Figures of what modalities are worth: performance against missing rate, and importance."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ovo_clinic import figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ovo_clinic.study import Comparison

MEASURES = {
    "left_out": "left out of training",
    "hidden": "hidden at test time",
    "shuffled": "shuffled at test time",
}

_TOGETHER = {
    "random": "each modality of each unit by itself",
    "natural": "whatever a training unit drawn at random lacks",
}


def draw(comparison: "Comparison", tables: Mapping[str, pd.DataFrame]) -> dict[str, Path]:
    """Draws what there is of `missingness` and `importance` into the study's folder, as PNG; name -> file."""
    from ovo_clinic import report

    manifest = comparison.prepared.manifest
    metric = report.HEADLINE[manifest["kind"]][0]
    label = report.metric_title(metric, manifest["classes"])
    kinds = {"missingness": sweep_figure, "importance": importance_figure}
    drawn = {name: kinds[name](table, metric, manifest["title"], label) for name, table in tables.items()}
    return {name: figures.save(figure, comparison.folder / f"{name}.png") for name, figure in drawn.items()}


def sweep_figure(table: pd.DataFrame, metric: str, title: str = "", label: str = "") -> "Figure":
    """A metric against the missing rate, a line per head with a band of its 95 % interval over patients.

    Args:
        table: of `missingness.sweep`.
        metric: one of its metrics.
        title: over all.
        label: of the metric on the axis.
    """
    figure, axes = figures.panel(width=7.2, height=4.2)
    rows = table[table["metric"] == metric]
    for (head, own), (colour, dashes) in zip(rows.groupby("model", sort=False), figures.styles(), strict=False):
        rate = 100 * own["rate"].to_numpy()
        axes.fill_between(rate, 100 * own["low"], 100 * own["high"], color=colour, alpha=0.12, lw=0)
        axes.plot(rate, 100 * own["mean"], color=colour, linestyle=dashes, marker="o", markersize=3.5, label=str(head))
    axes.set(xlabel=f"missing at test time, %\n({hidden_together(table)})", ylabel=f"{label or metric}, %")
    axes.set_xticks(sorted(set(100 * rows["rate"])))
    figure.suptitle(title)
    figures.legend(figure, axes, "mean over seeds,\n95 % over patients")
    return figure


def hidden_together(table: pd.DataFrame) -> str:
    """In words, what `missingness.sweep` hid together; tables of older versions do not say."""
    if "pattern" not in table:
        return "pattern not recorded"
    name = str(table["pattern"].iloc[0])
    return _TOGETHER.get(name) or f"{name.removeprefix('modality:')} alone"


def importance_figure(table: pd.DataFrame, metric: str, title: str = "", label: str = "") -> "Figure":
    """What each head loses without each modality: one panel per measure, one line per modality and head.

    Args:
        table: of `importance.table`.
        metric: one of its metrics.
        title: over all.
        label: of the metric on the axis.
    """
    from matplotlib.figure import Figure

    rows = table[table["metric"] == metric]
    measures = [name for name in MEASURES if name in set(rows["measure"])]
    names, heads = list(dict.fromkeys(rows["modality"])), list(dict.fromkeys(rows["model"]))
    height = 1.6 + 0.17 * len(names) * (len(heads) + 1)
    figure = Figure(figsize=(3.6 * len(measures) + 2.2, height), layout="constrained", dpi=150)
    panels = np.atleast_1d(figure.subplots(1, len(measures), sharey=True))
    step = 1 / (len(heads) + 1)
    for axes, measure in zip(panels, measures, strict=True):
        figures.tidy(axes)
        axes.axvline(0, **figures.CHANCE)
        axes.set(title=MEASURES[measure], xlabel=f"loss of {label or metric}, points")
        for place, (head, (colour, _)) in enumerate(zip(heads, figures.styles(), strict=False)):
            own = rows[(rows["measure"] == measure) & (rows["model"] == head)].set_index("modality").reindex(names)
            heights = -np.arange(len(names)) - place * step
            axes.hlines(heights, 100 * own["low"], 100 * own["high"], color=colour, linewidth=1.4)
            axes.plot(100 * own["loss"], heights, "o", color=colour, markersize=4, label=head)
    middle = -np.arange(len(names)) - step * (len(heads) - 1) / 2
    panels[0].set_yticks(middle, names)
    figure.suptitle(title)
    figures.legend(figure, panels[-1], "mean over seeds,\n95 % over patients")
    return figure
