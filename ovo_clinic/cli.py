"""The console script `ovo-clinic`: thin commands around `ovo_clinic.verbs` and its neighbours.

Heavy imports stand inside the commands that need them, so that `--help` and the data commands start at once.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ovo_clinic import __version__
from ovo_clinic.cli_values import Words, names, shares, size, words
from ovo_clinic.errors import UserError
from ovo_clinic.terminal import (
    err,
    out,
    print_attrition,
    print_costs,
    print_paper_costs,
    print_predictions,
    print_prepared,
    print_published,
    print_run,
    print_score,
    print_search,
    print_study,
    progress,
)

if TYPE_CHECKING:
    from ovo_clinic.prepared import Prepared

app = typer.Typer(
    name="ovo-clinic",
    help="From raw clinical files to a sound, tracked comparison of multimodal fusion methods.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

INTERRUPTED = 130

Task = Annotated[str, typer.Argument(help="A task's name (see `list configs`), or the path of a config.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings, such as training.learning_rate=1e-4.")
]
Raw = Annotated[
    list[str] | None,
    typer.Option(
        "--raw", metavar="DIR | SOURCE=DIR...", help="Folder of the raw files, or one a download; needed once."
    ),
]
Lists = Annotated[
    list[Path] | None,
    typer.Option("--split-lists", metavar="FILE...", help="A published split: rows of patient, part."),
]
Uri = Annotated[str | None, typer.Option("--tracking-uri", help="MLflow store; default: sqlite under OVO_CLINIC_HOME.")]
Remote = Annotated[bool, typer.Option("--allow-remote-tracking", help="Permit a store on another machine.")]
Workers = Annotated[int | None, typer.Option("--workers", min=1, help="Parallel processes; default: one per core.")]
Cluster = Annotated[
    str | None, typer.Option("--cluster", metavar="ADDRESS | auto", help="Compute the runs on a Ray cluster.")
]
Gpus = Annotated[float | None, typer.Option("--gpus", min=0, help="Of each run on the cluster, such as 0.25.")]


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
    with progress("training") as advance:
        found = verbs.demo(patients=patients, seeds=seeds, workers=workers, on_progress=advance)
    print_attrition(found.study.comparison.prepared)
    print_study(found.study)
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
def prepare(
    task: Task,
    overrides: Overrides = None,
    raw: Raw = None,
    split_lists: Lists = None,
    memory: Annotated[str | None, typer.Option(help="What to keep within, such as 4GB; default: a third.")] = None,
) -> None:
    """Turns raw files into a cached dataset."""
    print_prepared(_prepared(words(overrides, raw, split_lists), task, size(memory)))


@app.command()
def export(
    task: Task,
    folder: Annotated[Path, typer.Option("--out", help="A new folder.")],
    overrides: Overrides = None,
    raw: Raw = None,
    split_lists: Lists = None,
    kind: Annotated[Literal["csv", "parquet"], typer.Option("--format", help="csv.gz or parquet.")] = "csv",
) -> None:
    """Writes cohort and features for other tools.

    Cohort, split, presence and attrition, and per modality the unscaled, named features.
    """
    from ovo_clinic.export import export as write

    for path in write(_prepared(words(overrides, raw, split_lists), task), folder, kind):
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
    split_lists: Lists = None,
    tracking_uri: Uri = None,
    allow_remote_tracking: Remote = False,
) -> None:
    """Trains one model."""
    from ovo_clinic import verbs

    given = words(overrides, raw, split_lists)
    run = verbs.train(
        task, given.overrides, raw=given.raw, tracking_uri=tracking_uri, allow_remote_tracking=allow_remote_tracking
    )
    print_run(run)


@app.command()
def compare(
    task: Task,
    overrides: Overrides = None,
    raw: Raw = None,
    split_lists: Lists = None,
    fusion: Annotated[str | None, typer.Option(help="Heads, separated by commas; default: the config's.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs per head; default: the config's.")] = None,
    unimodal: Annotated[bool | None, typer.Option(help="Also train every modality alone.")] = None,
    baselines: Annotated[
        str | None, typer.Option(help="Classical models beside the heads, such as logistic,gradient_boosting.")
    ] = None,
    missing: Annotated[
        str | None, typer.Option(help="Shares of the test units' modalities to hide in turn, such as 0,0.25,0.5,0.75.")
    ] = None,
    pattern: Annotated[str | None, typer.Option(help="Missing together: random, natural or modality:NAME.")] = None,
    importance: Annotated[bool | None, typer.Option(help="Also measure what each modality is worth.")] = None,
    tuned: Annotated[Path | None, typer.Option(help="Settings by head, a file that `tune` wrote.")] = None,
    folds: Annotated[int | None, typer.Option(min=2, help="Also cross-validate by patient.")] = None,
    beside: Annotated[bool, typer.Option(help="Also under the task's other options, where it names some.")] = True,
    register: Annotated[
        str | None, typer.Option(metavar="NAME", help="Register the best network in MLflow under this name.")
    ] = None,
    published: Annotated[bool, typer.Option("--published", help="Also print the paper's figures beside ours.")] = False,
    workers: Workers = None,
    cluster: Cluster = None,
    gpus: Gpus = None,
    tracking_uri: Uri = None,
    allow_remote_tracking: Remote = False,
) -> None:
    """Compares fusion heads over the same seeds.

    All heads see the same splits; an interrupted comparison goes on where it was.
    """
    from ovo_clinic import verbs

    given = words(overrides, raw, split_lists)
    with progress("training") as advance:
        study = verbs.compare(
            task,
            given.overrides,
            raw=given.raw,
            fusion=names(fusion),
            seeds=seeds,
            unimodal=unimodal,
            baselines=names(baselines),
            tuned=tuned,
            missing=shares(missing),
            pattern=pattern,
            importance=importance,
            folds=folds,
            beside=beside,
            register=register,
            workers=workers,
            cluster=cluster,
            gpus=gpus,
            tracking_uri=tracking_uri,
            allow_remote_tracking=allow_remote_tracking,
            on_progress=advance,
        )
    print_study(study)
    if published:
        print_published(study)


@app.command()
def tune(
    task: Task,
    overrides: Overrides = None,
    raw: Raw = None,
    split_lists: Lists = None,
    fusion: Annotated[str | None, typer.Option(help="Heads, separated by commas; default: the config's.")] = None,
    unimodal: Annotated[bool | None, typer.Option(help="Also for every modality alone.")] = None,
    sampler: Annotated[
        Literal["tpe", "random", "grid"] | None, typer.Option(help="tpe also stops hopeless trials; default: tpe.")
    ] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="For each head; default: the config's.")] = None,
    storage: Annotated[
        str | None, typer.Option(help="Optuna storage, such as postgresql://...; default: sqlite.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--out", help="Also write the settings that were found here.")] = None,
    workers: Workers = None,
    cluster: Cluster = None,
    gpus: Gpus = None,
    tracking_uri: Uri = None,
    allow_remote_tracking: Remote = False,
) -> None:
    """Searches settings for every head on validation only.

    Each head gets the same number of trials; an interrupted search goes on where it was.
    """
    from ovo_clinic import verbs

    given = words(overrides, raw, split_lists)
    with progress("trials") as advance:
        search = verbs.tune(
            task,
            given.overrides,
            raw=given.raw,
            fusion=names(fusion),
            unimodal=unimodal,
            sampler=sampler,
            trials=trials,
            storage=storage,
            out=file,
            workers=workers,
            cluster=cluster,
            gpus=gpus,
            tracking_uri=tracking_uri,
            allow_remote_tracking=allow_remote_tracking,
            on_progress=advance,
        )
    print_search(search)


@app.command()
def predict(
    run: Annotated[str, typer.Argument(help="Folder or id of a run, or an MLflow model (runs:/..., models:/...).")],
    more: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    raw: Annotated[
        list[str] | None,
        typer.Option("--raw", metavar="DIR | SOURCE=DIR...", help="New raw files; labels need not be known."),
    ] = None,
    file: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="A new .csv or .parquet file.")] = None,
    config: Annotated[str | None, typer.Option(help="Config of a private data set, beside its spec.")] = None,
    tracking_uri: Uri = None,
    allow_remote_tracking: Remote = False,
) -> None:
    """Applies a trained model to new raw data."""
    from ovo_clinic import predict as predicting

    given = words(more, raw)
    if given.raw is None or given.overrides:
        raise UserError("predict: needs --raw DIR, the folder of the new raw files; settings are the model's own")
    print_predictions(
        predicting.predict(
            run,
            given.raw,
            file,
            config=config,
            tracking_uri=tracking_uri,
            allow_remote_tracking=allow_remote_tracking,
        )
    )


@app.command()
def ui(
    port: Annotated[int, typer.Option(min=1, max=65535, help="On this machine only.")] = 5000,
    tracking_uri: Uri = None,
) -> None:
    """Opens MLflow on the local store."""
    from ovo_clinic import tracking

    uri = tracking.tracking_uri(tracking_uri, allow_remote=False)
    out.print(f"http://127.0.0.1:{port} shows {tracking.without_credentials(uri)}; Ctrl-C ends it", soft_wrap=True)
    raise typer.Exit(tracking.serve(uri, port))


@app.command()
def report(
    run: Annotated[str | None, typer.Argument(help="A study's name or folder; default: the newest study.")] = None,
) -> None:
    """Writes the report of a study, one HTML file.

    `compare` writes it, too; this one reads the finished runs again.
    """
    from ovo_clinic import verbs

    out.print(str(verbs.write_report(run)), soft_wrap=True)


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
        print_score(score)


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
        print_paper_costs()
        return
    from ovo_clinic import costs as counting

    try:
        numbers = [int(number) for number in modalities.split(",")]
    except ValueError:
        raise UserError(f"--modalities: '{modalities}' should be whole numbers such as 2,5,10") from None
    given = words(overrides, raw)
    costs = counting.flops(
        task, given.overrides, raw=given.raw, fusion=names(fusion), attention=names(attention), modalities=numbers
    )
    print_costs(costs)


@app.command("list")
def list_(
    kind: Annotated[
        Literal["fusion", "attention", "encoders", "baselines", "datasets", "configs"],
        typer.Argument(help="What to list."),
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
        registered = {
            "fusion": registry.FUSION,
            "attention": registry.ATTENTION,
            "encoders": registry.ENCODERS,
            "baselines": registry.BASELINES,
        }
        yield from registered[kind].catalogue().items()


def _prepared(given: Words, task: str, memory: int | None = None) -> "Prepared":
    from ovo_clinic import experiment
    from ovo_clinic.prepare import prepare_task

    return prepare_task(experiment.load(task, given.overrides), given.raw, memory)


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
