"""Tests between fusion heads over seeds, and confidence intervals over patients.

The two speak of different variation. Tests over seeds ask whether another random start would turn the ranking around,
on the same patients; more seeds make any difference significant. The bootstrap asks what other patients of the same
kind would show, with the models as trained.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from statsmodels.stats.multitest import multipletests

from ovo_clinic.metrics import UndefinedMetric

Floats = NDArray[np.float64]

METRICS = ("auroc", "auprc", "auprc_negative")
MULTICLASS_METRICS = ("mauc", "bca")
_WEIGHTS_AT_ONCE = 2_000_000  # 16 MB an array, of which about five live at a time
_ROUNDING = 1e-12  # relative; runs that differ by less are equal


@dataclass(frozen=True)
class Comparison:
    """Result of a test of a against b.

    Attributes:
        difference: mean of a minus mean of b.
        statistic: t; NaN where there is none.
        p_value: two-sided; NaN where the test is undefined.
        note: why no test was made, or empty.
    """

    difference: float
    statistic: float
    p_value: float
    note: str = ""


@dataclass(frozen=True)
class Interval:
    """A percentile interval.

    Attributes:
        estimate: on the patients as they are.
        low, high: bounds.
        resamples: how many defined the metric; the others lacked a class.
    """

    estimate: float
    low: float
    high: float
    resamples: int


def welch_t_test(a: ArrayLike, b: ArrayLike) -> Comparison:
    """Welch's t-test of two sets of runs, unequal variances (the test of the OvO paper).

    It speaks of the variation over seeds, on one split: seeds are not patients. It takes the runs as independent, which
    wastes the pairing when both heads ran with the same seeds; then `paired_t_test` is the sharper test.

    Without any variation the p-value is 1 for equal means and NaN, with a note, for others.
    """
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    spread = max(np.ptp(a), np.ptp(b)) if a.size and b.size else 0.0
    if settled := _settled_without_test(a, b, spread):
        return settled
    return welch_from_summary(a.mean(), a.std(ddof=1), a.size, b.mean(), b.std(ddof=1), b.size)


def welch_from_summary(mean_a: float, sd_a: float, n_a: int, mean_b: float, sd_b: float, n_b: int) -> Comparison:
    """Welch's t-test from published means and standard deviations (n - 1 in the denominator) over seeds."""
    found = stats.ttest_ind_from_stats(mean_a, sd_a, n_a, mean_b, sd_b, n_b, equal_var=False)
    return Comparison(float(mean_a - mean_b), float(found.statistic), float(found.pvalue))


def paired_t_test(a: ArrayLike, b: ArrayLike) -> Comparison:
    """Student's t-test of the differences, a[i] and b[i] being runs with the same seed.

    It speaks of the variation over seeds, on one split: seeds are not patients.

    Without any variation of the differences the p-value is 1 for equal runs and NaN, with a note, for others.
    """
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    assert a.shape == b.shape, (a.shape, b.shape)
    if settled := _settled_without_test(a, b, np.ptp(a - b) if a.size else 0.0):
        return settled
    found = stats.ttest_rel(a, b)
    return Comparison(float(np.mean(a - b)), float(found.statistic), float(found.pvalue))


def _settled_without_test(a: Floats, b: Floats, spread: float) -> Comparison | None:
    """The result where no t-test can be made, or None; spread = range of what the test takes as varying."""
    if min(a.size, b.size) < 2:
        difference = a.mean() - b.mean() if a.size and b.size else math.nan
        return Comparison(float(difference), math.nan, math.nan, "fewer than two seeds")
    difference = float(a.mean() - b.mean())
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return Comparison(difference, math.nan, math.nan, "a seed has no value")
    rounding = _ROUNDING * max(np.abs(a).max(), np.abs(b).max())
    if spread > rounding:
        return None
    if abs(difference) <= rounding:
        return Comparison(difference, 0.0, 1.0, "all runs are equal")
    return Comparison(difference, math.nan, math.nan, "no variation over seeds")


def holm(p_values: ArrayLike) -> Floats:
    """p-values corrected for their number by Holm's step-down method; NaN stays NaN and is not counted as a test."""
    values = np.asarray(p_values, dtype=np.float64)
    corrected = values.copy()
    tested = ~np.isnan(values)
    if tested.any():
        corrected[tested] = multipletests(values[tested], method="holm")[1]
    return corrected


