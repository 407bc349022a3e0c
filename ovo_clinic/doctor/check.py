"""One line of what the doctor found."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ovo_clinic.errors import UserError

State = Literal["ok", "note", "wrong"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        state: `ok`; `note` = worth knowing, in the way of nothing; `wrong` = a finding, which ends with what to do.
        subject: what was looked at.
        told: what was found.
    """

    state: State
    subject: str
    told: str


def checked(subject: str, look: Callable[[], str]) -> Check:
    """What `look` tells of a subject, or the user's mistake that it finds."""
    try:
        return Check("ok", subject, look())
    except UserError as error:
        return Check("wrong", subject, str(error))


def in_bytes(size: float) -> str:
    """A size as people read it, in powers of 1024: `3.2 GB`."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:,.1f} GB"
