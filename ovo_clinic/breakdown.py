"""Metrics by label, and by which modalities a unit has, with intervals over patients."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from ovo_clinic import disclosure, runs, statistics
from ovo_clinic.prepared import Prepared

OTHERS = "other patterns"
RESAMPLES = 1000
METRICS = ("auroc", "auprc")


def patterns_of(prepared: Prepared, names: Sequence[str], rows: NDArray[np.int64]) -> NDArray[np.str_]:
    """(N,) which of the modalities the units of some cohort rows have: `labs + notes`, or `none`."""
    there = np.column_stack([prepared.present(name)[rows] for name in names])
    kinds, kind = np.unique(there, axis=0, return_inverse=True)
    texts = [" + ".join(name for name, has in zip(names, found, strict=True) if has) or "none" for found in kinds]
    return np.array(texts)[kind.reshape(-1)]


def by_pattern(
    predictions: Mapping[str, ArrayLike],
    target: ArrayLike,
    patients: ArrayLike,
    patterns: ArrayLike,
    metrics: Sequence[str],
    *,
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """Metrics of the units of each pattern of present modalities.

    Args:
        predictions: model -> (S,N) or (S,N,K) by seed, as of `statistics.bootstrap_by_patient`.
        target: (N,) or (N,K), NaN = not labelled.
        patients: (N,) whose unit it is.
        patterns: (N,) of `patterns_of`.
        metrics: of `statistics.METRICS`.
        resamples: of patients within a pattern.

    Returns:
        One row per pattern (the most frequent one first), model and metric: pattern, units, patients, model, metric,
        mean over seeds, low and high (95 % interval over patients); NaN where a class has fewer units than
        `disclosure.SMALLEST`. Patterns of fewer patients stand together as OTHERS, with as many more as make that many;
        no row where all units would stand in one.
    """
    y, who, pattern = np.asarray(target), np.asarray(patients), np.asarray(patterns)
    shown, rest = disclosure.pooled(pattern, who, pattern.size)
    members = {str(name): pattern == name for name in shown} | ({OTHERS: np.isin(pattern, rest)} if rest else {})
    rows: list[dict[str, object]] = []
    for name, own in (members if len(members) > 1 else {}).items():
        within = {model: np.asarray(p)[:, own] for model, p in predictions.items()}
        bootstrap = statistics.bootstrap_by_patient(
            within, y[own], who[own], metrics, resamples=resamples, jackknife_groups=0
        )
        sizes = {"pattern": name, "units": int(own.sum()), "patients": int(np.unique(who[own]).size)}
        withheld = _tells_of_few(y[own], y)
        for model in predictions:
            for metric in metrics:
                found = bootstrap.interval(model, metric)
                numbers = [np.nan] * 3 if withheld else [found.estimate, found.low, found.high]
                values = dict(zip(("mean", "low", "high"), numbers, strict=True))
                rows.append({**sizes, "model": model, "metric": metric, **values})
    return pd.DataFrame(rows, columns=["pattern", "units", "patients", "model", "metric", "mean", "low", "high"])


def _tells_of_few(target: NDArray[np.float64], everyone: NDArray[np.float64]) -> bool:
    """Whether a class of all units, of one label, has so few of these that a metric would tell how many."""
    counts = [int((target == value).sum()) for value in np.unique(everyone)] if everyone.ndim == 1 else []
    return min(counts, default=disclosure.SMALLEST) < disclosure.SMALLEST


def by_label(
    bootstrap: statistics.Bootstrap, target: ArrayLike, labels: Sequence[str], groups: Mapping[str, Sequence[str]]
) -> pd.DataFrame:
    """AUROC and AUPRC of every label of a multilabel task, of groups of labels and of all.

    Args:
        bootstrap: of the metrics of `statistics.METRICS` and `statistics.label_metrics`.
        target: (N,K), NaN = not labelled.
        labels: (K,) their names.
        groups: of labels, by name.

    Returns:
        One row per model and scope: model, scope (`macro`, `micro`, `group` = macro average of one, `label`), name,
        labels (how many), units (labelled ones) and positives of a label (NaN where fewer than `disclosure.SMALLEST`
        are labelled, positive or negative), and for each of METRICS its mean over seeds, _low and _high (95 % interval
        over patients).
    """
    y = np.asarray(target, dtype=np.float64)
    everyone = list(range(len(labels)))
    members = {name: [labels.index(label) for label in own] for name, own in groups.items()}
    rows = []
    for model, found in bootstrap.estimates.items():
        macro = [("macro", "all labels", everyone), *(("group", name, own) for name, own in members.items())]
        single = [("label", labels[index], [index]) for index in everyone]
        for scope, name, own in [*macro, ("micro", "all labels", everyone), *single]:
            row: dict[str, object] = {"model": model, "scope": scope, "name": name, "labels": len(own)}
            row |= _counts(y[:, own[0]]) if scope == "label" else {}
            for metric in METRICS:
                pooled = [found[f"{metric}_micro"]] if scope == "micro" else [found[f"{metric}:{k}"] for k in own]
                interval = statistics.Estimate.mean(pooled).percentile(bootstrap.level)
                row |= {metric: interval.estimate, f"{metric}_low": interval.low, f"{metric}_high": interval.high}
            rows.append(row)
    return pd.DataFrame(rows)


def _counts(y: NDArray[np.float64]) -> dict[str, float]:
    units, positives = int((~np.isnan(y)).sum()), int(np.nansum(y))
    shown = min(positives, units - positives) >= disclosure.SMALLEST
    few = 0 < units < disclosure.SMALLEST
    return {"units": np.nan if few else units, "positives": positives if shown else np.nan}


def of_run(folder: Path, prepared: Prepared, names: Sequence[str], metrics: Sequence[str]) -> dict[str, pd.DataFrame]:
    """`labels` (of `by_label`, multilabel tasks) and `patterns` (of `by_pattern`) of one run's test units.

    Args:
        folder: of the finished run.
        prepared: its data.
        names: its modalities.
        metrics: of each pattern.

    Returns:
        The tables that have any row.
    """
    values, rows = runs.predictions(folder)
    task, target = prepared.task, prepared.target[rows]
    model, patients = {"run": values[None]}, prepared.cohort["patient_id"].gather(rows).to_numpy()
    found = {"patterns": by_pattern(model, target, patients, patterns_of(prepared, names, rows), metrics)}
    if task.kind == "multilabel":
        each = [*statistics.METRICS["multilabel"], *statistics.label_metrics(len(task.target))]
        bootstrap = statistics.bootstrap_by_patient(
            model, target, patients, each, resamples=RESAMPLES, jackknife_groups=0
        )
        found = {"labels": by_label(bootstrap, target, task.target, task.groups), **found}
    return {name: table for name, table in found.items() if not table.empty}
