"""Calibration under weights equals statsmodels and numpy on units repeated as often as their weight says."""

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.special import expit, logit

from ovo_clinic import statistics
from ovo_clinic.statistics import weighted_calibration

N, R = 240, 12


@pytest.fixture(scope="module")
def drawn() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    score = random.normal(-1, 1, N)
    p = expit(1.7 * score + 0.4)
    y = (random.random(N) < expit(score)).astype(float)
    return p, y, random.multinomial(N, [1 / N] * N, size=R).T.astype(float)


def repeated(drawn: tuple[np.ndarray, np.ndarray, np.ndarray], r: int) -> tuple[np.ndarray, np.ndarray]:
    p, y, weights = drawn
    units = np.repeat(np.arange(N), weights[:, r].astype(int))
    return p[units], y[units]


def test_slope_is_that_of_a_logistic_regression(drawn: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    found = weighted_calibration.slope(*drawn)
    for r in range(R):
        p, y = repeated(drawn, r)
        assert found[r] == pytest.approx(sm.Logit(y, sm.add_constant(logit(p))).fit(disp=0).params[1], rel=1e-5)


def test_intercept_is_that_of_one_with_an_offset(drawn: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    found = weighted_calibration.intercept(*drawn)
    for r in range(R):
        p, y = repeated(drawn, r)
        model = sm.GLM(y, np.ones((y.size, 1)), sm.families.Binomial(), offset=logit(p))
        assert found[r] == pytest.approx(model.fit().params[0], abs=1e-6)


def test_ece_has_the_bins_of_the_whole(drawn: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    p, y, weights = drawn
    bins = np.argsort(np.argsort(p)) // (N // 10)
    found = weighted_calibration.ece(p, y, weights)
    for r in range(R):
        w = weights[:, r]
        parts = [abs(np.sum((w * (p - y))[bins == index])) for index in range(10)]
        assert found[r] == pytest.approx(sum(parts) / w.sum())


def test_a_weighting_without_a_class_or_that_separates_the_classes_has_none() -> None:
    p, y = np.array([0.1, 0.2, 0.7, 0.8, 0.75]), np.array([0.0, 0, 1, 1, 0])
    weights = np.array([[1.0, 1, 0, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]).T
    found = weighted_calibration.slope(p, y, weights)
    assert np.isnan(found[:2]).all() and np.isfinite(found[2])
    assert np.isnan(weighted_calibration.intercept(p, y, weights)[0])
    assert np.isnan(weighted_calibration.slope(np.full(5, 0.3), y, weights)).all()


def test_the_bootstrap_computes_them_where_they_are_named(drawn: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    p, y, _ = drawn
    found = statistics.bootstrap_by_patient(
        {"head": p}, y, np.arange(N) // 2, statistics.CALIBRATION, resamples=50, jackknife_groups=0
    )
    assert set(found.estimates["head"]) == {"ece", "slope", "intercept", "excess"}
    interval = found.interval("head", "slope")
    expected = sm.Logit(y, sm.add_constant(logit(p))).fit(disp=0).params[1]
    assert interval.estimate == pytest.approx(expected, rel=1e-5) and interval.low < expected < interval.high


def test_probabilities_without_a_slope_do_not_stop_the_others() -> None:
    rng = np.random.default_rng(0)
    y = (rng.random(60) < 0.3).astype(float)
    weights = rng.multinomial(60, np.full(60, 1 / 60), size=20).T.astype(float)
    assert np.isnan(weighted_calibration.slope(np.full(60, 0.3) + 1e-9 * rng.random(60), y, weights)).all()
    assert np.isfinite(weighted_calibration.intercept(np.full(60, 0.3), y, weights)).all()
    p = np.where(np.arange(60) < 2, [0.2, 0.9] * 30, 0.5)  # resamples without the first two have one probability
    weights[:2, :10] = 0
    assert np.isnan(weighted_calibration.slope(p, np.array([0, 1] * 30, dtype=float), weights)[:10]).all()


def test_probabilities_of_0_and_1_have_the_slope_that_statsmodels_finds() -> None:
    random = np.random.default_rng(2)
    score = random.normal(size=300)
    y = (random.random(300) < expit(2 * score)).astype(float)
    p = np.clip(np.round(expit(2 * score), 1), 1e-7, 1 - 1e-7)  # as isotonic regression gives them
    weights = random.multinomial(300, np.full(300, 1 / 300), size=6).T.astype(float)
    y[:3], p[:3] = [1, 0, 0], [1e-7, 1 - 1e-7, 1e-7]
    slopes, intercepts = (find(p, y, weights) for find in (weighted_calibration.slope, weighted_calibration.intercept))
    for r in range(6):
        drawn = weights[:, r]
        fitted = sm.GLM(y, sm.add_constant(logit(p)), sm.families.Binomial(), freq_weights=drawn).fit()
        assert slopes[r] == pytest.approx(fitted.params[1], rel=1e-4)
        alone = sm.GLM(y, np.ones((300, 1)), sm.families.Binomial(), offset=logit(p), freq_weights=drawn).fit()
        assert intercepts[r] == pytest.approx(alone.params[0], abs=1e-4)
