"""How heads fare in subgroups of the test patients: by sex, age, race as recorded, unit, whatever the cohort table has.

Groups come from the cohort table's further columns. Small ones are put together, so that no row speaks of fewer than
`disclosure.SMALLEST` patients; metrics are withheld where a class has fewer units.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
from numpy.typing import NDArray

from ovo_clinic import disclosure, report, statistics
from ovo_clinic.prepared import Prepared
from ovo_clinic.statistics import Estimate
from ovo_clinic.study import Comparison

Mask = NDArray[np.bool_]

RESAMPLES = (200, 1000)
"""Fewest and most; many labels, seeds and subgroups get so few that a head takes WORK, a minute or two."""
WORK = 4e9
MOST_LEVELS = 8
OTHERS, UNKNOWN = "all others", "not recorded"
METRICS: Mapping[str, tuple[str, ...]] = {
    "binary": ("auroc", "auprc", "brier", "excess"),
    "multiclass": ("mauc", "bca", "log_loss"),
    "multilabel": ("auroc_macro", "auprc_macro", "brier"),
}
_MACRO = "_macro"
_AGE_BANDS = (18, 45, 65, 80)
_BANDS = (f"under {_AGE_BANDS[0]}", "lowest third", "middle third", "highest third")
_LEAST_NAMED = 0.5
"""A column most of whose units lie in small levels names people or places, and is no grouping."""


@dataclass(frozen=True)
class Grouping:
    """One column of the cohort table, cut into levels.

    Attributes:
        column: its name.
        levels: name -> (N,) whether a unit belongs; every unit belongs to exactly one.
    """

    column: str
    levels: Mapping[str, Mask]

    @property
    def title(self) -> str:
        """For people."""
        return words(self.column)


def words(column: str) -> str:
    """`unit_type` -> `Unit type`."""
    text = column.replace("_", " ").strip()
    return text[:1].upper() + text[1:]


def columns(prepared: Prepared) -> list[str]:
    """The cohort table's further columns: neither ids nor labels."""
    known = {"unit_id", "patient_id", *prepared.manifest["target"]}
    return [name for name in prepared.cohort.columns if name not in known]


def is_measured(column: pl.Series) -> bool:
    """Whether a column holds amounts, not codes."""
    return column.dtype.is_float() or (column.dtype.is_numeric() and _is_age(column.name))


def groupings(prepared: Prepared, rows: NDArray[np.int64]) -> list[Grouping]:
    """The groupings of cohort rows (N,); a column that leaves a single level, or names people, gives none."""
    found = []
    patients = prepared.cohort["patient_id"].gather(rows).to_numpy()
    for name in columns(prepared):
        column = prepared.cohort[name].gather(rows)
        if is_measured(column):
            levels = _levels(_banded(column), patients, in_order=True)
        else:
            levels = _levels(column.cast(pl.String), patients, in_order=False)
        if len(levels) > 1 and levels.get(OTHERS, np.zeros(1)).mean() < _LEAST_NAMED:
            found.append(Grouping(name, levels))
    return found


def _is_age(name: str) -> bool:
    return name == "age" or name.startswith("age_") or name.endswith("_age")


def _banded(column: pl.Series) -> pl.Series:
    """Bands of age, or thirds of anything else, as text."""
    values = column.cast(pl.Float64).fill_nan(None)
    if _is_age(column.name):
        edges = [float(edge) for edge in _AGE_BANDS]
        names = [_BANDS[0], *(f"{low} to {high - 1}" for low, high in itertools.pairwise(_AGE_BANDS))]
        names.append(f"{_AGE_BANDS[-1]} or older")
    else:
        quantiles = [values.quantile(share, "linear") for share in (1 / 3, 2 / 3)]
        edges = [edge for edge in quantiles if edge is not None]
        names = list(_BANDS[1:])
    band = np.array(names)[np.digitize(values.fill_null(0).to_numpy(), edges)]
    return pl.Series(band).set(values.is_null(), None)


def _levels(column: pl.Series, patients: NDArray[Any], in_order: bool) -> dict[str, Mask]:
    """Level -> (N,); in the order of the bands, else from the most frequent one to the rarest."""
    values = column.fill_null(UNKNOWN).to_numpy()
    shown, rest = disclosure.pooled(values, patients, MOST_LEVELS)
    if in_order:
        order = [*_BANDS, *sorted(shown)]
        shown = sorted(shown, key=order.index)
    levels = {level: values == level for level in shown}
    return levels | ({OTHERS: np.isin(values, rest)} if rest else {})


def table(comparison: Comparison) -> pd.DataFrame:
    """Metrics of every head in every subgroup of the test units, and how they differ from those of all other units.

    Returns:
        One row per grouping, level, head and metric of METRICS: variable, level, units, patients, positives (binary
        tasks; NaN where it or the number of negatives is hidden), model, metric, mean over seeds and its bounds low
        and high over patients; difference (mean minus that of the units outside the level) with its bounds, p (normal,
        with the bootstrap's standard error: counted in resamples it could not be small enough for so many groups), and
        p_holm, corrected over all subgroups of the head and metric. NaN where a class has too few units. Of a
        multilabel task a mean is over the labels of which the level has enough units with and without, and a difference
        over those of which both sides have.
    """
    prepared = comparison.prepared
    rows = prepared.rows("test")
    patients = prepared.cohort["patient_id"].gather(rows).to_numpy()
    target = np.asarray(prepared.target[rows], dtype=np.float64)
    metrics = METRICS[prepared.manifest["kind"]]
    found = groupings(prepared, rows)
    sizes = {grouping.column: _sizes(grouping, target, patients, prepared.manifest["kind"]) for grouping in found}
    usable = {
        _key(g.column, level): mask
        for g in found
        for level, mask in g.levels.items()
        if _has_classes(mask, prepared, target)
    }
    labels = {name: _labels_of(mask, target) for key, mask in usable.items() for name, mask in _sides(key, mask)}
    lines: list[dict[str, Any]] = []
    for head in comparison.contenders:
        predictions, _ = report.predictions(comparison, head)
        resamples = int(np.clip(WORK / max(1, len(usable) * len(predictions) * target.size), *RESAMPLES))
        subsets = usable | {_rest(key): ~mask for key, mask in usable.items() if _has_classes(~mask, prepared, target)}
        estimates = statistics.bootstrap_subsets(
            predictions, target, patients, subsets, _computed(metrics, target), resamples=resamples
        )
        own = [
            {"variable": g.column, "level": level, **sizes[g.column][level], "model": head, "metric": metric}
            | _numbers(estimates, labels, _key(g.column, level), metric)
            for g in found
            for level in g.levels
            for metric in metrics
        ]
        lines += own
    return _corrected(pd.DataFrame(lines, columns=None if lines else ["variable", "level", "model", "metric"]))


