"""What commands print: tables, cohorts, studies, progress; and the consoles they print on."""

import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from ovo_clinic.challenge import Score
    from ovo_clinic.costs import CostTables
    from ovo_clinic.folds import FoldTables
    from ovo_clinic.predict import Predictions
    from ovo_clinic.prepared import Prepared
    from ovo_clinic.verbs import Run, Search, Study

# Without a terminal rich assumes 80 columns and cuts the tables.
out = Console(width=None if sys.stdout.isatty() else 200, highlight=False, markup=False)
err = Console(stderr=True, highlight=False, markup=False)


def print_prepared(prepared: "Prepared") -> None:
    """Prints what was prepared: cohort, split, modalities, notes."""
    manifest = prepared.manifest
    print_attrition(prepared)
    sizes = ", ".join(
        f"{name} {manifest['units'][name]} ({manifest['patients'][name]} patients)" for name in manifest["units"]
    )
    if lists := manifest["split"].get("lists"):
        out.print(f"Split by {', '.join(lists)}: {sizes}")
    elif manifest["split"]["whole_patients"]:
        out.print(f"Split by patient: {sizes}")
    else:
        shared = f"{manifest['patients_apart']} of the {manifest['patients']['test']} test patients"
        out.print(f"SPLIT BY UNIT: {sizes}; {shared} also stand in training or validation", style="bold red")
    for name, entry in manifest["modalities"].items():
        present = sum(entry["present"].values()) / prepared.cohort.height
        out.print(f"  {name:14s} {_content(entry):>16s}, present in {100 * present:5.1f} % of units")
    for note, value in ((note, value) for note, value in manifest["notes"].items() if value):
        out.print(f"  note: {note}: {value}")
    out.print(f"Prepared: {prepared.folder}")


def _content(entry: Mapping[str, Any]) -> str:
    match entry["kind"]:
        case "image":
            return f"images of {entry['size']}"
        case "text":
            return "texts"
        case _:
            return f"{len(entry['columns'])} features"


def print_attrition(prepared: "Prepared") -> None:
    """Prints how each rule of the cohort narrowed it."""
    manifest = prepared.manifest
    if manifest["leaky"]:
        out.print(f"LEAKY TASK: {manifest['leaky']}", style="bold red")
    out.print(manifest["title"])
    for step in manifest["attrition"]:
        labels = "" if step["positives"] is None else f", {step['positives']} positive"
        labels += "".join(f", {count:,} {name}" for name, count in step.get("classes", {}).items())
        out.print(f"  {step['units']:>9,} units, {step['patients']:>9,} patients{labels}: {step['rule']}")


def print_predictions(predictions: "Predictions") -> None:
    """Prints what was predicted, in numbers that concern nobody alone, and where the rows lie."""
    from ovo_clinic.drift import LEAST_VALUES

    if predictions.leaky:
        out.print(f"LEAKY TASK: {predictions.leaky}", style="bold red")
    for rule, units in predictions.attrition.items():
        out.print(f"  {units:>9,} units: {rule}")
    frame = predictions.frame
    incomplete = int((frame["missing_modalities"] != "").sum())
    out.print(f"{frame.height:,} units, {incomplete:,} of them without some modality; model {frame['model'][0][:12]}")
    if frame.height < LEAST_VALUES:
        unchecked = "whether units of measurement, names and categories are those of the training could not be checked"
        out.print(f"note: fewer than {LEAST_VALUES} units: {unchecked}", style="yellow")
    out.print(f"{predictions.file}: patient-level rows, keep them where the raw data may lie", soft_wrap=True)


