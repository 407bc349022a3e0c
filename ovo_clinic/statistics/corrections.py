"""p-values corrected for how many tests were made; what variation they speak of is that of the tests themselves."""

from collections.abc import Callable

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def holm(p_values: ArrayLike) -> Floats:
    """Holm's step-down correction: the chance of any false finding among the tests stays at the level.

    A p-value of NaN stays NaN and is not counted as a test.
    """

    # Not statsmodels' multipletests: it collects garbage at every call, which takes half a second beside torch.
    def stepped_down(tested: Floats) -> Floats:
        order = np.argsort(tested)
        corrected = np.empty_like(tested)
        corrected[order] = np.maximum.accumulate(tested[order] * np.arange(tested.size, 0, -1))
        return np.minimum(corrected, 1)

    return _corrected(p_values, stepped_down)


def benjamini_hochberg(p_values: ArrayLike) -> Floats:
    """Benjamini and Hochberg's step-up correction: the expected share of false findings stays at the level.

    Valid for independent or positively dependent tests. A p-value of NaN stays NaN and is not counted as a test.
    """
    return _corrected(p_values, scipy.stats.false_discovery_control)


def _corrected(p_values: ArrayLike, correct: Callable[[Floats], Floats]) -> Floats:
    values = np.asarray(p_values, dtype=np.float64)
    corrected = values.copy()
    tested = ~np.isnan(values)
    if tested.any():
        corrected[tested] = correct(values[tested])
    return corrected
