"""The command that pictures what an image encoder looks at in single units."""

from typing import Annotated

import typer

from ovo_clinic.terminal import out

commands = typer.Typer()


@commands.command("heat-maps")
def heat_maps(
    study: Annotated[str | None, typer.Argument(help="A study's name or folder; default: the newest study.")] = None,
    model: Annotated[str | None, typer.Option(help="As its row is labelled; default: the first one.")] = None,
    units: Annotated[int, typer.Option(min=1, help="Test units, the first ones that have an image.")] = 8,
) -> None:
    """Pictures what image encoders look at, unit by unit.

    They are patient-level and stay in the run's folder, readable by you only; `compare` with compare.heat_maps=true
    shows means over the test units.
    """
    from ovo_clinic import verbs

    written = verbs.heat_maps(study, model=model, units=units)
    out.print(f"{len(written)} pictures in {written[0].parent}: patient-level, keep them there", soft_wrap=True)
