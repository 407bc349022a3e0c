"""The bootstrap over patients against scikit-learn on each resample, a plain loop, and scipy's BCa."""

import math
import warnings
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import sklearn.metrics
from scipy import stats

from ovo_clinic.metrics import UndefinedMetric, bca
from ovo_clinic.statistics import METRICS, Estimate, bootstrap_by_patient, weighted_metrics


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("decimals", [1, 2, 16], ids=["many ties", "some ties", "no ties"])
def test_weighted_metrics_against_scikit_learn(decimals: int) -> None:
    rng = np.random.default_rng(decimals)
    positive = rng.random(200) < 0.15
    scores = np.round(np.clip(rng.random(200) + 0.3 * positive, 0, 1), decimals)
    weights = rng.integers(0, 4, size=(20, 200)).astype(float)
    weights[10:] = rng.random((10, 200))
    found = weighted_metrics(scores, positive.astype(float), weights.T, METRICS["binary"])
    assert tuple(found) == METRICS["binary"]
    for row, w in enumerate(weights):
        expected = {
            "auroc": sklearn.metrics.roc_auc_score(positive, scores, sample_weight=w),
            "auprc": sklearn.metrics.average_precision_score(positive, scores, sample_weight=w),
            "auprc_negative": sklearn.metrics.average_precision_score(~positive, -scores, sample_weight=w),
            "brier": sklearn.metrics.brier_score_loss(positive, scores, sample_weight=w),
            "log_loss": sklearn.metrics.log_loss(positive, scores, sample_weight=w),
        }
        for metric, value in expected.items():
            assert found[metric][row] == pytest.approx(value, abs=1e-12), metric


def test_weighted_metrics_are_nan_where_a_weighting_leaves_one_class() -> None:
    ranking = METRICS["binary"][:3]
    scores, target = np.array([0.9, 0.5, 0.1]), np.array([1.0, 0, 0])
    weights = np.array([[1.0, 1, 1], [0, 1, 1], [2, 0, 0]]).T
    for values in weighted_metrics(scores, target, weights, ranking).values():
        assert values[0] == 1.0 and np.isnan(values[1:]).all()
    for values in weighted_metrics(scores, np.zeros(3), weights, ranking).values():
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
    found = weighted_metrics(p, y, weights.T.astype(float), METRICS["multiclass"])
    for row, w in enumerate(weights):
        rows = np.repeat(np.arange(90), w)
        mauc = sklearn.metrics.roc_auc_score(y[rows], p[rows], multi_class="ovo")
        tables = sklearn.metrics.multilabel_confusion_matrix(y[rows], p[rows].argmax(1), labels=[0, 1, 2])
        shares = [table[i, i] / table[i].sum() for table in tables for i in (0, 1)]
        assert found["mauc"][row] == pytest.approx(mauc, abs=1e-12)
        assert found["bca"][row] == pytest.approx(np.mean(shares), abs=1e-12)
        assert found["accuracy"][row] == pytest.approx(sklearn.metrics.accuracy_score(y[rows], p[rows].argmax(1)))
        assert found["log_loss"][row] == pytest.approx(sklearn.metrics.log_loss(y, p, sample_weight=w), abs=1e-12)


def test_a_weighting_without_a_class_has_no_mauc_and_the_bca_of_the_challenge() -> None:
    p, y = classified()
    found = weighted_metrics(p, y, np.array([y < 2, y < 3], dtype=float).T, ["mauc", "bca"])
    assert np.isnan(found["mauc"][0]) and not np.isnan(found["mauc"][1])
    assert found["bca"][0] == pytest.approx(bca(p[y < 2], y[y < 2]), abs=1e-12)


