"""Every MLflow call of the project.

Layout in the store: one experiment per task; in it one run per fusion head with the summary over seeds, so that the UI
compares heads; the seeds as its child runs; and one `study` run with table, figures, attrition and the machine's load
meanwhile. All carry the tag `study`. The best network by validation is kept as an MLflow model of its seed's run. Only
aggregates are stored: no unit, no patient, no prediction.
"""

import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, ViewType

from ovo_clinic import resources, tracked
from ovo_clinic.errors import UserError
from ovo_clinic.report import ComparisonTable
from ovo_clinic.runs import Result
from ovo_clinic.significance import LABELS
from ovo_clinic.study import Comparison

if TYPE_CHECKING:
    from ovo_clinic.tune import Tuning

_PARAM_LENGTH = 6000
_BATCH = 100  # MLflow takes at most 100 parameters, and 1000 metrics, at once
_METRIC_BATCH = 1000


def tracking_uri(given: str | None, allow_remote: bool) -> str:
    """The store: the given one, else MLFLOW_TRACKING_URI, else sqlite under OVO_CLINIC_HOME.

    Raises:
        UserError: the store may be on another machine and `allow_remote` was not given.
    """
    uri = given or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{resources.home() / 'mlflow.db'}"
    return permitted(uri, allow_remote, "--tracking-uri")


def permitted(uri: str, allow_remote: bool, option: str) -> str:
    """The address of a store, where it may be used.

    Raises:
        UserError: it may be on another machine and `allow_remote` was not given.
    """
    if not allow_remote and not _is_local(uri):
        raise UserError(
            f"{option}: {without_credentials(uri)} may be another machine; only aggregates are sent, but add "
            "--allow-remote-tracking if that is meant"
        )
    return uri


def _is_local(uri: str) -> bool:
    """Whether a store surely lies on this machine: a file, or a server under a loopback name."""
    parts = urlparse(uri)
    if parts.scheme in ("", "file", "sqlite"):
        return not parts.hostname and not uri.startswith("databricks")
    # A database takes `?host=` for its server.
    return parts.hostname in ("localhost", "127.0.0.1", "::1") and "host" not in parts.query


def without_credentials(uri: str) -> str:
    """The address of a store without a user's name and password."""
    parts = urlparse(uri)
    return uri.replace(parts.netloc, parts.netloc.rpartition("@")[2], 1) if "@" in parts.netloc else uri


def serve(uri: str, port: int) -> int:
    """Runs MLflow's own pages of a store on this machine until they are interrupted; returns the exit code.

    Args:
        uri: from `tracking_uri`.
        port: of the loopback interface.

    Raises:
        UserError: the store is a server, which has pages of its own.
    """
    if urlparse(uri).scheme in ("http", "https"):
        raise UserError(f"--tracking-uri: {without_credentials(uri)} is a server; open it in a browser")
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    # Not in the command line, which others on the machine can read: an address may hold a password.
    environment = {**os.environ, "MLFLOW_BACKEND_STORE_URI": uri}
    artifacts = (resources.home() / "mlflow_artifacts").as_uri()
    return subprocess.call([*command, "--default-artifact-root", artifacts], env=environment)


