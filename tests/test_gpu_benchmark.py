"""The check of GPUs: it runs, here on the CPU, covers everything that is registered, and finds what is wrong."""

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu
from ovo_clinic.registry import ATTENTION, ENCODERS, FUSION

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_one_line_and_exit_code_2() -> None:
    command = [str(REPOSITORY / "benchmarks" / "gpu.sh")]
    done = subprocess.run(
        command, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable}
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("no GPU found") and done.stderr.count("\n") == 1


def test_a_device_that_computes_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu.agreement("softmax", torch.device("cpu"), gpu.QUICK).get("wrong") is None
    faithful = copy.deepcopy

    def faulty(layer: Any) -> Any:
        other = faithful(layer)
        with torch.no_grad():
            next(other.parameters()).mul_(1.2)
        return other

    monkeypatch.setattr(copy, "deepcopy", faulty)
    assert "at most" in str(gpu.agreement("softmax", torch.device("cpu"), gpu.QUICK)["wrong"])


def test_what_raises_is_a_failed_row(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> gpu.Row:
        raise RuntimeError("no kernel\nfor this")

    rows = {"good": gpu.attempt(lambda: {"seconds": 1.5}), "bad": gpu.attempt(broken)}
    assert gpu.table("Title", rows) == 1
    assert "no kernel for this" in capsys.readouterr().out


@pytest.mark.slow
def test_everything_is_checked_on_the_cpu() -> None:
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "gpu.py"), "--device", "cpu", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    first_words = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
    assert {*ATTENTION.names(), *FUSION.names(), *ENCODERS.names()} <= set(first_words)
    for run in ("32-true, 1 device", "bf16-mixed", "16-mixed", "DDP on 2", "killed and resumed"):
        assert run in done.stdout
    assert done.stdout.splitlines()[-1].startswith("all well")
