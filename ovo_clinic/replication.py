"""The paper's figures beside ours, and the p-values that its means and deviations imply beside the printed ones."""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ovo_clinic import figures, published
from ovo_clinic.published import Row, Table
from ovo_clinic.statistics import Summary, from_summary

_REFERENCE = "_reference"
_NO_SCORE = {"mean": math.nan, "sd": math.nan, "difference": math.nan}
_NO_TEST = {"model": "", "other": "", "difference": math.nan, "p": math.nan}


@dataclass(frozen=True)
class Replication:
    """A published table and a study of ours on the same experiment.

    Attributes:
        published: the table.
        scores: one row per metric, published row, and arm of ours that answers to it: metric, published_model, model
            (empty = none), published_mean and _sd, mean and sd, difference of the means; shares of 1.
        tests: OvO against each other head, one row per metric and head: what the published means imply (difference,
            p-value of Welch's test), the printed p-value where the paper says that it is of this comparison, and the
            same test of our seeds; against empty = the paper does not say which head its p-value is against.
    """

    published: Table
    scores: pd.DataFrame
    tests: pd.DataFrame


def of_study(manifest: Mapping[str, Any], rows: pd.DataFrame) -> Replication | None:
    """A study beside the table of the experiment that its task repeats; None where no figures are known.

    Args:
        manifest: of the prepared data set.
        rows: of `report.ComparisonTable`.
    """
    for table in published.TABLES:
        if table.dataset == manifest["dataset"] and manifest["task"] in table.tasks:
            return replication(table, rows, manifest["kind"], manifest["classes"])
    return None


def replication(table: Table, rows: pd.DataFrame, kind: str, classes: Sequence[str]) -> Replication:
    """Puts a study beside the published table.

    Args:
        table: the published one.
        rows: of `report.ComparisonTable`.
        kind: of the task.
        classes: of the task, by which the metric of the published class is found.
    """
    study = {str(row["model"]): row for row in rows.to_dict("records")}
    scores: list[dict[str, Any]] = []
    tests: list[dict[str, Any]] = []
    for metric in table.rows[0].scores:
        ours = _Ours(study, _our_metric(metric, kind, classes, table.positive))
        scores += [line for row in table.rows for line in _scores(metric, row, ours)]
        tests += _tests(metric, table, ours)
    return Replication(table, pd.DataFrame(scores), pd.DataFrame(tests))


def _our_metric(metric: str, kind: str, classes: Sequence[str], positive: str | None) -> str:
    """Our name of a published metric: of the class that the paper reports, the mean over several labels."""
    if kind == "multilabel":
        return f"{metric}_macro"
    return "auprc_negative" if metric == "auprc" and list(classes[:1]) == [positive] else metric


@dataclass(frozen=True)
class _Ours:
    """Our study, seen by one metric.

    Attributes:
        study: label -> its row of the table.
        metric: our name of it.
    """

    study: Mapping[str, Mapping[Hashable, Any]]
    metric: str

    def answering(self, row: Row) -> list[str]:
        """Our arms that answer to a published row: the modality, or the head as we or the authors build it."""
        kind = "head" if row.head else "modality"
        labels = [label for label, own in self.study.items() if own["kind"] == kind]
        if row.head is None:
            return [label for label in labels if label == row.modality]
        return [label for label in labels if _plain(label) == row.head.removesuffix(_REFERENCE)]

    def summary(self, label: str) -> Summary:
        """Mean and deviation over our seeds."""
        row = self.study[label]
        return Summary(float(row[f"{self.metric}_mean"]), float(row[f"{self.metric}_sd"]), int(row["seeds"]))


def _plain(label: str) -> str:
    """A head's name without its options, whoever built it."""
    return _name(label).removesuffix(_REFERENCE)


def _name(label: str) -> str:
    return label.split("(")[0]


def _theirs(row: Row, metric: str) -> Summary:
    mean, deviation = row.scores[metric]
    return Summary(mean / 100, deviation / 100, published.SEEDS)


def _scores(metric: str, row: Row, ours: _Ours) -> Iterator[dict[str, Any]]:
    """A line per arm of ours that answers to the row, or one without any."""
    theirs = _theirs(row, metric)
    line: dict[str, Any] = {"metric": metric, "published_model": row.model, "model": ""}
    line |= {"published_mean": theirs.mean, "published_sd": theirs.sd, **_NO_SCORE}
    labels = ours.answering(row)
    for label in labels:
        own = ours.summary(label)
        yield line | {"model": label, "mean": own.mean, "sd": own.sd, "difference": own.mean - theirs.mean}
    if not labels:
        yield line


