"""Commands on models: what there is, what it costs, and trained ones on new data."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer

from ovo_clinic.commands.options import Overrides, Raw, Remote, Uri
from ovo_clinic.commands.values import named_files, names, words
from ovo_clinic.errors import UserError
from ovo_clinic.terminal import out, print_costs, print_paper_costs, print_predictions, print_score

commands = typer.Typer()


@commands.command("list")
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


@commands.command()
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
        if raw or fusion or attention:
            raise UserError("flops: --paper counts the published heads; leave out --raw, --fusion and --attention")
        print_paper_costs()
        return
    from ovo_clinic import costs as counting

    try:
        numbers = [int(number) for number in modalities.split(",")]
    except ValueError:
        numbers = []
    if min(numbers, default=0) < 1:
        raise UserError(f"--modalities: '{modalities}' should be whole numbers such as 2,5,10")
    given = words(overrides, raw)
    costs = counting.flops(
        task, given.overrides, raw=given.raw, fusion=names(fusion), attention=names(attention), modalities=numbers
    )
    print_costs(costs)


@commands.command()
def predict(
    run: Annotated[str, typer.Argument(help="Folder or id of a run, or an MLflow model (runs:/..., models:/...).")],
    more: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    raw: Annotated[
        list[str] | None,
        typer.Option("--raw", metavar="DIR | SOURCE=DIR...", help="New raw files; labels need not be known."),
    ] = None,
    file: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="A new .csv or .parquet file.")] = None,
    config: Annotated[str | None, typer.Option(help="Config of a private data set, beside its spec.")] = None,
    embeddings: Annotated[
        list[str] | None,
        typer.Option("--embeddings", metavar="MODALITY=FILE", help="Of the new units, where the model reads some."),
    ] = None,
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
            embeddings=named_files(embeddings, "--embeddings"),
            tracking_uri=tracking_uri,
            allow_remote_tracking=allow_remote_tracking,
        )
    )


@commands.command("evaluate-challenge")
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
