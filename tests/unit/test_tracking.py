"""What the MLflow store holds after a comparison and a training run, and what it never holds."""

import json
import os
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest
import typer
from mlflow import MlflowClient
from mlflow.entities import Run

from ovo_clinic import resources, tracking, verbs
from ovo_clinic.cli import app
from ovo_clinic.errors import UserError
from ovo_clinic.verbs import Study
from tests.small_data import FIRST_UNIT, PERSON, QUICK, SIMULATION, flat_files

STAYS = 240
SETTINGS = [*QUICK, "split.train=0.6", "split.test=0.3", "compare.unimodal=true"]


@dataclass(frozen=True)
class Logged:
    config: Path
    home: Path
    study: Study

    @property
    def client(self) -> MlflowClient:
        return MlflowClient(tracking_uri=f"sqlite:///{self.home / 'mlflow.db'}")

    def runs(self, **tags: str) -> list[Run]:
        """Runs that are not deleted, with these tags."""
        experiment = self.client.get_experiment_by_name("ward")
        found = self.client.search_runs([experiment.experiment_id], max_results=1000)
        return [run for run in found if tags.items() <= run.data.tags.items()]

    def compare(self) -> Study:
        return verbs.compare(str(self.config), SETTINGS, fusion=["concat", "ovo"], seeds=2, workers=2)


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logged]:
    folder = tmp_path_factory.mktemp("tracking")
    config = flat_files(folder / "files", "binary", STAYS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVO_CLINIC_HOME", str(folder / "home"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        study = verbs.compare(
            str(config), SETTINGS, raw=config.parent / "raw", fusion=["concat", "ovo"], seeds=2, workers=2
        )
        yield Logged(config, folder / "home", study)


def top_level(runs: list[Run]) -> dict[str, Run]:
    return {run.info.run_name: run for run in runs if "mlflow.parentRunId" not in run.data.tags}


def test_a_run_per_arm_one_of_the_study_and_the_seeds_as_children(logged: Logged) -> None:
    runs = logged.runs(study=logged.study.comparison.name)
    top = top_level(runs)
    kinds = {name: run.data.tags["kind"] for name, run in top.items()}
    arms = {"demographics": "modality", "labs": "modality", "concat": "head", "ovo": "head"}
    assert kinds == {**arms, logged.study.comparison.name: "study"}
    for name in arms:
        children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == top[name].info.run_id]
        assert sorted(run.info.run_name for run in children) == [f"{name} seed 0", f"{name} seed 1"]
        assert {run.data.tags["kind"] for run in children} == {"seed"}
    assert len(runs) == 5 + 8 and {run.info.status for run in runs} == {"FINISHED"}
    assert {(run.data.tags["task"], run.data.tags["dataset"]) for run in runs} == {("ward", "ward")}


def test_the_run_of_a_head_holds_its_row_of_the_table_and_its_p_values(logged: Logged) -> None:
    top = top_level(logged.runs())
    table = logged.study.table.rows.set_index("model")
    tests = logged.study.table.p_values.set_index(["metric", "model"])
    for name in ("concat", "ovo"):
        metrics = top[name].data.metrics
        for column in (
            "auroc_mean",
            "auroc_sd",
            "auroc_low",
            "auprc_mean",
            "parameters",
            "macs",
            "delta_macs",
            "seeds",
        ):
            assert metrics[column] == pytest.approx(table.loc[name, column]), column
        assert metrics["auroc_welch_p"] == pytest.approx(tests.loc[("auroc", name), "welch_p"])
        assert metrics["auprc_paired_p_holm"] == pytest.approx(tests.loc[("auprc", name), "paired_p_holm"])
        assert metrics["auroc_delong_p_bh"] == pytest.approx(tests.loc[("auroc", name), "delong_p_bh"])
    assert "seed" not in top["ovo"].data.params and top["ovo"].data.params["model.fusion.name"] == "ovo"


def test_a_seed_holds_every_setting_and_every_epoch(logged: Logged) -> None:
    (run,) = (run for run in logged.runs() if run.info.run_name == "ovo seed 1")
    params = run.data.params
    expected = {
        "seed": "1",
        "model.dim": "8",
        "model.fusion.name": "ovo",
        "model.fusion.tokens": "4",
        "model.fusion.heads": "4",
        "model.encoders.default.name": "mlp",
        "training.learning_rate": "0.001",
        "training.epochs": "2",
        "split.train": "0.6",
        "split.seed": "42",
        "data.cohort.table": "stays",
        "data.modalities.labs.variable": "variable",
    }
    assert {name: params.get(name) for name in expected} == expected
    manifest = logged.study.comparison.prepared.manifest
    assert params["digest.data"] == manifest["key"] and params["digest.split"] == manifest["digests"]["split"]
    assert {"digest.config", "digest.spec", "digest.code", "version.torch", "version.ovo-clinic"} <= params.keys()
    folder = logged.study.comparison.run_folders["ovo"][1]
    history = json.loads((folder / "result.json").read_text())["history"]
    for name in ("train_loss", "validation_loss", "validation_auroc"):
        points = logged.client.get_metric_history(run.info.run_id, name)
        assert [(point.step, point.value) for point in points] == [(i, epoch[name]) for i, epoch in enumerate(history)]
    assert len(history) == 2
    assert run.data.metrics["best_test_auroc"] == logged.study.comparison.results["ovo"][1]["metrics"]["test"]["auroc"]


