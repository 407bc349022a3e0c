"""The tables of a comparison: one row per head or modality, p-values, and how they are printed and saved."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ovo_clinic import breakdown, figures, replication, runs, significance, statistics
from ovo_clinic.study import Comparison

# Metrics of the table by kind of task; p-values are given for the first two.
HEADLINE: Mapping[str, tuple[str, ...]] = {
    "binary": ("auroc", "auprc", "auprc_negative"),
    "multiclass": ("mauc", "bca", "accuracy"),
    "multilabel": ("auroc_macro", "auprc_macro", "auroc_micro"),
}
RESAMPLES = 1000


@dataclass(frozen=True)
class ComparisonTable:
    """The numbers of a study, all on the test split.

    Attributes:
        rows: one row per arm: model, kind, present (share of test units with the modality), macs and parameters,
            delta_macs (per sample, minus concat's), and for each headline metric its mean, sd over seeds, and the
            bounds of the patient bootstrap.
        p_values: of `significance.tests_table`.
        intervals: one row per arm and metric, all metrics: mean over seeds, percentile (low, high) and BCa bounds over
            patients, and how many resamples defined it.
        labels: of `breakdown.by_label`; empty but for multilabel tasks.
        patterns: of `breakdown.by_pattern`, the headline metrics of every model of all modalities.
        prevalence: share of positives among the test units (binary tasks).
        notes: what a reader must know.
    """

    rows: pd.DataFrame
    p_values: pd.DataFrame
    intervals: pd.DataFrame
    labels: pd.DataFrame
    patterns: pd.DataFrame
    prevalence: float | None
    notes: list[str]

    @property
    def tested(self) -> bool:
        """Whether there is anything to test: two heads and two seeds."""
        return not self.p_values.empty and bool((self.rows["seeds"] > 1).all())


def predictions(
    comparison: Comparison, label: str, split: str = "test"
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Predictions (S,N) or (S,N,K) of one arm on a split (`test`, `validation`) by seed, and the cohort rows (N,)."""
    found = [runs.predictions(folder, split) for folder in comparison.run_folders[label]]
    return np.stack([values for values, _ in found]), found[-1][1]


def comparison_table(comparison: Comparison) -> ComparisonTable:
    """Computes the table of a study."""
    task = comparison.prepared.task
    metrics = HEADLINE[task.kind]
    split = _test_split(comparison)
    each_label = statistics.label_metrics(len(task.target)) if task.kind == "multilabel" else []
    bootstrap = statistics.bootstrap_by_patient(
        split.predictions,
        split.target,
        split.patients,
        [*statistics.METRICS[task.kind], *each_label],
        resamples=RESAMPLES,
    )
    concat = next((label for label in comparison.heads if label.split("(")[0] == "concat"), None)
    base = _macs(comparison, concat) if concat else None
    rows = []
    for arm in comparison.arms:
        results = comparison.results[arm.label]
        row: dict[str, object] = {"model": arm.label, "kind": arm.kind, "seeds": len(results)}
        row["present"] = _present(comparison, arm.label) if arm.kind == "modality" else 1.0
        row["parameters"] = results[0]["costs"].get("parameters")
        row["macs"] = _macs(comparison, arm.label)
        row["delta_macs"] = row["macs"] - base if base is not None and arm.kind == "head" else None  # type: ignore[operator]
        for metric in metrics:
            values = scores(comparison, arm.label, metric)
            row[f"{metric}_mean"] = values.mean()
            row[f"{metric}_sd"] = values.std(ddof=1) if values.size > 1 else np.nan
            interval = bootstrap.interval(arm.label, metric)
            row[f"{metric}_low"], row[f"{metric}_high"] = interval.low, interval.high
        rows.append(row)
    first = next(iter(comparison.results.values()))[0]
    return ComparisonTable(
        rows=pd.DataFrame(rows),
        p_values=_tests(comparison, metrics[:2], split, bootstrap),
        intervals=_intervals(bootstrap, statistics.METRICS[task.kind]),
        labels=breakdown.by_label(bootstrap, split.target, task.target, task.groups) if each_label else pd.DataFrame(),
        patterns=_patterns(comparison, split, metrics),
        prevalence=first["metrics"]["test"].get("prevalence"),
        notes=_notes(comparison),
    )


def scores(comparison: Comparison, label: str, metric: str) -> npt.NDArray[np.float64]:
    """(S,) a test metric of every seed."""
    return np.array([result["metrics"]["test"][metric] for result in comparison.results[label]], dtype=np.float64)


def _macs(comparison: Comparison, label: str) -> float:
    return float(comparison.results[label][0]["costs"].get("macs_total", np.nan))


def _present(comparison: Comparison, modality: str) -> float:
    return float(comparison.prepared.present(modality)[comparison.prepared.rows("test")].mean())


@dataclass(frozen=True)
class _TestSplit:
    """What every arm predicted on the test split.

    Attributes:
        predictions: label -> (S,N) or (S,N,K).
        target: (N,) or (N,K), NaN = not labelled.
        patients: (N,) whose unit it is.
    """

    predictions: Mapping[str, npt.NDArray[np.float64]]
    target: npt.NDArray[np.float64]
    patients: npt.NDArray[Any]

    def delong(self, a: str, b: str) -> statistics.Comparison:
        """DeLong's test of two arms."""
        return statistics.delong_test(self.predictions[a], self.predictions[b], self.target, self.patients)


def _test_split(comparison: Comparison) -> _TestSplit:
    found = {arm.label: predictions(comparison, arm.label) for arm in comparison.arms}
    rows = comparison.prepared.rows("test")
    for label, (_, own) in found.items():
        assert np.array_equal(own, rows), f"{label} was evaluated on other units"
    return _TestSplit(
        {label: values for label, (values, _) in found.items()},
        np.asarray(comparison.prepared.target[rows], dtype=np.float64),
        comparison.prepared.cohort["patient_id"].gather(rows).to_numpy(),
    )


def _tests(
    comparison: Comparison, metrics: Sequence[str], split: _TestSplit, bootstrap: statistics.Bootstrap
) -> pd.DataFrame:
    """Every head and baseline against the best of the others."""
    models = comparison.contenders
    values = {metric: {model: scores(comparison, model, metric) for model in models} for metric in metrics}
    defined = not all(np.isnan(score).all() for score in values.get("auroc", {}).values())
    return significance.tests_table(values, bootstrap, {"auroc": {"delong": split.delong}} if defined else {})


def _patterns(comparison: Comparison, split: _TestSplit, metrics: Sequence[str]) -> pd.DataFrame:
    prepared = comparison.prepared
    whole = {arm.label: split.predictions[arm.label] for arm in comparison.arms if arm.kind != "modality"}
    names = prepared.chosen(next(arm.experiment.modalities for arm in comparison.arms if arm.kind != "modality"))
    patterns = breakdown.patterns_of(prepared, names, prepared.rows("test"))
    return breakdown.by_pattern(whole, split.target, split.patients, patterns, metrics, resamples=RESAMPLES)


def _intervals(bootstrap: statistics.Bootstrap, metrics: Sequence[str]) -> pd.DataFrame:
    rows = []
    for label, estimates in bootstrap.estimates.items():
        for metric in metrics:
            estimate = estimates[metric]
            found, bca = estimate.percentile(bootstrap.level), estimate.bca(bootstrap.level)
            bounds = {"low": found.low, "high": found.high, "bca_low": bca.low, "bca_high": bca.high}
            rows.append(
                {"model": label, "metric": metric, "mean": found.estimate, **bounds, "resamples": found.resamples}
            )
    return pd.DataFrame(rows)


def _notes(comparison: Comparison) -> list[str]:
    """What a reader must know; a warning that every arm gave stands once."""
    notes = []
    if comparison.prepared.manifest["leaky"]:
        notes.append(f"LEAKY TASK: {comparison.prepared.manifest['leaky']}")
    for label, results in comparison.results.items():
        if results[0]["unsafe"]:
            notes.append(f"{label} is unsafe: {results[0]['unsafe']}")
    warnings = {label: results[0]["warnings"] for label, results in comparison.results.items()}
    common = [found for found in next(iter(warnings.values())) if all(found in own for own in warnings.values())]
    notes += common
    notes += [f"{label}: {found}" for label, own in warnings.items() for found in own if found not in common]
    if tuned := comparison.tuned:
        notes.append(
            f"settings: for each model those that `tune` found, the best of {tuned.trials} trials ({tuned.sampler}) by "
            f"{tuned.monitor} on the validation units; the test units had no part in it"
        )
    for label, results in comparison.results.items():
        if tuning := results[0].get("tuning"):
            notes.append(
                f"{label}: every seed takes the best of {len(tuning['tried'])} settings on the validation units"
                + ("" if comparison.tuned else "; the heads have one setting, as they were not tuned (--tuned)")
            )
    return list(dict.fromkeys(notes))


def printable(table: ComparisonTable, classes: Sequence[str]) -> pd.DataFrame:
    """The table as text: percent with one digit, mean +- sd over seeds, [95 % interval over patients]."""
    metrics = [name.removesuffix("_mean") for name in table.rows.columns if name.endswith("_mean")]
    column, costs = ("MACs - concat", "delta_macs") if table.rows["delta_macs"].notna().any() else ("MACs", "macs")
    lines = []
    for _, row in table.rows.iterrows():
        alone = row["kind"] == "modality"
        line = {"model": f"{row['model']} (alone, {100 * row['present']:.3g} %)" if alone else row["model"]}
        line[column] = "" if pd.isna(row[costs]) else f"{row[costs]:,.0f}"
        line["parameters"] = "" if pd.isna(row["parameters"]) else f"{row['parameters']:,.0f}"
        for metric in metrics:
            text = _percent(row[f"{metric}_mean"])
            if not pd.isna(row[f"{metric}_sd"]):
                text += f" ± {_percent(row[f'{metric}_sd'])}"
            if metric != "auprc_negative":
                text += f" [{_percent(row[f'{metric}_low'])}, {_percent(row[f'{metric}_high'])}]"
            line[metric_title(metric, classes)] = text
        for metric in metrics[:2] if table.tested else []:
            line[f"p {metric_title(metric, classes)}"] = _p_text(table.p_values, metric, row["model"])
        lines.append(line)
    return pd.DataFrame(lines)


def percent_interval(share: float, low: float, high: float) -> str:
    """`75.3 [70.1, 80.2]`, in percent."""
    return f"{_percent(share)} [{_percent(low)}, {_percent(high)}]"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def metric_title(metric: str, classes: Sequence[str]) -> str:
    """Heading of a metric; the AUPRC of a binary task says which class it is of."""
    negative, positive = classes if len(classes) == 2 else ("negative", "positive")
    return {"auprc": f"AUPRC {positive}", "auprc_negative": f"AUPRC {negative}"}.get(metric) or figures.words(metric)


def _p_text(p_values: pd.DataFrame, metric: str, model: str) -> str:
    """`Welch / paired / over patients`, Holm-corrected, against the best other head."""
    found = p_values[(p_values["metric"] == metric) & (p_values["model"] == model)]
    if found.empty:
        return ""
    row = found.iloc[0]
    tests = (row[f"{name}_p_holm"] for name in ("welch", "paired", "bootstrap"))
    texts = ["n/a" if pd.isna(p) else f"{p:.3g}" for p in tests]
    return f"{' / '.join(texts)} vs {row['against']}"


def caption(comparison: Comparison, table: ComparisonTable) -> str:
    """A few sentences under the table that say what its numbers are."""
    prepared = comparison.prepared
    rows = prepared.rows("test")
    patients = prepared.cohort["patient_id"].gather(rows).n_unique()
    seeds = int(table.rows["seeds"].iloc[0])
    prevalence = f", prevalence {_percent(table.prevalence)} %" if table.prevalence is not None else ""
    parts = [
        f"{prepared.manifest['title']}. Test split: {rows.size} units of {patients} patients{prevalence}.",
        f"Percent, mean ± standard deviation over {seeds} seeds" if seeds > 1 else "Percent, one seed",
    ]
    parts[-1] += " [95 % interval over patients, bootstrap]."
    if table.tested:
        parts.append(
            "p: Welch / paired by seed / bootstrap over patients, against the best of the others (best on these same "
            "test units), Holm-corrected; the first two speak of seeds, not of patients."
        )
    if (table.rows["kind"] == "baseline").any():
        parts.append("Classical baselines stand last and count among the others.")
    if (table.rows["kind"] == "modality").any():
        parts.append("Alone: one modality without the others, and the share of test units that have it.")
    return " ".join([*parts, "MACs per sample."])


def save(comparison: Comparison, table: ComparisonTable) -> None:
    """Writes table.csv, p_values.csv, intervals.csv and table.tex into the study's folder.

    Also labels.csv of a multilabel task, and patterns.csv where modalities are missing. Where a paper's figures are
    known for the task: also published_scores.csv and published_tests.csv.
    """
    frames = {"table": table.rows, "p_values": table.p_values, "intervals": table.intervals}
    frames |= {name: found for name in ("labels", "patterns") if not (found := getattr(table, name)).empty}
    if paper := replication.of_study(comparison.prepared.manifest, table.rows):
        frames |= {"published_scores": paper.scores, "published_tests": paper.tests}
    for name, frame in frames.items():
        frame.to_csv(comparison.folder / f"{name}.csv", index=False)
    text = printable(table, comparison.prepared.manifest["classes"])
    latex = text.to_latex(index=False, escape=True, caption=_latex_escaped(caption(comparison, table)))
    (comparison.folder / "table.tex").write_text(latex.replace("±", r"$\pm$"), encoding="utf-8")


def _latex_escaped(text: str) -> str:
    """pandas escapes cells, but no caption."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {character: f"\\{character}" for character in "&%$#_{}"}
    return "".join(special.get(character, character) for character in text)
