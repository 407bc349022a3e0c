"""Keeps what an encoder makes of a modality beside the prepared data set: token ids, embeddings of a frozen model."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ovo_clinic import provenance
from ovo_clinic.arrays import ModalityArray
from ovo_clinic.locks import locked
from ovo_clinic.prepared import Prepared

_NAME = "array"
_BLOCK = 1 << 20


def cached(
    prepared: Prepared, modality: str, identity: Mapping[str, Any], make: Callable[[], ModalityArray]
) -> ModalityArray:
    """The array that `make` gives, made once for a prepared data set and memory-mapped from then on.

    Another version of this package or of a library makes it anew: like a run's, its numbers may then be others.

    Args:
        prepared: the data set.
        modality: what the array is made of.
        identity: all that decides it beside the data: options, `files_digest` of a checkpoint.
        make: makes it.
    """
    parent = prepared.folder / "derived"
    made_by = {"code": provenance.code_digest(), "versions": provenance.versions()}
    folder = parent / provenance.digest_of({"modality": modality, **identity, **made_by})[:32]
    described = folder / "array.json"
    if not described.is_file():
        parent.mkdir(mode=0o700, exist_ok=True)
        with locked(folder.with_suffix(".lock")):
            if not described.is_file():
                _write(make(), folder)
    return ModalityArray.read(folder, _NAME, json.loads(described.read_text(encoding="utf-8")))


def _write(array: ModalityArray, folder: Path) -> None:
    working = folder.with_suffix(".partial")
    shutil.rmtree(working, ignore_errors=True)
    working.mkdir(mode=0o700)
    array.write(working, _NAME)
    (working / "array.json").write_text(json.dumps(array.describe()) + "\n", encoding="utf-8")
    for path in working.iterdir():
        path.chmod(0o600)
    os.replace(working, folder)


def files_digest(path: Path) -> str:
    """sha256 over a file, or over the names and contents of all files of a folder, such as a checkpoint."""
    files = sorted(found for found in path.rglob("*") if found.is_file()) if path.is_dir() else [path]
    return _digest(path, tuple((file, file.stat().st_size, file.stat().st_mtime_ns) for file in files))


@lru_cache(maxsize=64)
def _digest(path: Path, files: tuple[tuple[Path, int, int], ...]) -> str:
    """The digest of files as they were when they had these sizes and times: a study asks for it with every run."""
    digest = hashlib.sha256()
    for file, _, _ in files:
        digest.update(file.relative_to(path).as_posix().encode() if file != path else b"")
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()
