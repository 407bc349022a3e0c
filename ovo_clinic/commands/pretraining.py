"""The command that pretrains encoders."""

from pathlib import Path
from typing import Annotated

import typer

from ovo_clinic.commands.options import Overrides, Raw, Remote, Uri
from ovo_clinic.commands.values import words
from ovo_clinic.errors import UserError
from ovo_clinic.terminal import out, print_mlflow, progress

commands = typer.Typer()

_PREFIX = "pretraining."


@commands.command("pretrain-text")
def pretrain_text(
    folder: Annotated[Path, typer.Option("--out", help="A new folder for the checkpoint.")],
    task: Annotated[
        str | None, typer.Argument(help="A task, or the path of a config: its training units' texts are taken.")
    ] = None,
    overrides: Overrides = None,
    texts: Annotated[
        Path | None, typer.Option("--texts", help="Instead of a task: a folder of .txt, .csv, .csv.gz, .parquet files.")
    ] = None,
    column: Annotated[str, typer.Option(help="Of the tables in that folder.")] = "text",
    modality: Annotated[str | None, typer.Option(help="Of the task, where it has several of texts.")] = None,
    precondition: Annotated[
        bool, typer.Option("--precondition", help="Short for pretraining.attention=preconditioned.")
    ] = False,
    raw: Raw = None,
    tracking_uri: Uri = None,
    allow_remote_tracking: Remote = False,
) -> None:
    """Pretrains a small BERT on local texts.

    Masked language modelling. Settings are words such as pretraining.epochs=20; a killed training goes on where it was.
    """
    from ovo_clinic import experiment, verbs
    from ovo_clinic.verbs.pretraining import Source

    named = None if task is None or "=" in task else task
    given = words([word for word in (task, *(overrides or [])) if word is not None and word != named], raw)
    about_task = [word for word in given.overrides if not word.startswith(_PREFIX)]
    if named is None and (about_task or given.raw):
        raise UserError(f"pretrain-text: {[*about_task, '--raw'][0]} is of a task, and none is named")
    about_bert = [word.removeprefix(_PREFIX) for word in given.overrides if word.startswith(_PREFIX)]
    settings = dict(map(experiment.setting, about_bert))
    if precondition:
        settings = {"attention": "preconditioned", **settings}
        if (other := settings["attention"]) != "preconditioned":
            raise UserError(f"pretrain-text: --precondition and {_PREFIX}attention={other}: leave out one")
    with progress("pretraining") as advance:
        found = verbs.pretrain_text(
            Source(named, about_task, given.raw, modality, texts, column),
            folder,
            settings,
            tracking_uri=tracking_uri,
            allow_remote_tracking=allow_remote_tracking,
            on_progress=advance,
        )
    counts, metrics = found.record["texts"], found.record["metrics"]
    out.print(
        f"{counts['training_texts']:,} texts, {counts['training_tokens']:,} tokens of {found.record['vocabulary']:,}; "
        f"held out: {counts['held_out_texts']:,} texts, loss {metrics['held_out_loss']:.3f}, perplexity "
        f"{metrics['held_out_perplexity']:.1f}, {100 * metrics['held_out_accuracy']:.1f} % of masked tokens told right "
        f"(epoch {found.record['best_epoch'] + 1} of {len(found.record['history'])}, {found.record['seconds']:.0f} s)",
        soft_wrap=True,
    )
    out.print(f"model.encoders.TEXT='{{name: text, checkpoint: {found.folder}}}' takes it", soft_wrap=True)
    out.print("Weights and vocabulary may tell of the texts: keep them where the texts may lie.")
    print_mlflow(found.tracking_uri)
