"""The folder that a synthetic data set is written to: there when complete, or not at all."""

import gzip
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from ovo_clinic.errors import UserError


@contextmanager
def appearing(out: Path) -> Iterator[Path]:
    """A temporary folder beside `out` that takes its place when complete, or is removed.

    Raises:
        UserError: `out` is not a new or empty folder, or cannot be made.
    """
    out = out.expanduser().resolve()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"out: {out} is not a new or empty folder; give another one, or remove it")
    folder = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
    except OSError as error:
        raise UserError(f"out: {folder} cannot be made ({error.strerror}); give another folder") from None
    try:
        yield folder
        folder.replace(out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def gzipped(path: Path) -> Iterator[IO[bytes]]:
    """A gzip file without name and time in its header, so that equal content gives equal bytes."""
    with path.open("wb") as raw, gzip.GzipFile("", "wb", compresslevel=1, fileobj=raw, mtime=0) as packed:
        yield cast(IO[bytes], packed)