@dataclass(frozen=True)
class Bootstrap:
    """Metrics of several heads on the same resamples of patients.

    Attributes:
        estimates: head -> metric -> mean over seeds, on the patients as they are.
        samples: head -> metric -> (R,) mean over seeds in each resample; NaN = the resample lacks a class.
        level: of the intervals.
    """

    estimates: Mapping[str, Mapping[str, float]]
    samples: Mapping[str, Mapping[str, Floats]]
    level: float

    def interval(self, head: str, metric: str) -> Interval:
        """Of one head's metric, averaged over seeds: the variation over patients, with the models as trained."""
        return self._interval(self.estimates[head][metric], self.samples[head][metric])

    def difference(self, a: str, b: str, metric: str) -> Interval:
        """Of head a's metric minus head b's: narrower than the two intervals suggest, as the patients are the same."""
        estimate = self.estimates[a][metric] - self.estimates[b][metric]
        return self._interval(estimate, self.samples[a][metric] - self.samples[b][metric])

    def _interval(self, estimate: float, samples: Floats) -> Interval:
        defined = samples[~np.isnan(samples)]
        if not defined.size:
            return Interval(estimate, math.nan, math.nan, 0)
        tail = (1 - self.level) / 2
        low, high = np.quantile(defined, [tail, 1 - tail])
        return Interval(estimate, float(low), float(high), int(defined.size))


