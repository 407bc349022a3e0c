"""The bootstrap of whole patients for subsets of the units: each resample is the same for all of them.

It speaks of the variation over patients, with the models as trained. A patient may have units in several subsets.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ovo_clinic.statistics.bootstrap import WEIGHTS_AT_ONCE, Estimate, mean_over_seeds, resampled

Floats = NDArray[np.float64]


def bootstrap_subsets(
    predictions: ArrayLike,
    target: ArrayLike,
    patients: ArrayLike,
    subsets: Mapping[str, NDArray[np.bool_]],
    metrics: Sequence[str],
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, dict[str, Estimate]]:
    """Metrics of one model on subsets of the units, on the same resamples of patients.

    Args:
        predictions: (S,N) or (S,N,K) by seed and unit; metrics are averaged over seeds.
        target: (N,) or (N,K); no unit is without any label.
        patients: (N,) whose unit it is.
        subsets: name -> (N,), True = belongs to it; at least one unit each.
        metrics: names, as in `bootstrap_by_patient`.
        resamples: R.
        seed: of the resampling.

    Returns:
        subset -> metric -> Estimate; differences of two subsets are paired.
    """
    p, y = np.asarray(predictions, dtype=np.float64), np.asarray(target, dtype=np.float64)
    _, patient = np.unique(np.asarray(patients), return_inverse=True)
    parts: dict[str, list[Floats]] = {name: [] for name in subsets}
    for weights in resampled(patient, resamples, seed, max(1, WEIGHTS_AT_ONCE // len(y))):
        for name, members in subsets.items():
            parts[name].append(mean_over_seeds(p[:, members], y[members], weights[members], metrics))
    found = {}
    for name, members in subsets.items():
        whole = mean_over_seeds(p[:, members], y[members], np.ones((int(members.sum()), 1)), metrics)[:, 0]
        samples = np.hstack(parts[name])
        found[name] = {
            metric: Estimate(float(whole[index]), samples[index], np.empty(0)) for index, metric in enumerate(metrics)
        }
    return found
