"""Every command of the README runs, in its order, as a new user would type it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What the test itself runs in, and what only a machine with a container engine or a network can do.
EXCEPTED = re.compile(r"^(make (setup|test|test-all)|export PATH=|docker |ovo-clinic fetch )")


def snippets() -> list[tuple[str, str]]:
    """(language, code) of every command and program, in order."""
    found = []
    for language, text in BLOCK.findall((REPOSITORY / "README.md").read_text(encoding="utf-8")):
        lines = text.strip().splitlines() if language == "bash" else [text]
        found += [(language, line) for line in lines if not EXCEPTED.match(line)]
    return found


def environment(home: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "OVO_CLINIC_HOME": str(home)}


def test_every_command_of_the_readme_runs(tmp_path: Path) -> None:
    found = snippets()
    assert len(found) >= 15 and any(language == "python" for language, _ in found)
    for language, code in found:
        command = ["bash", "-euc", code]
        if language == "python":
            program = tmp_path / "program.py"
            program.write_text(code)
            command = [sys.executable, str(program)]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment(tmp_path / "home"), capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr and "Warning" not in done.stderr, f"{code}\n{done.stderr}"


def test_what_the_readme_names_exists() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    tasks = {path.stem for path in (REPOSITORY / "configs").glob("*.yaml")}
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    assert {task for row in rows for task in re.findall(r"`(\w+)`", row)} == tasks
    targets = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    for target in re.findall(r"`make ([a-z-]+)`", text):
        assert target in targets, target


@pytest.mark.slow
def test_make_demo(tmp_path: Path) -> None:
    done = subprocess.run(
        ["make", "demo"], cwd=REPOSITORY, env=environment(tmp_path), capture_output=True, text=True, timeout=3600
    )
    assert done.returncode == 0, done.stderr
    gains = {
        head: int(share) for head, share in re.findall(r"^  (\w+) goes (-?\d+) % of the way", done.stdout, re.MULTILINE)
    }
    assert gains["concat"] >= 60
    assert 60 <= gains["ovo"] <= 110  # the product of two modalities, which an oracle sees whole
    assert "mlflow ui --backend-store-uri" in done.stdout
