"""A real MLflow server on a real PostgreSQL, both on the loopback interface; and the pages that `ui` opens."""

import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from mlflow import MlflowClient

from ovo_clinic import verbs
from ovo_clinic.predict import predict
from tests.servers import free_port, running
from tests.small_data import FIRST_UNIT, PERSON, QUICK, flat_files

STAYS = 240


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


@pytest.fixture(scope="module")
def server(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Address of an MLflow server, and where it keeps artifacts."""
    folder, port = tmp_path_factory.mktemp("server"), free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", database, "--host", "127.0.0.1"]
    command += ["--port", str(port), "--workers", "1", "--artifacts-destination", str(folder / "artifacts")]
    url = f"http://127.0.0.1:{port}"
    with running(command, lambda: answers(f"{url}/health"), folder / "log", cwd=folder, start_new_session=True):
        yield url, folder / "artifacts"


def rows(database: str) -> dict[str, str]:
    """The whole database as text, by table."""
    import psycopg

    found = {}
    with psycopg.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("select table_name from information_schema.tables where table_schema = 'public'")
        for (table,) in cursor.fetchall():
            cursor.execute(f'select * from "{table}"')
            found[table] = repr(cursor.fetchall())
    connection.close()
    return found


def test_a_study_goes_to_the_server_and_its_registered_model_comes_back(
    database: str, server: tuple[str, Path], home: Path, tmp_path: Path
) -> None:
    url, artifacts = server
    config = flat_files(tmp_path / "files", "binary", STAYS)
    raw = config.parent / "raw"
    settings = [*QUICK, "split.train=0.6", "split.test=0.3"]
    study = verbs.compare(
        str(config), settings, raw=raw, fusion=["concat", "ovo"], seeds=1, workers=1, tracking_uri=url, register="ward"
    )
    assert not (home / "mlflow.db").exists() and not (home / "mlflow_artifacts").exists()

    client = MlflowClient(tracking_uri=url)
    experiment = client.get_experiment_by_name("ward")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {study.comparison.name, "concat", "ovo", "concat seed 0", "ovo seed 0"}
    validation = {
        label: study.comparison.results[label][0]["metrics"]["validation"]["auroc"] for label in ("concat", "ovo")
    }
    best = max(validation, key=lambda label: validation[label])
    version = client.get_model_version("ward", "1")
    assert version.run_id == runs[f"{best} seed 0"].info.run_id
    assert [name for name, run in runs.items() if "model" in run.data.tags] == [f"{best} seed 0"]

    manifest = study.comparison.prepared.manifest
    for run in (runs[study.comparison.name], runs["ovo seed 0"]):
        (given,) = run.inputs.dataset_inputs
        assert given.dataset.digest == manifest["key"][:36] and manifest["digests"]["split"] in given.dataset.source
        assert run.data.tags["version.torch"] == study.comparison.results["ovo"][0]["versions"]["torch"]
        assert run.data.tags["task"] == "ward"
    load = runs[study.comparison.name].data.metrics
    assert 0 <= load["system/cpu_utilization_percentage"] <= 100 and load["system/system_memory_usage_megabytes"] > 0

    known = pd.read_parquet(study.comparison.run_folders[best][0] / "predictions.parquet").set_index("unit_id")
    for number, name in enumerate(("models:/ward/1", version.run_id, f"runs:/{version.run_id}/model")):
        found = predict(name, raw, tmp_path / f"{number}.csv", config=str(config), tracking_uri=url).frame
        predicted = found.to_pandas().set_index("unit_id")["probability_dead"].loc[known.index]
        pd.testing.assert_series_equal(
            predicted, known["probability_0"], check_names=False, atol=1e-6, check_dtype=False
        )

    stored = {**rows(database), **{str(path): path.read_bytes().decode("latin-1") for path in files(artifacts)}}
    assert len(stored) > 100 and "ovo seed 0" in stored["runs"]
    secrets = [PERSON, *(str(unit) for unit in range(FIRST_UNIT, FIRST_UNIT + STAYS))]
    assert not [(place, secret) for place, text in stored.items() for secret in secrets if secret in text]


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.slow
def test_ui_opens_the_local_store(home: Path, tmp_path: Path) -> None:
    port = free_port()
    command = [str(Path(sys.executable).with_name("ovo-clinic")), "ui", "--port", str(port)]
    log = tmp_path / "log"
    with running(command, lambda: answers(f"http://127.0.0.1:{port}/health"), log, cwd=tmp_path) as process:
        assert answers(f"http://127.0.0.1:{port}/")
    assert process.returncode in (0, 130) and f"http://127.0.0.1:{port} shows sqlite:///" in log.read_text()
    assert (home / "mlflow.db").is_file() and not list(tmp_path.glob("ml*"))
