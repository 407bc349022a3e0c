"""Tests and effect sizes over runs: the seeds of one split, or the folds of a cross-validation.

Seeds are not patients: these speak of what training does at random, never of how other patients would fare.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from statsmodels.stats.meta_analysis import effectsize_smd

Floats = NDArray[np.float64]

_ROUNDING = 1e-12  # relative; runs that differ by less are equal


@dataclass(frozen=True)
class Comparison:
    """Result of a test of a against b.

    Attributes:
        difference: mean of a minus mean of b.
        statistic: of the test; NaN where there is none.
        p_value: two-sided; NaN where the test is undefined.
        note: why no test was made, or empty.
    """

    difference: float
    statistic: float
    p_value: float
    note: str = ""


@dataclass(frozen=True)
class Summary:
    """What a paper prints of its runs.

    Attributes:
        mean: of the runs.
        sd: standard deviation, n - 1 in the denominator.
        n: how many runs.
    """

    mean: float
    sd: float
    n: int


def welch_t_test(a: ArrayLike, b: ArrayLike) -> Comparison:
    """Welch's t-test of two sets of runs, unequal variances (the test of the OvO paper).

    It speaks of the variation over seeds, on one split: seeds are not patients. It takes the runs as independent, which
    wastes the pairing when both heads ran with the same seeds; then `paired_t_test` is the sharper test.

    Without any variation the p-value is 1 for equal means and NaN, with a note, for others.
    """
    a, b = _runs(a), _runs(b)
    spread = max(np.ptp(a), np.ptp(b)) if a.size and b.size else 0.0
    if settled := _settled_without_test(a, b, spread):
        return settled
    return from_summary(Summary(a.mean(), a.std(ddof=1), a.size), Summary(b.mean(), b.std(ddof=1), b.size))


def from_summary(a: Summary, b: Summary) -> Comparison:
    """Welch's t-test from published means, standard deviations and numbers of runs.

    It speaks of whatever the runs varied in, which a table rarely says: seeds or folds, and never of patients.

    Without any deviation the p-value is 1 for equal means and NaN, with a note, for others.
    """
    difference = float(a.mean - b.mean)
    if min(a.n, b.n) < 2:
        return Comparison(difference, math.nan, math.nan, "fewer than two seeds")
    if not (a.sd or b.sd):
        equal = difference == 0
        return Comparison(difference, 0.0 if equal else math.nan, 1.0 if equal else math.nan, "no variation over seeds")
    found = stats.ttest_ind_from_stats(a.mean, a.sd, a.n, b.mean, b.sd, b.n, equal_var=False)
    return Comparison(difference, float(found.statistic), float(found.pvalue))


def paired_t_test(a: ArrayLike, b: ArrayLike) -> Comparison:
    """Student's t-test of the differences, a[i] and b[i] being runs with the same seed.

    It speaks of the variation over seeds, on one split: seeds are not patients.

    Without any variation of the differences the p-value is 1 for equal runs and NaN, with a note, for others.
    """
    a, b = _pairs(a, b)
    if settled := _settled_without_test(a, b, np.ptp(a - b) if a.size else 0.0):
        return settled
    found = stats.ttest_rel(a, b)
    return Comparison(float(np.mean(a - b)), float(found.statistic), float(found.pvalue))


def wilcoxon_test(a: ArrayLike, b: ArrayLike) -> Comparison:
    """Wilcoxon's signed-rank test of the differences, a[i] and b[i] being runs with the same seed.

    It speaks of the variation over seeds, on one split, without taking it as normal. Equal pairs are dropped. Exact
    for few runs, and then blunt: with five pairs no p-value is below 0.0625.
    """
    a, b = _pairs(a, b)
    d = a - b
    if settled := _settled_without_test(a, b, np.abs(d).max() if d.size else 0.0):
        return settled
    found = stats.wilcoxon(np.where(np.abs(d) <= _rounding(a, b), 0.0, d))
    return Comparison(float(d.mean()), float(found.statistic), float(found.pvalue))


def corrected_resampled_t_test(a: ArrayLike, b: ArrayLike, test_per_training: float) -> Comparison:
    """Nadeau and Bengio's corrected resampled t-test of the folds or splits of one data set.

    It speaks of the variation over draws of training and test patients from this data set. The training sets overlap,
    so that a plain paired t-test takes the folds as more independent than they are and finds too much; here the
    variance of the mean difference is (1/n + test_per_training) times that of the differences, with n - 1 degrees of
    freedom (Nadeau and Bengio 2003, section 4.1).

    Args:
        a: (n,) by fold or split.
        b: (n,) on the same ones.
        test_per_training: units tested on divided by units trained on: 1/(k-1) for k folds.
    """
    assert test_per_training > 0, test_per_training
    a, b = _pairs(a, b)
    d = a - b
    if settled := _settled_without_test(a, b, np.ptp(d) if d.size else 0.0):
        return settled
    t = float(d.mean() / math.sqrt((1 / d.size + test_per_training) * d.var(ddof=1)))
    return Comparison(float(d.mean()), t, float(2 * stats.t.sf(abs(t), d.size - 1)))


def hedges_g(a: ArrayLike, b: ArrayLike) -> float:
    """Difference of means in pooled standard deviations over runs, corrected for few runs (Hedges 1981).

    It speaks of seeds: a large g is a difference that stands out of the noise of training, not one that matters to
    patients. NaN where the runs do not vary or are fewer than two.
    """
    a, b = _runs(a), _runs(b)
    if min(a.size, b.size) < 2 or max(np.ptp(a), np.ptp(b)) <= _rounding(a, b):
        return math.nan
    return float(effectsize_smd(a.mean(), a.std(ddof=1), a.size, b.mean(), b.std(ddof=1), b.size)[0])


def paired_effect(a: ArrayLike, b: ArrayLike) -> float:
    """Mean difference in standard deviations of the differences (Cohen's d_z), a[i] and b[i] of the same seed.

    It speaks of seeds, as `hedges_g`. NaN where the differences do not vary or are fewer than two.
    """
    a, b = _pairs(a, b)
    d = a - b
    if d.size < 2 or np.ptp(d) <= _rounding(a, b):
        return math.nan
    return float(d.mean() / d.std(ddof=1))


def probability_of_superiority(a: ArrayLike, b: ArrayLike) -> float:
    """Share of pairs, a run of each, in which a is above b; equal ones count half (Vargha and Delaney's A).

    It speaks of seeds: 0.5 = the two sets of runs are alike, 1 = the worst run of a beats the best of b.
    """
    a, b = _runs(a), _runs(b)
    if not a.size or not b.size:
        return math.nan
    return float(stats.mannwhitneyu(a, b, method="asymptotic").statistic / (a.size * b.size))


def _runs(values: ArrayLike) -> Floats:
    return np.asarray(values, dtype=np.float64)


def _pairs(a: ArrayLike, b: ArrayLike) -> tuple[Floats, Floats]:
    a, b = _runs(a), _runs(b)
    assert a.shape == b.shape, (a.shape, b.shape)
    return a, b


def _rounding(a: Floats, b: Floats) -> float:
    return float(_ROUNDING * max(np.abs(a).max(), np.abs(b).max()))


def _settled_without_test(a: Floats, b: Floats, spread: float) -> Comparison | None:
    """The result where no test can be made, or None; spread = range of what the test takes as varying."""
    if min(a.size, b.size) < 2:
        difference = a.mean() - b.mean() if a.size and b.size else math.nan
        return Comparison(float(difference), math.nan, math.nan, "fewer than two seeds")
    difference = float(a.mean() - b.mean())
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return Comparison(difference, math.nan, math.nan, "a seed has no value")
    if spread > _rounding(a, b):
        return None
    if abs(difference) <= _rounding(a, b):
        return Comparison(difference, 0.0, 1.0, "all runs are equal")
    return Comparison(difference, math.nan, math.nan, "no variation over seeds")
