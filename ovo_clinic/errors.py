"""What a user's mistake is called, so that the command line can tell it from a fault of the program."""

import errno
import os
import re

_FULL = "free some space, or choose another disk"
_FORBIDDEN = "check who may read and write it"
_BROKEN = "see to the disk, or choose another one"
_ADVICE = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.EROFS: _FORBIDDEN,
    errno.EIO: _BROKEN,
    errno.ESTALE: _BROKEN,
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "mend the symbolic links",
}
"""What to do about errors of the system that no program can prevent."""


class UserError(ValueError):
    """A mistake of the user: the message is one line that says what is wrong, where, and what to do.

    The command line prints the message and exits with code 2; anything else is a fault of the program and keeps its
    traceback.

    Args:
        message: what it quotes of the user's may hold line breaks, which become blanks.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))


class MachineError(UserError):
    """A mistake that lies in the machine: the same settings may do on another one."""


def of_the_machine(error: BaseException) -> str | None:
    """One line on an error that the machine is to blame for: a full disk, a forbidden folder, too little memory.

    Libraries wrap such errors, and some only quote them (`os error 28`), so that causes and texts are looked at too.

    Returns:
        None where the program may be to blame.
    """
    found: BaseException | None = error
    while found is not None:
        text = " ".join(str(found).split())
        if isinstance(found, MemoryError) or re.search("can't allocate memory|out of memory", text):  # torch
            return f"not enough memory ({text[:200] or 'nothing left'}); use smaller settings or a larger machine"
        if re.search(r"database or disk is full|^\d+ requested and \d+ written$", text):  # sqlite, numpy
            return f"{os.strerror(errno.ENOSPC)}; {_FULL}"
        quoted = re.search(r"\(os error (\d+)\)", text)
        number = int(quoted[1]) if quoted else getattr(found, "errno", None)
        if number in _ADVICE:
            return f"{_place(found)}{os.strerror(number)}; {_ADVICE[number]}"
        found = found.__cause__ or found.__context__
    return None


def _place(error: BaseException) -> str:
    name = getattr(error, "filename", None)
    return "" if name is None else f"{os.fsdecode(name) if isinstance(name, str | bytes) else name}: "
