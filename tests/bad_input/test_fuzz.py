"""The fuzz benchmark, short: random damage to files, read or refused in one line."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import fuzz
from tests.conftest import REPOSITORY


def test_random_damage_is_read_or_refused(tmp_path: Path) -> None:
    report = fuzz.fuzz(fuzz.targets(tmp_path), seed=7, more=lambda done: done < 300, keep=tmp_path / "kept")
    assert report.tracebacks == {}, "\n".join(report.lines())
    for name in ("csv", "csv.gz", "split list", "yaml", "dicom"):
        found = {outcome: report.counts[name, outcome] for outcome in ("refused", "accepted")}
        assert sum(found.values()) == 60 and min(found.values()) > 0, (name, found)


def test_undamaged_files_are_accepted(tmp_path: Path) -> None:
    for target in fuzz.targets(tmp_path).values():
        for seed in target.seeds:
            path = tmp_path / target.name
            path.write_bytes(seed)
            assert target.read(path)
            path.unlink()


def test_a_traceback_is_reported_with_what_brings_it_about(tmp_path: Path) -> None:
    def read(path: Path) -> bool:
        return 1 / len(path.read_bytes()) > 0

    target = fuzz.Target("short.bin", (b"x",), read)
    report = fuzz.fuzz({"short": target}, seed=1, more=lambda done: done < 60, keep=tmp_path / "kept")
    assert 0 < report.counts["short", "traceback"] < report.counts.total() == 60
    (text,) = report.tracebacks.values()
    assert "short: ZeroDivisionError in read" in text
    assert [path.read_bytes() for path in (tmp_path / "kept").iterdir()][0] == b""


@pytest.mark.slow
def test_the_command_prints_its_seed_and_counts() -> None:
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "fuzz.py"), "--minutes", "0.05", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, header, *lines = done.stdout.splitlines()
    assert first == "seed 3" and header.split() == ["reader", "inputs", "refused", "accepted", "traceback"]
    assert lines[-1].endswith("seconds") and int(lines[-1].split()[0].replace(",", "")) > 0
