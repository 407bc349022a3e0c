"""Commands around the work: what is needed before it, open data to try it on, and what to remove after it."""

from pathlib import Path
from typing import Annotated

import typer

from ovo_clinic.commands.options import Overrides, Raw, Task
from ovo_clinic.commands.values import words
from ovo_clinic.terminal import out, progress

commands = typer.Typer()

_MARKS = {"ok": ("ok   ", ""), "note": ("note ", "yellow"), "wrong": ("WRONG", "red")}


@commands.command()
def doctor(
    task: Task,
    overrides: Overrides = None,
    raw: Raw = None,
    full: Annotated[
        bool, typer.Option("--full", help="Read large files to their end: rows, checksums. Takes minutes.")
    ] = False,
) -> None:
    """Looks at raw files and machine before hours are spent.

    Files, columns, whole archives, release, disk, memory, permissions, GPU, checkpoints. Exit code 1 on a finding.
    """
    from ovo_clinic.doctor import examine

    given = words(overrides, raw)
    with progress("reading") as advance:
        checks = examine(task, given.overrides, raw=given.raw, full=full, on_progress=advance)
    for check in checks:
        mark, style = _MARKS[check.state]
        out.print(f"{mark}  {check.subject}: {check.told}", style=style or None, soft_wrap=True)
    wrong = sum(check.state == "wrong" for check in checks)
    out.print(f"{wrong} of {len(checks)} are not as they should be" if wrong else "Nothing stands in the way.")
    raise typer.Exit(int(wrong > 0))


@commands.command()
def fetch(
    name: Annotated[str, typer.Argument(help="mimic-iv-demo or eicu-demo.")],
    folder: Annotated[Path, typer.Option("--out", help="Where the files go; an unfinished download goes on.")],
    address: Annotated[str | None, typer.Option("--from", help="A mirror of the publisher's folder.")] = None,
) -> None:
    """Downloads open demo data from their publisher.

    The only command that uses the network. Every file is checked against the publisher's checksums.
    """
    from ovo_clinic import fetch as fetching

    found = fetching.publication(name)
    out.print(f"{found.title}; {found.licence}", soft_wrap=True)
    out.print(f"Downloading from {address or found.address} into {folder}", soft_wrap=True)
    with progress("files") as advance:
        fetched = fetching.fetch(name, folder, address=address, on_progress=advance)
    size = sum(path.stat().st_size for path in fetched.files)
    out.print(
        f"{len(fetched.files)} files, {size:,} bytes, {len(fetched.downloaded)} of them downloaded now; "
        "all as their publisher lists them (sha256)"
    )


@commands.command()
def scrub(
    yes: Annotated[bool, typer.Option("--yes", help="Remove what is listed.")] = False,
) -> None:
    """Lists or removes files with rows of patients.

    Of all that lies under OVO_CLINIC_HOME; metrics, weights, studies and MLflow stay.
    """
    from ovo_clinic import resources, scrub

    home, found = resources.home(), scrub.holdings()
    for item in found:
        where = item.path.relative_to(home)
        out.print(f"{item.size:>15,} bytes  {item.files:>5,} files  {item.kind}: {where}", soft_wrap=True)
    if not found:
        out.print(f"{home} holds no rows of patients")
        return
    if not yes:
        out.print(f"Nothing was removed from {home}; --yes removes what is listed", soft_wrap=True)
        return
    left = scrub.remove(found)
    out.print(f"Removed {len(found) - len(left)} of {len(found)} from {home}", soft_wrap=True)
    for item in left:
        out.print(f"left, as a process is at work on it: {item.path.relative_to(home)}", soft_wrap=True)
