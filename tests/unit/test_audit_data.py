"""No finding on the shipped tasks, on synthetic and on open demo data; leaky ones are declared, whatever is found."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ovo_clinic import verbs
from ovo_clinic.raw_folders import Given
from ovo_clinic.registry import SYNTHETIC
from tests.small_data import SIMULATION

PATIENTS = {"eicu": 400, "tadpole": 300, "mimic": 150}


@pytest.fixture(scope="module", autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVO_CLINIC_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Given]:
    """Synthetic raw folders, by data set."""
    root = tmp_path_factory.mktemp("synthetic")
    for name, patients in PATIENTS.items():
        SYNTHETIC.get(name)(root / name, patients=patients, seed=7)
    sources = {source: root / "mimic" / source for source in ("iv", "cxr", "note")}
    return {"eicu": root / "eicu", "tadpole": root / "tadpole", "mimic": sources}


def test_nothing_in_the_simulation() -> None:
    report = verbs.audit("simulation")
    assert report.units == 2000 and report.findings == []


@pytest.mark.slow
def test_nothing_in_a_run_of_the_simulation() -> None:
    verbs.train("simulation", SIMULATION)
    report = verbs.audit("simulation", SIMULATION)
    assert report.runs == 1 and report.findings == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ("eicu_mortality_24h", []),
        ("tadpole_clean", []),
        ("mimic_phenotyping", ["data.image_size=64"]),
        ("mimic_mortality_48h", ["data.image_size=64"]),
    ],
)
def test_nothing_in_the_clean_tasks_on_synthetic_data(task: str, settings: list[str], raw: dict[str, Given]) -> None:
    report = verbs.audit(task, settings, raw=raw[task.split("_")[0]])
    assert report.units > 50 and report.findings == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "folder"),
    [
        ("eicu_mortality_24h", "eicu-demo"),
        ("mimic_phenotyping", "mimic-iv-demo"),
        ("mimic_mortality_48h", "mimic-iv-demo"),
    ],
)
def test_nothing_in_the_clean_tasks_on_open_data(task: str, folder: str, shared: Path) -> None:
    report = verbs.audit(task, raw=shared / "data" / folder)
    assert report.units > 50 and report.findings == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "checks"),
    [
        ("eicu_paper", {"declared_leaks"}),
        ("tadpole_paper_text", {"declared_leaks", "identifier_or_calendar_proxies"}),
        ("tadpole_paper_code", {"declared_leaks", "people_in_two_parts", "rows_under_two_ids", "names_of_outcomes"}),
        ("mimic_paper", {"declared_leaks", "features_that_tell"}),
        ("mimic_phenotyping_replica", {"declared_leaks"}),
    ],
)
def test_leaky_tasks_are_declared(task: str, checks: set[str], raw: dict[str, Given]) -> None:
    report = verbs.audit(task, raw=raw[task.split("_")[0]])
    assert report.undeclared == []
    assert checks <= {finding.check for finding in report.findings}


@pytest.mark.slow
def test_scores_kept_on_purpose_are_declared(raw: dict[str, Given]) -> None:
    report = verbs.audit("tadpole_clean", ["data.exclude_diagnostic_criteria=false"], raw=raw["tadpole"])
    assert report.undeclared == []
    kept = next(finding for finding in report.findings if finding.check == "declared_leaks")
    assert kept.what.endswith("CDRSB, FAQ, MMSE, MOCA") and "the diagnosis is made from it" in str(kept.declared)
