"""The console script `ovo-clinic`: the commands of `ovo_clinic.commands`, and what a mistake in them comes to."""

import sys
from typing import Annotated

import typer

from ovo_clinic import __version__
from ovo_clinic.commands import audit, data, heat_maps, keeping, models, pretraining, studies
from ovo_clinic.errors import UserError, of_the_machine
from ovo_clinic.terminal import err, out

app = typer.Typer(
    name="ovo-clinic",
    help="From raw clinical files to a sound, tracked comparison of multimodal fusion methods.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for module in (data, studies, models, pretraining, keeping, audit, heat_maps):
    app.add_typer(module.commands)

INTERRUPTED = 130


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
    except Exception as error:
        if (line := of_the_machine(error)) is None:
            raise
        code = _mistake(line)
    if code == INTERRUPTED:
        err.print("interrupted; what was finished is kept, and the same command goes on from there")
    sys.exit(code)


def _mistake(message: str) -> int:
    line = " ".join(message.replace("Value error, ", "").split())
    err.print(f"error: {line}", style="red", soft_wrap=True)
    return 2


if __name__ == "__main__":
    main()
