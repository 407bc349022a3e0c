"""The tutorial notebook runs from its first cell to its last and finds the planted signal."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import REPOSITORY


@pytest.mark.slow
def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUTORIAL_PATIENTS", "800")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    notebook = nbformat.read(REPOSITORY / "docs" / "tutorial.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # results are not kept in the repository
    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
    told = "\n".join(
        output.get("data", {}).get("text/plain", "") for cell in notebook.cells for output in cell.get("outputs", [])
    )
    (score,) = re.findall(r"AUROC on the new units: (\d\.\d+)", told)
    (oracle,) = re.findall(r"on the same test units: (\d\.\d+)", told)
    assert 0.55 < float(score) < 1 and 0.7 < float(oracle) < 1
    assert "concat" in told and "ovo seed 1" in told and "study" in told