def _key(column: str, level: str) -> str:
    return f"{column}\n{level}"


def _rest(key: str) -> str:
    return f"{key}\n-"


def _sides(key: str, mask: Mask) -> tuple[tuple[str, Mask], tuple[str, Mask]]:
    return (key, mask), (_rest(key), ~mask)


def _labels_of(mask: Mask, target: NDArray[np.float64]) -> set[int]:
    """The labels of a multilabel task that enough of the units have, and enough have not."""
    if target.ndim == 1:
        return set()
    counts = [(target[mask] == value).sum(axis=0) for value in (0, 1)]
    return set(np.flatnonzero(np.minimum(*counts) >= disclosure.SMALLEST).tolist())


def _computed(metrics: Sequence[str], target: NDArray[np.float64]) -> list[str]:
    """The metrics, those of each label in place of their means over labels."""
    if target.ndim == 1:
        return list(metrics)
    return [*statistics.label_metrics(target.shape[1]), *(name for name in metrics if not name.endswith(_MACRO))]


def _has_classes(mask: Mask, prepared: Prepared, target: NDArray[np.float64]) -> bool:
    """Whether the units hold enough of every class; of labels they need not hold every one."""
    kind = prepared.manifest["kind"]
    if kind == "multilabel":
        return int(mask.sum()) >= disclosure.SMALLEST
    classes = 2 if kind == "binary" else len(prepared.manifest["classes"])
    counts = np.bincount(target[mask].astype(np.intp), minlength=classes)
    return int(counts.min()) >= disclosure.SMALLEST


def _sizes(
    grouping: Grouping, target: NDArray[np.float64], patients: NDArray[Any], kind: str
) -> dict[str, dict[str, float]]:
    """Level -> units, patients and positives."""
    sizes: dict[str, dict[str, float]] = {
        level: {"units": int(mask.sum()), "patients": len(np.unique(patients[mask]))}
        for level, mask in grouping.levels.items()
    }
    if kind != "binary":
        return sizes
    counts = np.array([[np.sum(target[mask] == label) for label in (0, 1)] for mask in grouping.levels.values()])
    for (_, positives), hide, size in zip(counts, disclosure.hidden(counts)[:, 1], sizes.values(), strict=True):
        size["positives"] = float("nan") if hide else float(positives)
    return sizes


def _numbers(
    estimates: Mapping[str, Mapping[str, Estimate]], labels: Mapping[str, set[int]], key: str, metric: str
) -> dict[str, float]:
    numbers = dict.fromkeys(("mean", "low", "high", "difference", "difference_low", "difference_high", "p"), np.nan)
    within = None if key not in estimates else _estimate(estimates[key], metric, labels[key])
    if within is None:
        return numbers
    own, rest = within.percentile(), _rest(key)
    numbers |= {"mean": own.estimate, "low": own.low, "high": own.high}
    if rest not in estimates:
        return numbers
    shared = labels[key] & labels[rest]
    inside, outside = (_estimate(estimates[side], metric, shared) for side in (key, rest))
    if inside is None or outside is None:
        return numbers
    difference = inside - outside
    bounds = difference.percentile()
    numbers |= {"difference": bounds.estimate, "difference_low": bounds.low, "difference_high": bounds.high}
    return numbers | {"p": difference.normal_p_value()}


def _estimate(of_side: Mapping[str, Estimate], metric: str, labels: set[int]) -> Estimate | None:
    """A metric, or its mean over labels; None where there is no label to average over."""
    if metric in of_side:
        return of_side[metric]
    names = [f"{metric.removesuffix(_MACRO)}:{label}" for label in sorted(labels)]
    return Estimate.mean([of_side[name] for name in names]) if names else None


def _corrected(lines: pd.DataFrame) -> pd.DataFrame:
    """The table with `p_holm`; two levels of one variable are each other's rest: one test in two rows."""
    if lines.empty:
        return lines
    corrected = pd.Series(np.nan, index=lines.index)
    for _, own in lines.groupby(["model", "metric"], sort=False):
        tests = [_first_of_pair(own, variable) for variable in dict.fromkeys(own["variable"])]
        values = own.loc[[index for indices in tests for index in indices], "p"]
        corrected[values.index] = statistics.holm(values.to_numpy())
        for variable, indices in zip(dict.fromkeys(own["variable"]), tests, strict=True):
            every = own.index[own["variable"] == variable]
            if len(indices) < len(every):
                corrected[every] = corrected[indices[0]]
    return lines.assign(p_holm=corrected)


def _first_of_pair(own: pd.DataFrame, variable: str) -> Sequence[Any]:
    indices = own.index[own["variable"] == variable]
    return list(indices[:1] if len(indices) == 2 else indices)
