"""The report's sections on results: comparison, curves, calibration, usefulness, costs, subgroups."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ovo_clinic import disclosure, figures, folds, report, subgroups
from ovo_clinic.html import drawings
from ovo_clinic.html.blocks import Block, Drawing, Section, Table, Text
from ovo_clinic.html.material import Material

_CALIBRATION = {
    "brier": "Brier score",
    "log_loss": "log loss",
    "ece": "ECE",
    "slope": "slope",
    "intercept": "calibration in the large",
}
_FEW = f"Withheld: fewer than {disclosure.SMALLEST} test units have an outcome, or fewer have it not."


def comparison(material: Material) -> Section:
    """The table of the study, its intervals, the differences between heads, and the folds where there are any."""
    classes = material.comparison.prepared.manifest["classes"]
    table, (metric, label) = material.table, _main(material)
    printed = report.printable(table, classes)
    tests = [column for column in printed if str(column).startswith("p ")]
    blocks: list[Block] = [Text(note, warning=True) for note in table.notes]
    blocks.append(Table.of(report.caption(material.comparison, table), printed.drop(columns=tests)))
    if tests:
        compared = (table.rows["kind"] != "modality").to_numpy()
        caption = "p-values (Welch / paired by seed / bootstrap over patients), Holm-corrected, against the best other"
        blocks.append(Table.of(caption, printed.loc[compared, ["model", *tests]]))
    chance = {"auroc": 0.5, "mauc": 0.5, "auroc_macro": 0.5}.get(metric)
    figure = figures.interval_figure(table.rows, metric, label=label, chance=chance)
    blocks.append(Drawing.of("intervals", figure, f"{label} of every model with its 95 % interval over patients."))
    if not table.p_values.empty:
        figure = drawings.difference_figure(table.p_values, metric, label)
        caption = f"Difference of {label} from the best of the others: paired 95 % intervals over patients."
        blocks.append(Drawing.of("differences", figure, caption))
    if all(name in material.tables for name in folds.FILES):
        crossed = folds.FoldTables(*(material.tables[name] for name in folds.FILES))
        blocks.append(Table.of(f"{crossed.title}. {folds.EXPLAINED}", crossed.printable(classes)))
    return Section("comparison", f"Comparison of {material.comparison.subject}", blocks)


def _main(material: Material) -> tuple[str, str]:
    manifest = material.comparison.prepared.manifest
    metric = report.HEADLINE[manifest["kind"]][0]
    return metric, report.metric_title(metric, manifest["classes"])


def curves(material: Material) -> Section:
    """ROC and precision-recall curves, and for several outcomes a table of them."""
    drawn = drawings.chosen(material.outcomes)
    if not drawn:
        return Section("curves", "Discrimination", [Text(_FEW)])
    blocks: list[Block] = []
    if len(material.outcomes) == 1:
        (outcome,) = drawn
        predictions, y = outcome.predictions["test"], outcome.target["test"]
        pictures = {"roc": figures.roc_curves(predictions, y), "pr": figures.pr_curves(predictions, y)}
    else:
        pictures = {kind: drawings.curve_panels(drawn, kind) for kind in ("roc", "pr")}
    names = {"roc": "ROC curves", "pr": f"Precision-recall curves of {', '.join(own.name for own in drawn)}"}
    against = ", each class against the rest" if material.comparison.prepared.manifest["kind"] == "multiclass" else ""
    for kind, figure in pictures.items():
        caption = (
            f"{names[kind]}{against}; line: mean over seeds, band: one standard deviation over seeds, dotted: chance."
        )
        blocks.append(Drawing.of(kind, figure, caption))
    if "classes" in material.tables:
        blocks += [_class_table(material.tables["classes"], metric) for metric in ("auroc", "auprc", "brier")]
    if not material.table.labels.empty:
        blocks += [_label_table(material.table.labels, metric) for metric in ("auroc", "auprc")]
    return Section("curves", "Discrimination", blocks)


def _label_table(labels: pd.DataFrame, metric: str) -> Table:
    """A row per label, group of labels and average over labels; a column per model."""
    scopes = {"macro": "mean over ", "micro": "pooled over ", "group": "group ", "label": ""}
    lines = []
    for (scope, name), own in labels.groupby(["scope", "name"], sort=False):
        first = own.iloc[0]
        line = {"label": f"{scopes[str(scope)]}{name}"}
        line["positives"] = "" if pd.isna(first["positives"]) else f"{first['positives']:,.0f} of {first['units']:,.0f}"
        lines.append(line | {str(row["model"]): _interval(row, metric) for _, row in own.iterrows()})
    return Table.of(f"{_title(metric)} of every label [95 % over patients]", pd.DataFrame(lines))


def _class_table(table: pd.DataFrame, metric: str) -> Table:
    rows = table[table["metric"] == metric]
    own = rows.assign(text=[_interval(row) for _, row in rows.iterrows()])
    wide = own.pivot(index="outcome", columns="model", values="text").loc[list(dict.fromkeys(own["outcome"]))]
    sizes = rows.groupby("outcome", sort=False)[["units", "prevalence"]].first()
    frame = wide[list(dict.fromkeys(own["model"]))].reset_index(names="class")
    frame.insert(1, "units", [f"{units:,.0f}" for units in sizes["units"]])
    frame.insert(2, "prevalence", ["–" if np.isnan(p) else f"{100 * p:.1f} %" for p in sizes["prevalence"]])
    return Table.of(f"{_title(metric)} of every class against the rest [95 % over patients]", frame)


def _title(metric: str, classes: Sequence[str] = ()) -> str:
    known = {"brier": "Brier score", "excess": "Observed minus predicted share"} | (
        {} if classes else {"auprc": "AUPRC"}
    )
    return known.get(metric) or report.metric_title(metric, classes)


def _interval(row: "pd.Series[Any]", prefix: str = "") -> str:
    """`0.812 [0.780, 0.841]` of the columns prefix, prefix_low, prefix_high; a dash where there is no number."""
    middle, low, high = row[prefix or "mean"], row[f"{prefix}_low".lstrip("_")], row[f"{prefix}_high".lstrip("_")]
    return "–" if pd.isna(middle) else f"{middle:.3f} [{low:.3f}, {high:.3f}]"


def calibration(material: Material) -> Section:
    """Calibration metrics and curves, as predicted and recalibrated."""
    table = material.tables["calibration"]
    drawn = [outcome.name for outcome in drawings.chosen(material.outcomes)]
    if not drawn:
        return Section("calibration", "Calibration", [Text(_FEW)])
    figure = drawings.reliability_figure(material.tables["reliability"], drawn[:3])
    blocks: list[Block] = [
        Text(
            "Recalibration is fitted on the validation units of each seed and judged on the test units. A slope of 1 "
            "and a calibration in the large of 0 are ideal; a slope below 1 means probabilities that are too extreme. "
            "ECE has ten bins of equal mass and is above 0 by chance alone."
        ),
        Drawing.of(
            "calibration",
            figure,
            "Calibration curves, predictions of all seeds pooled, in bins of equal mass; bands: 95 % over patients.",
        ),
    ]
    for name in dict.fromkeys(table["outcome"]):
        own = table[table["outcome"] == name]
        texts = own.assign(text=[_interval(row) for _, row in own.iterrows()])
        wide = texts.pivot(index=["model", "recalibration"], columns="metric", values="text")
        order = list(dict.fromkeys(zip(own["model"], own["recalibration"], strict=True)))
        frame = wide.loc[order, list(_CALIBRATION)].rename(columns=_CALIBRATION).reset_index()
        frame["recalibration"] = frame["recalibration"].map(drawings.RECALIBRATIONS)
        blocks.append(Table.of(f"Calibration of {name}: mean over seeds [95 % over patients]", frame))
    return Section("calibration", "Calibration", blocks)


def decision(material: Material) -> Section:
    """Decision curves."""
    drawn = [outcome.name for outcome in drawings.chosen(material.outcomes)]
    if not drawn:
        return Section("decision", "Clinical usefulness", [Text(_FEW)])
    figure = drawings.decision_figure(material.tables["decision_curves"], drawn)
    caption = (
        "Net benefit of acting on a model from each threshold on; bands: 95 % over patients. Dotted: acting on "
        "everyone, and on no one (0)."
    )
    return Section("decision", "Clinical usefulness", [Drawing.of("decision", figure, caption)])


def costs(material: Material) -> Section:
    """Performance against cost."""
    metric, label = _main(material)
    table = material.tables["costs"]
    frame = pd.DataFrame(
        {
            "model": table["model"],
            "MACs per sample": [f"{value:,.0f}" for value in table["macs"]],
            "parameters": [f"{value:,.0f}" for value in table["parameters"]],
            "ms per batch of 128": [f"{value:.2f}" for value in table["milliseconds"]],
        }
    )
    figure = drawings.cost_figure(table, material.table.rows, metric, label)
    caption = f"{label} with its 95 % interval over patients against what a prediction costs."
    note = "Latency is of the machine that wrote this report, on one thread, with whatever else it did."
    return Section(
        "costs",
        "Performance against cost",
        [Drawing.of("costs", figure, caption), Table.of("Costs", frame), Text(note)],
    )


def groups(material: Material) -> Section:
    """Subgroups: sizes, the main metric, differences from all others."""
    table, metric = material.tables["subgroups"], _main(material)[0]
    if table.empty:
        text = (
            "The cohort table has no column that makes subgroups, or the test units are too few for any; a pipeline "
            "may add columns (sex, age, unit, ...)."
        )
        return Section("subgroups", "Subgroups", [Text(text)])
    label = _main(material)[1]
    rows = table[table["metric"] == metric]
    blocks: list[Block] = [
        Text(
            "Groups of the test units, by what the cohort table has. Small groups are put together; a metric is "
            f"withheld where a class has fewer than {disclosure.SMALLEST} units in the group. p-values are of the "
            "difference from all other test units, by bootstrap over patients, Holm-corrected over the groups of a "
            "head and metric. A difference is no effect of belonging to a group, and its absence no proof of fairness."
        ),
        *_group_drawings(rows, label),
    ]
    classes = material.comparison.prepared.manifest["classes"]
    blocks += [_group_table(table, name, _title(name, classes)) for name in dict.fromkeys(table["metric"])]
    return Section("subgroups", "Subgroups", blocks)


def _group_drawings(rows: pd.DataFrame, label: str) -> list[Block]:
    """The metric by subgroup, and its difference from all other units; groups too small for it are named below."""
    named = rows.assign(name=[f"{subgroups.words(str(row.variable))}: {row.level}" for row in rows.itertuples()])
    figures_of = {
        "subgroups": ("mean", "low", "high", f"{label}, %", None, f"{label} by subgroup; mean over seeds"),
        "subgroup-differences": (
            *("difference", "difference_low", "difference_high"),
            *(f"{label} in the group minus {label} in all other units, points", 0.0),
            f"Difference of {label} from all other test units",
        ),
    }
    blocks: list[Block] = []
    for name, (*columns, axis, reference, title) in figures_of.items():
        shown = named.dropna(subset=columns[0])
        if shown.empty:
            blocks.append(Text(f"{title}: withheld for every group."))
            continue
        numbers = (100 * shown[columns]).itertuples(index=False, name=None)
        lines = [(model, group, *own) for model, group, own in zip(shown["model"], shown["name"], numbers, strict=True)]
        figure = drawings.forest(lines, axis, reference, list(dict.fromkeys(shown["model"])))
        withheld = [group for group in dict.fromkeys(named["name"]) if group not in set(shown["name"])]
        note = f" Withheld: {', '.join(withheld)}." if withheld else ""
        blocks.append(Drawing.of(name, figure, f"{title}, 95 % intervals over patients.{note}"))
    return blocks


def _group_table(table: pd.DataFrame, metric: str, title: str) -> Table:
    """Sizes, the metric of every head, and the corrected p of its difference."""
    rows = table[table["metric"] == metric]
    lines = []
    for (variable, level), own in rows.groupby(["variable", "level"], sort=False):
        first = own.iloc[0]
        line = {"group": f"{subgroups.words(str(variable))}: {level}", "units": f"{first['units']:,.0f}"}
        line["patients"] = f"{first['patients']:,.0f}"
        if "positives" in own:
            line["positives"] = "hidden" if np.isnan(first["positives"]) else f"{first['positives']:,.0f}"
        for _, row in own.iterrows():
            p = "" if pd.isna(row["p_holm"]) else f" (p {row['p_holm']:.2g})"
            line[str(row["model"])] = "withheld" if pd.isna(row["mean"]) else _interval(row) + p
        lines.append(line)
    return Table.of(f"{title} by subgroup [95 % over patients] (p of the difference, Holm)", pd.DataFrame(lines))
