"""Commands that train and compare, and what they leave behind."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ovo_clinic.commands.encoder_tables import print_encoders
from ovo_clinic.commands.options import Cluster, Gpus, Lists, Overrides, Raw, Remote, Task, Uri, Workers
from ovo_clinic.commands.values import Words, names, shares, words
from ovo_clinic.terminal import (
    out,
    print_attrition,
    print_published,
    print_run,
    print_search,
    print_study,
    progress,
)

commands = typer.Typer()


@commands.command()
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
    if not found.gains:
        out.print("  The test units are too few to measure the heads against the oracle; take more --patients")


def _checked(task: str, given: Words) -> Words:
    """The words, after a look at the settings and the data: a mistake should not take ten seconds to be told."""
    from ovo_clinic import experiment, prepare

    request = experiment.load(task, given.overrides).data_request()
    if given.raw is None:
        prepare.find(request)
    return given


@commands.command()
def train(
    task: Task,
    overrides: Overrides = None,
    raw: Raw = None,
    split_lists: Lists = None,
    tracking_uri: Uri = None,
    allow_remote_tracking: Remote = False,
) -> None:
    """Trains one model."""
    given = _checked(task, words(overrides, raw, split_lists))
    from ovo_clinic import verbs  # loads torch and Lightning

    run = verbs.train(
        task, given.overrides, raw=given.raw, tracking_uri=tracking_uri, allow_remote_tracking=allow_remote_tracking
    )
    print_run(run)


@commands.command()
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
    given = _checked(task, words(overrides, raw, split_lists))
    from ovo_clinic import verbs  # loads torch and Lightning

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
    print_encoders(study)
    if published:
        print_published(study)


@commands.command()
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
    given = _checked(task, words(overrides, raw, split_lists))
    from ovo_clinic import verbs  # loads torch and Lightning

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


@commands.command()
def report(
    run: Annotated[str | None, typer.Argument(help="A study's name or folder; default: the newest study.")] = None,
) -> None:
    """Writes the report of a study, one HTML file.

    `compare` writes it, too; this one reads the finished runs again.
    """
    from ovo_clinic import verbs

    out.print(str(verbs.write_report(run)), soft_wrap=True)


@commands.command()
def ui(
    port: Annotated[int, typer.Option(min=1, max=65535, help="On this machine only.")] = 5000,
    tracking_uri: Uri = None,
    allow_remote_tracking: Remote = False,
) -> None:
    """Opens MLflow on the local store."""
    from ovo_clinic import tracking

    uri = tracking.database_uri(tracking_uri, allow_remote_tracking)
    out.print(f"http://127.0.0.1:{port} shows {tracking.without_credentials(uri)}; Ctrl-C ends it", soft_wrap=True)
    raise typer.Exit(tracking.serve(uri, port))
