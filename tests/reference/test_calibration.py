"""Do intervals cover what they say, and do tests reject as often as they say? Simulated predictions, no training."""

import numpy as np
import pytest
from scipy import stats

from ovo_clinic.statistics import Estimate, bootstrap_by_patient, delong_test

SIMULATIONS = 1000
PATIENTS, UNITS_A_PATIENT = 150, 2


def study(rng: np.random.Generator, signal: float) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Predictions of two correlated, equally good models for patients whose units resemble each other."""
    patients = np.repeat(np.arange(PATIENTS), UNITS_A_PATIENT)
    units = patients.size

    def alike(deviation: float) -> np.ndarray:
        return deviation * (0.8 * rng.normal(size=PATIENTS)[patients] + 0.6 * rng.normal(size=units))

    target = (alike(1.0) > 0.5).astype(float)
    common = alike(0.7)
    return {head: signal * target + common + alike(0.7) for head in "ab"}, target, patients


def differences(signal: float, seed: int) -> list[Estimate]:
    rng = np.random.default_rng(seed)
    found = []
    for number in range(SIMULATIONS):
        predictions, target, patients = study(rng, signal)
        bootstrap = bootstrap_by_patient(
            predictions, target, patients, ["auroc"], resamples=400, jackknife_groups=100, seed=number
        )
        found.append(bootstrap.paired("a", "b", "auroc"))
    return found


@pytest.mark.slow
def test_intervals_of_an_auroc_cover_it() -> None:
    """Scores of a positive unit are normal around `signal`, of standard deviation 0.99, so the AUROC is known."""
    rng, signal = np.random.default_rng(100), 1.2
    truth = stats.norm.cdf(signal / (2 * 2 * 0.7**2) ** 0.5)
    percentile, bca = [], []
    for number in range(SIMULATIONS):
        predictions, target, patients = study(rng, signal)
        found = bootstrap_by_patient(
            {"a": predictions["a"]}, target, patients, ["auroc"], resamples=400, jackknife_groups=100, seed=number
        )
        estimate = found.estimates["a"]["auroc"]
        for covered, interval in ((percentile, estimate.percentile()), (bca, estimate.bca())):
            covered.append(interval.low <= truth <= interval.high)
    assert 0.92 <= np.mean(percentile) <= 0.97
    assert 0.92 <= np.mean(bca) <= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("signal", [0.0, 1.2], ids=["no signal", "equally good"])
def test_the_paired_bootstrap_rejects_as_often_as_it_says(signal: float) -> None:
    found = differences(signal, seed=200)
    assert 0.03 <= np.mean([difference.p_value() < 0.05 for difference in found]) <= 0.07
    for method in (Estimate.percentile, Estimate.bca):
        intervals = [method(difference) for difference in found]
        assert 0.92 <= np.mean([interval.low <= 0 <= interval.high for interval in intervals]) <= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("signal", [0.0, 1.2], ids=["no signal", "equally good"])
def test_delong_rejects_as_often_as_it_says(signal: float) -> None:
    rng = np.random.default_rng(300)
    rejected, rejected_as_units = 0, 0
    for _ in range(SIMULATIONS):
        predictions, target, patients = study(rng, signal)
        rejected += delong_test(predictions["a"], predictions["b"], target, patients).p_value < 0.05
        rejected_as_units += delong_test(predictions["a"], predictions["b"], target).p_value < 0.05
    assert 0.03 <= rejected / SIMULATIONS <= 0.07
    assert rejected_as_units / SIMULATIONS > 0.07  # two alike units a patient are not two patients


@pytest.mark.slow
def test_delong_of_single_units_rejects_as_often_as_it_says() -> None:
    rng = np.random.default_rng(400)
    target = (np.arange(200) % 4 == 0).astype(float)
    common = rng.normal(size=(SIMULATIONS, 200))
    a, b = common + rng.normal(size=(2, SIMULATIONS, 200))
    p_values = [delong_test(a[i], b[i], target).p_value for i in range(SIMULATIONS)]
    assert 0.03 <= np.mean(np.array(p_values) < 0.05) <= 0.07
