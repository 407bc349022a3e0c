"""Kill -9 at random moments: what is started again ends as if nothing had happened."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from ovo_clinic.registry import SYNTHETIC
from tests.small_data import SIMULATION

PREPARE = ["prepare", "eicu_mortality_24h", "--raw"]
TRAIN = ["train", "simulation", *SIMULATION, "training.epochs=40", "training.patience=40"]
HEADS = ["--fusion", "concat,ovo", "--workers", "2"]
COMPARE = ["compare", "simulation", *SIMULATION, "training.epochs=4", "--seeds", "4", *HEADS]
SPACE = "tune.space={training.learning_rate: [1e-2, 1e-3, 1e-7], model.fusion.heads: [1, 2, 4]}"
TUNE = ["tune", "simulation", *SIMULATION, "training.epochs=4", SPACE, "--trials", "6", *HEADS]
ENOUGH = 600  # seconds, on a busy machine


def start(command: list[str], home: Path) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "OVO_CLINIC_HOME": str(home), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "ovo_clinic.cli", *command]
    return subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def run(command: list[str], home: Path) -> None:
    process = start(command, home)
    _, errors = process.communicate(timeout=ENOUGH)
    assert process.returncode == 0, errors.decode()


def kill_on_the_way(command: list[str], home: Path, pattern: str, finished: int, wait: float) -> None:
    """Starts a command and kills it some time after so many of its runs are finished."""
    process = start(command, home)
    deadline = time.monotonic() + ENOUGH
    while len(list(home.glob(pattern))) < finished and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(wait)
    process.kill()
    process.communicate()
    assert process.returncode == -9, "it was over before it was killed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "pattern", "tables"),
    [
        (COMPARE, "runs/*/result.json", ["table.csv", "p_values.csv", "intervals.csv", "table.tex"]),
        (TUNE, "trials/*/*/result.json", ["trials.csv", "tuned.yaml"]),
    ],
    ids=["compare", "tune"],
)
def test_killed_and_started_again_gives_the_same_tables(
    tmp_path: Path, command: list[str], pattern: str, tables: list[str]
) -> None:
    random = np.random.default_rng()
    moments = [(int(number), float(random.uniform(0, 0.5))) for number in sorted(random.integers(0, 7, 3))]
    for finished, wait in moments:
        kill_on_the_way(command, tmp_path / "killed", pattern, finished, wait)
    run(command, tmp_path / "killed")
    run(command, tmp_path / "undisturbed")
    for name in tables:
        (killed,) = (tmp_path / "killed").glob(f"*/*/{name}")
        (undisturbed,) = (tmp_path / "undisturbed").glob(f"*/*/{name}")
        if name == "trials.csv":
            first, second = (pd.read_csv(file).drop(columns="seconds") for file in (killed, undisturbed))
            assert_frame_equal(first, second, check_exact=True)
        else:
            assert killed.read_bytes() == undisturbed.read_bytes(), (name, moments)


def wait_for(home: Path, pattern: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + ENOUGH
    while not list(home.glob(pattern)):
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)


def kill(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.communicate()
    assert process.returncode == -9, "it was over before it was killed"


def prepared(home: Path) -> dict[str, bytes]:
    """Content of the one prepared data set, by file."""
    (manifest,) = home.glob("cache/eicu/*/manifest.json")
    folder = manifest.parent
    assert not list(folder.parent.glob("*.partial"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("raw") / "eicu"
    SYNTHETIC.get("eicu")(folder, patients=400, seed=0)
    return str(folder)


def test_two_processes_prepare_the_same_data(tmp_path: Path, raw: str) -> None:
    both = [start([*PREPARE, raw], tmp_path / "together") for _ in range(2)]
    for process in both:
        _, errors = process.communicate(timeout=ENOUGH)
        assert process.returncode == 0, errors.decode()
    run([*PREPARE, raw], tmp_path / "alone")
    assert prepared(tmp_path / "together") == prepared(tmp_path / "alone")


@pytest.mark.slow
def test_one_of_two_is_killed_and_the_other_goes_on(tmp_path: Path, raw: str) -> None:
    first = start([*PREPARE, raw], tmp_path)
    wait_for(tmp_path, "cache/eicu/*.partial/*", first)
    second = start([*PREPARE, raw], tmp_path)
    kill(first)
    _, errors = second.communicate(timeout=ENOUGH)
    assert second.returncode == 0, errors.decode()
    assert "cohort.parquet" in prepared(tmp_path)


@pytest.mark.slow
def test_prepare_is_killed_at_any_moment(tmp_path: Path, raw: str) -> None:
    began = time.monotonic()
    run([*PREPARE, raw], tmp_path / "undisturbed")
    seconds = time.monotonic() - began
    for share in np.random.default_rng().uniform(0.2, 1, 8):
        process = start([*PREPARE, raw], tmp_path / "killed")
        time.sleep(share * seconds)
        process.kill()
        process.communicate()
    run([*PREPARE, raw], tmp_path / "killed")
    assert prepared(tmp_path / "killed") == prepared(tmp_path / "undisturbed")


@pytest.mark.slow
def test_train_is_killed_and_gives_the_same_metrics(tmp_path: Path) -> None:
    for wait in np.random.default_rng().uniform(0, 0.5, 2):
        process = start(TRAIN, tmp_path / "killed")
        wait_for(tmp_path / "killed", "runs/*/checkpoints/last.ckpt", process)
        time.sleep(wait)
        kill(process)
        assert not list((tmp_path / "killed").glob("runs/*/result.json"))
    results = []
    for home in ("killed", "undisturbed"):
        run(TRAIN, tmp_path / home)
        (file,) = (tmp_path / home).glob("runs/*/result.json")
        results.append({**json.loads(file.read_text()), "seconds": None})
    assert results[0] == results[1]


@pytest.mark.slow
def test_report_is_killed_and_written_again(tmp_path: Path) -> None:
    run(COMPARE, tmp_path)
    (written,) = tmp_path.glob("studies/*/report.html")
    before = len(written.read_bytes())
    began = time.monotonic()
    run(["report"], tmp_path)
    seconds = time.monotonic() - began
    for share in np.random.default_rng().uniform(0.5, 1, 4):
        process = start(["report"], tmp_path)
        time.sleep(share * seconds)
        process.kill()
        process.communicate()
    run(["report"], tmp_path)
    assert written.read_text().rstrip().endswith("</html>")
    # Latencies are measured anew, and the axis of their figure may have more or fewer ticks.
    assert len(written.read_bytes()) == pytest.approx(before, rel=0.05)
