"""The command that looks for leaks."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from ovo_clinic.commands.options import Lists, Overrides, Raw, Task
from ovo_clinic.commands.values import words
from ovo_clinic.terminal import out

if TYPE_CHECKING:
    from ovo_clinic.audit import Finding, Report

commands = typer.Typer()

FOUND = 1
"""Exit code where something is found that the task does not declare."""


@commands.command()
def audit(
    task: Task,
    overrides: Overrides = None,
    raw: Raw = None,
    split_lists: Lists = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, for machines.")] = False,
) -> None:
    """Looks for leaks in prepared data and trained runs.

    Exit code 1 where something is found that the task does not declare.
    """
    from ovo_clinic.audit import audit as look_for_leaks

    given = words(overrides, raw, split_lists)
    report = look_for_leaks(task, given.overrides, raw=given.raw)
    if as_json:
        typer.echo(json.dumps(report.to_dict(), indent=1))
    else:
        _print(report)
    if report.undeclared:
        raise typer.Exit(FOUND)


def _print(report: "Report") -> None:
    for finding in report.findings:
        _print_finding(finding)
    for gap in report.unchecked:
        out.print(f"not checked ({gap.check}): {gap.where}: {gap.reason}", soft_wrap=True)
    declared = len(report.findings) - len(report.undeclared)
    out.print(
        f"{report.task}: {len(report.undeclared) or 'no'} finding(s), {declared} declared; {len(report.checks)} checks "
        f"of {report.units:,} units and {report.runs} trained run(s)"
    )


def _print_finding(finding: "Finding") -> None:
    if finding.declared is None:
        out.print(f"FINDING ({finding.check}) in {finding.where}: {finding.what}", style="bold red", soft_wrap=True)
    else:
        out.print(f"DECLARED ({finding.check}) in {finding.where}: {finding.what}", soft_wrap=True)
        out.print(f"  the task's reason: {finding.declared}", soft_wrap=True)
    out.print(f"  why it matters: {finding.why}", soft_wrap=True)
    out.print(f"  what to do: {finding.mend}", soft_wrap=True)
