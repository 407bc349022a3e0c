"""Metrics as pure functions over whole splits, never averaged over batches.

Shapes: probabilities (N,) or (N,K), target (N,) or (N,K), numpy arrays; a target of NaN = not labelled, is left out.
Every function takes the probabilities first, as `Task.metrics` does.
"""

import itertools
from collections.abc import Callable

import numpy as np
import sklearn.metrics
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Metric = Callable[[ArrayLike, ArrayLike], float]


class UndefinedMetric(ValueError):
    """The labelled units do not define the metric (no unit, or a single class)."""


def auroc(probabilities: ArrayLike, target: ArrayLike) -> float:
    """Area under the ROC curve, ties counted half.

    Raises:
        UndefinedMetric: no labelled unit, or all of one class.
    """
    p, y = _two_classes(probabilities, target, "AUROC")
    return float(sklearn.metrics.roc_auc_score(y, p))


def auprc(probabilities: ArrayLike, target: ArrayLike) -> float:
    """Area under the precision-recall curve of the positive class: step-wise average precision, not the trapezoid.

    Raises:
        UndefinedMetric: no labelled unit, or all of one class.
    """
    p, y = _two_classes(probabilities, target, "AUPRC")
    return float(sklearn.metrics.average_precision_score(y, p))


def auprc_negative(probabilities: ArrayLike, target: ArrayLike) -> float:
    """AUPRC with the negative class as the one to be found, scored by -p (the OvO paper's AUPRC on eICU).

    Raises:
        UndefinedMetric: no labelled unit, or all of one class.
    """
    p, y = _two_classes(probabilities, target, "AUPRC of the negative class")
    return float(sklearn.metrics.average_precision_score(1 - y, -p))


def prevalence(probabilities: ArrayLike, target: ArrayLike) -> float:
    """Share of positives among the labelled units: the AUPRC of a score that says nothing.

    Raises:
        UndefinedMetric: no labelled unit.
    """
    return float(labelled(probabilities, target)[1].mean())


def brier(probabilities: ArrayLike, target: ArrayLike) -> float:
    """Mean squared distance of the probability from 0 or 1; lower is better.

    Raises:
        UndefinedMetric: no labelled unit.
    """
    p, y = labelled(probabilities, target)
    return float(np.mean((p - y) ** 2))


def log_loss(probabilities: ArrayLike, target: ArrayLike) -> float:
    """Mean negative log-likelihood in nats of binary (N,) or multiclass (N,K) probabilities, clipped away from 0 and 1.

    Raises:
        UndefinedMetric: no labelled unit.
    """
    p, y = labelled(probabilities, target)
    return float(sklearn.metrics.log_loss(y, p, labels=range(p.shape[1] if p.ndim == 2 else 2)))


def one_vs_one_auroc(probabilities: ArrayLike, target: ArrayLike) -> float:
    """Macro one-versus-one AUROC (Hand and Till 2001) over the pairs of classes that occur.

    Args:
        probabilities: (N,K).
        target: (N,) class index; NaN = not labelled.

    Raises:
        UndefinedMetric: fewer than two classes occur.
    """
    p, y = labelled(probabilities, target)
    pairs = list(itertools.permutations(np.unique(y).astype(int), 2))
    if not pairs:
        raise UndefinedMetric("one-versus-one AUROC needs two classes; the labelled units are all of one")
    scores = []
    for positive, negative in pairs:
        rows = (y == positive) | (y == negative)
        scores.append(sklearn.metrics.roc_auc_score(y[rows] == positive, p[rows, positive]))
    return float(np.mean(scores))


def balanced_accuracy(probabilities: ArrayLike, target: ArrayLike) -> float:
    """Mean recall of the most probable class, over the classes that occur.

    Args:
        probabilities: (N,K).
        target: (N,) class index; NaN = not labelled.

    Raises:
        UndefinedMetric: no labelled unit.
    """
    p, y = labelled(probabilities, target)
    return float(sklearn.metrics.recall_score(y, p.argmax(axis=1), labels=np.unique(y), average="macro"))


def macro(metric: Metric, probabilities: ArrayLike, target: ArrayLike) -> float:
    """Mean of a binary metric over the labels (columns) that define it.

    Args:
        metric: of one label.
        probabilities: (N,K).
        target: (N,K) 0/1; NaN = not labelled.

    Raises:
        UndefinedMetric: no label defines it.
    """
    p, y = np.asarray(probabilities), np.asarray(target)
    scores = np.array([or_nan(metric, p[:, label], y[:, label]) for label in range(y.shape[1])])
    if np.isnan(scores).all():
        raise UndefinedMetric(f"none of the {scores.size} labels has both classes")
    return float(np.nanmean(scores))


def one_class_labels(target: ArrayLike) -> int:
    """Number of labels, columns of (N,K), without both classes: `macro` leaves them out."""
    y = np.asarray(target)
    return int(np.sum(~((y == 0).any(axis=0) & (y == 1).any(axis=0))))


def micro(metric: Metric, probabilities: ArrayLike, target: ArrayLike) -> float:
    """A binary metric over every labelled entry of (N,K), all labels pooled.

    Raises:
        UndefinedMetric: the pooled entries do not define it.
    """
    return metric(np.asarray(probabilities).ravel(), np.asarray(target).ravel())


def or_nan(metric: Metric, probabilities: ArrayLike, target: ArrayLike) -> float:
    """The metric, or NaN where it is undefined: a validation split of one class should not end the training."""
    try:
        return metric(probabilities, target)
    except UndefinedMetric:
        return float("nan")


def labelled(probabilities: ArrayLike, target: ArrayLike) -> tuple[Floats, Floats]:
    """Probabilities and targets of the labelled units, in float64.

    Raises:
        UndefinedMetric: no labelled unit.
        ValueError: a probability that is not finite (the training has diverged).
    """
    p, y = np.asarray(probabilities, dtype=np.float64), np.asarray(target, dtype=np.float64)
    assert y.ndim == 1 and p.shape[0] == y.shape[0], (p.shape, y.shape)
    if broken := p.size - np.isfinite(p).sum():
        raise ValueError(f"{broken} of {p.size} probabilities are not finite: the training has diverged")
    keep = ~np.isnan(y)
    if not keep.any():
        raise UndefinedMetric("no unit is labelled")
    return p[keep], y[keep]


def _two_classes(probabilities: ArrayLike, target: ArrayLike, metric: str) -> tuple[Floats, Floats]:
    p, y = labelled(probabilities, target)
    if y.min() == y.max():
        raise UndefinedMetric(f"{metric} needs both classes; all {y.size} labelled units are of class {y[0]:g}")
    return p, y
