"""A study's folder: what its comparison was made of, so that it can be read again without training."""

import json
import os
from pathlib import Path

from pydantic import TypeAdapter

from ovo_clinic import resources, runs
from ovo_clinic.errors import UserError
from ovo_clinic.prepare import Prepared
from ovo_clinic.study import Arm, Comparison
from ovo_clinic.tuned import Tuned

_RECORD = "study.json"
_ARMS = TypeAdapter(list[Arm])


def write(comparison: Comparison) -> None:
    """Writes `study.json` into the study's folder: its arms, and where data and runs lie as seen from there."""
    folder = comparison.folder
    record = {
        "data": os.path.relpath(comparison.prepared.folder, folder),
        "tuned": None if comparison.tuned is None else comparison.tuned.model_dump(mode="json"),
        "arms": _ARMS.dump_python(comparison.arms, mode="json"),
        "runs": {label: [os.path.relpath(run, folder) for run in own] for label, own in comparison.run_folders.items()},
    }
    path = folder / _RECORD
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    path.chmod(0o600)


def read(folder: Path) -> Comparison:
    """The comparison of a study's folder.

    Raises:
        UserError: no study lies there, it is damaged, or its data or runs were removed.
    """
    path = folder / _RECORD
    if not path.is_file():
        raise UserError(f"{folder} holds no {_RECORD}: name a study's folder, or run `ovo-clinic compare` again")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:  # no JSON, or no text at all
        raise UserError(f"{path}: is damaged, or is none of a study; run `ovo-clinic compare` again") from None
    data = (folder / record["data"]).resolve()
    run_folders = {label: [(folder / run).resolve() for run in own] for label, own in record["runs"].items()}
    needed = [data / "manifest.json", *(run / "predictions.parquet" for own in run_folders.values() for run in own)]
    for file in needed:
        if not file.is_file():
            raise UserError(f"{path}: {file} is gone; run `ovo-clinic compare` again, which makes what is missing")
    return Comparison(
        name=folder.name,
        folder=folder,
        prepared=Prepared.open(data),
        arms=_ARMS.validate_python(record["arms"]),
        results={label: [runs.read_result(run) for run in own] for label, own in run_folders.items()},
        run_folders=run_folders,
        tuned=None if record["tuned"] is None else Tuned.model_validate(record["tuned"]),
    )


def find(name: str | None = None) -> Path:
    """The folder of a study.

    Args:
        name: of a study, or a path; the newest study by default.

    Raises:
        UserError: there is none.
    """
    parent = resources.home() / "studies"
    known = {path.parent.name: path for path in parent.glob(f"*/{_RECORD}")}
    if name is None:
        if not known:
            raise UserError(f"there is no study in {parent}; run `ovo-clinic compare TASK` first")
        return max(known.values(), key=lambda path: path.stat().st_mtime).parent
    if (parent / name).is_dir() and Path(name).name == name:
        return parent / name
    if Path(name).is_dir():
        return Path(name).resolve()
    raise UserError(f"no study '{name}'; known: {', '.join(sorted(known)) or 'none'}")
