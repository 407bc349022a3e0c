"""The results of a task under its other options are seen beside its own."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ovo_clinic import experiment, verbs
from ovo_clinic.cli import app
from ovo_clinic.errors import UserError
from ovo_clinic.prepare import prepare_task
from ovo_clinic.registry import SYNTHETIC

QUICK = ["training.epochs=1", "model.dim=16"]


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tadpole") / "raw"
    SYNTHETIC.build("tadpole", folder, options={"patients": 150, "seed": 1})
    return folder


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVO_CLINIC_HOME", str(tmp_path))


def _columns(study: verbs.Study) -> list[str]:
    prepared = study.comparison.prepared
    return [column["name"] for modality in prepared.manifest["modalities"].values() for column in modality["columns"]]


def test_the_scores_that_make_the_diagnosis_are_out_and_in(raw: Path) -> None:
    study = verbs.compare("tadpole_clean", QUICK, raw=raw, fusion=["concat"], seeds=1, workers=1)
    assert study.beside is not None and study.beside.beside is None
    criteria = {"CDRSB", "MMSE", "FAQ", "MOCA"}
    assert not criteria & set(_columns(study))
    assert set(_columns(study.beside)) - set(_columns(study)) == criteria
    assert study.beside.comparison.folder != study.comparison.folder
    assert study.beside.comparison.prepared.manifest["notes"]["scores that the diagnosis is made from"].startswith(
        "among the features"
    )


def test_what_is_beside_is_prepared_with_it_and_missed_before_any_training(
    raw: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    prepare_task(experiment.load("tadpole_clean"), raw)
    with pytest.raises(UserError, match="is not prepared"):
        verbs.compare("tadpole_clean", QUICK, fusion=["concat"], seeds=1, workers=1)
    assert not (tmp_path / "runs").exists()
    assert CliRunner().invoke(app, ["prepare", "tadpole_clean", "--raw", str(raw)]).exit_code == 0
    assert verbs.compare("tadpole_clean", QUICK, fusion=["concat"], seeds=1, workers=1).beside is not None


def test_nothing_beside_what_is_that_already(raw: Path) -> None:
    chosen = [*QUICK, "data.exclude_diagnostic_criteria=false"]
    assert verbs.compare("tadpole_clean", chosen, raw=raw, fusion=["concat"], seeds=1, workers=1).beside is None
    study = verbs.compare("tadpole_clean", QUICK, raw=raw, fusion=["concat"], seeds=1, workers=1, beside=False)
    assert study.beside is None
