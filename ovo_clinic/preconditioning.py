"""Preconditioned against plain models of a study: epochs to the same score, condition numbers by layer, overhead."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ovo_clinic import figures, runs
from ovo_clinic.study import Comparison

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAYER = "condition_number_layer_"
_DETAILS = ("precondition_eps", "precondition_rows")  # how rows are normed where they are


@dataclass(frozen=True)
class Pair:
    """Two models of a study that differ in preconditioning alone.

    Attributes:
        plain, preconditioned: their labels.
    """

    plain: str
    preconditioned: str


def pairs(comparison: Comparison) -> list[Pair]:
    """Every preconditioned model that has its plain partner in the study, in the order of the table."""
    configs = {head: comparison.results[head][0]["config"]["model"] for head in comparison.heads}
    plain = {str(_without(config)): head for head, config in configs.items() if not _is_preconditioned(config)}
    return [
        Pair(plain[str(_without(config))], head)
        for head, config in configs.items()
        if _is_preconditioned(config) and str(_without(config)) in plain
    ]


def _is_preconditioned(settings: Any) -> bool:
    if isinstance(settings, Mapping):
        named = str(settings.get("attention")).endswith("preconditioned")  # of transformers' models
        return settings.get("precondition") is True or named or any(map(_is_preconditioned, settings.values()))
    return isinstance(settings, list) and any(map(_is_preconditioned, settings))


def _without(settings: Any) -> Any:
    """The same settings with plain attention."""
    if isinstance(settings, Mapping):
        return {key: _plain_option(key, value) for key, value in settings.items() if key not in _DETAILS}
    return [_without(value) for value in settings] if isinstance(settings, list) else settings


def _plain_option(key: str, value: Any) -> Any:
    if key == "precondition":
        return False
    if key == "attention" and (value is None or isinstance(value, str)):  # of transformers' models, see attention/hf.py
        return "sdpa" if value in (None, "preconditioned") else value.removesuffix("_preconditioned")
    return _without(value)


def convergence(comparison: Comparison) -> pd.DataFrame:
    """Epochs that preconditioned models need to reach the final score of their plain partners, seed by seed.

    Returns:
        One row per pair and quantity (training loss, and the validation metric that selects the epoch): plain,
        preconditioned, quantity, plain_final (mean over seeds of the last epoch), epochs (of the plain model),
        epochs_to_reach (mean over the seeds that reach it), reached, seeds, saved (share of the epochs, those seeds).
    """
    rows = []
    for pair in pairs(comparison):
        first = comparison.results[pair.plain][0]
        for quantity in ("train_loss", f"validation_{first['monitor']}"):
            rows.append({"plain": pair.plain, "preconditioned": pair.preconditioned, "quantity": quantity})
            rows[-1] |= _reached(comparison, pair, quantity)
    return pd.DataFrame(rows)


def _reached(comparison: Comparison, pair: Pair, quantity: str) -> dict[str, Any]:
    sign = -1 if runs.lower_is_better(quantity) else 1
    final, epochs, needed = [], [], []
    for plain, own in zip(comparison.results[pair.plain], comparison.results[pair.preconditioned], strict=True):
        final.append(plain["history"][-1][quantity])
        epochs.append(len(plain["history"]))
        better = [sign * epoch[quantity] >= sign * final[-1] for epoch in own["history"]]
        needed.append(1 + better.index(True) if True in better else np.nan)
    reached = ~np.isnan(needed)
    some = bool(reached.any())
    return {
        "plain_final": np.mean(final),
        "epochs": np.mean(epochs),
        "epochs_to_reach": np.nanmean(needed) if some else np.nan,
        "reached": int(reached.sum()),
        "seeds": len(needed),
        "saved": np.nanmean(1 - np.array(needed) / epochs) if some else np.nan,
    }


def condition_numbers(comparison: Comparison) -> pd.DataFrame:
    """Condition numbers by model, epoch and layer, where `training.condition_numbers` measured them.

    Returns:
        One row per model, epoch (from 1) and attention layer (from 1, in the order of computation): the mean over the
        seeds in which the layer has a finite one, of `condition.condition_metrics`' condition number.
    """
    rows = [
        {"model": head, "epoch": int(epoch["epoch"]) + 1, "layer": int(name.removeprefix(LAYER)), "number": value}
        for head in comparison.heads
        for result in comparison.results[head]
        for epoch in result["history"]
        for name, value in epoch.items()
        if name.startswith(LAYER)
    ]
    if not rows:
        return pd.DataFrame(columns=["model", "epoch", "layer", "condition_number"])
    grouped = pd.DataFrame(rows).groupby(["model", "epoch", "layer"], sort=False)["number"].mean()
    return grouped.rename("condition_number").reset_index()


def overhead(comparison: Comparison, costs: pd.DataFrame) -> pd.DataFrame:
    """What preconditioning costs: ratios of a preconditioned to its plain model.

    Args:
        comparison: finished runs.
        costs: of `token_costs.table`.

    Returns:
        One row per pair and size: plain, preconditioned, size, tokens, time_ratio and memory_ratio of a training step.
    """
    rows = []
    for pair in pairs(comparison):
        plain, own = (costs[costs["model"] == label].set_index("size") for label in (pair.plain, pair.preconditioned))
        for size in plain.index:
            rows.append({"plain": pair.plain, "preconditioned": pair.preconditioned, "size": size})
            rows[-1] |= {
                "tokens": plain["tokens"][size],
                "time_ratio": plain["train_units_per_second"][size] / own["train_units_per_second"][size],
                "memory_ratio": own["train_peak_mib"][size] / plain["train_peak_mib"][size],
            }
    return pd.DataFrame(rows)


def figure(comparison: Comparison, title: str = "") -> "Figure":
    """Training curves of each pair: loss, validation metric and, where measured, the mean condition number.

    Args:
        comparison: with pairs.
        title: over all.
    """
    from matplotlib.figure import Figure

    found = pairs(comparison)
    monitor = f"validation_{comparison.results[found[0].plain][0]['monitor']}"
    first = comparison.results[found[0].plain][0]["history"][0]
    quantities = ["train_loss", monitor] + (["condition_number"] if "condition_number" in first else [])
    drawn = Figure(figsize=(3.4 * len(found) + 1.8, 2.7 * len(quantities)), layout="constrained", dpi=150)
    grid = drawn.subplots(len(quantities), len(found), squeeze=False)
    for column, pair in enumerate(found):
        for row, quantity in enumerate(quantities):
            axes = grid[row][column]
            figures.tidy(axes)
            for label, name, (colour, dashes) in zip(
                (pair.plain, pair.preconditioned), ("plain", "preconditioned"), figures.styles(), strict=False
            ):
                seeds = [[epoch.get(quantity, np.nan) for epoch in run["history"]] for run in comparison.results[label]]
                figures.draw_seeds(axes, seeds, name, colour, dashes)
            axes.set(title=pair.plain if row == 0 else "", xlabel="epoch" if row == len(quantities) - 1 else "")
            axes.set_yscale("log" if quantity == "condition_number" else "linear")
            if column == 0:
                axes.set_ylabel(figures.words(quantity))
    drawn.suptitle(title)
    figures.legend(drawn, grid[0][-1], "mean over seeds")
    return drawn
