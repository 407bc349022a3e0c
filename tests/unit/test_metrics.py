"""Metrics against written-out definitions and hand-worked cases."""

import warnings
from functools import partial

import numpy as np
import pytest
from scipy import stats

from ovo_clinic import metrics

SCORES = np.array([0.9, 0.8, 0.7, 0.7, 0.4, 0.2])
LABELS = np.array([1.0, 0.0, 1.0, 0.0, 1.0, 0.0])


def mann_whitney(probabilities: np.ndarray, target: np.ndarray) -> float:
    """Share of (positive, negative) pairs in the right order, ties half: the definition of AUROC."""
    positive, negative = probabilities[target == 1], probabilities[target == 0]
    return float(stats.mannwhitneyu(positive, negative).statistic / (positive.size * negative.size))


def average_precision(probabilities: np.ndarray, target: np.ndarray) -> float:
    """Sum over distinct thresholds, downwards, of the gain in recall times the precision."""
    total, recall = 0.0, 0.0
    for threshold in np.unique(probabilities)[::-1]:
        called = probabilities >= threshold
        new = target[called].sum() / target.sum()
        total += (new - recall) * target[called].mean()
        recall = new
    return float(total)


def random_split(seed: int, n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    target = (rng.random(n) < 0.2).astype(float)
    return np.round(np.clip(0.3 * target + 0.6 * rng.random(n), 0.01, 0.99), 2), target  # rounded: many ties


def test_hand_worked_case() -> None:
    # Pairs: 0.9 beats 3; 0.7 beats 0.2, ties 0.7; 0.4 beats 0.2 -> (3 + 1.5 + 1) / 9.
    assert metrics.auroc(SCORES, LABELS) == pytest.approx(5.5 / 9)
    # Precision 1 at the first positive, 2/4 at the tie, 3/5 at the third.
    assert metrics.auprc(SCORES, LABELS) == pytest.approx((1 + 2 / 4 + 3 / 5) / 3)
    assert metrics.prevalence(SCORES, LABELS) == 0.5
    assert metrics.brier(SCORES, LABELS) == pytest.approx((0.01 + 0.64 + 0.09 + 0.49 + 0.36 + 0.04) / 6)
    chosen = [0.9, 0.2, 0.7, 0.3, 0.4, 0.8]
    assert metrics.log_loss(SCORES, LABELS) == pytest.approx(-np.mean(np.log(chosen)))


@pytest.mark.parametrize("seed", range(5))
def test_against_definitions(seed: int) -> None:
    p, y = random_split(seed)
    assert metrics.auroc(p, y) == pytest.approx(mann_whitney(p, y), abs=1e-12)
    assert metrics.auprc(p, y) == pytest.approx(average_precision(p, y), abs=1e-12)
    assert metrics.auprc_negative(p, y) == pytest.approx(average_precision(1 - p, 1 - y), abs=1e-12)


def test_constant_scores_reach_the_prevalence_of_eicu() -> None:
    alive, stays = 86_012, 93_784
    target = np.r_[np.ones(stays - alive), np.zeros(alive)]
    constant = np.full(stays, 0.083)
    assert metrics.auprc_negative(constant, target) == pytest.approx(0.9171, abs=5e-5)
    assert metrics.auprc(constant, target) == pytest.approx(metrics.prevalence(constant, target), abs=1e-12)
    assert metrics.auroc(constant, target) == 0.5


def test_unlabelled_units_are_left_out() -> None:
    p, y = random_split(7)
    more_p, more_y = np.r_[p, 0.99, 0.01], np.r_[y, np.nan, np.nan]
    for metric in (metrics.auroc, metrics.auprc, metrics.auprc_negative, metrics.brier, metrics.log_loss):
        assert metric(more_p, more_y) == metric(p, y)


def test_one_class_is_a_typed_error_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for metric in (metrics.auroc, metrics.auprc, metrics.auprc_negative):
            with pytest.raises(metrics.UndefinedMetric, match="all 3 labelled units are of class 0"):
                metric([0.1, 0.2, 0.3, 0.4], [0, 0, 0, np.nan])
            assert np.isnan(metrics.or_nan(metric, [0.1, 0.2], [1, 1]))
        with pytest.raises(metrics.UndefinedMetric, match="no unit is labelled"):
            metrics.brier([0.5], [np.nan])
        assert metrics.log_loss([0.25, 0.25], [0, 0]) == pytest.approx(-np.log(0.75))


def test_diverged_probabilities_are_an_error_of_their_own() -> None:
    with pytest.raises(ValueError, match="1 of 2 probabilities are not finite") as error:
        metrics.or_nan(metrics.auroc, [np.nan, 0.5], [0, 1])
    assert not isinstance(error.value, metrics.UndefinedMetric)


def test_labels_of_one_class_have_no_score_and_micro_pools() -> None:
    rng = np.random.default_rng(0)
    p, y = rng.random((200, 3)), (rng.random((200, 3)) < 0.3).astype(float)
    y[:, 2] = 0
    y[:50, 0] = np.nan
    expected = [mann_whitney(p[50:, 0], y[50:, 0]), mann_whitney(p[:, 1], y[:, 1])]
    scores = metrics.per_label(metrics.auroc, p, y)
    assert scores == pytest.approx([*expected, np.nan], abs=1e-12, nan_ok=True)
    assert metrics.mean_of_defined(scores) == pytest.approx(np.mean(expected), abs=1e-12)
    assert np.isnan(metrics.mean_of_defined(scores[2:]))
    assert metrics.one_class_labels(y) == 1
    pooled = ~np.isnan(y)
    assert metrics.micro(metrics.auprc, p, y) == pytest.approx(average_precision(p[pooled], y[pooled]), abs=1e-12)


P = np.array([[0.7, 0.2, 0.1], [0.2, 0.7, 0.1], [0.5, 0.4, 0.1], [0.1, 0.1, 0.8], [0.3, 0.3, 0.4]])


def test_multiclass_metrics_worked_by_hand() -> None:
    y = np.array([0, 1, 1, 2, np.nan])
    # A(0|1): 0.7 above 0.2 and 0.5. A(1|0): 0.7 and 0.4 above 0.2. Every pair with class 2 is in order, too.
    assert metrics.mauc(P, y) == 1.0
    # Decisions 0, 1, 0, 2. Sensitivities 1, 1/2, 1; specificities 2/3, 1, 1.
    assert metrics.bca(P, y) == pytest.approx((1 + 2 / 3 + 1 / 2 + 1 + 1 + 1) / 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a row in float32 does not sum to one exactly
        found = metrics.log_loss(P.astype(np.float32) * np.float32(1 + 1e-6), y)
    assert found == pytest.approx(-np.mean(np.log([0.7, 0.7, 0.4, 0.8])), abs=1e-6)


def test_ties_count_half_or_by_the_order_of_the_rows() -> None:
    p, y = np.array([[0.5, 0.1], [0.5, 0.2], [0.5, 0.3], [0.2, 0.8]]), np.array([0, 1, 1, 1])
    # A(0|1): the score of class 0 ties with two of three and beats the third; A(1|0): every pair is in order.
    assert metrics.mauc(p, y) == pytest.approx((2 / 3 + 1) / 2)
    # Ascending by the score of class 0: rows 3, 0, 1, 2. The sample of class 0 stands second, above one of three.
    assert metrics.mauc(p, y, official_ties=True) == pytest.approx((1 / 3 + 1) / 2)
    last = [1, 2, 3, 0]  # now it stands fourth, above all three
    assert metrics.mauc(p[last], y[last]) == pytest.approx((2 / 3 + 1) / 2)
    assert metrics.mauc(p[last], y[last], official_ties=True) == 1.0


def test_a_class_that_does_not_occur() -> None:
    y = np.array([0, 1, 1, np.nan, np.nan])
    for official in (False, True):
        with pytest.raises(metrics.UndefinedMetric, match="no labelled unit is of class 2"):
            metrics.mauc(P, y, official)
    # Decisions 0, 1, 0. Sensitivities 1, 1/2, none: 0.5; specificities 1/2, 1, 1.
    assert metrics.bca(P, y) == pytest.approx((1 + 1 / 2 + 1 / 2 + 1 + 1 / 2 + 1) / 6)
    with pytest.raises(metrics.UndefinedMetric, match="no unit is labelled"):
        metrics.mauc(P, np.full(5, np.nan))


def test_metrics_compose_with_partial() -> None:
    p, y = random_split(1)
    assert metrics.or_nan(partial(metrics.micro, metrics.auroc), p[:, None], y[:, None]) == pytest.approx(
        mann_whitney(p, y), abs=1e-12
    )