class Store:
    """One MLflow store.

    Args:
        uri: from `tracking_uri`.

    Attributes:
        uri: without a user's name and password.

    Raises:
        UserError: it cannot be opened.
    """

    def __init__(self, uri: str) -> None:
        self.uri, self._address = without_credentials(uri), uri
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)  # the store announces every table it makes
        server = urlparse(uri)
        try:
            if server.hostname and server.port:
                # MLflow would try for minutes.
                socket.create_connection((server.hostname, server.port), timeout=10).close()
            self._client = MlflowClient(tracking_uri=uri)
            self._client.search_experiments(max_results=1)
            if server.scheme == "sqlite" and server.path.strip("/"):
                Path(server.path[1:]).chmod(0o600)
        except Exception as error:  # of MLflow, of a database driver, of one that is not installed
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UserError(f"--tracking-uri: {self.uri} cannot be opened: {reason[:300]}") from None

    def log_comparison(
        self,
        comparison: Comparison,
        table: ComparisonTable,
        figures: Mapping[str, Path],
        config: Mapping[str, Any],
        *,
        load: Sequence[Metric] = (),
        register: str | None = None,
    ) -> str:
        """Logs a study in place of an earlier log of the same runs; returns the id of its `study` run.

        Args:
            comparison: finished runs.
            table: their numbers.
            figures: name -> PNG.
            config: settings of the study.
            load: of the machine meanwhile, see `tracked.machine_load`.
            register: name in the model registry that the best model becomes a new version of.
        """
        experiment = self._experiment(comparison.prepared.manifest["task"])
        earlier = self._tagged(experiment, "study", comparison.name)
        versions = next(iter(comparison.results.values()))[0]["versions"]
        tags = {"study": comparison.name, **_task_tags(comparison.prepared.manifest), **_version_tags(versions)}
        study = self._start(experiment, comparison.name, {**tags, "kind": "study"})
        children = {
            arm.label: self._log_arm(experiment, arm.label, arm.kind, comparison, table, tags)
            for arm in comparison.arms
        }
        self._log(study, params=_study_params(comparison, config), metrics=[*_p_value_metrics(table), *load])
        self._client.log_inputs(study, [tracked.dataset(comparison.prepared.manifest)])
        if (best := tracked.best_run(comparison)) is not None:
            label, seed = best
            tracked.log_model(self._client, children[label][seed], comparison.run_folders[label][seed], register)
        for pattern, place in {"*.csv": "tables", "*.tex": "tables", "*.html": None}.items():
            for path in comparison.folder.glob(pattern):
                self._client.log_artifact(study, str(path), place)
        for path in figures.values():
            self._client.log_artifact(study, str(path), "figures")
        self._client.log_dict(study, dict(config), "config.json")
        self._client.log_dict(study, {"attrition": comparison.prepared.manifest["attrition"]}, "attrition.json")
        self._client.set_terminated(study)
        self._delete(earlier)
        return study

    def log_train(self, result: Result, name: str, key: str) -> str:
        """Logs a single training run in place of an earlier log of the same one; returns its id.

        Args:
            result: of the run.
            name: as it stands in the list of runs.
            key: that tells it from others (the name of its folder).
        """
        experiment = self._experiment(result["task"]["task"])
        earlier = self._tagged(experiment, "run", key)
        tags = {"kind": "train", "run": key, **_task_tags(result["task"]), **_version_tags(result["versions"])}
        run = self._log_result(experiment, name, result, tags)
        self._delete(earlier)
        return run

    def log_tuning(self, tuning: "Tuning", config: Mapping[str, Any]) -> None:
        """Logs a search in place of an earlier log of the same one: a run for each model, its trials as steps."""
        manifest = tuning.prepared.manifest
        experiment = self._experiment(manifest["task"])
        earlier = self._tagged(experiment, "study", tuning.name)
        tags = {"study": tuning.name, "kind": "tuning", **_task_tags(manifest)}
        for label, found in tuning.tuned.models.items():
            run = self._start(experiment, f"tune {label}", tags)
            trials = tuning.trials[tuning.trials["model"] == label]
            metrics = [
                _metric(f"trial_{name}", line[name], step=int(line["number"]))
                for _, line in trials.iterrows()
                for name in ("validation", "epochs", "seconds")
            ]
            best = found.model_dump(exclude={"settings"})
            metrics += [_metric(name, value) for name, value in best.items()]
            settings = {f"found.{name}": value for name, value in found.settings.items()}
            params = {**_flat(config), "model": label, **settings}
            # Names of MLflow know no asterisk.
            params = {name.replace("*", "all"): value for name, value in params.items()}
            self._log(run, params=params, metrics=metrics)
            for file in (tuning.file, tuning.folder / "trials.csv"):
                self._client.log_artifact(run, str(file), "tables")
            self._client.set_terminated(run)
        self._delete(earlier)

    def download_model(self, name: str, out: Path) -> Path:
        """The folder of an MLflow model, see `tracked.download`."""
        return tracked.download(self._client, self._address, name, out)

    def _tagged(self, experiment: str, tag: str, value: str) -> list[Run]:
        return list(self._client.search_runs([experiment], f"tags.{tag} = '{value}'", ViewType.ACTIVE_ONLY, 5000))

    def _delete(self, runs: Sequence[Run]) -> None:
        for run in runs:
            tracked.delete_model(self._client, run.info.run_id, run.data.tags.get("model", ""))
            self._client.delete_run(run.info.run_id)

    def _experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            if found.lifecycle_stage == "deleted":  # by hand; its name stays taken
                self._client.restore_experiment(found.experiment_id)
            return str(found.experiment_id)
        # A server keeps artifacts where it will; MLflow would put those of a bare database into the working folder.
        server = self.uri.startswith(("http:", "https:", "databricks"))
        location = None if server else (resources.home() / "mlflow_artifacts" / name).as_uri()
        return str(self._client.create_experiment(name, artifact_location=location))

    def _start(self, experiment: str, name: str, tags: Mapping[str, str]) -> str:
        return str(self._client.create_run(experiment, run_name=name, tags=dict(tags)).info.run_id)

    def _log_arm(
        self,
        experiment: str,
        label: str,
        kind: str,
        comparison: Comparison,
        table: ComparisonTable,
        tags: Mapping[str, str],
    ) -> list[str]:
        """The run of a head with its summary over seeds, and its seeds as child runs; returns the ids of these."""
        results = comparison.results[label]
        run = self._start(experiment, label, {**tags, "kind": kind})
        row = table.rows[table.rows["model"] == label].iloc[0].to_dict()
        summary = {str(name): float(value) for name, value in row.items() if isinstance(value, (int, float))}
        p_values = table.p_values[table.p_values["model"] == label] if not table.p_values.empty else table.p_values
        for _, line in p_values.iterrows():
            summary |= {f"{line['metric']}_{name}": value for name, value in _test_values(line).items()}
        own = ("seed", "digest.config")
        params = {
            key: value
            for key, value in _run_params(results[0]).items()
            if key not in own and not key.startswith("chosen.")
        }
        self._log(run, params=params, metrics=[_metric(name, value) for name, value in summary.items()])
        child = {**tags, "kind": "seed", "mlflow.parentRunId": run}
        children = [self._log_result(experiment, f"{label} seed {result['seed']}", result, child) for result in results]
        self._client.set_terminated(run)
        return children

    def _log_result(self, experiment: str, name: str, result: Result, tags: Mapping[str, str]) -> str:
        run = self._start(experiment, name, tags)
        metrics = [
            _metric(key, value, step=int(epoch["epoch"]))
            for epoch in result["history"]
            for key, value in epoch.items()
            if key != "epoch"
        ]
        for split, values in result["metrics"].items():
            metrics += [_metric(f"best_{split}_{key}", value) for key, value in values.items()]
        costs = {name: value for name, value in result["costs"].items() if isinstance(value, int)}
        extra = {"best_epoch": result["best_epoch"], "seconds": result["seconds"], **costs}
        metrics += [_metric(key, value) for key, value in extra.items() if value is not None]
        tried = [setting["score"] for setting in result.get("tuning", {}).get("tried", [])]
        metrics += [_metric(f"tried_validation_{result['monitor']}", score, step) for step, score in enumerate(tried)]
        self._log(run, params=_run_params(result), metrics=metrics)
        self._client.log_inputs(run, [tracked.dataset({**result, **result["task"], "key": result["digests"]["data"]})])
        self._client.set_terminated(run)
        return run

    def _log(self, run: str, *, params: Mapping[str, Any], metrics: Sequence[Metric]) -> None:
        """Logs in batches: one call per value costs 5 ms each."""
        entries = [Param(key, str(value)[:_PARAM_LENGTH]) for key, value in params.items()]
        for start in range(0, len(entries), _BATCH):
            self._client.log_batch(run, params=entries[start : start + _BATCH])
        finite = [metric for metric in metrics if metric.value == metric.value]
        for start in range(0, len(finite), _METRIC_BATCH):
            self._client.log_batch(run, metrics=finite[start : start + _METRIC_BATCH])


