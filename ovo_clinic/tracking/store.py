"""One MLflow store: what is logged there of studies, single runs and searches."""

import logging
import socket
import stat
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, ViewType

from ovo_clinic import resources
from ovo_clinic.errors import UserError
from ovo_clinic.locks import locked
from ovo_clinic.report import ComparisonTable
from ovo_clinic.runs import Result
from ovo_clinic.study import Comparison
from ovo_clinic.tracking import entries, models
from ovo_clinic.tracking.addresses import sqlite_file, without_credentials

if TYPE_CHECKING:
    from ovo_clinic.tune import Tuning

_PARAM_LENGTH = 6000
_BATCH = 100  # MLflow takes at most 100 parameters, and 1000 metrics, at once
_METRIC_BATCH = 1000


def _alone(database: Path) -> AbstractContextManager[bool]:
    """A lock beside a database, for all who may write to that."""
    mode = stat.S_IMODE(database.stat().st_mode) & 0o666 if database.exists() else 0o600
    return locked(database.with_name(f"{database.name}.lock"), mode=mode)


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
            file = sqlite_file(uri)
            # One at a time: whoever opens a new database first makes its tables.
            with _alone(file) if file else nullcontext():
                if file and not file.exists():
                    file.touch(mode=0o600)  # one that is there may be a group's
                # The registry is this store, too, whatever MLFLOW_REGISTRY_URI says: nobody permitted that one.
                self._client = MlflowClient(tracking_uri=uri, registry_uri=uri)
                self._client.search_experiments(max_results=1)
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
            load: of the machine meanwhile, see `machine_load`.
            register: name in the model registry that the best network becomes a new version of.
        """
        experiment = self._experiment(comparison.prepared.manifest["task"])
        earlier = self._tagged(experiment, "study", comparison.name)
        versions = next(iter(comparison.results.values()))[0]["versions"]
        tags = {
            "study": comparison.name,
            **entries.task_tags(comparison.prepared.manifest),
            **entries.version_tags(versions),
        }
        study = self._start(experiment, comparison.name, {**tags, "kind": "study"})
        children = {
            arm.label: self._log_arm(experiment, arm.label, arm.kind, comparison, table, tags)
            for arm in comparison.arms
        }
        self._log(
            study, params=entries.study_params(comparison, config), metrics=[*entries.p_value_metrics(table), *load]
        )
        self._client.log_inputs(study, [entries.dataset(comparison.prepared.manifest)])
        baselines = {arm.label for arm in comparison.arms if arm.kind == "baseline"}
        for label, seed in models.best_runs(comparison):
            registered = None if label in baselines else register
            models.log_model(self._client, children[label][seed], comparison.run_folders[label][seed], registered)
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
        tags = {
            "kind": "train",
            "run": key,
            **entries.task_tags(result["task"]),
            **entries.version_tags(result["versions"]),
        }
        run = self._log_result(experiment, name, result, tags)
        self._delete(earlier)
        return run

    def log_pretraining(self, record: Mapping[str, Any], name: str) -> str:
        """Logs a pretraining in place of an earlier log of the same one: settings, digests, losses; no text, no word.

        Args:
            record: content of `pretraining.json`.
            name: as it stands in the list of runs.
        """
        experiment = self._experiment("pretrain-text")
        earlier = self._tagged(experiment, "run", record["identity"])
        tags = {"kind": "pretraining", "run": record["identity"], **entries.version_tags(record["versions"])}
        run = self._start(experiment, name, tags)
        kept = ("settings", "texts", "vocabulary", "git_commit")
        params = entries.flat({**{key: record[key] for key in kept}, "version": record["versions"]})
        metrics = [
            entries.metric(key, value, step=int(epoch["epoch"]))
            for epoch in record["history"]
            for key, value in epoch.items()
            if key != "epoch"
        ]
        best = {f"best_{key}": value for key, value in record["metrics"].items()}
        best |= {"best_epoch": record["best_epoch"], "seconds": record["seconds"]}
        self._log(run, params=params, metrics=[*metrics, *(entries.metric(key, value) for key, value in best.items())])
        self._client.set_terminated(run)
        self._delete(earlier)
        return run

    def log_tuning(self, tuning: "Tuning", config: Mapping[str, Any]) -> None:
        """Logs a search in place of an earlier log of the same one: a run for each model, its trials as steps."""
        manifest = tuning.prepared.manifest
        experiment = self._experiment(manifest["task"])
        earlier = self._tagged(experiment, "study", tuning.name)
        tags = {"study": tuning.name, "kind": "tuning", **entries.task_tags(manifest)}
        for label, found in tuning.tuned.models.items():
            run = self._start(experiment, f"tune {label}", tags)
            trials = tuning.trials[tuning.trials["model"] == label]
            metrics = [
                entries.metric(f"trial_{name}", line[name], step=int(line["number"]))
                for _, line in trials.iterrows()
                for name in ("validation", "epochs", "seconds")
            ]
            best = found.model_dump(exclude={"settings"})
            metrics += [entries.metric(name, value) for name, value in best.items()]
            settings = {f"found.{name}": value for name, value in found.settings.items()}
            self._log(run, params={**entries.flat(config), "model": label, **settings}, metrics=metrics)
            for file in (tuning.file, tuning.folder / "trials.csv"):
                self._client.log_artifact(run, str(file), "tables")
            self._client.set_terminated(run)
        self._delete(earlier)

    def download_model(self, name: str, out: Path) -> Path:
        """The folder of an MLflow model, see `models.download`."""
        return models.download(self._client, self._address, name, out)

    def _tagged(self, experiment: str, tag: str, value: str) -> list[Run]:
        return list(self._client.search_runs([experiment], f"tags.{tag} = '{value}'", ViewType.ACTIVE_ONLY, 5000))

    def _delete(self, runs: Sequence[Run]) -> None:
        for run in runs:
            models.delete_model(self._client, run.info.run_id, run.data.tags.get("model", ""))
            self._client.delete_run(run.info.run_id)

    def _experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            if found.lifecycle_stage == "deleted":  # by hand; its name stays taken
                self._client.restore_experiment(found.experiment_id)
            return str(found.experiment_id)
        # A server keeps artifacts where it will; MLflow would put those of a bare database into the working folder.
        server = self.uri.startswith(("http:", "https:", "databricks"))
        location = None if server else resources.state("mlflow_artifacts", name).as_uri()
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
            summary |= {f"{line['metric']}_{name}": value for name, value in entries.test_values(line).items()}
        own = ("seed", "digest.config")
        params = {
            key: value
            for key, value in entries.run_params(results[0]).items()
            if key not in own and not key.startswith("chosen.")
        }
        self._log(run, params=params, metrics=[entries.metric(name, value) for name, value in summary.items()])
        child = {**tags, "kind": "seed", "mlflow.parentRunId": run}
        children = [self._log_result(experiment, f"{label} seed {result['seed']}", result, child) for result in results]
        self._client.set_terminated(run)
        return children

    def _log_result(self, experiment: str, name: str, result: Result, tags: Mapping[str, str]) -> str:
        run = self._start(experiment, name, tags)
        metrics = [
            entries.metric(key, value, step=int(epoch["epoch"]))
            for epoch in result["history"]
            for key, value in epoch.items()
            if key != "epoch"
        ]
        for split, values in result["metrics"].items():
            metrics += [entries.metric(f"best_{split}_{key}", value) for key, value in values.items()]
        costs = {name: value for name, value in result["costs"].items() if isinstance(value, int)}
        extra = {"best_epoch": result["best_epoch"], "seconds": result["seconds"], **costs}
        metrics += [entries.metric(key, value) for key, value in extra.items() if value is not None]
        tried = [setting["score"] for setting in result.get("tuning", {}).get("tried", [])]
        metrics += [
            entries.metric(f"tried_validation_{result['monitor']}", score, step) for step, score in enumerate(tried)
        ]
        self._log(run, params=entries.run_params(result), metrics=metrics)
        self._client.log_inputs(run, [entries.dataset({**result, **result["task"], "key": result["digests"]["data"]})])
        self._client.set_terminated(run)
        return run

    def _log(self, run: str, *, params: Mapping[str, Any], metrics: Sequence[Metric]) -> None:
        """Logs in batches: one call per value costs 5 ms each."""
        named = [Param(entries.safe_name(key), str(value)[:_PARAM_LENGTH]) for key, value in params.items()]
        for start in range(0, len(named), _BATCH):
            self._client.log_batch(run, params=named[start : start + _BATCH])
        finite = [metric for metric in metrics if metric.value == metric.value]
        for start in range(0, len(finite), _METRIC_BATCH):
            self._client.log_batch(run, metrics=finite[start : start + _METRIC_BATCH])
