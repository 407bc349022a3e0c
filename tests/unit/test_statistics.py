"""Tests over runs against scipy, published p-values and written-out formulas; DeLong against its O(n^2) kernel."""

import math
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from ovo_clinic.metrics import UndefinedMetric
from ovo_clinic.statistics import (
    Summary,
    auroc_interval,
    benjamini_hochberg,
    corrected_resampled_t_test,
    delong_test,
    from_summary,
    hedges_g,
    holm,
    paired_effect,
    paired_t_test,
    probability_of_superiority,
    welch_t_test,
    wilcoxon_test,
)


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_welch_against_the_formula() -> None:
    a, b = np.array([0.83, 0.85, 0.82, 0.86]), np.array([0.80, 0.81, 0.79, 0.84, 0.80])
    va, vb = a.var(ddof=1) / 4, b.var(ddof=1) / 5
    t = (a.mean() - b.mean()) / math.sqrt(va + vb)
    freedom = (va + vb) ** 2 / (va**2 / 3 + vb**2 / 4)
    found = welch_t_test(a, b)
    assert found.statistic == pytest.approx(t, abs=1e-12)
    assert found.p_value == pytest.approx(2 * stats.t.sf(abs(t), freedom), abs=1e-12)
    assert found.difference == pytest.approx(a.mean() - b.mean(), abs=1e-15)


@pytest.mark.parametrize(
    ("ovo", "other", "p_value"),
    [((83.6, 1.1), (78.5, 2.0), 5.7e-6), ((98.3, 0.4), (97.1, 0.6), 8.3e-5), ((82.5, 0.9), (77.6, 1.6), 6.7e-7)],
    ids=["mimic", "tadpole", "eicu"],
)
def test_welch_from_the_papers_means_and_deviations(ovo, other, p_value: float) -> None:
    found = from_summary(Summary(*ovo, 10), Summary(*other, 10))
    assert found.p_value == pytest.approx(p_value, rel=0.02)
    assert found.difference == pytest.approx(ovo[0] - other[0])


def test_from_summary_is_the_test_of_the_runs_themselves() -> None:
    a, b = np.random.default_rng(0).normal(0.8, 0.02, (2, 7))
    found = from_summary(Summary(a.mean(), a.std(ddof=1), 7), Summary(b.mean(), b.std(ddof=1), 7))
    expected = stats.ttest_ind(a, b, equal_var=False)
    assert (found.statistic, found.p_value) == pytest.approx((expected.statistic, expected.pvalue), rel=1e-9)


def test_from_summary_of_runs_without_deviation_or_of_one_run() -> None:
    assert from_summary(Summary(0.8, 0, 3), Summary(0.8, 0, 3)).p_value == 1.0
    fixed = from_summary(Summary(0.8, 0, 3), Summary(0.7, 0, 3))
    assert math.isnan(fixed.p_value) and fixed.note == "no variation over seeds"
    single = from_summary(Summary(0.8, math.nan, 1), Summary(0.7, 0.1, 3))
    assert math.isnan(single.p_value) and single.note == "fewer than two seeds"


def test_paired_is_the_one_sample_test_of_the_differences() -> None:
    rng = np.random.default_rng(3)
    a = rng.normal(0.8, 0.02, 10)
    b = a - rng.normal(0.003, 0.002, 10)
    d = a - b
    t = d.mean() / (d.std(ddof=1) / math.sqrt(10))
    found = paired_t_test(a, b)
    assert found.statistic == pytest.approx(t, rel=1e-9)
    assert found.p_value == pytest.approx(2 * stats.t.sf(abs(t), 9), rel=1e-9)
    assert found.p_value < welch_t_test(a, b).p_value


def nadeau_bengio(a, b):
    return corrected_resampled_t_test(a, b, 0.25)


@pytest.mark.parametrize("test", [welch_t_test, paired_t_test, nadeau_bengio])
def test_where_no_t_test_can_be_made(test) -> None:
    equal = test([0.8, 0.8, 0.8], [0.8, 0.8, 0.8])
    assert (equal.p_value, equal.difference) == (1.0, 0.0)
    assert test([0.1 + 0.2, 0.3, 0.3], [0.3, 0.3, 0.3]).p_value == 1.0  # equal but for rounding
    fixed = test([0.8, 0.8], [0.7, 0.7])
    assert math.isnan(fixed.p_value) and fixed.note == "no variation over seeds"
    assert fixed.difference == pytest.approx(0.1)
    single = test([0.8], [0.7])
    assert math.isnan(single.p_value) and single.note == "fewer than two seeds"
    assert single.difference == pytest.approx(0.1)
    assert math.isnan(test([], []).difference)
    missing = test([0.8, np.nan], [0.7, 0.6])
    assert math.isnan(missing.p_value) and missing.note == "a seed has no value"


def test_one_constant_head_is_still_tested_by_welch() -> None:
    a, b = np.full(5, 0.8), np.array([0.70, 0.72, 0.71, 0.74, 0.69])
    t = (0.8 - b.mean()) / math.sqrt(b.var(ddof=1) / 5)
    assert welch_t_test(a, b).p_value == pytest.approx(2 * stats.t.sf(t, 4), rel=1e-6)


