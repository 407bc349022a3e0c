"""Locks between processes."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ovo_clinic.errors import MachineError


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[bool]:
    """Holds a lock that ends with its process, however that ends; yields whether it was got.

    Raises:
        MachineError: the file system has no locks.
    """
    with path.open("w") as file:
        path.chmod(0o600)
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
