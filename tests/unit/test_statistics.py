"""Tests over seeds against scipy, published p-values and written-out formulas; the bootstrap against scikit-learn."""

import math
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import sklearn.metrics
from scipy import stats

from ovo_clinic.metrics import UndefinedMetric, bca
from ovo_clinic.statistics import (
    METRICS,
    MULTICLASS_METRICS,
    bootstrap_by_patient,
    holm,
    paired_t_test,
    weighted_multiclass_metrics,
    weighted_ranking_metrics,
    welch_from_summary,
    welch_t_test,
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
    assert welch_from_summary(*ovo, 10, *other, 10).p_value == pytest.approx(p_value, rel=0.02)


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


@pytest.mark.parametrize("test", [welch_t_test, paired_t_test])
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


def test_holm_hand_worked() -> None:
    # Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1, then the running maximum.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    corrected = holm([0.5, math.nan, 0.02, 0.9])
    assert math.isnan(corrected[1])
    assert corrected[[0, 2, 3]] == pytest.approx([1.0, 0.06, 1.0])
    assert holm([]).size == 0
    assert np.isnan(holm([math.nan])).all()


@pytest.mark.parametrize("decimals", [1, 2, 16], ids=["many ties", "some ties", "no ties"])
def test_weighted_metrics_against_scikit_learn(decimals: int) -> None:
    rng = np.random.default_rng(decimals)
    positive = rng.random(200) < 0.15
    scores = np.round(rng.random(200) + 0.3 * positive, decimals)
    weights = rng.integers(0, 4, size=(20, 200)).astype(float)
    weights[10:] = rng.random((10, 200))
    found = weighted_ranking_metrics(scores, positive, weights)
    assert tuple(found) == METRICS
    for row, w in enumerate(weights):
        expected = {
            "auroc": sklearn.metrics.roc_auc_score(positive, scores, sample_weight=w),
            "auprc": sklearn.metrics.average_precision_score(positive, scores, sample_weight=w),
            "auprc_negative": sklearn.metrics.average_precision_score(~positive, -scores, sample_weight=w),
        }
        for metric, value in expected.items():
            assert found[metric][row] == pytest.approx(value, abs=1e-12), metric


def test_weighted_metrics_are_nan_where_a_weighting_leaves_one_class() -> None:
    scores, positive = np.array([0.9, 0.5, 0.1]), np.array([True, False, False])
    weights = np.array([[1.0, 1, 1], [0, 1, 1], [2, 0, 0]])
    for values in weighted_ranking_metrics(scores, positive, weights).values():
        assert values[0] == 1.0 and np.isnan(values[1:]).all()
    for values in weighted_ranking_metrics(scores, np.zeros(3, dtype=bool), weights).values():
        assert np.isnan(values).all()


def classified(decimals: int = 16) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(decimals)
    target = rng.integers(0, 3, 90)
    logits = rng.normal(size=(90, 3)) + 1.5 * np.eye(3)[target]
    p = np.round(np.exp(logits) / np.exp(logits).sum(1, keepdims=True), decimals)
    return p / p.sum(1, keepdims=True), target.astype(float)


@pytest.mark.parametrize("decimals", [1, 16], ids=["many ties", "no ties"])
def test_weighted_multiclass_metrics_against_scikit_learn(decimals: int) -> None:
    p, y = classified(decimals)
    weights = np.random.default_rng(3).integers(0, 4, size=(10, 90))
    found = weighted_multiclass_metrics(p, y, weights.astype(float))
    assert tuple(found) == MULTICLASS_METRICS
    for row, w in enumerate(weights):
        rows = np.repeat(np.arange(90), w)
        mauc = sklearn.metrics.roc_auc_score(y[rows], p[rows], multi_class="ovo")
        tables = sklearn.metrics.multilabel_confusion_matrix(y[rows], p[rows].argmax(1), labels=[0, 1, 2])
        shares = [table[i, i] / table[i].sum() for table in tables for i in (0, 1)]
        assert found["mauc"][row] == pytest.approx(mauc, abs=1e-12)
        assert found["bca"][row] == pytest.approx(np.mean(shares), abs=1e-12)


def test_a_weighting_without_a_class_has_no_mauc_and_the_bca_of_the_challenge() -> None:
    p, y = classified()
    found = weighted_multiclass_metrics(p, y, np.array([y < 2, y < 3], dtype=float))
    assert np.isnan(found["mauc"][0]) and not np.isnan(found["mauc"][1])
    assert found["bca"][0] == pytest.approx(bca(p[y < 2], y[y < 2]), abs=1e-12)


def test_bootstrap_of_a_multiclass_task() -> None:
    p, y = classified()
    patients = np.arange(90) // 2
    found = bootstrap_by_patient({"a": np.stack([p, p[::-1]])}, y, patients, MULTICLASS_METRICS, resamples=300)
    for metric in MULTICLASS_METRICS:
        interval = found.interval("a", metric)
        assert interval.low < interval.estimate < interval.high and interval.resamples == 300
    expected = np.mean([sklearn.metrics.roc_auc_score(y, seed, multi_class="ovo") for seed in (p, p[::-1])])
    assert found.estimates["a"]["mauc"] == pytest.approx(expected, abs=1e-12)


def cohort(units: int = 400, patients: int = 150) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(11)
    target = (rng.random(units) < 0.2).astype(float)
    return rng.random((3, units)) + 0.4 * target, target, rng.integers(0, patients, units).astype(str)


def test_bootstrap_draws_whole_patients_and_averages_over_seeds() -> None:
    """A plain loop that copies the units of the drawn patients gives an interval of the same distribution."""
    predictions, target, patients = cohort()
    found = bootstrap_by_patient({"ovo": predictions}, target, patients, resamples=2000, seed=1)
    rng = np.random.default_rng(99)
    units_of = [np.flatnonzero(patients == patient) for patient in np.unique(patients)]
    expected = []
    for _ in range(200):
        rows = np.concatenate([units_of[i] for i in rng.integers(0, len(units_of), len(units_of))])
        expected.append(np.mean([sklearn.metrics.roc_auc_score(target[rows], p[rows]) for p in predictions]))
    samples = found.samples["ovo"]["auroc"]
    assert samples.mean() == pytest.approx(np.mean(expected), abs=0.004)
    assert samples.std() == pytest.approx(np.std(expected), rel=0.2)
    interval = found.interval("ovo", "auroc")
    assert interval.estimate == pytest.approx(
        np.mean([sklearn.metrics.roc_auc_score(target, p) for p in predictions]), abs=1e-12
    )
    assert (interval.low, interval.high) == pytest.approx(np.percentile(samples, [2.5, 97.5]))
    assert interval.resamples == 2000


def test_bootstrap_over_patients_is_wider_than_over_units() -> None:
    """Ten identical units a patient: treating them as independent would narrow the interval by about sqrt(10)."""
    rng = np.random.default_rng(5)
    target = np.repeat((rng.random(80) < 0.3).astype(float), 10)
    scores = np.repeat(rng.random(80), 10)[None] + 0.2 * target
    patients = np.repeat(np.arange(80), 10)
    by_patient = bootstrap_by_patient({"a": scores}, target, patients, resamples=400).interval("a", "auroc")
    by_unit = bootstrap_by_patient({"a": scores}, target, np.arange(800), resamples=400).interval("a", "auroc")
    ratio = (by_patient.high - by_patient.low) / (by_unit.high - by_unit.low)
    assert 2.5 < ratio < 4


def test_bootstrap_difference_uses_the_same_resamples() -> None:
    predictions, target, patients = cohort()
    heads = {"a": predictions, "b": predictions + 1e-9, "c": predictions[:, ::-1]}
    found = bootstrap_by_patient(heads, target, patients, metrics=METRICS, resamples=200)
    for metric in METRICS:
        same = found.difference("a", "b", metric)
        assert (same.low, same.high) == pytest.approx((0, 0), abs=1e-12)
        forward, backward = found.difference("a", "c", metric), found.difference("c", "a", metric)
        assert (forward.low, forward.high) == pytest.approx((-backward.high, -backward.low), abs=1e-12)
        expected = found.interval("a", metric).estimate - found.interval("c", metric).estimate
        assert forward.estimate == pytest.approx(expected)


def test_bootstrap_is_seeded_and_independent_of_chunks_and_unlabelled_units(monkeypatch: pytest.MonkeyPatch) -> None:
    predictions, target, patients = cohort()
    found = bootstrap_by_patient({"a": predictions}, target, patients, resamples=50, seed=4)
    monkeypatch.setattr("ovo_clinic.statistics._WEIGHTS_AT_ONCE", 7 * target.size)
    again = bootstrap_by_patient(
        {"a": np.c_[predictions, np.ones((3, 2))]},
        np.r_[target, np.nan, np.nan],
        np.concatenate([patients, ["new", patients[0]]]),
        resamples=50,
        seed=4,
    )
    assert np.array_equal(again.samples["a"]["auroc"], found.samples["a"]["auroc"])
    other = bootstrap_by_patient({"a": predictions}, target, patients, resamples=50, seed=5)
    assert not np.array_equal(other.samples["a"]["auroc"], found.samples["a"]["auroc"])


def test_bootstrap_without_both_classes_is_nan() -> None:
    found = bootstrap_by_patient({"a": np.array([0.1, 0.2, 0.3])}, np.zeros(3), np.arange(3), resamples=10)
    interval = found.interval("a", "auroc")
    assert math.isnan(interval.estimate) and math.isnan(interval.low) and interval.resamples == 0
    with pytest.raises(UndefinedMetric, match="no unit is labelled"):
        bootstrap_by_patient({"a": np.array([0.1])}, [math.nan], ["p"])