def _tests(metric: str, table: Table, ours: _Ours) -> Iterator[dict[str, Any]]:
    ovo = next(row for row in table.rows if row.head == published.OVO)
    printed = {found.against: found.printed for found in table.p_values if found.metric == metric}
    for row in table.rows:
        if row.head is None or row is ovo:
            continue
        implied = from_summary(_theirs(ovo, metric), _theirs(row, metric))
        line: dict[str, Any] = {"metric": metric, "against": row.model, "published_difference": implied.difference}
        line |= {"implied_p": implied.p_value, "printed_p": printed.get(row.head, math.nan), **_NO_TEST}
        pairs = _pairs(ours.answering(ovo), ours.answering(row))
        for a, b in pairs:
            own = from_summary(ours.summary(a), ours.summary(b))
            yield line | {"model": a, "other": b, "difference": own.difference, "p": own.p_value}
        if not pairs:
            yield line
    if None in printed:
        yield {"metric": metric, "against": "", "printed_p": printed[None], **_NO_TEST}


def _pairs(ovo: Sequence[str], others: Sequence[str]) -> list[tuple[str, str]]:
    """Heads of one build: ours with ours, the authors' with the authors'; concat is the same in both."""
    builds = {label: _name(label).endswith(_REFERENCE) for label in (*ovo, *others)}
    return [(a, b) for a in ovo for b in others if _name(b) == "concat" or builds[a] == builds[b]]


def printable_scores(found: Replication) -> pd.DataFrame:
    """Percent, mean ± standard deviation over seeds, of the paper and of ours."""
    lines = []
    for (model, own), cells in found.scores.groupby(["published_model", "model"], sort=False):
        line = {"paper": str(model), "ours": str(own)}
        for cell in cells.to_dict("records"):
            title = _title(cell["metric"], found.published)
            line[f"{title} paper"] = _percent(cell["published_mean"], cell["published_sd"])
            line[f"{title} ours"] = _percent(cell["mean"], cell["sd"])
        lines.append(line)
    return pd.DataFrame(lines)


def printable_tests(found: Replication) -> pd.DataFrame:
    """OvO against every other head: the paper's printed p-values, those that its table implies, and ours."""
    lines = []
    for row in found.tests.to_dict("records"):
        own = f"{row['model']} - {row['other']}" if row["model"] else ""
        lines.append(
            {
                "OvO against": row["against"] or "(not said)",
                "metric": _title(row["metric"], found.published),
                "paper": _percent(row["published_difference"]),
                "p printed": _p(row["printed_p"]),
                "p implied": _p(row["implied_p"]),
                "ours": own,
                "difference": _percent(row["difference"]),
                "p ours": _p(row["p"]) or ("n/a" if own else ""),
            }
        )
    return pd.DataFrame(lines)


def caption(found: Replication) -> str:
    """What the two tables hold, and what keeps their figures from being comparable."""
    table = found.published
    return (
        f"One-Versus-Others paper, {table.title}: percent, mean ± standard deviation over {published.SEEDS} seeds; "
        f"its split: {table.split}. p implied: Welch's t-test from the printed means and deviations; p printed stands "
        "where the paper says which head it is against; p ours: the same test over our seeds. All speak of seeds, not "
        "of patients, and none is corrected for the number of tests. `*_reference` heads are the authors' layout; the "
        "others answer to the same rows but are built differently."
    )


def _title(metric: str, table: Table) -> str:
    return f"AUPRC {table.positive}" if metric == "auprc" and table.positive else figures.words(metric)


def _percent(mean: float, deviation: float = math.nan) -> str:
    if pd.isna(mean):
        return ""
    return f"{100 * mean:.1f}" + ("" if pd.isna(deviation) else f" ± {100 * deviation:.1f}")


def _p(value: float) -> str:
    return "" if pd.isna(value) else f"{value:.3g}"


def unknown(task: str) -> str:
    """The line that stands where no figures are known for a task."""
    known = ", ".join(name for table in published.TABLES for name in table.tasks)
    return f"No published figures are known for the task '{task}'; there are figures for {known}."
