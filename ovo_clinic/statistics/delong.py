"""DeLong's variance of AUROCs over patients, in O(n log n) by mid-ranks.

Sources: DeLong, DeLong and Clarke-Pearson 1988; Sun and Xu 2014 (mid-ranks); Obuchowski 1997 (several units a patient).
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from ovo_clinic.metrics import UndefinedMetric
from ovo_clinic.statistics.bootstrap import Interval
from ovo_clinic.statistics.runs import Comparison

Floats = NDArray[np.float64]

_ROUNDING = 1e-12


def delong_test(a: ArrayLike, b: ArrayLike, target: ArrayLike, patients: ArrayLike | None = None) -> Comparison:
    """DeLong's test of two AUROCs on the same units; the statistic is z.

    It speaks of the variation over patients, with the models as trained: another seed is another model. With several
    seeds it compares the mean AUROCs over them.

    Args:
        a: (N,) or (S,N) scores by seed and unit, higher = more likely positive.
        b: (N,) or (S',N) of the other model.
        target: (N,) 0/1; NaN = not labelled, left out.
        patients: (N,) whose unit it is (Obuchowski's clustered variance); None = every unit is a patient of its own.

    Raises:
        UndefinedMetric: the labelled units are all of one class, or none is labelled.
    """
    positive, cluster, keep = _units(target, patients)
    placed = _placements(a, positive, keep) - _placements(b, positive, keep)
    difference, variance = float(placed[positive].mean()), _variance(placed, positive, cluster)
    if np.abs(placed).max() <= _ROUNDING:
        return Comparison(0.0, 0.0, 1.0, "both rank the units alike")
    if not variance > _ROUNDING**2:
        return Comparison(difference, math.nan, math.nan, "too few patients")
    z = difference / math.sqrt(variance)
    return Comparison(difference, z, float(2 * stats.norm.sf(abs(z))))


def auroc_interval(
    scores: ArrayLike, target: ArrayLike, patients: ArrayLike | None = None, level: float = 0.95
) -> Interval:
    """Normal interval of an AUROC, or of the mean AUROC over seeds, from DeLong's variance, cut at 0 and 1.

    It speaks of the variation over patients, with the models as trained. Arguments as in `delong_test`; bounds are NaN
    where fewer than two patients have a positive, or a negative, unit.

    Raises:
        UndefinedMetric: the labelled units are all of one class, or none is labelled.
    """
    positive, cluster, keep = _units(target, patients)
    placed = _placements(scores, positive, keep)
    auroc, variance = float(placed[positive].mean()), _variance(placed, positive, cluster)
    half = float(stats.norm.ppf((1 + level) / 2)) * math.sqrt(max(variance, 0.0)) if variance == variance else math.nan
    low, high = np.clip([auroc - half, auroc + half], 0, 1)
    return Interval(auroc, float(low), float(high), 0)


def _units(
    target: ArrayLike, patients: ArrayLike | None
) -> tuple[NDArray[np.bool_], NDArray[np.intp], NDArray[np.bool_]]:
    """Of the labelled units: whether positive, and the number of their patient; and which units are labelled."""
    y = np.asarray(target, dtype=np.float64)
    keep = ~np.isnan(y)
    positive = y[keep] == 1
    if positive.all() or not positive.any():
        raise UndefinedMetric("AUROC needs both classes among the labelled units")
    who = np.arange(y.size) if patients is None else np.asarray(patients)
    assert who.shape == y.shape, (who.shape, y.shape)
    return positive, np.unique(who[keep], return_inverse=True)[1], keep


def _placements(scores: ArrayLike, positive: NDArray[np.bool_], keep: NDArray[np.bool_]) -> Floats:
    """(N,) mean over seeds of DeLong's components.

    Of a positive unit: the share of negatives below it, ties half (V10); of a negative one: of positives above it
    (V01). The mean over either class is the AUROC.
    """
    p = np.atleast_2d(np.asarray(scores, dtype=np.float64))
    assert p.ndim == 2 and p.shape[1] == keep.size, (p.shape, keep.size)
    p = p[:, keep]
    assert np.isfinite(p).all(), "scores that are not finite"
    together, placed = stats.rankdata(p, axis=1), np.empty_like(p)
    negatives = np.count_nonzero(~positive)
    placed[:, positive] = (together[:, positive] - stats.rankdata(p[:, positive], axis=1)) / negatives
    below = together[:, ~positive] - stats.rankdata(p[:, ~positive], axis=1)
    placed[:, ~positive] = 1 - below / np.count_nonzero(positive)
    return np.asarray(placed.mean(axis=0), dtype=np.float64)


def _variance(placed: Floats, positive: NDArray[np.bool_], cluster: NDArray[np.intp]) -> float:
    """Variance of the AUROC, or of a difference of two, by Obuchowski's sums over patients; DeLong's for single units.

    NaN where fewer than two patients have a unit of a class.
    """
    centred = placed - placed[positive].mean()
    count = int(cluster.max()) + 1
    of_positives = np.bincount(cluster, centred * positive, count)
    of_negatives = np.bincount(cluster, centred * ~positive, count)
    with_positive = np.unique(cluster[positive]).size
    with_negative = np.unique(cluster[~positive]).size
    if min(with_positive, with_negative) < 2:
        return math.nan
    m, n = np.count_nonzero(positive), np.count_nonzero(~positive)
    return float(
        with_positive / (with_positive - 1) * np.sum(of_positives**2) / m**2
        + with_negative / (with_negative - 1) * np.sum(of_negatives**2) / n**2
        + 2 * count / (count - 1) * np.sum(of_positives * of_negatives) / (m * n)
    )