def print_study(study: "Study") -> None:
    """Prints a comparison: scores, tests, where everything lies."""
    from ovo_clinic import report

    numbers = report.printable(study.table, study.comparison.prepared.manifest["classes"])
    tests = [str(column) for column in numbers if str(column).startswith("p ")]
    print_table(numbers.drop(columns=tests))
    if tests:
        print_table(numbers.loc[(study.table.rows["kind"] != "modality").to_numpy(), ["model", *tests]])
    out.print(report.caption(study.comparison, study.table))
    if study.folds is not None:
        _print_folds(study.folds, study.comparison.prepared.manifest["classes"])
    for note in study.table.notes:
        out.print(f"note: {note}", style="yellow")
    _print_modality_tables(study)
    out.print(f"\nData: {study.comparison.prepared.folder}")
    out.print(f"Tables (csv, LaTeX) and figures: {study.comparison.folder}")
    for path in study.figures.values():
        out.print(f"  {path.name}")
    out.print(f"Report: {study.report}", soft_wrap=True)
    print_mlflow(study.tracking_uri)
    if study.beside is not None:
        task_spec = study.comparison.prepared.manifest
        other = study.beside.comparison.prepared.manifest["options"]
        changed = {name: value for name, value in other.items() if value != task_spec["options"][name]}
        settings = ", ".join(f"data.{name}={str(value).lower()}" for name, value in changed.items())
        out.print(f"\nBeside it, the same with {settings}:", style="bold")
        print_study(study.beside)


def print_published(study: "Study") -> None:
    """Prints a paper's figures beside those of a study, or that none are known for its task."""
    from ovo_clinic import replication

    manifest = study.comparison.prepared.manifest
    found = replication.of_study(manifest, study.table.rows)
    if found is None:
        out.print(f"\n{replication.unknown(manifest['task'])}")
        return
    out.print("\nPublished figures beside ours", style="bold")
    print_table(replication.printable_scores(found))
    print_table(replication.printable_tests(found))
    out.print(replication.caption(found))


def _print_modality_tables(study: "Study") -> None:
    from ovo_clinic import modality_figures, report

    manifest = study.comparison.prepared.manifest
    metric = report.HEADLINE[manifest["kind"]][0]
    title = report.metric_title(metric, manifest["classes"])
    for name, table in study.modality_tables.items():
        rows = table[table["metric"] == metric]
        if name == "missingness":
            together = modality_figures.hidden_together(table)
            out.print(f"\n{title} with modalities of the test units hidden ({together}) [95 % over patients]:")
            cells = rows.assign(column=[f"{100 * rate:g} %" for rate in rows["rate"]])
            index, value = ["model"], "mean"
        else:
            out.print(f"\nLoss of {title}, points, without a modality [95 % over patients]:")
            cells = rows.assign(column=rows["measure"])
            index, value = ["model", "modality"], "loss"
        text = [report.percent_interval(*row) for row in rows[[value, "low", "high"]].itertuples(index=False)]
        wide = cells.assign(text=text).pivot(index=index, columns="column", values="text").fillna("")
        print_table(wide.loc[:, list(dict.fromkeys(cells["column"]))].reset_index())


def _print_folds(folds: "FoldTables", classes: Sequence[str]) -> None:
    """Prints a cross-validation: mean and deviation over folds, and the tests."""
    from ovo_clinic.folds import EXPLAINED

    out.print(f"\n{folds.title}:", style="bold")
    print_table(folds.printable(classes))
    out.print(EXPLAINED)


def print_search(search: "Search") -> None:
    """Prints what a search found for each model."""
    import pandas as pd

    tuning = search.tuning
    lines = []
    for label, found in tuning.tuned.models.items():
        trials = f"{found.completed} complete, {found.pruned} pruned, {found.failed} failed"
        settings = ", ".join(
            f"{key.rpartition('.')[2]}={value:g}" if isinstance(value, float) else f"{key.rpartition('.')[2]}={value}"
            for key, value in found.settings.items()
        )
        line = {"model": label, tuning.tuned.monitor: f"{found.validation:.4f}", "trials": trials}
        lines.append({**line, "epochs": f"{found.epochs:,}", "settings": settings})
    print_table(pd.DataFrame(lines))
    out.print(
        f"{tuning.tuned.monitor} of the best trial on the validation units, each model with the same budget of "
        f"{tuning.tuned.trials} trials ({tuning.tuned.sampler}). The best of many is optimistic: it selects and is no "
        "result. The test units were not looked at."
    )
    out.print(f"All trials: {tuning.folder / 'trials.csv'}")
    out.print(f"Next: ovo-clinic compare {tuning.tuned.task} --tuned {search.file}", soft_wrap=True)
    print_mlflow(search.tracking_uri)


