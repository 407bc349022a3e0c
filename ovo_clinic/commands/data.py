"""Commands on data: synthetic folders, prepared data sets, tables for other tools."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ovo_clinic.commands.options import Lists, Overrides, Raw, Task
from ovo_clinic.commands.values import Words, size, words
from ovo_clinic.terminal import out, print_prepared

if TYPE_CHECKING:
    from ovo_clinic.prepared import Prepared

commands = typer.Typer()


@commands.command()
def synth(
    dataset: Annotated[str, typer.Argument(help="Which data set's raw folder to imitate.")],
    folder: Annotated[Path, typer.Option("--out", help="A new folder.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Options of its own, such as version=3.1.")
    ] = None,
    patients: Annotated[int | None, typer.Option(min=1, help="People.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed writes the same bytes.")] = 0,
) -> None:
    """Writes a synthetic raw folder with a planted signal.

    File names, headers, codings and quirks are those of the real data set.
    """
    from ovo_clinic.experiment import setting
    from ovo_clinic.registry import SYNTHETIC

    options: dict[str, int | str] = {"seed": seed}
    if patients is not None:
        options["patients"] = patients
    # As text: a version such as 3.1 is no number, and what should be one is read as such.
    options |= {setting(word)[0]: word.partition("=")[2] for word in settings or ()}
    SYNTHETIC.build(dataset, folder, options=options)
    for path in sorted(folder.iterdir()):
        files = [found for found in (path, *path.rglob("*")) if found.is_file()]
        out.print(f"{path}  {sum(found.stat().st_size for found in files):,} bytes", soft_wrap=True)


@commands.command()
def prepare(
    task: Task,
    overrides: Overrides = None,
    raw: Raw = None,
    split_lists: Lists = None,
    memory: Annotated[str | None, typer.Option(help="What to keep within, such as 4GB; default: a third.")] = None,
) -> None:
    """Turns raw files into a cached dataset."""
    print_prepared(_prepared(words(overrides, raw, split_lists), task, size(memory), beside=True))


@commands.command()
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


@commands.command("new-dataset")
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


def _prepared(given: Words, task: str, memory: int | None = None, beside: bool = False) -> "Prepared":
    """The prepared data, and on demand those that `compare` shows beside them."""
    from ovo_clinic import experiment
    from ovo_clinic.prepare import prepare_task

    wanted = experiment.load(task, given.overrides)
    found = prepare_task(wanted, given.raw, memory)
    other = wanted.beside() if beside else None
    if other is not None:
        prepare_task(other, given.raw, memory)
    return found
