"""Calibration of one yes-or-no outcome under many weightings of the units at once, as `weighted` has the other metrics.

Each but `excess` equals its namesake in `ovo_clinic.calibration` where all weights are 1. Shapes: p (N,) in [0, 1], y
(N,) 0/1, weights (N,R), not negative; each gives (R,), NaN where a weighting does not define it.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from ovo_clinic import calibration

Floats = NDArray[np.float64]

_STEPS = 25
_LEAST_SPREAD = 1e-6  # logits closer than this are equal but for rounding, which leaves no slope
_TOLERANCE = 1e-6  # Newton's next step would be its square
_FLAT = 1e-4  # of the gradient, per unit: beyond it, a step is short only for want of curvature
_NEAR = 0.1  # shorter steps are within reach of the solution
_HALVINGS = 30


def ece(p: Floats, y: Floats, weights: Floats) -> Floats:
    """Expected calibration error, with the bins of the unweighted units."""
    member = calibration.equal_mass(p, calibration.BINS)
    bins = np.arange(member.max() + 1)[:, None] == member
    apart, total = np.abs((bins * (p - y)) @ weights).sum(axis=0), weights.sum(axis=0)
    found: Floats = np.full(total.shape, np.nan)
    np.divide(apart, total, out=found, where=total > 0)
    return found


def excess(p: Floats, y: Floats, weights: Floats) -> Floats:
    """Share of positives minus the mean probability: above 0 the probabilities are too low on average."""
    total = weights.sum(axis=0)
    found: Floats = np.full(total.shape, np.nan)
    np.divide((y - p) @ weights, total, out=found, where=total > 0)
    return found


def slope(p: Floats, y: Floats, weights: Floats) -> Floats:
    """Calibration slope: of a logistic regression of y on the logit of p.

    NaN too where p separates the classes or is constant.
    """
    x = calibration.logit(p)
    ranges = [_range(x, weights, y == label) for label in (0, 1)]
    overlap = (ranges[0][0] < ranges[1][1]) & (ranges[1][0] < ranges[0][1])
    spread = np.maximum(ranges[0][1], ranges[1][1]) - np.minimum(ranges[0][0], ranges[1][0])
    overlap &= spread > _LEAST_SPREAD
    design = np.column_stack([np.ones_like(x), x])
    return _where(overlap, _fitted(design, np.zeros_like(x), y, weights[:, overlap], (0.0, 1.0))[1])


def intercept(p: Floats, y: Floats, weights: Floats) -> Floats:
    """Calibration in the large: the constant that the logits lack."""
    x = calibration.logit(p)
    both = (y @ weights > 0) & ((1 - y) @ weights > 0)
    return _where(both, _fitted(np.ones((x.size, 1)), x, y, weights[:, both], (0.0,))[0])


def _range(x: Floats, weights: Floats, members: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """(R,) least and greatest x of the members that have a weight; without any, (infinite, -infinite)."""
    drawn, own = weights[members] > 0, x[members, None]
    least, greatest = np.where(drawn, own, np.inf), np.where(drawn, own, -np.inf)
    return least.min(axis=0, initial=np.inf), greatest.max(axis=0, initial=-np.inf)


def _where(defined: NDArray[np.bool_], values: Floats) -> Floats:
    found: Floats = np.full(defined.size, np.nan)
    found[defined] = values
    return found


def _fitted(x: Floats, offset: Floats, y: Floats, weights: Floats, start: tuple[float, ...]) -> Floats:
    """(Q,R) coefficients of weighted logistic regressions on x (N,Q); `start` is where no recalibration is needed."""
    if not weights.shape[1]:
        return np.empty((x.shape[1], 0))
    # One regression on the mean weights is cheap, and brings all the others near their solutions.
    first = np.array(start)[:, None]
    middle = _newton(x, offset, y, weights.mean(axis=1, keepdims=True), first)
    near = np.where(np.isfinite(middle), middle, first)
    return _newton(x, offset, y, weights, np.repeat(near, weights.shape[1], axis=1))


def _newton(x: Floats, offset: Floats, y: Floats, weights: Floats, coefficients: Floats) -> Floats:
    """(Q,R) by Newton's method from coefficients (Q,R); NaN where it does not arrive, as with logits all but equal."""
    products = np.einsum("ni,nj->ijn", x, x)
    for _ in range(_STEPS):
        fitted = expit(offset[:, None] + x @ coefficients)
        gradient = x.T @ (weights * (y[:, None] - fitted))
        curvature = products @ (weights * (fitted * (1 - fitted)))
        # The pseudo-inverse: a single resample without any curvature must not stop all the others.
        inverse = np.linalg.pinv(np.moveaxis(curvature, 2, 0), hermitian=True)
        step = (inverse @ gradient.T[:, :, None])[:, :, 0].T
        coefficients = coefficients + _shortened(step, coefficients, x, offset, y, weights)
        if np.abs(step).max() < _TOLERANCE:
            break
    arrived = (np.abs(step) < _TOLERANCE) & (np.abs(gradient) < _FLAT * weights.sum(axis=0))
    return np.where(arrived.all(axis=0), coefficients, np.nan)


def _shortened(step: Floats, start: Floats, x: Floats, offset: Floats, y: Floats, weights: Floats) -> Floats:
    """The step (Q,R), halved until the loss falls: far from the solution, as with logits of 0 and 1, it overshoots."""
    if np.abs(step).max() < _NEAR:
        return step
    sign, shortened = 1 - 2 * y[:, None], step.copy()
    before = _loss(start, x, offset, sign, weights)
    worse = np.arange(step.shape[1])
    for _ in range(_HALVINGS):
        after = _loss((start + shortened)[:, worse], x, offset, sign, weights[:, worse])
        worse = worse[after > before[worse]]
        if not worse.size:
            break
        shortened[:, worse] /= 2
    return shortened


def _loss(coefficients: Floats, x: Floats, offset: Floats, sign: Floats, weights: Floats) -> Floats:
    """(R,) negative log-likelihood; sign (N,1) is 1 for a negative, -1 for a positive unit."""
    losses: Floats = (weights * np.logaddexp(0, sign * (offset[:, None] + x @ coefficients))).sum(axis=0)
    return losses


METRICS: Mapping[str, Callable[[Floats, Floats, Floats], Floats]] = {
    "ece": ece,
    "slope": slope,
    "intercept": intercept,
    "excess": excess,
}