def bootstrap_by_patient(
    predictions: Mapping[str, ArrayLike],
    target: ArrayLike,
    patients: ArrayLike,
    metrics: Sequence[str] = METRICS[:2],
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Bootstrap:
    """Resamples whole patients, all their units together, and averages each metric over seeds.

    Args:
        predictions: head -> (S,N), probability of the positive class by seed and unit, or (S,N,K), of every class.
        target: (N,) 0/1 or class index; NaN = not labelled, left out.
        patients: (N,) identifier of the patient of each unit.
        metrics: names among METRICS, or for (S,N,K) among MULTICLASS_METRICS.
        resamples: R.
        seed: of the resampling; the same for every head.
        level: of the intervals.

    Raises:
        UndefinedMetric: no unit is labelled.
    """
    y = np.asarray(target, dtype=np.float64)
    keep = ~np.isnan(y)
    if not keep.any():
        raise UndefinedMetric("no unit is labelled")
    heads = {head: np.atleast_2d(np.asarray(p, dtype=np.float64))[:, keep] for head, p in predictions.items()}
    y = y[keep]
    _, patient = np.unique(np.asarray(patients)[keep], return_inverse=True)
    chunks: dict[str, list[Floats]] = {head: [] for head in heads}
    for weights in _patient_weights(patient, resamples, seed):
        for head, p in heads.items():
            chunks[head].append(_mean_over_seeds(p, y, weights, metrics))
    whole = {head: _mean_over_seeds(p, y, np.ones((1, y.size)), metrics)[:, 0] for head, p in heads.items()}
    return Bootstrap(
        estimates={head: dict(zip(metrics, map(float, values), strict=True)) for head, values in whole.items()},
        samples={head: dict(zip(metrics, np.hstack(parts), strict=True)) for head, parts in chunks.items()},
        level=level,
    )


def _patient_weights(patient: NDArray[np.intp], resamples: int, seed: int) -> Iterator[Floats]:
    """How often each unit is drawn, (R',N) in pieces: patients with replacement, all their units together."""
    rng = np.random.default_rng(seed)
    patients = int(patient.max()) + 1
    rows = max(1, _WEIGHTS_AT_ONCE // patient.size)
    for start in range(0, resamples, rows):
        size = min(rows, resamples - start)
        counts = rng.multinomial(patients, np.full(patients, 1 / patients), size=size)
        yield counts.astype(np.float64)[:, patient]


def _mean_over_seeds(p: Floats, y: Floats, weights: Floats, metrics: Sequence[str]) -> Floats:
    """(len(metrics),R) from predictions (S,N) or (S,N,K), target (N,) and weights (R,N)."""
    total: Floats = np.zeros((len(metrics), len(weights)))
    for scores in p:
        if scores.ndim == 1:
            found = weighted_ranking_metrics(scores, y == 1, weights, metrics)
        else:
            found = weighted_multiclass_metrics(scores, y, weights)
        total += np.stack([found[metric] for metric in metrics]) / len(p)
    return total


def weighted_ranking_metrics(
    scores: Floats, positive: NDArray[np.bool_], weights: Floats, metrics: Sequence[str] = METRICS
) -> dict[str, Floats]:
    """AUROC (ties half) and step-wise average precision under many weightings of the units, from one sort.

    Args:
        scores: (N,), higher = more likely positive.
        positive: (N,).
        weights: (R,N), not negative.
        metrics: names among METRICS.

    Returns:
        metric -> (R,); NaN where a weighting leaves a single class.
    """
    found: dict[str, Floats] = {}
    if "auroc" in metrics or "auprc" in metrics:
        found["auroc"], found["auprc"] = _auroc_and_auprc(scores, positive, weights)
    if "auprc_negative" in metrics:
        found["auprc_negative"] = _auroc_and_auprc(-scores, ~positive, weights)[1]
    return {metric: found[metric] for metric in metrics}


def _auroc_and_auprc(scores: Floats, positive: NDArray[np.bool_], weights: Floats) -> tuple[Floats, Floats]:
    order = np.argsort(-scores)
    # A group = units of one score, from the highest score down. Only groups that hold a positive move recall.
    _, first, size = np.unique(-scores[order], return_index=True, return_counts=True)
    held = np.add.reduceat(positive[order], first, dtype=np.intp)
    first, end, held = first[held > 0], (first + size)[held > 0], held[held > 0]
    if not held.size or held.sum() == scores.size:
        return np.full(len(weights), math.nan), np.full(len(weights), math.nan)

    above = np.zeros((len(weights), scores.size + 1))  # [:, i] = weight of the i highest units
    np.cumsum(weights[:, order], axis=1, out=above[:, 1:])
    true = np.add.reduceat(weights[:, order[positive[order]]], np.cumsum(held) - held, axis=1)
    true_so_far = np.cumsum(true, axis=1)
    all_so_far = above[:, end]
    false_so_far = all_so_far - true_so_far
    false_tied = all_so_far - above[:, first] - true
    positives = true_so_far[:, -1]
    negatives = above[:, -1] - positives

    precision = np.divide(true_so_far, all_so_far, out=np.zeros_like(true), where=all_so_far > 0)
    beaten = negatives[:, None] - false_so_far + false_tied / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        auroc = (true * beaten).sum(axis=1) / (positives * negatives)
        auprc = (true * precision).sum(axis=1) / positives
    return auroc, np.where(negatives > 0, auprc, math.nan)


def weighted_multiclass_metrics(probabilities: Floats, target: Floats, weights: Floats) -> dict[str, Floats]:
    """mAUC (ties half) and BCA, as in `metrics`, under many weightings of the units.

    Args:
        probabilities: (N,K).
        target: (N,) class index.
        weights: (R,N), not negative.

    Returns:
        metric -> (R,); mAUC is NaN where a weighting leaves a class without a unit.
    """
    classes = range(probabilities.shape[1])
    pairs = []
    for i, j in itertools.permutations(classes, 2):
        rows = (target == i) | (target == j)
        pairs.append(_auroc_and_auprc(probabilities[rows, i], target[rows] == i, weights[:, rows])[0])
    called = probabilities.argmax(axis=1)
    rates = [
        _weighted_share(weights, (called == index) == wanted, (target == index) == wanted)
        for index, wanted in itertools.product(classes, (True, False))
    ]
    return {"mauc": np.mean(pairs, axis=0), "bca": np.mean(rates, axis=0)}


def _weighted_share(weights: Floats, found: NDArray[np.bool_], of: NDArray[np.bool_]) -> Floats:
    """(R,) weight of the units `found` among those `of`; 0.5 where these have no weight."""
    total = weights[:, of].sum(axis=1)
    return np.where(total > 0, weights[:, found & of].sum(axis=1) / np.where(total > 0, total, 1), 0.5)
