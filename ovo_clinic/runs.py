"""A training run as a folder: its name, whether it is finished, and what came of it."""

import json
from pathlib import Path
from typing import Any

from ovo_clinic import provenance, resources
from ovo_clinic.experiment import Experiment
from ovo_clinic.prepare import Prepared

Result = dict[str, Any]
"""Content of `result.json`: settings, history, metrics, costs, digests, versions."""

_RESULT = "result.json"


def run_folder(experiment: Experiment, prepared: Prepared) -> Path:
    """Folder of a run, named after its settings, its data and the code, so that no finished run is repeated."""
    key = provenance.digest_of([experiment.digest(), prepared.manifest["key"], provenance.code_digest()])
    return resources.home() / "runs" / key[:32]


def is_finished(folder: Path) -> bool:
    """Whether the run has its result."""
    return (folder / _RESULT).is_file()


def read_result(folder: Path) -> Result:
    """The result of a finished run."""
    content: Result = json.loads((folder / _RESULT).read_text(encoding="utf-8"))
    return content


def write_result(folder: Path, result: Result) -> None:
    """Marks a run as finished, in one step: comes last, when all its other files are complete."""
    temporary = folder / f"{_RESULT}.partial"
    temporary.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    temporary.chmod(0o600)
    temporary.replace(folder / _RESULT)
