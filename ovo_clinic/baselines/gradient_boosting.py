"""Gradient boosting."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ovo_clinic.registry import BASELINES
from ovo_clinic.tabular import Arrays, Classifier, Count, Floats, Sample, Setting

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

    def arrays(self, fitted: Any) -> Arrays:
        """The nodes of all trees, one tree after the other."""
        trees = [tree.nodes for iteration in fitted._predictors for tree in iteration]
        nodes = np.concatenate(trees)
        found = {name: np.ascontiguousarray(nodes[field]) for name, field in _NODE.items()}
        found["first"] = np.cumsum([0, *(len(tree) for tree in trees[:-1])], dtype=np.int64)
        return found | {"start": np.asarray(fitted._baseline_prediction, dtype=np.float64).ravel()}

    def restored(self, classes: npt.NDArray[np.int64], arrays: Arrays) -> Classifier:
        """The trees."""
        return Trees(classes, arrays)


_NODE = {
    "feature": "feature_idx",
    "threshold": "num_threshold",
    "left": "left",
    "right": "right",
    "leaf": "is_leaf",
    "value": "value",
}
"""What is kept of a node -> how scikit-learn calls it."""


@dataclass(frozen=True)
class Trees:
    """Boosted trees as arrays of nodes.

    Attributes:
        classes_: (C,).
        arrays: by node `feature`, `threshold` (up to it: to the left), `left`, `right` (counted from the tree's first
            node), `leaf` and `value`; by tree `first`, the place of its first node; `start`, what the trees add to, for
            each class, or for the second of two. The trees of one round, one for each of these, follow each other.
    """

    classes_: npt.NDArray[np.int64]
    arrays: Mapping[str, npt.NDArray[Any]]

    def predict_proba(self, x: Floats) -> npt.NDArray[np.float64]:
        """x (N,F), finite -> (N,C)."""
        from scipy.special import expit, softmax

        scores = np.tile(self.arrays["start"], (len(x), 1))
        for place, first in enumerate(self.arrays["first"]):
            scores[:, place % scores.shape[1]] += self.arrays["value"][self._leaves(x, int(first))]
        if scores.shape[1] > 1:
            found: npt.NDArray[np.float64] = softmax(scores, axis=1)
            return found
        second = expit(scores[:, 0])
        return np.column_stack([1 - second, second])

    def _leaves(self, x: Floats, first: int) -> npt.NDArray[np.int64]:
        """(N,) the node of a tree that each row ends in."""
        node = np.full(len(x), first, dtype=np.int64)
        going = np.flatnonzero(~self.arrays["leaf"][node].astype(bool))
        while going.size:
            at = node[going]
            left = x[going, self.arrays["feature"][at]] <= self.arrays["threshold"][at]
            node[going] = first + np.where(left, self.arrays["left"][at], self.arrays["right"][at])
            going = going[~self.arrays["leaf"][node[going]].astype(bool)]
        return node


def _plain(value: Any) -> int | float:
    plain: int | float = value.item() if isinstance(value, np.generic) else value
    return plain
