"""What the audit says: findings, and what it could not look at. Counts and names only, never a row or an id."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """A leak, or what looks like one.

    Attributes:
        what: is wrong.
        where: modality, columns or part.
        count: how many units, patients, columns or runs it concerns, as `what` says.
        why: it matters.
        mend: what to do about it.
        declared: the task's own reason why this is so on purpose; None = not declared.
        check: name of the check, filled in by `audit`.
    """

    what: str
    where: str
    count: int
    why: str
    mend: str
    declared: str | None = None
    check: str = ""


@dataclass(frozen=True)
class Unchecked:
    """Something that a check could not look at.

    Attributes:
        where: modality or run.
        reason: why not.
        check: as in `Finding`.
    """

    where: str
    reason: str
    check: str = ""


Remarks = Iterator[Finding | Unchecked]
"""What a check yields."""


@dataclass(frozen=True)
class Report:
    """The audit of one prepared data set.

    Attributes:
        task: its name.
        units: of the cohort.
        runs: trained runs that were looked at too.
        checks: names of the checks, in order.
        findings: declared ones among them.
        unchecked: what could not be looked at.
    """

    task: str
    units: int
    runs: int
    checks: list[str]
    findings: list[Finding]
    unchecked: list[Unchecked]

    @property
    def undeclared(self) -> list[Finding]:
        """The findings that no task's reason covers."""
        return [finding for finding in self.findings if finding.declared is None]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"undeclared": len(self.undeclared)}


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names in one line of bounded length."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
