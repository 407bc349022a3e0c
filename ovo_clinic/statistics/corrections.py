"""p-values corrected for how many tests were made; what variation they speak of is that of the tests themselves."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from statsmodels.stats.multitest import multipletests

Floats = NDArray[np.float64]


def holm(p_values: ArrayLike) -> Floats:
    """Holm's step-down correction: the chance of any false finding among the tests stays at the level.

    A p-value of NaN stays NaN and is not counted as a test.
    """
    return _corrected(p_values, "holm")


def benjamini_hochberg(p_values: ArrayLike) -> Floats:
    """Benjamini and Hochberg's step-up correction: the expected share of false findings stays at the level.

    Valid for independent or positively dependent tests. A p-value of NaN stays NaN and is not counted as a test.
    """
    return _corrected(p_values, "fdr_bh")


def _corrected(p_values: ArrayLike, method: str) -> Floats:
    values = np.asarray(p_values, dtype=np.float64)
    corrected = values.copy()
    tested = ~np.isnan(values)
    if tested.any():
        corrected[tested] = multipletests(values[tested], method=method)[1]
    return corrected