def print_run(run: "Run") -> None:
    """Prints what came of one training run."""
    if run.result["task"]["leaky"]:
        out.print(f"LEAKY TASK: {run.result['task']['leaky']}", style="bold red")
    for warning in run.result["warnings"]:
        out.print(f"warning: {warning}", style="yellow")
    for split, metrics in run.result["metrics"].items():
        out.print(f"{split}: " + ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
    for table in run.tables.values():
        shown = table[table["scope"] != "label"].drop(columns=["units", "positives"]) if "scope" in table else table
        print_table(shown.drop(columns="model").round(4).astype(object).fillna("–"))
    best, epochs = run.result["best_epoch"] + 1, len(run.result["history"])
    out.print(f"best epoch {best} of {epochs}; run folder {run.folder}")
    print_mlflow(run.tracking_uri)


def print_table(frame: "pd.DataFrame") -> None:
    """Prints a table; where the terminal is too narrow for it, cells are broken before their brackets."""
    table = _table(frame)
    if out.measure(table).maximum > out.width:
        table = _table(frame.map(lambda cell: re.sub(r" (?=[\[(]|vs )", "\n", str(cell))))
    out.print(table)


def _table(frame: "pd.DataFrame") -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for position, column in enumerate(frame.columns):
        table.add_column(column, justify="left" if position == 0 else "right", overflow="fold")
    for row in frame.itertuples(index=False):
        table.add_row(*(str(cell) for cell in row))
    return table


def print_mlflow(uri: str) -> None:
    """Prints how to open the MLflow store."""
    command = shlex.join([str(Path(sys.executable).with_name("mlflow")), "ui", "--backend-store-uri", uri])
    server = uri.startswith(("http:", "https:", "databricks"))
    # MLflow's own command line would report its use over the network.
    out.print(f"MLflow: {uri if server else f'MLFLOW_DISABLE_TELEMETRY=true {command}'}", soft_wrap=True)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar with rate and time left on a terminal, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def print_paper_costs() -> None:
    """Prints the published Delta-FLOPs, and the same counted again."""
    from ovo_clinic import costs as counting
    from ovo_clinic.paper_costs import paper_costs

    found = paper_costs()
    out.print("Delta-FLOPs of the One-Versus-Others paper: as printed, and counted from the authors' heads at batch 16")
    print_table(counting.printable(found.delta))
    out.print("True MACs per sample, counted from correct heads, without an output layer")
    print_table(counting.printable(found.per_sample))
    out.print(f"Why they differ. {found.explanation}")


def print_costs(costs: "CostTables") -> None:
    """Prints what encoders and heads cost."""
    from ovo_clinic import costs as counting

    out.print("Encoders: multiply-accumulates (MACs) and elementwise work per sample, parameters, latency")
    print_table(counting.printable(costs.encoders))
    out.print(
        "Models: MACs and elementwise work per sample with every modality present; parameters, and those that a "
        "gradient reaches; latency and peak memory of a forward pass on one thread"
    )
    print_table(counting.printable(costs.heads))
    out.print("MACs per sample of the fusion head alone, against the number of modalities")
    wide = costs.against_modalities.pivot(index="head", columns="modalities", values="macs")
    print_table(counting.printable(wide.reset_index().rename(columns=str)))
    out.print("`*_reference` heads mix the patients of a batch; their cost is that of a batch of 16, divided by 16.")
    for combination, reason in costs.refused.items():
        out.print(f"refused: {combination}: {reason}")
    out.print(f"Tables (csv) and figure macs.png: {costs.folder}")


def print_score(score: "Score") -> None:
    """Prints the score of forecasts."""
    sizes = ", ".join(f"{name} {count}" for name, count in score.classes.items())
    out.print(f"mAUC {score.mauc:.4f} (ties counted half: {score.mauc_mid_ranks:.4f}), BCA {score.bca:.4f}")
    out.print(f"{sum(score.classes.values())} visits of {score.people} people: {sizes}")
    out.print(f"left out: {score.undiagnosed} visits without a diagnosis, {score.without_forecast} without a forecast")
