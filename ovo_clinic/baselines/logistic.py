"""Logistic regression."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ovo_clinic.registry import BASELINES
from ovo_clinic.tabular import Arrays, Classifier, Count, Sample, Setting

MOST_ITERATIONS = 2000


@BASELINES.register("logistic")
class Logistic:
    """Logistic regression with a ridge penalty; multinomial for several classes. The seed changes nothing.

    Args:
        budget: number of penalties tried, evenly spaced in their logarithm.
    """

    def __init__(self, *, budget: Count = 10) -> None:
        # C is the inverse of the penalty; the ends are left out, so that a budget of one tries the middle.
        self.settings: list[Setting] = [{"C": float(c)} for c in np.logspace(-5, 2, budget + 2)[1:-1]]

    def fit(self, setting: Setting, train: Sample, validation: Sample, seed: int) -> Any:
        """A fitted classifier; `validation` is not used."""
        from sklearn.linear_model import LogisticRegression

        return LogisticRegression(**setting, max_iter=MOST_ITERATIONS).fit(train.x, train.y)

    def costs(self, fitted: Any) -> dict[str, int]:
        """Parameters, and multiply-accumulates per sample."""
        return {"parameters": fitted.coef_.size + fitted.intercept_.size, "macs_total": fitted.coef_.size}

    def arrays(self, fitted: Any) -> Arrays:
        """Weights."""
        return {"coef": fitted.coef_, "intercept": fitted.intercept_}

    def restored(self, classes: npt.NDArray[np.int64], arrays: Arrays) -> Classifier:
        """scikit-learn's classifier with those weights."""
        from sklearn.linear_model import LogisticRegression

        model: Any = LogisticRegression()
        model.classes_, model.coef_, model.intercept_ = classes, arrays["coef"], arrays["intercept"]
        found: Classifier = model
        return found
