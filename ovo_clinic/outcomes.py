"""Yes-or-no outcomes of a task: the one of a binary task, each class against the rest, each label."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ovo_clinic import disclosure, report, statistics
from ovo_clinic.study import Comparison

Floats = NDArray[np.float64]

METRICS = ("auroc", "auprc", "brier")
RESAMPLES = 500
"""Of patients, for a single outcome; several outcomes share them, down to LEAST_RESAMPLES."""
LEAST_RESAMPLES = 100


@dataclass(frozen=True)
class Outcome:
    """One outcome, with what every head says of it.

    Attributes:
        name: of the positive class or the label.
        target: split -> (N,) 0/1, of the units whose label is known.
        patients: split -> (N,) whose unit it is.
        predictions: split -> head -> (S,N) probability by seed and unit.
    """

    name: str
    target: dict[str, Floats]
    patients: dict[str, NDArray[np.int64]]
    predictions: dict[str, dict[str, Floats]]

    @property
    def has_classes(self) -> bool:
        """Whether enough test units have it, and enough have not."""
        positives = int(self.target["test"].sum())
        return min(positives, self.target["test"].size - positives) >= disclosure.SMALLEST


def outcomes(comparison: Comparison) -> list[Outcome]:
    """The outcomes of a study's task, in the order of its classes or labels."""
    prepared = comparison.prepared
    kind, names = prepared.manifest["kind"], list(prepared.manifest["classes"])
    if kind == "multilabel":
        names = list(prepared.manifest["target"])
    elif kind == "binary":
        names = [names[1] if names else prepared.manifest["target"][0]]
    found = [Outcome(name, {}, {}, {}) for name in names]
    patient = np.unique(prepared.cohort["patient_id"].to_numpy(), return_inverse=True)[1]
    for split in ("validation", "test"):
        rows = prepared.rows(split)
        target = np.asarray(prepared.target[rows], dtype=np.float64)
        predictions = {}
        for head in comparison.contenders:
            predictions[head], own = report.predictions(comparison, head, split)
            assert np.array_equal(own, rows), f"{head} was evaluated on other units"
        for index, outcome in enumerate(found):
            y = _labels(target, index, kind)
            known = ~np.isnan(y)
            outcome.target[split], outcome.patients[split] = y[known], patient[rows][known]
            outcome.predictions[split] = {
                head: (p if p.ndim == 2 else p[..., index])[:, known] for head, p in predictions.items()
            }
    return found


def _labels(target: Floats, index: int, kind: str) -> Floats:
    if kind == "multilabel":
        return target[:, index] if target.ndim == 2 else target
    return target if kind == "binary" else (target == index).astype(np.float64)


def resamples(count: int) -> int:
    """How many resamples of patients each of so many outcomes gets."""
    return max(LEAST_RESAMPLES, RESAMPLES // count)


def table(found: list[Outcome]) -> pd.DataFrame:
    """Metrics of every head for every outcome on the test units, each class of a multiclass task against the rest.

    Those of the labels of a multilabel task are in `report.ComparisonTable.labels`.

    Returns:
        One row per outcome, head and metric of METRICS: outcome, units, prevalence, model, metric, mean over seeds, and
        its bounds low and high over patients; NaN where too few units have the outcome, or have it not, and the
        prevalence also where it would tell of such a class.
    """
    lines = []
    counts = [int(outcome.target["test"].sum()) for outcome in found]
    hidden = disclosure.hidden([counts])[0]  # the last class would follow from the others
    for outcome, hide in zip(found, hidden, strict=True):
        y = outcome.target["test"]
        shown = outcome.has_classes
        size = {"outcome": outcome.name, "units": y.size, "prevalence": np.nan if hide or not shown else y.mean()}
        bootstrap = (
            statistics.bootstrap_by_patient(
                outcome.predictions["test"],
                y,
                outcome.patients["test"],
                METRICS,
                resamples=resamples(len(found)),
                jackknife_groups=0,
            )
            if shown
            else None
        )
        for head in outcome.predictions["test"]:
            for metric in METRICS:
                line = {**size, "model": head, "metric": metric, "mean": np.nan, "low": np.nan, "high": np.nan}
                if bootstrap:
                    interval = bootstrap.interval(head, metric)
                    line |= {"mean": interval.estimate, "low": interval.low, "high": interval.high}
                lines.append(line)
    return pd.DataFrame(lines)