def test_the_run_of_the_study_holds_tables_figures_settings_and_attrition(logged: Logged) -> None:
    (run,) = logged.runs(kind="study")
    files = {
        entry.path
        for folder in ("", "tables", "figures")
        for entry in logged.client.list_artifacts(run.info.run_id, folder)
        if not entry.is_dir
    }
    figures = {f"figures/{name}.png" for name in ("roc", "pr", "auroc", "auprc", "training")}
    written = {path.name for path in logged.study.comparison.folder.iterdir() if path.suffix in (".csv", ".tex")}
    assert {"table.csv", "p_values.csv", "intervals.csv", "table.tex", "calibration.csv", "subgroups.csv"} <= written
    assert files == figures | {f"tables/{name}" for name in written} | {"config.json", "attrition.json", "report.html"}
    folder = logged.home / "mlflow_artifacts" / "ward" / run.info.run_id / "artifacts"
    config = json.loads((folder / "config.json").read_text())
    expected = {"fusion": [{"name": "concat"}, {"name": "ovo"}], "seeds": 2, "unimodal": True, "baselines": []}
    assert {name: config["compare"][name] for name in expected} == expected
    assert config["training"]["epochs"] == 2
    (step, *_) = json.loads((folder / "attrition.json").read_text())["attrition"]
    assert step["units"] == STAYS
    tests = logged.study.table.p_values.query("metric == 'auroc' and model == 'ovo'").iloc[0]
    assert run.data.metrics["auroc_welch_p_holm.ovo"] == pytest.approx(tests["welch_p_holm"])
    assert run.data.params["heads"] == "concat,ovo" and run.data.params["compare.seeds"] == "2"


def test_a_second_comparison_replaces_the_first_log(logged: Logged) -> None:
    before = {run.info.run_id for run in logged.runs(study=logged.study.comparison.name)}
    logged.compare()
    after = {run.info.run_id for run in logged.runs(study=logged.study.comparison.name)}
    assert len(after) == len(before) == 13 and not after & before


def test_an_experiment_deleted_by_hand_comes_back(logged: Logged) -> None:
    client = logged.client
    client.delete_experiment(client.get_experiment_by_name("ward").experiment_id)
    logged.compare()
    assert client.get_experiment_by_name("ward").lifecycle_stage == "active"
    assert len(logged.runs(kind="study")) == 1


def test_train_logs_one_run_however_often(logged: Logged) -> None:
    before = len(logged.runs())
    for _ in range(2):
        run = verbs.train(str(logged.config), [*SETTINGS, "model.fusion=concat", "seed=7"])
    (found,) = logged.runs(kind="train")
    assert len(logged.runs()) == before + 1
    assert found.info.run_name == "concat seed 7" and found.data.params["seed"] == "7"
    assert found.data.metrics["best_test_auroc"] == run.result["metrics"]["test"]["auroc"]
    assert "study" not in found.data.tags


def probabilities(home: Path) -> set[float]:
    frames = [pl.read_parquet(path) for path in (home / "runs").glob("*/predictions.parquet")]
    return {float(value) for frame in frames for value in frame["probability_0"]}


def test_nothing_of_a_patient_is_in_the_store(logged: Logged) -> None:
    stored = [logged.home / "mlflow.db", *(logged.home / "mlflow_artifacts").rglob("*")]
    stored += logged.study.comparison.folder.iterdir()
    contents = {path: path.read_bytes() for path in stored if path.is_file()}
    assert len(contents) >= 11 and b"ovo seed 1" in contents[logged.home / "mlflow.db"]
    values = probabilities(logged.home)
    assert len(values) > 500
    secrets = {PERSON.encode()}
    for unit in range(FIRST_UNIT, FIRST_UNIT + STAYS):
        secrets |= {str(unit).encode(), unit.to_bytes(6, "big")}
    for value in values:
        secrets |= {repr(value)[:10].encode(), struct.pack(">d", value)}
    found = [(path, secret) for path, content in contents.items() for secret in secrets if secret in content]
    assert not found


