"""What runs of a store are described by: parameters, metrics, tags and data sets, as MLflow's entities."""

import json
import re
import time
from collections.abc import Mapping
from typing import Any

import pandas as pd
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric

from ovo_clinic.report import ComparisonTable
from ovo_clinic.runs import Result
from ovo_clinic.significance import LABELS
from ovo_clinic.study import Comparison

_DIGEST_LENGTH = 36


def safe_name(name: str) -> str:
    """A name that MLflow takes; of what it does not, such as `ovo(tokens=8)`, an underscore for each character."""
    return re.sub(r"[^\w./: -]", "_", name.replace("*", "all"))


def metric(name: str, value: float, step: int = 0) -> Metric:
    """A number as it is now."""
    return Metric(name, float(value), int(time.time() * 1000), step)


def task_tags(task: Mapping[str, Any]) -> dict[str, str]:
    """What a run is of: task, data set, and why its numbers are not to be trusted where they are not."""
    leaky = {"leaky": task["leaky"]} if task["leaky"] else {}
    return {"task": task["task"], "dataset": task["dataset"], **leaky}


def version_tags(versions: Mapping[str, str]) -> dict[str, str]:
    """The versions that runs are told apart by; all stand among the parameters."""
    return {f"version.{name}": versions[name] for name in ("ovo-clinic", "python", "torch")}


def run_params(result: Result) -> dict[str, Any]:
    """Everything that decides the result of a run, and digests and versions."""
    digests = {f"digest.{name}": value for name, value in {**result["digests"], **result["files"]}.items()}
    versions = {f"version.{name}": value for name, value in result["versions"].items()}
    commit = {"git_commit": result["git_commit"]} if result["git_commit"] else {}
    # The data options and the split with all their defaults, not only as far as the config names them.
    config = {**result["config"], "data": result["task"]["options"], "split": result["task"]["split"]}
    tuning = result.get("tuning")
    found = {"settings_tried": len(tuning["tried"]), **flat(tuning["chosen"], "chosen.")} if tuning else {}
    return {**flat(config), **found, **digests, **versions, **commit}


def study_params(comparison: Comparison, config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a study, digests and sizes of its data."""
    manifest = comparison.prepared.manifest
    digests = {f"digest.{name}": value for name, value in {"data": manifest["key"], **manifest["digests"]}.items()}
    sizes = {f"units.{name}": count for name, count in manifest["units"].items()}
    return {**flat(config), **digests, **sizes, "heads": ",".join(comparison.heads)}


def p_value_metrics(table: ComparisonTable) -> list[Metric]:
    """Every number of the table of tests, under a name that MLflow takes."""
    metrics = []
    for _, line in table.p_values.iterrows():
        model = safe_name(line["model"])
        metrics += [metric(f"{line['metric']}_{name}.{model}", value) for name, value in test_values(line).items()]
    return metrics


def test_values(line: "pd.Series[Any]") -> dict[str, float]:
    """The numbers of a row of the table of tests."""
    return {str(name): float(value) for name, value in line.items() if name not in LABELS}


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as dotted keys; lists as JSON."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = json.dumps(value) if isinstance(value, (list, dict)) else value
    return found


def dataset(described: Mapping[str, Any]) -> DatasetInput:
    """The prepared data as MLflow shows them: digests, modalities and counts, no row.

    Args:
        described: `dataset`, `task`, `key` and `digests`; where known `modalities`, and `units` and `patients` by part.
    """
    modalities = described.get("modalities", [])
    names = list(modalities) if isinstance(modalities, Mapping) else [entry["name"] for entry in modalities]
    counts = {name: described[name] for name in ("units", "patients") if name in described}
    source = {name: described["digests"][name] for name in ("spec", "split")} | {"key": described["key"]}
    found = Dataset(
        name=described["task"],
        digest=described["key"][:_DIGEST_LENGTH],
        source_type="ovo_clinic",
        source=json.dumps({"dataset": described["dataset"], **source}),
        schema=json.dumps({"mlflow_colspec": [{"name": name, "type": "tensor"} for name in names]}),
        profile=json.dumps(counts),
    )
    return DatasetInput(found, [InputTag("mlflow.data.context", "train, validation, test")])
