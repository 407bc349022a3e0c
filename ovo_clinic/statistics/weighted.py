"""Metrics under many weightings of the units at once: what a bootstrap or a jackknife over patients needs.

Each equals its namesake in `ovo_clinic.metrics` where all weights are 1. A sample that holds a patient twice is the
weight 2, so that scores are sorted once for all resamples.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ovo_clinic.statistics import weighted_calibration

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
Kind = Literal["binary", "multiclass", "multilabel"]

METRICS: Mapping[Kind, tuple[str, ...]] = {
    "binary": ("auroc", "auprc", "auprc_negative", "brier", "log_loss"),
    "multiclass": ("mauc", "bca", "accuracy", "log_loss"),
    "multilabel": ("auroc_macro", "auprc_macro", "auroc_micro", "auprc_micro", "brier"),
}
CALIBRATION = tuple(weighted_calibration.METRICS)
"""Further metrics of a binary task, computed where they are named; see `weighted_calibration`."""


def label_metrics(labels: int) -> list[str]:
    """Names of the metrics of each label of a multilabel task by itself: `auroc:0`, `auprc:0`, `auroc:1`, ..."""
    return [f"{name}:{label}" for label in range(labels) for name in ("auroc", "auprc")]


def kind_of_task(probabilities: Floats, target: Floats) -> Kind:
    """Binary for probabilities (N,), multiclass for (N,K) with target (N,), multilabel for (N,K) with target (N,K)."""
    if target.ndim == 2:
        return "multilabel"
    return "binary" if probabilities.ndim == 1 else "multiclass"


def weighted_metrics(
    probabilities: Floats, target: Floats, weights: Floats, metrics: Sequence[str]
) -> dict[str, Floats]:
    """Metrics under every weighting.

    Args:
        probabilities: (N,) of the positive class, or (N,K).
        target: (N,) 0/1 or class index, without NaN; for a multilabel task (N,K), NaN = not labelled.
        weights: (N,R), not negative.
        metrics: names among METRICS of the kind of task; also of CALIBRATION (binary) or `label_metrics` (multilabel).

    Returns:
        metric -> (R,); NaN where a weighting leaves a class that it needs without a unit.
    """
    kind = kind_of_task(probabilities, target)
    more = {"binary": CALIBRATION, "multilabel": label_metrics(probabilities.shape[-1])}.get(kind, ())
    assert set(metrics) <= {*METRICS[kind], *more}, f"{kind}: {metrics}"
    compute = {"binary": _binary, "multiclass": _multiclass, "multilabel": _multilabel}[kind]
    found = compute(probabilities, target, weights, frozenset(metrics))
    return {metric: found[metric] for metric in metrics}


def _binary(p: Floats, y: Floats, weights: Floats, metrics: frozenset[str]) -> dict[str, Floats]:
    found: dict[str, Floats] = {}
    positive, rows = y == 1, np.arange(y.size)
    if metrics & {"auroc", "auprc"}:
        found["auroc"], found["auprc"] = _ranking(p, positive, weights, rows)
    if "auprc_negative" in metrics:
        found["auprc_negative"] = _ranking(-p, ~positive, weights, rows)[1]
    if "brier" in metrics:
        found["brier"] = _mean((p - y) ** 2, weights)
    if "log_loss" in metrics:
        found["log_loss"] = _mean(-np.log(_clipped(np.where(positive, p, 1 - p))), weights)
    named = [name for name in CALIBRATION if name in metrics]
    return found | {name: weighted_calibration.METRICS[name](p, y, weights) for name in named}


def _multiclass(p: Floats, y: Floats, weights: Floats, metrics: frozenset[str]) -> dict[str, Floats]:
    classes = range(p.shape[1])
    found: dict[str, Floats] = {}
    if "mauc" in metrics:
        pairs = [
            _ranking(p[rows, i], y[rows] == i, weights, rows)[0]
            for i, j in itertools.permutations(classes, 2)
            for rows in [np.flatnonzero((y == i) | (y == j))]
        ]
        found["mauc"] = np.mean(pairs, axis=0)
    called = p.argmax(axis=1)
    if "bca" in metrics:
        rates = [
            _share(weights, (called == index) == wanted, (y == index) == wanted)
            for index, wanted in itertools.product(classes, (True, False))
        ]
        found["bca"] = np.mean(rates, axis=0)
    if "accuracy" in metrics:
        found["accuracy"] = _mean((called == y).astype(np.float64), weights)
    if "log_loss" in metrics:
        own = np.take_along_axis(p, y.astype(np.intp)[:, None], axis=1)[:, 0] / p.sum(axis=1)
        found["log_loss"] = _mean(-np.log(_clipped(own)), weights)
    return found


def _multilabel(p: Floats, y: Floats, weights: Floats, metrics: frozenset[str]) -> dict[str, Floats]:
    found: dict[str, Floats] = {}
    if metrics - {"auroc_micro", "auprc_micro", "brier"}:
        labels = np.array([_ranking(p[rows, k], y[rows, k] == 1, weights, rows) for k, rows in _labelled(y)])
        found["auroc_macro"], found["auprc_macro"] = mean_of_defined(labels)
        found |= dict(zip(label_metrics(y.shape[1]), labels.reshape(-1, weights.shape[1]), strict=True))
    rows, label = np.nonzero(~np.isnan(y))  # every labelled entry
    if metrics & {"auroc_micro", "auprc_micro"}:
        found["auroc_micro"], found["auprc_micro"] = _ranking(p[rows, label], y[rows, label] == 1, weights, rows)
    if "brier" in metrics:
        labelled = (~np.isnan(y)).sum(axis=1)
        error = np.nansum((p - y) ** 2, axis=1)
        found["brier"] = _divided(error @ weights, labelled @ weights)
    return found


def _labelled(y: Floats) -> Iterator[tuple[int, Rows]]:
    """Each label with the units that have it."""
    for label in range(y.shape[1]):
        yield label, np.flatnonzero(~np.isnan(y[:, label]))


def mean_of_defined(values: Floats) -> Floats:
    """Mean over the first axis of what is not NaN; NaN where all is."""
    defined = ~np.isnan(values)
    return _divided(np.where(defined, values, 0).sum(axis=0), defined.sum(axis=0))


def _ranking(scores: Floats, positive: NDArray[np.bool_], weights: Floats, rows: Rows) -> tuple[Floats, Floats]:
    """AUROC (ties half) and step-wise average precision, from one sort.

    Args:
        scores: (n,), higher = more likely positive.
        positive: (n,).
        weights: (N,R) of the units.
        rows: (n,) whose unit an entry is.

    Returns:
        (R,) each; NaN where a weighting leaves a single class.
    """
    undefined = np.full(weights.shape[1], math.nan)
    if positive.all() or not positive.any():
        return undefined, undefined
    order = np.argsort(-scores)
    # A group = entries of one score, from the highest score down. Only groups that hold a positive move recall.
    ordered = scores[order]
    first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    size = np.diff(np.r_[first, scores.size])
    positives_in = np.add.reduceat(positive[order], first, dtype=np.intp)
    moves = positives_in > 0
    end = (first + size)[moves]
    by_rank = weights[rows[order]]
    true = _sums(by_rank[positive[order]], positives_in[moves])
    false_tied = _sums(by_rank[np.repeat(moves, size)], size[moves]) - true
    true_so_far = np.cumsum(true, axis=0)
    all_so_far = np.cumsum(np.add.reduceat(by_rank[: end[-1]], [0, *end[:-1]], axis=0), axis=0)
    positives = true_so_far[-1]
    negatives = by_rank.sum(axis=0) - positives
    beaten = negatives - (all_so_far - true_so_far) + false_tied / 2
    defined = (positives > 0) & (negatives > 0)
    auroc = _divided((true * beaten).sum(axis=0), np.where(defined, positives * negatives, 0))
    precision = np.divide(true_so_far, all_so_far, out=np.zeros_like(true), where=all_so_far > 0)
    return auroc, _divided((true * precision).sum(axis=0), np.where(defined, positives, 0))


def _sums(values: Floats, sizes: Rows) -> Floats:
    """Sums of successive blocks of rows, of `sizes` rows each."""
    return np.asarray(np.add.reduceat(values, np.cumsum(sizes) - sizes, axis=0), dtype=np.float64)


def _mean(losses: Floats, weights: Floats) -> Floats:
    return _divided(losses @ weights, weights.sum(axis=0))


def _share(weights: Floats, found: NDArray[np.bool_], of: NDArray[np.bool_]) -> Floats:
    """(R,) weight of the units `found` among those `of`; 0.5 where these have no weight."""
    share = _divided(weights[found & of].sum(axis=0), weights[of].sum(axis=0))
    return np.where(np.isnan(share), 0.5, share)


def _divided(above: Floats, below: NDArray[np.number]) -> Floats:
    """above / below; NaN where below is 0."""
    share: Floats = np.full(np.shape(above), math.nan)
    np.divide(above, below, out=share, where=below > 0)
    return share


def _clipped(p: Floats) -> Floats:
    """Away from 0 and 1 by as much as scikit-learn's log_loss has it."""
    epsilon = np.finfo(np.float64).eps
    return np.asarray(np.clip(p, epsilon, 1 - epsilon), dtype=np.float64)