LOCAL = ["sqlite:////data/mlflow.db", "file:///data/mlruns", "http://localhost:5000", "postgresql://me:pw@127.0.0.1/db"]
ELSEWHERE = [
    "http://mlflow.example.org",
    "https://mlflow.example.org:5000",
    "postgresql://me:secret@db.example.org/mlflow",
    "postgresql:///mlflow?host=db.example.org",
    "postgresql://localhost/mlflow?host=db.example.org",
    "postgresql://db.example.org/mlflow?user=me&password=secret&sslmode=require",
    "postgresql:///mlflow?host=db.example.org&PASSWORD=secret",
    "mysql://db.example.org/mlflow?pass%77ord=secret",
    "file://server/share",
    "databricks",
    "databricks://profile",
]


@pytest.mark.parametrize("uri", LOCAL)
def test_a_store_on_this_machine_needs_no_permission(uri: str) -> None:
    assert tracking.tracking_uri(uri, allow_remote=False) == uri


@pytest.mark.parametrize("uri", ELSEWHERE)
def test_a_store_elsewhere_needs_permission(uri: str) -> None:
    with pytest.raises(UserError, match="^[^\n]*--allow-remote-tracking[^\n]*$") as caught:
        tracking.tracking_uri(uri, allow_remote=False)
    assert "secret" not in str(caught.value)
    assert tracking.tracking_uri(uri, allow_remote=True) == uri


def test_what_else_an_address_says_is_kept() -> None:
    given = "postgresql://me:secret@db.example.org/mlflow?user=me&sslmode=require&password=secret&options=-c%20x"
    shown = "postgresql://db.example.org/mlflow?sslmode=require&options=-c%20x"
    assert tracking.without_credentials(given) == shown and tracking.without_credentials(shown) == shown


@pytest.mark.parametrize("uri", ["http://me:secret@[::1:5000", "postgresql://[secret", "http://a[b]"])
@pytest.mark.parametrize("allow_remote", [False, True])
def test_an_address_that_is_none_is_one_line(uri: str, allow_remote: bool) -> None:
    with pytest.raises(UserError, match="^--tracking-uri: is no address of a store; [^\n]*$") as caught:
        tracking.tracking_uri(uri, allow_remote)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("allowed", [[], ["--allow-remote-tracking"]])
def test_ui_says_of_a_server_that_it_has_pages(allowed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:secret@mlflow.example.org")
    with pytest.raises(UserError, match="^--tracking-uri: https://mlflow.example.org is a server; open it in a br"):
        typer.main.get_command(app).main(["ui", *allowed], standalone_mode=False)


def test_ui_opens_a_database_elsewhere_where_that_is_permitted(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, int]] = []
    monkeypatch.setattr(tracking, "serve", lambda uri, port: shown.append((uri, port)) or 0)
    uri = "postgresql://me:secret@db.example.org/mlflow"
    with pytest.raises(UserError, match="--allow-remote-tracking"):
        typer.main.get_command(app).main(["ui", "--tracking-uri", uri], standalone_mode=False)
    line = ["ui", "--tracking-uri", uri, "--port", "5001", "--allow-remote-tracking"]
    typer.main.get_command(app).main(line, standalone_mode=False)
    assert shown == [(uri, 5001)]


def test_the_store_is_the_given_one_or_the_environments_or_local(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking.tracking_uri(None, allow_remote=False) == f"sqlite:///{resources.home()}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow.example.org")
    with pytest.raises(UserError, match="mlflow.example.org"):
        tracking.tracking_uri(None, allow_remote=False)
    assert tracking.tracking_uri("sqlite:////given.db", allow_remote=False) == "sqlite:////given.db"


