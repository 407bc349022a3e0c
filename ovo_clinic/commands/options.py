"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

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