def test_wilcoxon_against_scipy_and_its_exact_distribution() -> None:
    rng = np.random.default_rng(2)
    a = rng.normal(0.8, 0.02, 10)
    b = a - rng.normal(0.01, 0.02, 10)
    found, expected = wilcoxon_test(a, b), stats.wilcoxon(a, b)
    assert (found.statistic, found.p_value) == (expected.statistic, pytest.approx(expected.pvalue))
    assert found.difference == pytest.approx(np.mean(a - b))
    # Five differences of one sign: one of 2^5 signings, at either end.
    assert wilcoxon_test([0.9, 0.8, 0.7, 0.85, 0.75], [0.8, 0.6, 0.4, 0.45, 0.25]).p_value == pytest.approx(2 / 32)


def test_where_no_wilcoxon_test_can_be_made() -> None:
    equal = wilcoxon_test([0.1 + 0.2, 0.3], [0.3, 0.3])
    assert (equal.p_value, equal.note) == (1.0, "all runs are equal")
    assert math.isnan(wilcoxon_test([0.8], [0.7]).p_value)
    assert math.isnan(wilcoxon_test([0.8, np.nan], [0.7, 0.6]).p_value)


def test_nadeau_bengio_is_its_formula() -> None:
    a = np.array([0.81, 0.79, 0.84, 0.80, 0.83])
    b = np.array([0.80, 0.77, 0.80, 0.81, 0.79])
    d = [x - y for x, y in zip(a, b, strict=True)]
    mean = sum(d) / 5
    variance = sum((x - mean) ** 2 for x in d) / 4
    t = mean / math.sqrt((1 / 5 + 1 / 4) * variance)  # five folds: a test fold is a quarter of the training folds
    found = corrected_resampled_t_test(a, b, test_per_training=1 / 4)
    assert found.statistic == pytest.approx(t, rel=1e-12)
    assert found.p_value == pytest.approx(2 * stats.t.sf(abs(t), 4), rel=1e-12)
    plain = paired_t_test(a, b)
    assert found.statistic == pytest.approx(plain.statistic / math.sqrt(1 + 5 / 4))
    assert found.p_value > plain.p_value and found.difference == pytest.approx(mean)


def test_effect_sizes_written_out() -> None:
    a, b = np.array([0.83, 0.85, 0.82, 0.86]), np.array([0.80, 0.84, 0.79, 0.83, 0.82])
    pooled = math.sqrt((3 * a.var(ddof=1) + 4 * b.var(ddof=1)) / 7)
    assert hedges_g(a, b) == pytest.approx((a.mean() - b.mean()) / pooled * (1 - 3 / (4 * 9 - 9)), rel=1e-9)
    d = a - b[:4]
    assert paired_effect(a, b[:4]) == pytest.approx(d.mean() / d.std(ddof=1))
    wins = np.mean([(x > y) + (x == y) / 2 for x in a for y in b])
    assert probability_of_superiority(a, b) == pytest.approx(wins)
    assert probability_of_superiority(b, a) == pytest.approx(1 - wins)


def test_runs_without_variation_have_no_effect_size() -> None:
    assert math.isnan(hedges_g([0.8, 0.8], [0.7, 0.7])) and math.isnan(hedges_g([0.8], [0.7, 0.6]))
    assert math.isnan(paired_effect([0.8, 0.7], [0.7, 0.6])) and math.isnan(paired_effect([0.8], [0.7]))
    assert probability_of_superiority([0.8, 0.8], [0.8, 0.8]) == 0.5
    assert math.isnan(probability_of_superiority([], [0.8]))


def test_holm_hand_worked() -> None:
    # Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1, then the running maximum.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    corrected = holm([0.5, math.nan, 0.02, 0.9])
    assert math.isnan(corrected[1])
    assert corrected[[0, 2, 3]] == pytest.approx([1.0, 0.06, 1.0])
    assert holm([]).size == 0
    assert np.isnan(holm([math.nan])).all()


def test_benjamini_hochberg_hand_worked() -> None:
    # Sorted 0.01, 0.02, 0.03, 0.2 times 4/1, 4/2, 4/3, 4/4, then the running minimum from the end.
    assert benjamini_hochberg([0.2, 0.01, 0.03, 0.02]) == pytest.approx([0.2, 0.04, 0.04, 0.04])
    assert np.isnan(benjamini_hochberg([math.nan, 0.03])).tolist() == [True, False]


@pytest.mark.parametrize(("correct", "method"), [(holm, "holm"), (benjamini_hochberg, "fdr_bh")])
def test_corrections_against_statsmodels(correct, method: str) -> None:
    p = np.random.default_rng(6).random(20) ** 3
    with_gap = np.insert(p, 7, math.nan)
    assert np.delete(correct(with_gap), 7) == pytest.approx(multipletests(p, method=method)[1], abs=1e-15)


