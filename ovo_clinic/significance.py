"""The tests of a comparison as a table: every head against the best of the others, over seeds and over patients."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from ovo_clinic import statistics

Floats = NDArray[np.float64]
PairTest = Callable[[str, str], statistics.Comparison]

OVER_SEEDS: Mapping[str, Callable[[Floats, Floats], statistics.Comparison]] = {
    "welch": statistics.welch_t_test,
    "paired": statistics.paired_t_test,
    "wilcoxon": statistics.wilcoxon_test,
}
CORRECTIONS = {"holm": statistics.holm, "bh": statistics.benjamini_hochberg}
LABELS = ("metric", "model", "against")
"""Columns of the table that say what is compared; all others are numbers."""


def tests_table(
    scores: Mapping[str, Mapping[str, Floats]],
    bootstrap: statistics.Bootstrap,
    patient_tests: Mapping[str, Mapping[str, PairTest]],
) -> pd.DataFrame:
    """Tests of every head against the best of the others, metric by metric.

    Args:
        scores: metric -> head -> (S,) on the test split by seed.
        bootstrap: of the same metrics and heads over patients.
        patient_tests: metric -> name -> a further test of two heads over patients (`delong`).

    Returns:
        One row per metric and head: LABELS, the difference of the means and its bounds over patients (percentile and
        BCa), effect sizes over seeds (hedges_g, paired_effect, superiority), and for each test NAME its NAME_p, and
        NAME_p_holm and NAME_p_bh, corrected for the number of heads within the metric.
    """
    rows: list[dict[str, Any]] = []
    for metric, values in scores.items():
        found = [
            _row(metric, head, best, values, bootstrap) | _over_patients(head, best, patient_tests.get(metric, {}))
            for head in values
            for best in _best_of_others(head, values)
        ]
        rows += _corrected(found)
    return pd.DataFrame(rows, columns=None if rows else list(LABELS))


def _best_of_others(head: str, values: Mapping[str, Floats]) -> list[str]:
    """The other head of the highest mean over seeds; none where there is no other."""
    others = sorted((other for other in values if other != head), key=lambda other: -values[other].mean())
    return others[:1]


def _row(
    metric: str, head: str, best: str, values: Mapping[str, Floats], bootstrap: statistics.Bootstrap
) -> dict[str, Any]:
    a, b = values[head], values[best]
    resampled = bootstrap.paired(head, best, metric)
    percentile, bca = resampled.percentile(bootstrap.level), resampled.bca(bootstrap.level)
    return {
        **dict(zip(LABELS, (metric, head, best), strict=True)),
        "difference": float(a.mean() - b.mean()),
        "difference_low": percentile.low,
        "difference_high": percentile.high,
        "difference_bca_low": bca.low,
        "difference_bca_high": bca.high,
        "hedges_g": statistics.hedges_g(a, b),
        "paired_effect": statistics.paired_effect(a, b),
        "superiority": statistics.probability_of_superiority(a, b),
        **{f"{name}_p": test(a, b).p_value for name, test in OVER_SEEDS.items()},
        "bootstrap_p": resampled.p_value(),
    }


def _over_patients(head: str, best: str, tests: Mapping[str, PairTest]) -> dict[str, float]:
    return {f"{name}_p": test(head, best).p_value for name, test in tests.items()}


def _corrected(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with their p-values corrected for the number of tests among them."""
    names = [name for name in rows[0] if name.endswith("_p")] if rows else []
    corrected: list[dict[str, Any]] = [dict(row) for row in rows]
    pairs = [(row["model"], row["against"]) for row in rows]
    for name in names:
        for suffix, correct in CORRECTIONS.items():
            values = corrected_by_pair(pairs, [row[name] for row in rows], correct)
            for row, value in zip(corrected, values, strict=True):
                row[f"{name}_{suffix}"] = value
    return corrected


def corrected_by_pair(
    pairs: Sequence[tuple[str, str]], p_values: Sequence[float], correct: Callable[[ArrayLike], Floats]
) -> list[float]:
    """p-values corrected for how many tests there are.

    The two best models are each other's best: one test that stands in two rows, and counts once.

    Args:
        pairs: who was tested against whom.
        p_values: of these tests.
        correct: a correction of `statistics`.
    """
    tests = {frozenset(pair): p for pair, p in zip(pairs, p_values, strict=True)}
    values = dict(zip(tests, correct(list(tests.values())), strict=True))
    return [float(values[frozenset(pair)]) for pair in pairs]