def test_the_registry_of_the_environment_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that nobody permitted would get the models."""
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", f"sqlite:///{tmp_path}/elsewhere.db")
    uri = f"sqlite:///{tmp_path}/here.db"
    tracking.Store(uri)._client.create_registered_model("mortality")
    monkeypatch.delenv("MLFLOW_REGISTRY_URI")
    assert [model.name for model in MlflowClient(uri, uri).search_registered_models()] == ["mortality"]
    assert not (tmp_path / "elsewhere.db").exists()


def test_a_new_database_is_its_owners_and_no_other_file_changes_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_the_hash, home = tmp_path / "project ", tmp_path / "project #2"
    before_the_hash.mkdir(mode=0o750)
    monkeypatch.setenv("OVO_CLINIC_HOME", str(home))
    tracking.Store(tracking.tracking_uri(None, allow_remote=False))
    assert stat.S_IMODE((home / "mlflow.db").stat().st_mode) == 0o600
    assert stat.S_IMODE(before_the_hash.stat().st_mode) == 0o750
    of_a_group = home / "mlflow.db"
    of_a_group.chmod(0o660)
    tracking.Store(f"sqlite:///{of_a_group}")
    assert stat.S_IMODE(of_a_group.stat().st_mode) == 0o660
    assert stat.S_IMODE(of_a_group.with_name("mlflow.db.lock").stat().st_mode) == 0o660


def test_a_store_that_cannot_be_opened_is_one_line_and_soon(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is no database, however long one looks at it " * 40)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    unusable = [f"sqlite:///{tmp_path / 'text.db'}", f"http://me:secret@127.0.0.1:{port}", "nonsense://", str(tmp_path)]
    for uri in unusable:
        started = time.monotonic()
        with pytest.raises(UserError, match="^--tracking-uri: [^\n]* cannot be opened: [^\n]+$") as caught:
            tracking.Store(uri)
        assert "secret" not in str(caught.value) and time.monotonic() - started < 15, uri


def test_importing_the_package_switches_telemetry_and_hubs_off() -> None:
    wanted = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    environment = {name: value for name, value in os.environ.items() if name not in wanted}
    code = "import json, os, ovo_clinic; print(json.dumps(dict(os.environ)))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert wanted.items() <= json.loads(done.stdout).items()


def test_two_processes_may_open_a_new_store_at_once(tmp_path: Path) -> None:
    script = "import sys; from ovo_clinic.tracking import Store; Store(sys.argv[1])"
    command = [sys.executable, "-c", script, f"sqlite:///{tmp_path}/mlflow.db"]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [(process.wait(), process.stderr.read()) for process in processes if process.stderr] == [(0, "")] * 2


@pytest.mark.parametrize("name", ["a/b", "x:y", "it's", "", " ", ".", "a@b", "x" * 257, "a\nb"])
def test_a_name_that_no_model_can_be_registered_under_is_told_before_anything_is_done(home: Path, name: str) -> None:
    with pytest.raises(UserError, match="^--register: [^\n]* is no name for a model; [^\n]*$"):
        verbs.compare("simulation", SIMULATION, register=name)
    assert not (home / "cache").exists()


@pytest.mark.parametrize("baselines", [["logistic"], []])
def test_a_comparison_without_a_safe_network_registers_nothing_in_its_place(home: Path, baselines: list[str]) -> None:
    settings = [*SIMULATION, "model.allow_unsafe=true"]
    heads = ["self_attention_reference", "cross_attention_reference"]
    with pytest.raises(UserError, match="^--register: every network of this comparison is unsafe"):
        verbs.compare("simulation", settings, fusion=heads, seeds=1, baselines=baselines, register="mortality")
    assert not (home / "runs").exists()


def test_of_a_safe_head_a_baseline_and_an_unsafe_head_the_safe_one_is_registered(home: Path) -> None:
    settings = [*SIMULATION, "model.allow_unsafe=true"]
    heads = ["self_attention_reference", "concat"]
    verbs.compare(
        "simulation", settings, fusion=heads, seeds=1, baselines=["logistic"], register="mortality of all", workers=1
    )
    uri = f"sqlite:///{home}/mlflow.db"
    client = MlflowClient(uri, uri)
    (version,) = client.search_model_versions("name = 'mortality of all'")
    assert client.get_run(version.run_id).info.run_name == "concat seed 0"


def test_settings_that_a_search_found_are_parameters_of_the_study(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of MLflow know no asterisk and no parentheses: `model.encoders.*.layers` of `ovo(tokens=2)`."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    heads = "compare.fusion=[concat, {name: ovo, tokens: 2}]"
    space = "tune.space={model.encoders.*.layers: [2], model.fusion.heads: [1]}"
    settings = [*SIMULATION, "training.epochs=1", heads, space]
    found = verbs.tune("simulation", settings, trials=1, out=tmp_path / "tuned.yaml", workers=1)
    study = verbs.compare("simulation", settings, tuned=found.file, seeds=1, workers=1)
    assert [note for note in study.table.notes if "`tune` found, the best of 1 trials (tpe) by auroc on" in note]
    assert "those that `tune` found" in study.report.read_text(encoding="utf-8")
    client = MlflowClient(tracking_uri=study.tracking_uri)
    experiment = client.get_experiment_by_name("simulation").experiment_id
    (run,) = client.search_runs([experiment], "tags.kind = 'study'")
    assert {key: value for key, value in run.data.params.items() if ".settings." in key} == {
        "tuned.models.concat.settings.model.encoders.all.layers": "2",
        "tuned.models.ovo_tokens_2_.settings.model.encoders.all.layers": "2",
        "tuned.models.ovo_tokens_2_.settings.model.fusion.heads": "1",
    }
