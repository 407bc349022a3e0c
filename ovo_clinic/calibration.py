"""Calibration and clinical usefulness of the probabilities of one yes-or-no outcome, and their recalibration.

Shapes: probabilities (N,) in [0, 1], target (N,) 0/1, NaN = not labelled and left out, as in `metrics`. A recalibration
is fitted on the validation units only; the test units are where it is judged.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.optimize
import scipy.special
import scipy.stats
import sklearn.isotonic
import sklearn.metrics
import statsmodels.api as sm
from numpy.typing import ArrayLike, NDArray
from statsmodels.tools.sm_exceptions import PerfectSeparationWarning

from ovo_clinic.metrics import UndefinedMetric, labelled

Floats = NDArray[np.float64]

BINS = 10
# Logits of probabilities that are 0 or 1 to the last digit of float32 stay finite.
_LEAST = 1e-7


@dataclass(frozen=True)
class Reliability:
    """A reliability curve with bins of equal mass.

    Attributes:
        predicted: (bins,) mean probability.
        observed: (bins,) share of positives.
        low, high: (bins,) Wilson's 95 % interval of `observed`; units are counted as independent.
        units: (bins,) how many.
    """

    predicted: Floats
    observed: Floats
    low: Floats
    high: Floats
    units: NDArray[np.int64]


def reliability(probabilities: ArrayLike, target: ArrayLike, bins: int = BINS) -> Reliability:
    """Predicted against observed, in bins that hold equally many units; equal probabilities share a bin.

    Raises:
        UndefinedMetric: no labelled unit.
    """
    p, y = labelled(probabilities, target)
    member = equal_mass(p, bins)
    units = np.bincount(member)
    positives = np.bincount(member, weights=y)
    intervals = [
        scipy.stats.binomtest(int(k), int(n)).proportion_ci(0.95, method="wilson")
        for k, n in zip(positives, units, strict=True)
    ]
    return Reliability(
        predicted=np.bincount(member, weights=p) / units,
        observed=positives / units,
        low=np.array([interval.low for interval in intervals]),
        high=np.array([interval.high for interval in intervals]),
        units=units,
    )


def equal_mass(p: Floats, bins: int) -> NDArray[np.int64]:
    """(N,) number of the bin of each unit, 0 ... without gaps; equal probabilities share a bin."""
    edges = np.unique(np.quantile(p, np.arange(1, bins) / bins))
    _, member = np.unique(np.searchsorted(edges, p, side="left"), return_inverse=True)
    return member


def ece(probabilities: ArrayLike, target: ArrayLike, bins: int = BINS) -> float:
    """Expected calibration error: the mean distance of `reliability` from the diagonal, weighted by units.

    It is above 0 by chance alone, the more so the fewer the units: compare it with its interval.

    Raises:
        UndefinedMetric: no labelled unit.
    """
    curve = reliability(probabilities, target, bins)
    return float(np.average(np.abs(curve.predicted - curve.observed), weights=curve.units))


def slope(probabilities: ArrayLike, target: ArrayLike) -> float:
    """Calibration slope: of a logistic regression of the outcome on the logit of the probability; 1 = well calibrated.

    Below 1 the probabilities are too extreme.

    Raises:
        UndefinedMetric: one class only, or equal probabilities.
    """
    p, y = labelled(probabilities, target)
    logits = logit(p)
    if np.ptp(y) == 0 or np.ptp(logits) == 0:
        raise UndefinedMetric("the calibration slope needs both classes and unequal probabilities")
    return float(_logistic(y, sm.add_constant(logits), np.zeros_like(logits))[1])


def intercept(probabilities: ArrayLike, target: ArrayLike) -> float:
    """Calibration in the large: the constant that the logits lack on average; 0 = well calibrated.

    Above 0 the probabilities are too low.

    Raises:
        UndefinedMetric: one class only.
    """
    p, y = labelled(probabilities, target)
    if np.ptp(y) == 0:
        raise UndefinedMetric("calibration in the large needs both classes")
    return float(_logistic(y, np.ones((y.size, 1)), logit(p))[0])


def _logistic(y: Floats, x: Floats, offset: Floats) -> Floats:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", PerfectSeparationWarning)
            fitted = sm.GLM(y, x, family=sm.families.Binomial(), offset=offset).fit()
    except PerfectSeparationWarning:
        raise UndefinedMetric("the probabilities separate the classes, which leaves no slope") from None
    return np.asarray(fitted.params, dtype=np.float64)


def logit(p: ArrayLike) -> Floats:
    """Log odds, finite for 0 and 1 too."""
    found: Floats = scipy.special.logit(np.clip(np.asarray(p, dtype=np.float64), _LEAST, 1 - _LEAST))
    return found


@dataclass(frozen=True)
class Temperature:
    """Probabilities whose logits are divided by one number; leaves their order, and so AUROC, as it is.

    Source: Guo et al. 2017, On Calibration of Modern Neural Networks, section 4.2.

    Attributes:
        temperature: above 1 the probabilities were too extreme.
    """

    temperature: float

    @classmethod
    def fit(cls, probabilities: ArrayLike, target: ArrayLike) -> "Temperature":
        """The temperature of the least log loss on the validation units.

        Raises:
            UndefinedMetric: no labelled unit.
        """
        p, y = labelled(probabilities, target)
        logits = logit(p)

        def loss(log_temperature: float) -> float:
            scaled = logits / np.exp(log_temperature)
            return float(np.mean(np.logaddexp(0, scaled) - y * scaled))

        found = scipy.optimize.minimize_scalar(loss, bounds=(-5, 5), method="bounded", options={"xatol": 1e-8})
        return cls(float(np.exp(found.x)))

    def apply(self, probabilities: ArrayLike) -> Floats:
        """Recalibrated probabilities (N,)."""
        scaled: Floats = scipy.special.expit(logit(probabilities) / self.temperature)
        return scaled


@dataclass(frozen=True)
class Isotonic:
    """Probabilities through a non-decreasing step function; makes ties, which lower AUROC a little.

    Source: Zadrozny and Elkan 2002.

    Attributes:
        x, y: its corners; straight between them, level outside.
    """

    x: tuple[float, ...]
    y: tuple[float, ...]

    @classmethod
    def fit(cls, probabilities: ArrayLike, target: ArrayLike) -> "Isotonic":
        """The function of least squared error on the validation units.

        Raises:
            UndefinedMetric: no labelled unit.
        """
        p, y = labelled(probabilities, target)
        fitted = sklearn.isotonic.IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(p, y)
        return cls(tuple(fitted.X_thresholds_.tolist()), tuple(fitted.y_thresholds_.tolist()))

    def apply(self, probabilities: ArrayLike) -> Floats:
        """Recalibrated probabilities (N,)."""
        return np.interp(np.asarray(probabilities, dtype=np.float64), self.x, self.y)


@dataclass(frozen=True)
class DecisionCurve:
    """Net benefit of acting on the model at each threshold, against acting on everyone; acting on no one is 0.

    Source: Vickers and Elkin 2006, Decision Curve Analysis.

    Attributes:
        thresholds: (T,) probabilities from which on one acts.
        model, everyone: (T,) net benefit per unit.
    """

    thresholds: Floats
    model: Floats
    everyone: Floats


def decision_curve(probabilities: ArrayLike, target: ArrayLike, thresholds: Sequence[float]) -> DecisionCurve:
    """Net benefit: true positives minus false positives weighted by the odds of the threshold, per unit.

    Args:
        probabilities: (N,).
        target: (N,).
        thresholds: each above 0 and below 1.

    Raises:
        UndefinedMetric: no labelled unit.
    """
    p, y = labelled(probabilities, target)
    at = np.asarray(thresholds, dtype=np.float64)
    assert ((at > 0) & (at < 1)).all(), at
    odds = at / (1 - at)
    treated = p[None, :] >= at[:, None]
    true, false = (treated * y).mean(axis=1), (treated * (1 - y)).mean(axis=1)
    return DecisionCurve(at, true - odds * false, y.mean() - odds * (1 - y.mean()))
