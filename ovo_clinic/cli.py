"""The console script `ovo-clinic`: thin commands around `ovo_clinic.verbs` and its neighbours.

Heavy imports stand inside the commands that need them, so that `--help` and the data commands start at once.
"""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from ovo_clinic import __version__
from ovo_clinic.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from ovo_clinic.prepare import Prepared
    from ovo_clinic.verbs import Study

app = typer.Typer(
    name="ovo-clinic",
    help="From raw clinical files to a sound, tracked comparison of multimodal fusion methods.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
# Without a terminal rich assumes 80 columns and cuts the tables.
out = Console(width=None if sys.stdout.isatty() else 200, highlight=False, markup=False)
err = Console(stderr=True, highlight=False, markup=False)

INTERRUPTED = 130

Task = Annotated[str, typer.Argument(help="A task's name (see `list configs`), or the path of a config.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings, such as training.learning_rate=1e-4.")
]
Raw = Annotated[
    Path | None, typer.Option("--raw", help="Folder of the raw files; not needed once the task is prepared.")
]
Uri = Annotated[str | None, typer.Option("--tracking-uri", help="MLflow store; default: sqlite under OVO_CLINIC_HOME.")]
Remote = Annotated[bool, typer.Option("--allow-remote-tracking", help="Permit a store on another machine.")]
Workers = Annotated[int | None, typer.Option("--workers", min=1, help="Parallel processes; default: one per core.")]


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        out.print(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        out.print(context.get_help())


@app.command()
def demo(
    patients: Annotated[int, typer.Option(min=200, help="People in the synthetic data.")] = 6000,
    seeds: Annotated[int, typer.Option(min=1, help="Runs per head and modality.")] = 5,
    workers: Workers = None,
) -> None:
    """Compares fusion heads on synthetic eICU data.

    Synthetic raw files -> prepare -> compare -> table, figures, MLflow: the main job with nothing to download.
    """
    from ovo_clinic import verbs

    out.print(f"Synthetic eICU data of {patients} people; the label's true probabilities are known.")
    with _progress("training") as advance:
        found = verbs.demo(patients=patients, seeds=seeds, workers=workers, on_progress=advance)
    _print_attrition(found.study.comparison.prepared)
    _print_study(found.study)
    single, start = found.best_single
    out.print(
        f"\nAUROC on the test units: oracle {100 * found.oracle:.1f} (the probabilities that the labels were drawn "
        f"from), best single modality {100 * start:.1f} ({single})."
    )
    for head, gain in found.gains.items():
        out.print(f"  {head} goes {100 * gain:.0f} % of the way from the best single modality to the oracle")


@app.command()
def synth(
    dataset: Annotated[str, typer.Argument(help="Which data set's raw folder to imitate.")],
    folder: Annotated[Path, typer.Option("--out", help="A new folder.")],
    patients: Annotated[int | None, typer.Option(min=1, help="People.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed writes the same bytes.")] = 0,
) -> None:
    """Writes a synthetic raw folder with a planted signal.

    File names, headers, codings and quirks are those of the real data set.
    """
    from ovo_clinic.registry import SYNTHETIC

    options = {"seed": seed} | ({} if patients is None else {"patients": patients})
    SYNTHETIC.build(dataset, folder, options=options)
    for path in sorted(folder.iterdir()):
        out.print(f"{path}  {path.stat().st_size:,} bytes")


@app.command()
def prepare(task: Task, overrides: Overrides = None, raw: Raw = None) -> None:
    """Turns raw files into a cached dataset."""
    _print_prepared(_prepared(task, overrides, raw))


@app.command()
def export(
    task: Task,
    folder: Annotated[Path, typer.Option("--out", help="A new folder.")],
    overrides: Overrides = None,
    raw: Raw = None,
    kind: Annotated[Literal["csv", "parquet"], typer.Option("--format", help="csv.gz or parquet.")] = "csv",
) -> None:
    """Writes cohort and features for other tools.

    Cohort, split, presence and attrition, and per modality the unscaled, named features.
    """
    from ovo_clinic.export import export as write

    for path in write(_prepared(task, overrides, raw), folder, kind):
        out.print(str(path))
    out.print("These files hold patient-level rows: keep them where the raw data may lie.")


@app.command("new-dataset")
def new_dataset(
    name: Annotated[str, typer.Argument(help="Of the data set and its task.")],
    csv: Annotated[
        list[Path], typer.Option("--csv", metavar="FILE...", help="csv, csv.gz or parquet files of one folder.")
    ],
    more: Annotated[list[Path] | None, typer.Argument(hidden=True)] = None,
    folder: Annotated[Path, typer.Option("--out", help="Where the spec and the config go.")] = Path(),
    unit: Annotated[str | None, typer.Option(help="Column that names the unit, in every file; else guessed.")] = None,
    patient: Annotated[str | None, typer.Option(help="Column that names the person; else guessed.")] = None,
    label: Annotated[str | None, typer.Option(help="Column to predict; else guessed.")] = None,
    classes: Annotated[
        str, typer.Option(metavar="NEGATIVE,POSITIVE", help="Values of a label other than 0 and 1.")
    ] = "",
    prediction_hours: Annotated[float | None, typer.Option(help="Records from this hour on are dropped.")] = None,
) -> None:
    """Writes spec and config for private data in flat files."""
    from ovo_clinic.new_dataset import new_dataset as write

    files = [*csv, *(more or [])]
    values = [value.strip() for value in classes.split(",") if value.strip()]
    written = write(
        name, files, folder, unit=unit, patient=patient, label=label, classes=values, prediction_hours=prediction_hours
    )
    for line in [*written.told, str(written.spec), str(written.config)]:
        out.print(line, soft_wrap=True)
    out.print(
        f"Read the lines with CHECK, then: ovo-clinic prepare {written.config} --raw {files[0].parent}", soft_wrap=True
    )


@app.command()
def train(
    task: Task,
    overrides: Overrides = None,
    raw: Raw = None,
    tracking_uri: Uri = None,
    allow_remote_tracking: Remote = False,
) -> None:
    """Trains one model."""
    from ovo_clinic import verbs

    run = verbs.train(
        task, overrides or (), raw=raw, tracking_uri=tracking_uri, allow_remote_tracking=allow_remote_tracking
    )
    if run.result["task"]["leaky"]:
        out.print(f"LEAKY TASK: {run.result['task']['leaky']}", style="bold red")
    for warning in run.result["warnings"]:
        out.print(f"warning: {warning}", style="yellow")
    for split, metrics in run.result["metrics"].items():
        out.print(f"{split}: " + ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
    out.print(f"best epoch {run.result['best_epoch']} of {len(run.result['history'])}; run folder {run.folder}")
    _print_mlflow(run.tracking_uri)


@app.command()
def compare(
    task: Task,
    overrides: Overrides = None,
    raw: Raw = None,
    fusion: Annotated[str | None, typer.Option(help="Heads, separated by commas; default: the config's.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs per head; default: the config's.")] = None,
    unimodal: Annotated[bool | None, typer.Option(help="Also train every modality alone.")] = None,
    beside: Annotated[bool, typer.Option(help="Also under the task's other options, where it names some.")] = True,
    workers: Workers = None,
    tracking_uri: Uri = None,
    allow_remote_tracking: Remote = False,
) -> None:
    """Compares fusion heads over the same seeds.

    All heads see the same splits; an interrupted comparison goes on where it was.
    """
    from ovo_clinic import verbs

    with _progress("training") as advance:
        study = verbs.compare(
            task,
            overrides or (),
            raw=raw,
            fusion=_names(fusion),
            seeds=seeds,
            unimodal=unimodal,
            beside=beside,
            workers=workers,
            tracking_uri=tracking_uri,
            allow_remote_tracking=allow_remote_tracking,
            on_progress=advance,
        )
    _print_study(study)
    if study.beside is not None:
        task_spec = study.comparison.prepared.manifest
        other = study.beside.comparison.prepared.manifest["options"]
        changed = {name: value for name, value in other.items() if value != task_spec["options"][name]}
        settings = ", ".join(f"data.{name}={str(value).lower()}" for name, value in changed.items())
        out.print(f"\nBeside it, the same with {settings}:", style="bold")
        _print_study(study.beside)


@app.command("evaluate-challenge")
def evaluate_challenge(
    forecasts: Annotated[Path, typer.Argument(metavar="FILE", help="A submission (csv), or the folder of a run.")],
    truth: Annotated[Path | None, typer.Option("--truth", help="A D4 file: RID, date, diagnosis.")] = None,
    submission: Annotated[Path | None, typer.Option("--submission", help="Where a run's forecasts go (csv).")] = None,
) -> None:
    """Scores forecasts as the TADPOLE challenge does."""
    from ovo_clinic import challenge

    if truth is None and submission is None:
        raise UserError("evaluate-challenge: give --truth D4.csv to score, or --submission OUT.csv to write forecasts")
    of_run = forecasts.is_dir()
    if submission is not None and not of_run:
        raise UserError(f"--submission: writes the forecasts of a run; {forecasts} is not a folder")
    found = challenge.forecasts_of_run(forecasts) if of_run else challenge.read_forecasts(forecasts)
    if submission is not None:
        challenge.write_forecasts(found, submission)
        out.print(
            f"{submission}: {found['RID'].nunique()} people; patient-level rows, keep them where the raw data may lie"
        )
    if truth is not None:
        score = challenge.score(found, challenge.read_truth(truth), partial=of_run)
        sizes = ", ".join(f"{name} {count}" for name, count in score.classes.items())
        out.print(f"mAUC {score.mauc:.4f} (ties counted half: {score.mauc_mid_ranks:.4f}), BCA {score.bca:.4f}")
        out.print(f"{sum(score.classes.values())} visits of {score.people} people: {sizes}")
        out.print(
            f"left out: {score.undiagnosed} visits without a diagnosis, {score.without_forecast} without a forecast"
        )


@app.command()
def flops(
    task: Annotated[str | None, typer.Argument(help="A task's name, or the path of a config.")] = None,
    overrides: Overrides = None,
    raw: Raw = None,
    fusion: Annotated[str | None, typer.Option(help="Heads, separated by commas; default: all.")] = None,
    attention: Annotated[
        str | None, typer.Option(help="Mechanisms for every head that takes one, separated by commas, or all.")
    ] = None,
    modalities: Annotated[str, typer.Option(help="Numbers of modalities, separated by commas.")] = "2,5,10,15,20",
    paper: Annotated[
        bool, typer.Option("--paper", help="Count the published Delta-FLOPs again; needs no task.")
    ] = False,
) -> None:
    """Counts and measures what encoders and heads cost."""
    if paper == (task is not None):
        raise UserError("flops: give a task, such as `ovo-clinic flops simulation`, or --paper and no task")
    if task is None:
        _print_paper_costs()
        return
    from ovo_clinic import costs as counting

    try:
        numbers = [int(number) for number in modalities.split(",")]
    except ValueError:
        raise UserError(f"--modalities: '{modalities}' should be whole numbers such as 2,5,10") from None
    costs = counting.flops(
        task, overrides or (), raw=raw, fusion=_names(fusion), attention=_names(attention), modalities=numbers
    )
    out.print("Encoders: multiply-accumulates (MACs) and elementwise work per sample, parameters, latency")
    _print_table(counting.printable(costs.encoders))
    out.print(
        "Models: MACs and elementwise work per sample with every modality present; parameters, and those that a "
        "gradient reaches; latency and peak memory of a forward pass on one thread"
    )
    _print_table(counting.printable(costs.heads))
    out.print("MACs per sample of the fusion head alone, against the number of modalities")
    wide = costs.against_modalities.pivot(index="head", columns="modalities", values="macs")
    _print_table(counting.printable(wide.reset_index().rename(columns=str)))
    out.print("`*_reference` heads mix the patients of a batch; their cost is that of a batch of 16, divided by 16.")
    for combination, reason in costs.refused.items():
        out.print(f"refused: {combination}: {reason}")
    out.print(f"Tables (csv) and figure macs.png: {costs.folder}")


def _print_paper_costs() -> None:
    from ovo_clinic import costs as counting
    from ovo_clinic.paper_costs import paper_costs

    found = paper_costs()
    out.print("Delta-FLOPs of the One-Versus-Others paper: as printed, and counted from the authors' heads at batch 16")
    _print_table(counting.printable(found.delta))
    out.print("True MACs per sample, counted from correct heads, without an output layer")
    _print_table(counting.printable(found.per_sample))
    out.print(f"Why they differ. {found.explanation}")


def _names(text: str | None) -> list[str] | None:
    return [name.strip() for name in text.split(",") if name.strip()] if text is not None else None


@app.command("list")
def list_(
    kind: Annotated[
        Literal["fusion", "attention", "encoders", "datasets", "configs"], typer.Argument(help="What to list.")
    ],
) -> None:
    """Says what there is, one line each."""
    for name, line in _entries(kind):
        out.print(f"{name:28s} {line}")


def _entries(kind: str) -> Iterator[tuple[str, str]]:
    from ovo_clinic import experiment, registry, resources, spec

    if kind == "datasets":
        for name in resources.names("data_specs"):
            yield name, spec.load(name)[0].title
    elif kind == "configs":
        for name in resources.names("configs"):
            found = experiment.load(name)
            yield name, spec.load(found.dataset, found.folder)[0].task(found.task).title
    else:
        registered = {"fusion": registry.FUSION, "attention": registry.ATTENTION, "encoders": registry.ENCODERS}[kind]
        yield from registered.catalogue().items()


def _prepared(task: str, overrides: list[str] | None, raw: Path | None) -> "Prepared":
    from ovo_clinic import experiment
    from ovo_clinic.prepare import prepare_task

    return prepare_task(experiment.load(task, overrides or ()), raw)


def _print_prepared(prepared: "Prepared") -> None:
    manifest = prepared.manifest
    _print_attrition(prepared)
    sizes = ", ".join(
        f"{name} {manifest['units'][name]} ({manifest['patients'][name]} patients)" for name in manifest["units"]
    )
    if manifest["split"]["whole_patients"]:
        out.print(f"Split by patient: {sizes}")
    else:
        shared = f"{manifest['patients_apart']} of the {manifest['patients']['test']} test patients"
        out.print(f"SPLIT BY UNIT: {sizes}; {shared} also stand in training or validation", style="bold red")
    for name, entry in manifest["modalities"].items():
        present = sum(entry["present"].values()) / prepared.cohort.height
        out.print(f"  {name:14s} {len(entry['columns']):5d} features, present in {100 * present:5.1f} % of units")
    for note, value in ((note, value) for note, value in manifest["notes"].items() if value):
        out.print(f"  note: {note}: {value}")
    out.print(f"Prepared: {prepared.folder}")


def _print_attrition(prepared: "Prepared") -> None:
    manifest = prepared.manifest
    if manifest["leaky"]:
        out.print(f"LEAKY TASK: {manifest['leaky']}", style="bold red")
    out.print(manifest["title"])
    for step in manifest["attrition"]:
        labels = "" if step["positives"] is None else f", {step['positives']} positive"
        labels += "".join(f", {count:,} {name}" for name, count in step.get("classes", {}).items())
        out.print(f"  {step['units']:>9,} units, {step['patients']:>9,} patients{labels}: {step['rule']}")


def _print_study(study: "Study") -> None:
    from ovo_clinic import report

    numbers = report.printable(study.table, study.comparison.prepared.manifest["classes"])
    tests = [str(column) for column in numbers if str(column).startswith("p ")]
    _print_table(numbers.drop(columns=tests))
    if tests:
        _print_table(numbers.loc[(study.table.rows["kind"] == "head").to_numpy(), ["model", *tests]])
    out.print(report.caption(study.comparison, study.table))
    for note in study.table.notes:
        out.print(f"note: {note}", style="yellow")
    out.print(f"\nData: {study.comparison.prepared.folder}")
    out.print(f"Tables (csv, LaTeX) and figures: {study.comparison.folder}")
    for path in study.figures.values():
        out.print(f"  {path.name}")
    _print_mlflow(study.tracking_uri)


def _print_table(frame: "pd.DataFrame") -> None:
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


def _print_mlflow(uri: str) -> None:
    command = f"{Path(sys.executable).with_name('mlflow')} ui --backend-store-uri {uri}"
    server = uri.startswith(("http:", "https:", "databricks"))
    # MLflow's own command line would report its use over the network.
    out.print(f"MLflow: {uri if server else f'MLFLOW_DISABLE_TELEMETRY=true {command}'}", soft_wrap=True)


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
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


def main() -> None:
    """Runs the command line: 0 done, 1 a finding, 2 a user's mistake, 130 interrupted."""
    try:
        # Typer turns Ctrl-C inside a command into this code.
        code = app(standalone_mode=False) or 0
    except UserError as error:
        code = _mistake(str(error))
    except typer.TyperException as error:
        code = _mistake(error.format_message())
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:
        err.print("interrupted; what was finished is kept, and the same command goes on from there")
    sys.exit(code)


def _mistake(message: str) -> int:
    line = " ".join(message.replace("Value error, ", "").split())
    err.print(f"error: {line}", style="red", soft_wrap=True)
    return 2


if __name__ == "__main__":
    main()
