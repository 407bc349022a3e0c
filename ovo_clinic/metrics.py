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
    if p.ndim == 1:
        return float(sklearn.metrics.log_loss(y, p, labels=(0, 1)))
    p = p / p.sum(axis=1, keepdims=True)  # in float32 a row sums to one only nearly, which scikit-learn warns of
    return float(sklearn.metrics.log_loss(y, p, labels=range(p.shape[1])))


def mauc(probabilities: ArrayLike, target: ArrayLike, official_ties: bool = False) -> float:
    """Multiclass AUC (Hand and Till 2001): the mean over ordered pairs of classes of A(i|j).

    A(i|j) is the share of pairs, one sample of class i and one of class j, that the score of class i puts in the right
    order. Equals scikit-learn's macro one-versus-one AUROC.

    Args:
        probabilities: (N,K), every row of one sum: A(i|j) compares the scores of a class over rows.
        target: (N,) class index; NaN = not labelled.
        official_ties: as the TADPOLE challenge's code does it, by the positions of a stable sort: of two equal scores
            the later row is the higher one, so that the value depends on the order of the rows. Default: half.

    Raises:
        UndefinedMetric: no labelled unit, or a class without one.
    """
    p, y = labelled(probabilities, target)
    counts = [int(np.sum(y == index)) for index in range(p.shape[1])]
    if 0 in counts:
        raise UndefinedMetric(f"mAUC needs every class; no labelled unit is of class {counts.index(0)}")
    pairs = [
        _separability(p[(y == i) | (y == j), i], y[(y == i) | (y == j)] == i, official_ties)
        for i, j in itertools.permutations(range(p.shape[1]), 2)
    ]
    return float(np.mean(pairs))


def _separability(scores: Floats, own: NDArray[np.bool_], official_ties: bool) -> float:
    """A(i|j) from the scores of class i of the samples of both classes; own = the sample is of class i."""
    if not official_ties:
        return float(sklearn.metrics.roc_auc_score(own, scores))
    positions = 1 + np.flatnonzero(own[np.argsort(scores, kind="stable")])
    n = positions.size
    return float((positions.sum() - n * (n + 1) / 2) / (n * (own.size - n)))


def bca(probabilities: ArrayLike, target: ArrayLike) -> float:
    """Balanced accuracy as the TADPOLE challenge defines it: mean over classes of (sensitivity + specificity) / 2.

    The decision is the first of the most probable classes. A sensitivity or specificity of no unit counts 0.5, so a
    class that does not occur is no error. Not the mean recall that scikit-learn calls balanced accuracy.

    Args:
        probabilities: (N,K).
        target: (N,) class index; NaN = not labelled.
    """
    p, y = _labelled_or_none(probabilities, target)
    called, true = p.argmax(axis=1)[:, None] == np.arange(p.shape[1]), y[:, None] == np.arange(p.shape[1])
    sensitivity = _share(np.sum(called & true, axis=0), true.sum(axis=0))
    specificity = _share(np.sum(~called & ~true, axis=0), np.sum(~true, axis=0))
    return float(np.mean((sensitivity + specificity) / 2))


def accuracy(probabilities: ArrayLike, target: ArrayLike) -> float:
    """Share of units whose class is the first of the most probable ones.

    Args:
        probabilities: (N,K).
        target: (N,) class index; NaN = not labelled.

    Raises:
        UndefinedMetric: no labelled unit.
    """
    p, y = labelled(probabilities, target)
    return float(np.mean(p.argmax(axis=1) == y))


def _share(found: NDArray[np.int64], of: NDArray[np.int64]) -> Floats:
    """found / of; 0.5 where there is none to find."""
    return np.where(of > 0, found / np.maximum(of, 1), 0.5)


def per_label(metric: Metric, probabilities: ArrayLike, target: ArrayLike) -> Floats:
    """A binary metric of each label (column), (K,); NaN for a label that does not define it.

    Args:
        metric: of one label.
        probabilities: (N,K).
        target: (N,K) 0/1; NaN = not labelled.
    """
    p, y = np.asarray(probabilities), np.asarray(target)
    return np.array([or_nan(metric, p[:, label], y[:, label]) for label in range(y.shape[1])])


def mean_of_defined(scores: Floats) -> float:
    """Mean of the (K,) scores that are not NaN (the macro average of labels); NaN where all are."""
    defined = scores[~np.isnan(scores)]
    return float(defined.mean()) if defined.size else float("nan")


def one_class_labels(target: ArrayLike) -> int:
    """Number of labels, columns of (N,K), without both classes: averages leave them out."""
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
    p, y = _labelled_or_none(probabilities, target)
    if not y.size:
        raise UndefinedMetric("no unit is labelled")
    return p, y


def _labelled_or_none(probabilities: ArrayLike, target: ArrayLike) -> tuple[Floats, Floats]:
    p, y = np.asarray(probabilities, dtype=np.float64), np.asarray(target, dtype=np.float64)
    assert y.ndim == 1 and p.shape[0] == y.shape[0], (p.shape, y.shape)
    if broken := p.size - np.isfinite(p).sum():
        raise ValueError(f"{broken} of {p.size} probabilities are not finite: the training has diverged")
    keep = ~np.isnan(y)
    return p[keep], y[keep]


def _two_classes(probabilities: ArrayLike, target: ArrayLike, metric: str) -> tuple[Floats, Floats]:
    p, y = labelled(probabilities, target)
    if y.min() == y.max():
        raise UndefinedMetric(f"{metric} needs both classes; all {y.size} labelled units are of class {y[0]:g}")
    return p, y
