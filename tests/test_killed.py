"""Kill -9 at random moments: what is started again ends as if nothing had happened."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from tests.small_data import SIMULATION

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