def test_bootstrap_of_a_multiclass_task() -> None:
    p, y = classified()
    patients = np.arange(90) // 2
    found = bootstrap_by_patient({"a": np.stack([p, p[::-1]])}, y, patients, resamples=300)
    for metric in METRICS["multiclass"]:
        interval = found.interval("a", metric)
        assert interval.low < interval.estimate < interval.high and interval.resamples == 300
    expected = np.mean([sklearn.metrics.roc_auc_score(y, seed, multi_class="ovo") for seed in (p, p[::-1])])
    assert found.estimates["a"]["mauc"].value == pytest.approx(expected, abs=1e-12)


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
    samples = found.estimates["ovo"]["auroc"].samples
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
    found = bootstrap_by_patient(heads, target, patients, resamples=200)
    for metric in METRICS["binary"][:3]:
        same = found.difference("a", "b", metric)
        assert (same.low, same.high) == pytest.approx((0, 0), abs=1e-12)
        forward, backward = found.difference("a", "c", metric), found.difference("c", "a", metric)
        assert (forward.low, forward.high) == pytest.approx((-backward.high, -backward.low), abs=1e-12)
        expected = found.interval("a", metric).estimate - found.interval("c", metric).estimate
        assert forward.estimate == pytest.approx(expected)


def test_bootstrap_is_seeded_and_independent_of_chunks_and_unlabelled_units(monkeypatch: pytest.MonkeyPatch) -> None:
    predictions, target, patients = cohort()
    found = bootstrap_by_patient({"a": predictions}, target, patients, resamples=50, seed=4)
    monkeypatch.setattr("ovo_clinic.statistics.bootstrap.WEIGHTS_AT_ONCE", 7 * target.size)
    again = bootstrap_by_patient(
        {"a": np.c_[predictions, np.ones((3, 2))]},
        np.r_[target, np.nan, np.nan],
        np.concatenate([patients, ["new", patients[0]]]),
        resamples=50,
        seed=4,
    )
    own = found.estimates["a"]["auroc"].samples
    np.testing.assert_allclose(again.estimates["a"]["auroc"].samples, own, rtol=1e-12)
    other = bootstrap_by_patient({"a": predictions}, target, patients, resamples=50, seed=5)
    assert not np.array_equal(other.estimates["a"]["auroc"].samples, own)


def test_bootstrap_without_both_classes_is_nan() -> None:
    found = bootstrap_by_patient({"a": np.array([0.1, 0.2, 0.3])}, np.zeros(3), np.arange(3), resamples=10)
    interval = found.interval("a", "auroc")
    assert math.isnan(interval.estimate) and math.isnan(interval.low) and interval.resamples == 0
    with pytest.raises(UndefinedMetric, match="no unit is labelled"):
        bootstrap_by_patient({"a": np.array([0.1])}, [math.nan], ["p"])


