"""Finds, and removes, the files under OVO_CLINIC_HOME that hold rows of patients.

What stays speaks of nobody alone: settings, weights, scaling, metrics, tables and figures of studies, MLflow. What a
folder of a finished run lacks then, `compare` and `train` make again from the raw files.
"""

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ovo_clinic import resources
from ovo_clinic.checksums import SUMS
from ovo_clinic.locks import locked
from ovo_clinic.predict import LOCK

AGGREGATES = ("studies", "tuning", "trials", "costs", "mlflow_artifacts")
"""Folders whose files hold no rows of patients."""

_KEY = 32  # characters of a prepared data set's key; see prepare
_ROWS = (
    *(".parquet", ".feather", ".arrow", ".npy", ".npz"),
    *(".csv", ".tsv", ".txt", ".jsonl", ".xls", ".xlsx", ".sas7bdat", ".dta"),
    *(".dcm", ".jpg", ".jpeg", ".png"),
)
_AROUND = re.compile(r"(\.(gz|bz2|xz|zst))?((\.\d+)?\.partial)?$")  # compressed; left by a command that was killed
_NO_ROWS = ("vocab.txt", "merges.txt", SUMS.lower())  # of checkpoints, and beside downloads
_OF_RUNS = "runs"


@dataclass(frozen=True)
class Holding:
    """A file or folder with rows of patients.

    Attributes:
        kind: what it is.
        path: where it lies.
        files: how many.
        size: of them, in bytes.
        lock: which a process at work on it holds.
    """

    kind: str
    path: Path
    files: int
    size: int
    lock: Path | None = None


def holdings() -> list[Holding]:
    """All files and folders with rows of patients under OVO_CLINIC_HOME."""
    home = resources.home()
    found = [
        *_prepared(home),
        *(_holding("predictions of a run", path, path.with_name("lock")) for path in _files(home, _OF_RUNS)),
        *(_holding("heat maps of single units", path) for path in sorted((home / _OF_RUNS).glob("*/heat_maps"))),
        *(_holding("predictions on new data", path) for path in sorted((home / "predictions").glob("*"))),
        *(_holding("left by a predict that was killed", path, path / LOCK) for path in sorted(home.glob("predict-*"))),
        *(_holding("synthetic raw files", path) for path in sorted((home / "demo").glob("*"))),
    ]
    known = [item.path for item in found]
    skipped = [home / name for name in AGGREGATES]
    for path in sorted(home.rglob("*")):
        covered = any(path.is_relative_to(other) for other in (*known, *skipped))
        if path.is_file() and _may_hold_rows(path.name.lower()) and not covered and not _is_table_of_run(path, home):
            found.append(_holding("table put there by hand (an export, raw files)", path))
    return found


def remove(found: Sequence[Holding]) -> list[Holding]:
    """Removes files and folders for good; returns those that are in use, and were left."""
    left = []
    for item in found:
        if item.lock is None or not item.lock.is_file():
            _remove(item.path)
            continue
        with locked(item.lock, wait=False) as free:
            if free:
                _remove(item.path)
            else:
                left.append(item)
    return left


def _files(home: Path, folder: str) -> list[Path]:
    return sorted((home / folder).glob("*/predictions.parquet"))


def _may_hold_rows(name: str) -> bool:
    """Whether a file of this name, in small letters, is of a kind that holds rows, notes or images."""
    return _AROUND.sub("", name, count=1).endswith(_ROWS) and name not in _NO_ROWS


def _is_table_of_run(path: Path, home: Path) -> bool:
    """Whether a file is one of the tables of metrics of a run."""
    return path.parent.parent == home / _OF_RUNS and path.suffix == ".csv"


def _prepared(home: Path) -> Iterator[Holding]:
    for folder in sorted(path for path in (home / "cache").glob("*/*") if path.is_dir()):
        unfinished = folder.suffix == ".partial"
        lock = folder.with_name(f"{folder.name[:_KEY]}.lock")
        yield _holding("unfinished preparation" if unfinished else "prepared data set", folder, lock)


def _holding(kind: str, path: Path, lock: Path | None = None) -> Holding:
    sizes = [file.stat().st_size for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()]
    return Holding(kind, path, len(sizes), sum(sizes), lock)


def _remove(path: Path) -> None:
    """Removes a file, or a folder and what points to it as prepared last; its manifest goes first.

    A folder without its manifest counts as not there, however far its removal came.
    """
    if not path.is_dir() or path.is_symlink():
        path.unlink()
        return
    (path / "manifest.json").unlink(missing_ok=True)
    shutil.rmtree(path)
    for pointer in path.parent.glob("*.latest"):
        if pointer.read_text(encoding="utf-8").strip() == path.name:
            pointer.unlink()
