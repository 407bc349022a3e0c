"""Gradient boosting."""

from typing import Any

import numpy as np

from ovo_clinic.registry import BASELINES
from ovo_clinic.tabular import Count, Sample, Setting

MOST_TREES = 500
PATIENCE = 20
MOST_BINS = 63  # most features are 0 or 1; a tree costs about as many steps as there are bins


@BASELINES.register("gradient_boosting")
class GradientBoosting:
    """Gradient boosting of trees on histograms, stopped early by the validation loss.

    Args:
        budget: number of settings tried, drawn at random but the same in every run; the seed draws the features that
            each split may use.
    """

    def __init__(self, *, budget: Count = 10) -> None:
        from scipy.stats import loguniform
        from sklearn.model_selection import ParameterSampler

        space = {
            "learning_rate": loguniform(0.02, 0.2),
            "max_leaf_nodes": [4, 8, 16, 31],
            "min_samples_leaf": [5, 10, 20, 40],
            "l2_regularization": [0.0, 1.0, 10.0],
            "max_features": [0.1, 0.3, 0.6],
        }
        sampler = ParameterSampler(space, n_iter=budget, random_state=0)
        self.settings: list[Setting] = [{name: _plain(value) for name, value in drawn.items()} for drawn in sampler]

    def fit(self, setting: Setting, train: Sample, validation: Sample, seed: int) -> Any:
        """A fitted classifier; the validation units say when to stop."""
        from sklearn.ensemble import HistGradientBoostingClassifier

        known = np.isin(validation.y, train.y)
        size = {"max_iter": MOST_TREES, "max_bins": MOST_BINS}
        stopping = {"early_stopping": bool(known.any()), "n_iter_no_change": PATIENCE}
        held_out = {"X_val": validation.x[known], "y_val": validation.y[known]} if known.any() else {}
        model = HistGradientBoostingClassifier(**setting, **size, **stopping, random_state=seed)
        return model.fit(train.x, train.y, **held_out)

    def costs(self, fitted: Any) -> dict[str, int]:
        """Nothing: trees compare, and have no weights to count beside those of networks."""
        return {}


def _plain(value: Any) -> int | float:
    plain: int | float = value.item() if isinstance(value, np.generic) else value
    return plain