def labelled(units: int = 80) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and targets (N,4): gaps in two labels, and one label without a positive unit."""
    rng = np.random.default_rng(2)
    y = (rng.random((units, 4)) < [0.3, 0.2, 0.5, 0.0]).astype(float)
    p = np.round(np.clip(0.3 * y + rng.random((units, 4)), 0, 1), 1)
    y[rng.random((units, 4)) < [0.2, 0, 0.1, 0]] = math.nan
    return p, y


def test_weighted_multilabel_metrics_against_scikit_learn() -> None:
    p, y = labelled()
    weights = np.random.default_rng(3).integers(0, 4, size=(10, 80)).astype(float)
    found = weighted_metrics(p, y, weights.T, METRICS["multilabel"])
    area, precision = sklearn.metrics.roc_auc_score, sklearn.metrics.average_precision_score
    for row, w in enumerate(weights):
        keep = ~np.isnan(y)
        columns = [(y[keep[:, k], k], p[keep[:, k], k], w[keep[:, k]]) for k in range(3)]
        flat = y[keep], p[keep], np.repeat(w[:, None], 4, axis=1)[keep]
        expected = {
            "auroc_macro": np.mean([area(t, s, sample_weight=v) for t, s, v in columns]),
            "auprc_macro": np.mean([precision(t, s, sample_weight=v) for t, s, v in columns]),
            "auroc_micro": area(flat[0], flat[1], sample_weight=flat[2]),
            "auprc_micro": precision(flat[0], flat[1], sample_weight=flat[2]),
            "brier": np.average((flat[0] - flat[1]) ** 2, weights=flat[2]),
        }
        for metric, value in expected.items():
            assert found[metric][row] == pytest.approx(value, abs=1e-12), metric


def test_bootstrap_of_a_multilabel_task_leaves_out_units_without_any_label() -> None:
    p, y = labelled()
    found = bootstrap_by_patient({"a": p[None]}, y, np.arange(80), resamples=50)
    more = bootstrap_by_patient(
        {"a": np.vstack([p, p[:3]])[None]}, np.vstack([y, np.full((3, 4), math.nan)]), np.arange(83), resamples=50
    )
    for metric in METRICS["multilabel"]:
        interval = found.interval("a", metric)
        assert interval.low < interval.estimate < interval.high
        assert more.interval("a", metric) == interval


def jackknife_by_definition(p: np.ndarray, target: np.ndarray, patients: np.ndarray) -> list[float]:
    keeps = [patients != who for who in np.unique(patients)]
    return [sklearn.metrics.roc_auc_score(target[keep], p[keep]) for keep in keeps]


def test_jackknife_leaves_out_whole_patients() -> None:
    predictions, target, patients = cohort(120, 40)
    found = bootstrap_by_patient({"a": predictions[0]}, target, patients, ["auroc"], resamples=5)
    expected = jackknife_by_definition(predictions[0], target, patients)
    assert sorted(found.estimates["a"]["auroc"].jackknife) == pytest.approx(sorted(expected), abs=1e-12)
    grouped = bootstrap_by_patient({"a": predictions[0]}, target, patients, ["auroc"], resamples=5, jackknife_groups=8)
    assert grouped.estimates["a"]["auroc"].jackknife.shape == (8,)


def test_bca_against_scipy() -> None:
    """scipy's interval from the same resamples, with its own jackknife and correction."""
    rng = np.random.default_rng(12)
    x = rng.exponential(size=40)
    drawn = x[rng.integers(0, 40, (2000, 40))].var(axis=1)
    jackknife = np.array([np.delete(x, i).var() for i in range(40)])
    found = Estimate(float(x.var()), drawn, jackknife)
    for level in (0.9, 0.95):
        expected = stats.bootstrap(
            (x,),
            np.var,
            n_resamples=0,
            confidence_level=level,
            method="BCa",
            bootstrap_result=SimpleNamespace(bootstrap_distribution=drawn),
        ).confidence_interval
        interval = found.bca(level)
        assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), rel=1e-9)
        assert interval.low != pytest.approx(found.percentile(level).low, rel=1e-2)


def test_a_grouped_jackknife_gives_nearly_the_same_interval() -> None:
    predictions, target, patients = cohort(900, 600)
    groups = [0.0, 0.0]
    for index, count in enumerate((100, 600)):
        found = bootstrap_by_patient({"a": predictions}, target, patients, ["auroc"], jackknife_groups=count)
        groups[index] = found.estimates["a"]["auroc"].bca().low
    deviation = found.estimates["a"]["auroc"].samples.std()
    assert groups[0] == pytest.approx(groups[1], abs=0.2 * deviation)


def test_bca_where_there_is_nothing_to_correct_by() -> None:
    constant = Estimate(1.0, np.ones(50), np.ones(10)).bca()
    assert (constant.low, constant.high) == (1.0, 1.0)
    outside = Estimate(1.0, np.linspace(0, 0.9, 50), np.ones(10)).bca()
    assert math.isnan(outside.low) and math.isnan(outside.high)
    undefined = Estimate(math.nan, np.full(5, math.nan), np.full(3, math.nan)).bca()
    assert math.isnan(undefined.low) and undefined.resamples == 0


def test_the_p_value_is_the_level_at_which_the_interval_reaches_zero() -> None:
    samples = np.arange(-2, 97) / 100.0  # 99 resamples, three of them at most 0
    assert Estimate(0.5, samples, np.empty(0)).p_value() == pytest.approx(2 * 4 / 100)
    assert Estimate(-0.5, -samples, np.empty(0)).p_value() == pytest.approx(2 * 4 / 100)
    assert Estimate(0.0, np.zeros(99), np.empty(0)).p_value() == 1.0
    assert math.isnan(Estimate(math.nan, np.full(9, math.nan), np.empty(0)).p_value())
