"""What a number came from: versions, the source of this package, the commit it was checked out at."""

import hashlib
import json
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

_LIBRARIES = ("torch", "lightning", "transformers", "numpy", "polars", "scikit-learn", "scipy", "mlflow")


def digest_of(value: Any) -> str:
    """sha256 of plain values, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that decide numbers."""
    found = {name: metadata.version(name) for name in ("ovo-clinic", *_LIBRARIES)}
    return {"python": platform.python_version(), **found}


@cache
def code_digest() -> str:
    """sha256 over every Python file of this package."""
    folder = Path(__file__).resolve().parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def git_commit() -> str | None:
    """Commit of the checkout that the package runs from, `+changes` where files differ; None for an installed one."""
    folder = Path(__file__).resolve().parent.parent
    if not (folder / ".git").exists():
        return None
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        return f"{commit}+changes" if _git(folder, "status", "--porcelain", "--untracked-files=no") else commit
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=10
    ).stdout.strip()
