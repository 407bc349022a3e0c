"""How much each modality matters to a head: alone, left out of training, hidden or shuffled at test time.

The four answer different questions. *Alone*: how far does this modality get by itself. *Left out*: what is lost if it
is never collected (the head is trained again without it). *Hidden*: what a trained head loses if it is not there today.
*Shuffled*: what it loses if every unit has that modality of another unit, which also breaks its ties with the others.
Attention weights are no measure of any of them: inside OvO they lie within one modality.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ovo_clinic import report
from ovo_clinic.data import ClinicalDataset
from ovo_clinic.missingness import hide, presence
from ovo_clinic.study import Comparison
from ovo_clinic.trained import Trained, altered, over_patients
from ovo_clinic.types import Batch

Floats = NDArray[np.float64]

SHUFFLES = 5


def table(comparison: Comparison, left_out: Mapping[str, Comparison], *, seed: int = 0) -> pd.DataFrame:
    """Modality importance on the test units, with paired intervals over patients.

    Args:
        comparison: finished runs of the heads, with all modalities.
        left_out: modality -> finished runs of the same heads and seeds without it; may lack some.
        seed: of the shuffles.

    Returns:
        One row per head, modality, measure and headline metric: model, modality, measure (left_out, hidden, shuffled),
        metric, mean (of the metric, over seeds, without what the modality tells), loss (of the whole head's metric
        minus that) and its bounds low and high over patients.
    """
    prepared = comparison.prepared
    names = prepared.chosen(comparison.results[comparison.heads[0]][0]["config"]["modalities"])
    rows = prepared.rows("test")
    there = presence(prepared, names)
    found: dict[str, Floats] = {}
    for head in comparison.heads:
        whole, _ = report.predictions(comparison, head)
        found[_key(head)] = whole
        for name, other in left_out.items():
            if head in other.heads:
                found[_key(head, name, "left_out")] = report.predictions(other, head)[0]
        hidden = {name: partial(hide, kept=_without(there, names, name), names=names) for name in names}
        for name, values in altered(comparison, head, rows, hidden).items():
            found[_key(head, name, "hidden")] = values
        for name, values in _shuffled(comparison, head, rows, names, seed).items():
            found[_key(head, name, "shuffled")] = values
    return _compared(comparison, found)


def _without(there: NDArray[np.bool_], names: Sequence[str], name: str) -> NDArray[np.bool_]:
    kept = there.copy()
    kept[:, list(names).index(name)] = False
    return kept


def _shuffled(
    comparison: Comparison, head: str, rows: NDArray[np.int64], names: Sequence[str], seed: int
) -> dict[str, Floats]:
    """Modality -> (S * SHUFFLES, N) or (S * SHUFFLES, N, K)."""
    found: dict[str, list[Floats]] = {name: [] for name in names}
    for folder in comparison.run_folders[head]:
        trained = Trained(folder, comparison.prepared)
        for name in names:
            for order in _orders(len(rows), seed):
                alter = _exchange(trained.data.dataset, name, dict(zip(rows.tolist(), rows[order], strict=True)))
                found[name].append(trained.probabilities(rows, alter))
    return {name: np.stack(values) for name, values in found.items()}


def _orders(size: int, seed: int) -> list[NDArray[np.int64]]:
    """The same shuffles for every head, seed and modality."""
    rng = np.random.default_rng(seed)
    return [rng.permutation(size) for _ in range(SHUFFLES)]


def _exchange(dataset: ClinicalDataset, name: str, partner: Mapping[int, int]) -> Callable[[Batch], Batch]:
    """Gives each unit one modality of its partner, present or not."""

    def alter(batch: Batch) -> Batch:
        other = dataset[np.array([partner[row] for row in batch.rows.tolist()])]
        return replace(
            batch,
            inputs={**batch.inputs, name: other.inputs[name]},
            masks={**batch.masks, name: other.masks[name]},
        )

    return alter


def _compared(comparison: Comparison, found: Mapping[str, Floats]) -> pd.DataFrame:
    bootstrap = over_patients(comparison, found)
    lines = []
    for key in found:
        head, modality, measure = key.split("\n")
        if not modality:
            continue
        for metric in report.HEADLINE[comparison.prepared.manifest["kind"]]:
            loss = bootstrap.difference(_key(head), key, metric)
            line = {"model": head, "modality": modality, "measure": measure, "metric": metric}
            numbers = {"loss": loss.estimate, "low": loss.low, "high": loss.high}
            lines.append({**line, "mean": bootstrap.interval(key, metric).estimate, **numbers})
    return pd.DataFrame(lines)


def _key(head: str, modality: str = "", measure: str = "") -> str:
    return "\n".join((head, modality, measure))
