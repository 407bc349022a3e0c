"""Calibration and decision curves against definitions written out, scikit-learn and known truths."""

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from ovo_clinic import calibration
from ovo_clinic.metrics import UndefinedMetric


def _drawn(n: int, temperature: float = 1.0, shift: float = 0.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities that are `temperature` times too extreme and `shift` too low in the logit, and outcomes."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(-1, 1.2, n)
    target = (rng.random(n) < 1 / (1 + np.exp(-logits))).astype(float)
    return 1 / (1 + np.exp(-(logits - shift) * temperature)), target


def test_reliability_equals_scikit_learns_quantile_bins() -> None:
    p, y = _drawn(1000)
    curve = calibration.reliability(p, y)
    observed, predicted = calibration_curve(y, p, n_bins=10, strategy="quantile")
    assert np.allclose(curve.observed, observed) and np.allclose(curve.predicted, predicted)
    assert curve.units.tolist() == [100] * 10
    z = 1.959963984540054
    k, n = curve.observed * 100, 100
    centre = (k + z**2 / 2) / (n + z**2)
    half = z / (n + z**2) * np.sqrt(k * (n - k) / n + z**2 / 4)
    assert np.allclose(curve.low, centre - half) and np.allclose(curve.high, centre + half)


def test_ece_from_its_definition() -> None:
    p, y = _drawn(500, temperature=2)
    order = np.argsort(p)
    parts = np.array_split(order, 10)
    expected = sum(len(part) * abs(p[part].mean() - y[part].mean()) for part in parts) / 500
    assert calibration.ece(p, y) == pytest.approx(expected, abs=1e-12)
    assert calibration.ece([0.25] * 8, [1, 0, 0, 0, 1, 0, 0, 0]) == 0
    assert calibration.ece([0.0, 1.0, 0.5], [0, 1, np.nan]) == 0


def test_equal_probabilities_share_a_bin() -> None:
    curve = calibration.reliability([0.1] * 50 + [0.9] * 2, [0] * 50 + [1] * 2)
    assert curve.units.tolist() == [50, 2]


def test_slope_and_intercept_find_what_was_planted() -> None:
    p, y = _drawn(200_000, temperature=2)
    assert calibration.slope(p, y) == pytest.approx(0.5, abs=0.01)
    p, y = _drawn(200_000, shift=0.7)
    assert calibration.intercept(p, y) == pytest.approx(0.7, abs=0.02)
    p, y = _drawn(2000, temperature=1.5, shift=0.2)
    logits = np.log(p / (1 - p))[:, None]
    assert calibration.slope(p, y) == pytest.approx(LogisticRegression(C=np.inf).fit(logits, y).coef_[0, 0], rel=1e-3)


def test_the_intercept_makes_the_mean_right() -> None:
    p, y = _drawn(3000, shift=0.4, seed=3)
    moved = 1 / (1 + np.exp(-(np.log(p / (1 - p)) + calibration.intercept(p, y))))
    assert moved.mean() == pytest.approx(y.mean(), abs=1e-8)


def test_temperature_undoes_itself() -> None:
    p, y = _drawn(200_000, temperature=3)
    fitted = calibration.Temperature.fit(p, y)
    assert fitted.temperature == pytest.approx(3, rel=0.02)
    grid = np.linspace(0.5, 6, 56)
    logits = np.log(p / (1 - p))
    losses = [-np.mean(np.log(np.where(y == 1, q, 1 - q))) for q in (1 / (1 + np.exp(-logits / t)) for t in grid)]
    assert abs(grid[int(np.argmin(losses))] - fitted.temperature) <= 0.1
    assert (np.argsort(fitted.apply(p[:100])) == np.argsort(p[:100])).all()
    assert np.isfinite(fitted.apply([0.0, 1.0])).all()


def test_isotonic_equals_scikit_learn_on_new_units() -> None:
    p, y = _drawn(800, temperature=2)
    new = np.concatenate([[0.0, 1.0], _drawn(300, seed=5)[0]])
    expected = IsotonicRegression(out_of_bounds="clip").fit(p, y).predict(new)
    assert np.allclose(calibration.Isotonic.fit(p, y).apply(new), expected)


def test_decision_curve_counts() -> None:
    p, y = [0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]
    curve = calibration.decision_curve(p, y, [0.2, 0.5])
    assert curve.model.tolist() == pytest.approx([2 / 4 - 0.25 * 1 / 4, 1 / 4])
    assert curve.everyone.tolist() == pytest.approx([0.5 - 0.25 * 0.5, 0.5 - 0.5])


@pytest.mark.parametrize("function", [calibration.slope, calibration.intercept])
def test_one_class_is_undefined(function: object) -> None:
    assert callable(function)
    with pytest.raises(UndefinedMetric):
        function([0.2, 0.3], [0, 0])
    with pytest.raises(UndefinedMetric):
        calibration.ece([0.2], [np.nan])


def test_separated_classes_have_no_slope() -> None:
    with pytest.raises(UndefinedMetric, match="separate"):
        calibration.slope([0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1])