def kernel(scores: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """(m,n) of DeLong, DeLong and Clarke-Pearson: 1 where the positive is above the negative, 1/2 where equal."""
    x, y = scores[positive][:, None], scores[~positive][None]
    return (x > y) + (x == y) / 2


def delong_by_definition(a: np.ndarray, b: np.ndarray, positive: np.ndarray) -> tuple[float, float]:
    """(difference, its variance) from the covariances of the components, their equations 4-6."""
    kernels = [kernel(a, positive), kernel(b, positive)]
    s10, s01 = np.cov([k.mean(axis=1) for k in kernels]), np.cov([k.mean(axis=0) for k in kernels])
    s = s10 / kernels[0].shape[0] + s01 / kernels[0].shape[1]
    return kernels[0].mean() - kernels[1].mean(), s[0, 0] + s[1, 1] - 2 * s[0, 1]


def two_models(units: int, decimals: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(decimals)
    target = (rng.random(units) < 0.3).astype(float)
    common = rng.normal(size=units)
    a = 0.8 * target + common + rng.normal(size=units)
    return np.round(a, decimals), np.round(0.5 * target + common + rng.normal(size=units), decimals), target


@pytest.mark.parametrize("decimals", [0, 1, 16], ids=["many ties", "some ties", "no ties"])
def test_delong_against_its_quadratic_kernel(decimals: int) -> None:
    a, b, target = two_models(150, decimals)
    difference, variance = delong_by_definition(a, b, target == 1)
    found = delong_test(a, b, target)
    assert found.difference == pytest.approx(difference, abs=1e-12)
    assert found.statistic == pytest.approx(difference / math.sqrt(variance), rel=1e-9)
    assert found.p_value == pytest.approx(2 * stats.norm.sf(abs(found.statistic)), rel=1e-9)
    area = kernel(a, target == 1)
    deviation = math.sqrt(np.var(area.mean(1), ddof=1) / len(area) + np.var(area.mean(0), ddof=1) / area.shape[1])
    interval = auroc_interval(a, target, level=0.9)
    assert interval.estimate == pytest.approx(area.mean(), abs=1e-12)
    assert (interval.low, interval.high) == pytest.approx(
        area.mean() + 1.6448536269514722 * deviation * np.array([-1, 1])
    )


def test_delong_of_seeds_is_that_of_their_mean_kernel() -> None:
    (a, b, target), positive = two_models(120, 1), two_models(120, 1)[2] == 1
    seeds = np.stack([a, a + np.random.default_rng(0).normal(size=120)])
    mean = np.mean([kernel(seed, positive) for seed in seeds], axis=0) - kernel(b, positive)
    variance = np.var(mean.mean(1), ddof=1) / len(mean) + np.var(mean.mean(0), ddof=1) / mean.shape[1]
    assert delong_test(seeds, b, target).statistic == pytest.approx(mean.mean() / math.sqrt(variance), rel=1e-9)


def test_delong_of_patients_with_several_units_is_obuchowskis() -> None:
    a, b, target = two_models(160, 1)
    positive, patients = target == 1, np.random.default_rng(8).integers(0, 60, 160)
    k = kernel(a, positive) - kernel(b, positive)
    difference, rows, columns = k.mean(), patients[positive], patients[~positive]
    everyone = sorted(set(patients))
    x = np.array([(k.mean(1) - difference)[rows == who].sum() for who in everyone])
    y = np.array([(k.mean(0) - difference)[columns == who].sum() for who in everyone])
    m, n, clusters = len(rows), len(columns), len(everyone)
    m_clusters, n_clusters = len(set(rows)), len(set(columns))
    s10 = m_clusters / ((m_clusters - 1) * m) * np.sum(x**2)
    s01 = n_clusters / ((n_clusters - 1) * n) * np.sum(y**2)
    s11 = clusters / (clusters - 1) * np.sum(x * y)
    variance = s10 / m + s01 / n + 2 * s11 / (m * n)
    found = delong_test(a, b, target, patients.astype(str))
    assert found.statistic == pytest.approx(difference / math.sqrt(variance), rel=1e-9)
    assert found.p_value != pytest.approx(delong_test(a, b, target).p_value, rel=1e-3)


def test_delong_leaves_out_what_is_not_labelled() -> None:
    a, b, target = two_models(100, 1)
    hidden = target.copy()
    hidden[::5] = math.nan
    keep = ~np.isnan(hidden)
    assert delong_test(a, b, hidden) == delong_test(a[keep], b[keep], target[keep])


def test_where_delong_has_nothing_to_say() -> None:
    a, _, target = two_models(50, 1)
    same = delong_test(a, 3 * a + 1, target)
    assert (same.difference, same.p_value, same.note) == (0.0, 1.0, "both rank the units alike")
    few = delong_test([0.1, 0.2, 0.3], [0.3, 0.2, 0.1], [0, 0, 1])
    assert few.difference == 1.0 and math.isnan(few.p_value) and few.note == "too few patients"
    assert math.isnan(auroc_interval([0.1, 0.2, 0.3], [0, 0, 1]).low)
    perfect = auroc_interval([0.1, 0.2, 0.3, 0.4], [0, 0, 1, 1])
    assert (perfect.low, perfect.estimate, perfect.high) == (1.0, 1.0, 1.0)
    with pytest.raises(UndefinedMetric, match="both classes"):
        delong_test(a, a, np.ones(50))
