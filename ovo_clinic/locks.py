"""Locks between processes."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ovo_clinic.errors import MachineError


@contextmanager
def locked(path: Path, wait: bool = True, mode: int = 0o600) -> Iterator[bool]:
    """Holds a lock that ends with its process, however that ends; yields whether it was got.

    Args:
        path: of the lock's file, made where it is not there.
        wait: for whoever holds it.
        mode: of the file where it is ours; a colleague's is left as it is.

    Raises:
        MachineError: the file system has no locks.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, mode), "w") as file:
        if os.fstat(file.fileno()).st_uid == os.geteuid():
            os.fchmod(file.fileno(), mode)  # whatever the umask took away
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        except OSError as error:
            raise MachineError(
                f"OVO_CLINIC_HOME: the file system of {path.parent} has no locks ({error.strerror}); set it to another"
            ) from None
        yield True
