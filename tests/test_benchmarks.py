"""The cost study runs, covers every combination, and compares with the right loop; the other benchmarks run."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import fusion
from tests.contracts.combinations import combinations

REPOSITORY = Path(__file__).resolve().parent.parent


def test_the_exponent_is_that_of_a_power_law() -> None:
    sizes = np.array([4, 8, 32])
    assert fusion.exponent(pd.DataFrame({"modalities": sizes, "milliseconds": 0.3 * sizes**1.7})) == pytest.approx(1.7)


def test_the_loop_is_the_authors_formulation() -> None:
    """For each modality: softmax(mean of the others, cut into heads, W m^T) m, written out in numpy."""
    rng = np.random.default_rng(0)
    inputs, weight = rng.normal(size=(3, 2, 8)), rng.normal(size=(4, 4))
    found = fusion.AuthorsLoop(torch.from_numpy(weight), heads=2)([torch.from_numpy(x) for x in inputs])
    for unit in range(2):
        expected = []
        for i in range(3):
            main = inputs[i, unit].reshape(2, 4)
            scores = np.mean([inputs[j, unit].reshape(2, 4) for j in range(3) if j != i], axis=0) @ weight @ main.T
            attention = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
            expected.append((attention @ main).ravel())
        np.testing.assert_allclose(found[unit].detach(), np.concatenate(expected), rtol=1e-12)


def test_all_accepted_combinations_are_studied() -> None:
    assert set(fusion.accepted()) == {(name, options["attention"]) for name, options in combinations().accepted}


@pytest.mark.slow
def test_one_command_writes_table_and_figures(tmp_path: Path) -> None:
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "fusion.py"), "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "times as fast as the authors' loop" in done.stdout
    table = pd.read_csv(tmp_path / "fusion_costs.csv")
    assert len(table) == 4 * len(fusion.accepted())
    assert (table[list(fusion.MEASURES)] > 0).all(axis=None)
    for against in ("modalities", "tokens"):
        assert (tmp_path / f"fusion_costs_{against}.png").stat().st_size > 10_000


def test_the_time_of_intervals_is_measured() -> None:
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "intervals.py"), "--units", "300", "--resamples", "20"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, *lines, last = done.stdout.splitlines()
    assert first.startswith("300 units, 2 metrics, 20 resamples")
    assert [float(line.split()[-1]) >= 0 for line in lines] == [True] * 4
    assert "at most 60 seconds" in last


def test_loader_and_training_step_are_measured() -> None:
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "loader.py"), "--units", "300", "--encoder", "mlp"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, *lines = done.stdout.splitlines()
    assert first.startswith("300 units of 48 bins x 34 columns")
    rates = [float(line.split(": ")[1].split()[0].replace(",", "")) for line in lines[:2]]
    ratios = [float(line.split("ratio ")[1].split()[0]) for line in lines[2:]]
    assert len(ratios) == 2 and min(*rates, *ratios) > 0


@pytest.mark.slow
def test_memory_over_many_studies_is_measured() -> None:
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "memory.py"), "--studies", "3", "--settled", "2"]
    done = subprocess.run(command, capture_output=True, text=True)
    *_, second, last = done.stdout.splitlines()
    assert second.startswith("   2 studies") and " MiB" in second
    assert last.startswith("after 2 studies") and "after 3 " in last and "wanted: at most +5%" in last
