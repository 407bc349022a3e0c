"""The report's sections on the question, the cohort and its modalities."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from ovo_clinic import disclosure, figures, modality_figures, report
from ovo_clinic.html import drawings
from ovo_clinic.html.blocks import Block, Drawing, Flow, Section, Table, Text
from ovo_clinic.html.material import Material

_KINDS = {"binary": "one yes-or-no outcome", "multiclass": "one of several classes", "multilabel": "several outcomes"}


def question(material: Material) -> Section:
    """What is asked, of whom, and when."""
    manifest = material.comparison.prepared.manifest
    subject, heads = material.comparison.subject, ", ".join(material.comparison.heads)
    metric = report.metric_title(report.HEADLINE[manifest["kind"]][0], manifest["classes"])
    names = manifest["target"] if manifest["kind"] == "multilabel" else manifest["classes"] or manifest["target"]
    blocks: list[Block] = [
        Text(f"Question: do {subject} ({heads}) differ in how well they predict, with all else equal?"),
        Text(f"Task: {manifest['title']}. Predicted: {_KINDS[manifest['kind']]} ({', '.join(names)})."),
        Text(f"Main metric: {metric}, on {_tested(manifest)}."),
    ]
    line = drawings.timeline(manifest["options"])
    if line is None:
        blocks.append(Text("The task has no prediction time in hours, so that there is no time line to draw."))
    else:
        blocks.append(Drawing.of("timeline", line, _timeline_caption(manifest)))
    return Section("question", "Question and task", blocks)


def _tested(manifest: Mapping[str, Any]) -> str:
    if manifest["split"].get("whole_patients", True):
        return "test patients that no model was trained or chosen on"
    return "test units, of which some are of patients that models were trained or chosen on"


def _timeline_caption(manifest: Mapping[str, Any]) -> str:
    options = manifest["options"]
    text = f"Prediction {options['prediction_hours']:g} hours after the index time."
    if lookback := options.get("lookback_hours"):
        text += f" Records count from {lookback:g} hours before the index time."
    if gap := options.get("gap_hours"):
        text += f" Units that leave within {gap:g} hours after the prediction are left out."
    text += " A record at or after the prediction is dropped, whatever the modality"
    # What a pipeline notes of a modality under its bare name is how it departs from that.
    departing = ", ".join(name for name in manifest["modalities"] if name in manifest["notes"])
    return f"{text}, but see the note on {departing} under Cohort." if departing else f"{text}."


def cohort(material: Material) -> Section:
    """Flow diagram, split, table one, what was counted while preparing."""
    manifest = material.comparison.prepared.manifest
    blocks: list[Block] = [
        Flow(list(_steps(manifest["attrition"], manifest["kind"])), _parts(manifest)),
        Text(_split_text(manifest)),
        Table.of(
            "Table one: the whole cohort by outcome. Counts (percent of the column), medians [quartiles]; counts of 1 "
            f"to {disclosure.SMALLEST - 1} are not shown, nor what they would follow from.",
            material.tables["table_one"],
        ),
    ]
    if notes := {name: value for name, value in manifest["notes"].items() if value}:
        rows = [[name, _note(value)] for name, value in notes.items()]
        blocks.append(Table("Counted while the data were prepared", ["What", "Count"], rows))
    return Section("cohort", "Cohort", blocks)


def _note(value: object) -> str:
    if isinstance(value, int):
        return disclosure.HIDDEN if 0 < value < disclosure.SMALLEST else f"{value:,}"
    return str(value)


def _steps(attrition: list[dict[str, Any]], kind: str) -> Iterator[dict[str, str]]:
    before = None
    for step in attrition:
        binary = kind == "binary" and step["positives"] is not None
        counts = {"negative": step["units"] - step["positives"], "positive": step["positives"]} if binary else {}
        shown = list(disclosure.parts(counts).items())[1:] + list(disclosure.parts(step.get("classes", {})).items())
        labels = "".join(f", {count} {name}" for name, count in shown)
        left = f"{step['units']:,} units, {step['patients']:,} patients{labels}"
        excluded = "" if before is None else f"{before - step['units']:,} units excluded"
        yield {"rule": step["rule"], "left": left, "excluded": excluded}
        before = step["units"]


def _parts(manifest: Mapping[str, Any]) -> list[dict[str, str]]:
    return [
        {"name": part, "size": f"{units:,} units, {manifest['patients'][part]:,} patients"}
        for part, units in manifest["units"].items()
    ]


def _split_text(manifest: Mapping[str, Any]) -> str:
    split = manifest["split"]
    if lists := split.get("lists"):
        return f"Split by published lists: {', '.join(lists)}."
    if not split.get("whole_patients", True):
        return (
            f"Split by unit, not by patient: {manifest['patients_apart']:,} patients of the test part also stand in "
            "the training or validation part."
        )
    if column := split.get("column"):
        return f"Split as the column {column} says: all units of a patient are in one part."
    by = "patient" if split["by"] == "patient_id" else split["by"]
    stratified = ", stratified by outcome" if split["stratify"] else ""
    return f"Split by {by} (seed {split['seed']}{stratified}): all units of a patient are in one part."


def modalities(material: Material) -> Section:
    """What the modalities hold, which go missing together, and what each is worth where that was measured."""
    manifest = material.comparison.prepared.manifest
    rows = [
        [
            name,
            entry["title"],
            entry["kind"],
            _features(entry),
            f"{100 * sum(entry['present'].values()) / _units(manifest):.1f} %",
        ]
        for name, entry in manifest["modalities"].items()
    ]
    blocks: list[Block] = [
        Table("Modalities", ["Name", "What it holds", "Kind", "Features", "Units that have it"], rows)
    ]
    if len(rows) > 1:
        figure = drawings.pattern_figure(material.tables["missing_patterns"])
        caption = "Patterns of missing modalities: filled = there, empty = absent; units of the whole cohort."
        blocks.append(Drawing.of("patterns", figure, caption))
    metric = report.HEADLINE[manifest["kind"]][0]
    label = report.metric_title(metric, manifest["classes"])
    if not material.table.patterns.empty:
        blocks.append(_pattern_table(material.table.patterns, metric, label))
    drawn = {
        "missingness": (
            modality_figures.sweep_figure,
            f"{label} with modalities of the test units hidden from the trained models; below the axis: what "
            "was hidden together.",
        ),
        "importance": (
            modality_figures.importance_figure,
            f"Loss of {label} without each modality; 95 % intervals over patients.",
        ),
    }
    for name, (draw, caption) in drawn.items():
        if name in material.tables:
            blocks.append(Drawing.of(name, draw(material.tables[name], metric, label=label), caption))
    if not any(name in material.tables for name in drawn):
        blocks.append(Text("What modalities are worth was not measured: compare with --missing and --importance."))
    blocks += _condition_numbers(material)
    return Section("modalities", "Modalities", blocks)


def _pattern_table(patterns: pd.DataFrame, metric: str, label: str) -> Table:
    """A row per pattern of modalities, a column per model."""
    rows = patterns[patterns["metric"] == metric]
    lines = []
    for pattern, own in rows.groupby("pattern", sort=False):
        first = own.iloc[0]
        line = {"modalities": str(pattern), "units": f"{first['units']:,.0f}", "patients": f"{first['patients']:,.0f}"}
        for row in own.to_dict("records"):
            bounds = (row["mean"], row["low"], row["high"])
            line[str(row["model"])] = "withheld" if pd.isna(row["mean"]) else report.percent_interval(*bounds)
        lines.append(line)
    caption = (
        f"{label}, %, of test units by the modalities they have [95 % over patients]; withheld where a class has fewer "
        f"than {disclosure.SMALLEST} of the units"
    )
    return Table.of(caption, pd.DataFrame(lines))


def _units(manifest: Mapping[str, Any]) -> int:
    return max(1, sum(int(count) for count in manifest["units"].values()))


def _features(entry: Mapping[str, Any]) -> str:
    return f"{len(entry['columns']):,}" if entry.get("columns") else "–"


def _condition_numbers(material: Material) -> list[Block]:
    results = material.comparison.results
    histories = {head: [result["history"] for result in results[head]] for head in material.comparison.heads}
    if not any("rank_deficient_share" in seeds[0][0] for seeds in histories.values()):
        return []
    caption = "Condition numbers of attention outputs during training, their bound, and how many have no finite one."
    return [Drawing.of("condition", figures.condition_figure(histories), caption)]
