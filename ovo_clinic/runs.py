"""A training run as a folder: its name, whether it is finished, and what came of it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ovo_clinic import derived, provenance, resources
from ovo_clinic.errors import UserError
from ovo_clinic.experiment import Experiment
from ovo_clinic.prepare import Prepared
from ovo_clinic.registry import ENCODERS

Result = dict[str, Any]
"""Content of `result.json`: settings, history, metrics, costs, digests, versions."""

_RESULT, _PREDICTIONS = "result.json", "predictions.parquet"
_TASK_FIELDS = ("dataset", "task", "title", "kind", "target", "classes", "groups", "leaky", "options", "split")


def lower_is_better(metric: str) -> bool:
    """Whether a metric measures what is wrong with a model."""
    return metric.endswith(("loss", "brier"))


def run_folder(experiment: Experiment, prepared: Prepared) -> Path:
    """Folder of a run, named after its settings, its data and the code, so that no finished run is repeated."""
    return folder_of(experiment.resolved(), prepared)


def folder_of(config: Mapping[str, Any], prepared: Prepared) -> Path:
    """Folder of the run with these resolved settings, see `run_folder`."""
    parts = [provenance.digest_of(config), prepared.manifest["key"], provenance.code_digest()]
    # Other files at the same place make another run.
    key = provenance.digest_of([*parts, *_digests(_files(config)).values()])
    return resources.state("runs") / key[:32]


def _files(config: Mapping[str, Any], of_rows: bool = True) -> dict[str, Path]:
    """Key of a setting -> the file or folder that an encoder reads, such as a checkpoint; rows of units on demand."""
    encoders = config.get("model", {}).get("encoders", {})
    return {
        f"model.encoders.{name}.{option}": resources.expanded(choice[option], f"model.encoders.{name}.{option}")
        for name, choice in sorted(encoders.items())
        for option in getattr(ENCODERS.get(choice["name"]), "files", ())
        if choice.get(option) and (of_rows or not getattr(ENCODERS.get(choice["name"]), "of_rows", False))
    }


def _digests(files: Mapping[str, Path]) -> dict[str, str]:
    return {key: derived.files_digest(path) for key, path in files.items() if path.exists()}


def check_checkpoints(folder: Path) -> None:
    """Looks whether the checkpoints that a finished run reads are still those of its training.

    One inside the folder came with it and is taken as it is.

    Raises:
        UserError: another one lies in the place of one of them.
    """
    result = read_result(folder)
    outside = {key: path for key, path in _files(result["config"], of_rows=False).items() if not _inside(path, folder)}
    for key, digest in _digests(outside).items():
        if digest != result.get("files", {}).get(key):
            raise UserError(
                f"{key}: {outside[key]} is not what it was when the model was trained; put that checkpoint back, or "
                "train again"
            )


def _inside(path: Path, folder: Path) -> bool:
    return not path.is_absolute() and (folder / path).exists()


def described(config: Mapping[str, Any], prepared: Prepared) -> Result:
    """What a result says of the settings, the data and the code it came from.

    Args:
        config: resolved settings, with the seed.
        prepared: the data.
    """
    return {
        "config": config,
        "task": {key: prepared.manifest[key] for key in _TASK_FIELDS},
        "seed": config["seed"],
        "digests": {
            "config": provenance.digest_of(config),
            "data": prepared.manifest["key"],
            **prepared.manifest["digests"],
            "code": provenance.code_digest(),
        },
        "files": _digests(_files(config)),
        "versions": provenance.versions(),
        "git_commit": provenance.git_commit(),
    }


def is_finished(folder: Path) -> bool:
    """Whether the run has its result."""
    return (folder / _RESULT).is_file()


def is_evaluated(folder: Path) -> bool:
    """Whether the run has its result and its predictions, which `scrub` removes."""
    return is_finished(folder) and (folder / _PREDICTIONS).is_file()


def read_result(folder: Path) -> Result:
    """The result of a finished run."""
    content: Result = json.loads((folder / _RESULT).read_text(encoding="utf-8"))
    return content


def settings(folder: Path) -> Experiment:
    """Settings of a finished run, of a baseline without its own; a checkpoint inside the folder by its place there."""
    config = {name: value for name, value in read_result(folder)["config"].items() if name != "baseline"}
    for encoder in config.get("model", {}).get("encoders", {}).values():
        for option in getattr(ENCODERS.get(encoder["name"]), "files", ()):
            inside = folder / encoder[option]
            encoder[option] = str(inside) if inside.exists() else encoder[option]
    return Experiment.model_validate(config)


def predictions(folder: Path, split: str = "test") -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Predictions (N,) or (N,K) of a finished run on a split (`test`, `validation`), and the cohort rows (N,)."""
    frame = pl.read_parquet(folder / _PREDICTIONS).filter(pl.col("split") == split)
    values = frame.select(pl.col("^probability_.*$")).to_numpy().astype(np.float64)
    return (values[:, 0] if values.shape[1] == 1 else values), frame["row"].to_numpy()


def write_result(folder: Path, result: Result) -> None:
    """Marks a run as finished, in one step: comes last, when all its other files are complete."""
    temporary = folder / f"{_RESULT}.partial"
    temporary.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    temporary.chmod(0o600)
    temporary.replace(folder / _RESULT)
