"""Intervals over patients: the bootstrap of whole patients, percentile or BCa, for metrics and their differences.

It asks what other patients of the same kind would show, with the models as trained; another seed is another model.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from ovo_clinic.metrics import UndefinedMetric
from ovo_clinic.statistics.weighted import METRICS, kind_of_task, mean_of_defined, weighted_metrics

Floats = NDArray[np.float64]

JACKKNIFE_GROUPS = 500
_ROUNDING = 1e-12  # of a metric between 0 and 1; what differs by less is equal
WEIGHTS_AT_ONCE = 4_000_000  # 32 MB an array, of which about five live at a time in each thread


@dataclass(frozen=True)
class Interval:
    """An interval around an estimate.

    Attributes:
        estimate: on the patients as they are.
        low, high: bounds.
        resamples: how many defined the metric, where others lacked a class; 0 for an interval by formula.
    """

    estimate: float
    low: float
    high: float
    resamples: int


@dataclass(frozen=True)
class Estimate:
    """A metric, or a difference of two, on resamples of patients.

    It speaks of the variation over patients, with the models as trained.

    Attributes:
        value: on the patients as they are.
        samples: (R,) in each resample; NaN = it lacks a class.
        jackknife: (G,) without each group of patients in turn; empty = not computed.
    """

    value: float
    samples: Floats
    jackknife: Floats

    def __sub__(self, other: "Estimate") -> "Estimate":
        return Estimate(self.value - other.value, self.samples - other.samples, self.jackknife - other.jackknife)

    @classmethod
    def mean(cls, estimates: Sequence["Estimate"]) -> "Estimate":
        """The mean of several metrics, such as one of each label; those that are NaN do not count."""
        values, samples, jackknife = (
            mean_of_defined(np.array([getattr(estimate, part) for estimate in estimates]))
            for part in ("value", "samples", "jackknife")
        )
        return cls(float(values), samples, jackknife)

    def percentile(self, level: float = 0.95) -> Interval:
        """Percentile interval: quantiles of the resamples."""
        tail = (1 - level) / 2
        return self._between(tail, 1 - tail)

    def bca(self, level: float = 0.95) -> Interval:
        """Bias-corrected and accelerated interval (Efron 1987), the acceleration from a grouped jackknife.

        Sharper than the percentile interval where the metric is near its limit or few patients are positive. Its bounds
        are NaN where every resample lies on one side of the estimate.
        """
        assert self.jackknife.size, "bootstrap_by_patient was asked for no jackknife"
        samples = self._defined()
        difference = samples - self.value
        below = np.mean((difference <= _ROUNDING) + 1.0 * (difference < -_ROUNDING)) / 2 if samples.size else 0.0
        if not 0 < below < 1:
            return self._between(math.nan, math.nan)
        bias = stats.norm.ppf(below)
        tails = bias + stats.norm.ppf([(1 - level) / 2, (1 + level) / 2])
        low, high = stats.norm.cdf(bias + tails / (1 - self._acceleration() * tails))
        return self._between(low, high)

    def p_value(self) -> float:
        """Two-sided p-value that the true value is 0: the level at which the percentile interval just reaches 0.

        NaN where no resample defines the value; 1 where all are 0.
        """
        samples = self._defined()
        if not samples.size:
            return math.nan
        fewer = min(np.count_nonzero(samples <= _ROUNDING), np.count_nonzero(samples >= -_ROUNDING))
        return float(min(1.0, 2 * (fewer + 1) / (samples.size + 1)))

    def normal_p_value(self) -> float:
        """Two-sided p-value that the true value is 0, by a normal law with the standard error of the resamples.

        NaN where fewer than two resamples define the value, or all define the same one.
        """
        samples = self._defined()
        error = samples.std(ddof=1) if samples.size > 1 else 0.0
        return float(2 * stats.norm.sf(abs(self.value) / error)) if error > _ROUNDING else math.nan

    def _defined(self) -> Floats:
        return self.samples[~np.isnan(self.samples)]

    def _between(self, low: float, high: float) -> Interval:
        samples = self._defined()
        if not samples.size or math.isnan(low) or math.isnan(high):
            return Interval(self.value, math.nan, math.nan, samples.size)
        bounds = np.quantile(samples, [low, high])
        return Interval(self.value, float(bounds[0]), float(bounds[1]), samples.size)

    def _acceleration(self) -> float:
        without = self.jackknife[~np.isnan(self.jackknife)]
        deviations = without.mean() - without if without.size else without
        spread = np.sum(deviations**2)
        return float(np.sum(deviations**3) / (6 * spread**1.5)) if spread > 0 else 0.0


@dataclass(frozen=True)
class Bootstrap:
    """Metrics of several heads on the same resamples of patients.

    Attributes:
        estimates: head -> metric -> mean over seeds, with its resamples.
        level: of the intervals.
    """

    estimates: Mapping[str, Mapping[str, Estimate]]
    level: float

    def interval(self, head: str, metric: str) -> Interval:
        """Percentile interval of one head's metric, averaged over seeds: the variation over patients."""
        return self.estimates[head][metric].percentile(self.level)

    def difference(self, a: str, b: str, metric: str) -> Interval:
        """Of head a's metric minus head b's: narrower than the two intervals suggest, as the patients are the same."""
        return self.paired(a, b, metric).percentile(self.level)

    def paired(self, a: str, b: str, metric: str) -> Estimate:
        """Head a's metric minus head b's, resample by resample."""
        return self.estimates[a][metric] - self.estimates[b][metric]