def _metric(name: str, value: float, step: int = 0) -> Metric:
    return Metric(name, float(value), int(time.time() * 1000), step)


def _task_tags(task: Mapping[str, Any]) -> dict[str, str]:
    leaky = {"leaky": task["leaky"]} if task["leaky"] else {}
    return {"task": task["task"], "dataset": task["dataset"], **leaky}


def _version_tags(versions: Mapping[str, str]) -> dict[str, str]:
    return {f"version.{name}": versions[name] for name in ("ovo-clinic", "python", "torch")}


def _run_params(result: Result) -> dict[str, Any]:
    digests = {f"digest.{name}": value for name, value in result["digests"].items()}
    versions = {f"version.{name}": value for name, value in result["versions"].items()}
    commit = {"git_commit": result["git_commit"]} if result["git_commit"] else {}
    # The data options and the split with all their defaults, not only as far as the config names them.
    config = {**result["config"], "data": result["task"]["options"], "split": result["task"]["split"]}
    tuning = result.get("tuning")
    found = {"settings_tried": len(tuning["tried"]), **_flat(tuning["chosen"], "chosen.")} if tuning else {}
    return {**_flat(config), **found, **digests, **versions, **commit}


def _study_params(comparison: Comparison, config: Mapping[str, Any]) -> dict[str, Any]:
    manifest = comparison.prepared.manifest
    digests = {f"digest.{name}": value for name, value in {"data": manifest["key"], **manifest["digests"]}.items()}
    sizes = {f"units.{name}": count for name, count in manifest["units"].items()}
    return {**_flat(config), **digests, **sizes, "heads": ",".join(comparison.heads)}


def _p_value_metrics(table: ComparisonTable) -> list[Metric]:
    metrics = []
    for _, line in table.p_values.iterrows():
        model = "".join(character if character.isalnum() or character in "_-." else "_" for character in line["model"])
        metrics += [_metric(f"{line['metric']}_{name}.{model}", value) for name, value in _test_values(line).items()]
    return metrics


def _test_values(line: "pd.Series[Any]") -> dict[str, float]:
    """The numbers of a row of the table of tests."""
    return {str(name): float(value) for name, value in line.items() if name not in LABELS}


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as dotted keys; lists as JSON."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = json.dumps(value) if isinstance(value, (list, dict)) else value
    return flat