def bootstrap_by_patient(
    predictions: Mapping[str, ArrayLike],
    target: ArrayLike,
    patients: ArrayLike,
    metrics: Sequence[str] | None = None,
    *,
    resamples: int = 1000,
    jackknife_groups: int = JACKKNIFE_GROUPS,
    seed: int = 0,
    level: float = 0.95,
) -> Bootstrap:
    """Resamples whole patients, all their units together, and averages each metric over seeds.

    It speaks of the variation over patients, with the models as trained: seeds are not patients.

    Args:
        predictions: head -> (S,N), probability of the positive class by seed and unit, or (S,N,K), of every class or
            label.
        target: (N,) 0/1 or class index, or (N,K) 0/1 by label; NaN = not labelled, left out.
        patients: (N,) identifier of the patient of each unit.
        metrics: names among METRICS of the kind of task, all by default, or of `label_metrics`.
        resamples: R.
        jackknife_groups: patients are left out in that many random groups of equal size (one by one where they are
            fewer), for BCa intervals: exact for one by one, cheaper and nearly as good in groups; 0 = no BCa.
        seed: of the resampling and of the groups; the same for every head.
        level: of the intervals.

    Raises:
        UndefinedMetric: no unit is labelled.
    """
    y = np.asarray(target, dtype=np.float64)
    keep = ~np.isnan(y) if y.ndim == 1 else ~np.isnan(y).all(axis=1)
    if not keep.any():
        raise UndefinedMetric("no unit is labelled")
    heads = {head: np.atleast_2d(np.asarray(p, dtype=np.float64))[:, keep] for head, p in predictions.items()}
    y = y[keep]
    _, patient = np.unique(np.asarray(patients)[keep], return_inverse=True)
    chosen = metrics or METRICS[kind_of_task(next(iter(heads.values()))[0], y)]
    at_once = max(1, WEIGHTS_AT_ONCE // y.size)

    def computed(weightings: Iterator[Floats]) -> dict[str, Floats]:
        """head -> (len(chosen),R), over pieces of weightings (N,R')."""
        parts: dict[str, list[Floats]] = {head: [] for head in heads}
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # numpy works without the interpreter's lock
            for weights in weightings:
                found = pool.map(partial(mean_over_seeds, y=y, weights=weights, metrics=chosen), heads.values())
                for pieces, piece in zip(parts.values(), found, strict=True):
                    pieces.append(piece)
        return {head: np.hstack(pieces) for head, pieces in parts.items()}

    whole = computed(iter([np.ones((patient.size, 1))]))
    samples = computed(resampled(patient, resamples, seed, at_once))
    left_out = computed(_left_out(patient, jackknife_groups, seed, at_once)) if jackknife_groups else None
    return Bootstrap(
        {
            head: {
                metric: Estimate(
                    value=float(whole[head][index, 0]),
                    samples=samples[head][index],
                    jackknife=left_out[head][index] if left_out else np.empty(0),
                )
                for index, metric in enumerate(chosen)
            }
            for head in heads
        },
        level,
    )


def resampled(patient: NDArray[np.intp], resamples: int, seed: int, at_once: int) -> Iterator[Floats]:
    """How often each unit is drawn, (N,R') in pieces: patients with replacement, all their units together."""
    rng = np.random.default_rng(seed)
    patients = int(patient.max()) + 1
    for start in range(0, resamples, at_once):
        size = min(at_once, resamples - start)
        counts = rng.multinomial(patients, np.full(patients, 1 / patients), size=size)
        yield counts.T.astype(np.float64, order="C")[patient]


def _left_out(patient: NDArray[np.intp], groups: int, seed: int, at_once: int) -> Iterator[Floats]:
    """(N,G') in pieces: 0 for the units of the patients of one group, 1 for the others."""
    patients = int(patient.max()) + 1
    groups = min(groups, patients)
    group = np.random.default_rng(seed).permutation(np.arange(patients) % groups)[patient]
    for start in range(0, groups, at_once):
        yield (group[:, None] != np.arange(start, min(start + at_once, groups))).astype(np.float64)


def mean_over_seeds(p: Floats, y: Floats, weights: Floats, metrics: Sequence[str]) -> Floats:
    """(len(metrics),R) from predictions (S,N) or (S,N,K), target (N,) or (N,K), and weights (N,R)."""
    total: Floats = np.zeros((len(metrics), weights.shape[1]))
    for scores in p:
        found = weighted_metrics(scores, y, weights, metrics)
        total += np.stack([found[metric] for metric in metrics]) / len(p)
    return total
