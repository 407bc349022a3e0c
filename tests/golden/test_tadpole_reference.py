"""What the package makes of D1_D2 files, against the independent recomputation of `tadpole_reference`.

Two files: a synthetic one, and the same one worn: codes of missing values, limits, odd diagnoses, unreadable dates and
visits of one day strewn in at random, the rows shuffled, with a BOM, CRLF line ends and a further column.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ovo_clinic.registry import SYNTHETIC
from tests.golden.eicu_folders import table
from tests.golden.tadpole_reference import CHANGES, CLASSES, CSF, MODALITIES, Reference, number, read

FILE = "TADPOLE_D1_D2.csv"
SHARES = {"train": 0.7, "validation": 0.15, "test": 0.15}
CRITERIA = "data.exclude_diagnostic_criteria=false"


@dataclass(frozen=True)
class Sides:
    """Both sides: recomputed, and exported by the command line.

    Attributes:
        raw: the folder of the file.
        wanted: all features by modality, recomputed; only the split is taken over.
        cohort, presence, attrition, given: exported.
    """

    raw: Path
    reference: Reference
    wanted: dict[str, pd.DataFrame]
    cohort: pd.DataFrame
    presence: pd.DataFrame
    attrition: pd.DataFrame
    given: dict[str, pd.DataFrame]


def exported(raw: Path, work: Path, *settings: str) -> Path:
    environment = os.environ | {"OVO_CLINIC_HOME": str(work / "home"), "OMP_NUM_THREADS": "1"}
    out = work / "export"
    line = [sys.executable, "-m", "ovo_clinic.cli", "export", "tadpole_clean", *settings, "--raw", str(raw)]
    done = subprocess.run([*line, "--out", str(out)], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return out


def worn(visits: pd.DataFrame, seed: int = 11) -> pd.DataFrame:
    """A share of the cells overwritten, the rows in another order."""
    random = np.random.default_rng(seed)
    result = visits.sample(frac=1, random_state=random).reset_index(drop=True)

    def strew(columns: Sequence[str], values: Sequence[str], share: float) -> None:
        for column in columns:
            hit = random.random(len(result)) < share
            result.loc[hit, column] = random.choice(values, size=int(hit.sum()))

    missing = ["", " ", "   ", "-4", "-4.0", " -4 ", "-4.00", "NA", "nan", "-1"]
    strew(["DXCHANGE"], ["", " ", "-1", "-1.0", "-4", "1", "2.0", " 3 ", "4", "5", "6.0", "7", "8", "9", "12"], 0.3)
    strew(["DX"], ["", "NL", "MCI", "Dementia", " MCI to Dementia ", "MCI to NL", "NL to MCI", "Unheard-of"], 0.3)
    strew(["EXAMDATE"], ["", "-4", "0000-00-00", "2012-06-15", "2012-06-15", "2013-06-15"], 0.2)
    strew(CSF, [*missing, "<200", "<80", ">1300", "<8", ">120", " >120 ", "QNS", "12.5"], 0.3)
    tests = (
        "CDRSB ADAS11 ADAS13 MMSE RAVLT_immediate RAVLT_learning FAQ MOCA Hippocampus ICV FDG AV45 APOE4 AGE".split()
    )
    strew([*tests, *result.columns[130:150], *result.columns[600:620]], [*missing, " 7.5 ", "1e2"], 0.3)
    strew(
        ["PTGENDER", "PTETHCAT", "PTRACCAT", "PTMARRY"], ["", " ", "-4", "NA", "Unknown", " White ", "Unheard-of"], 0.1
    )
    for modality in ("_UCBERKELEYAV45_10_17_16", "_BAIPETNMRC_09_12_16"):
        columns = [column for column in result if column.endswith(modality)]
        hit = random.random(len(result)) < 0.1
        result.loc[hit, columns[5:-1]] = "-4"
    result.insert(5, "A further column", "-4")
    return result


@pytest.fixture(scope="module")
def columns(shared: Path) -> pd.DataFrame:
    """The column list of the facts."""
    return pd.read_csv(shared / "facts" / "tadpole" / "columns.csv")


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw = tmp_path_factory.mktemp("synthetic") / "raw"
    SYNTHETIC.build("tadpole", raw, options={"patients": 300, "seed": 3})
    return raw


@pytest.fixture(scope="module", params=["synthetic", "worn", pytest.param("with criteria", marks=pytest.mark.slow)])
def sides(
    request: pytest.FixtureRequest, synthetic: Path, columns: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory
) -> Sides:
    work = tmp_path_factory.mktemp("work")
    raw = synthetic
    if request.param == "worn":
        raw = work / "raw"
        raw.mkdir()
        worn(read(synthetic / FILE)).to_csv(raw / FILE, index=False, encoding="utf-8-sig", lineterminator="\r\n")
    with_criteria = request.param == "with criteria"
    reference = Reference.of(raw / FILE, columns, with_criteria)
    out = exported(raw, work, *([CRITERIA] if with_criteria else []))
    cohort = table(out, "cohort")
    training = [unit for unit in cohort.index[cohort["split"] == "train"] if unit in reference.visits.index]
    return Sides(
        raw,
        reference,
        reference.features(training),
        cohort,
        table(out, "presence"),
        table(out, "attrition"),
        {name: table(out, name) for name in MODALITIES},
    )


def test_attrition_counts_visits_people_and_classes_after_every_rule(sides: Sides) -> None:
    given = sides.attrition[["units", "patients", *CLASSES]].to_numpy().tolist()
    assert given == [list(step) for step in sides.reference.attrition]
    assert given[-1][0] > 40


def test_cohort_and_labels(sides: Sides) -> None:
    wanted = sides.reference.visits
    assert sorted(sides.cohort.index) == sorted(wanted.index)
    given = sides.cohort.loc[wanted.index]
    assert given["patient_id"].astype(str).tolist() == wanted["patient_id"].tolist()
    assert given["diagnosis"].tolist() == wanted["diagnosis"].tolist()


def test_everybody_has_every_modality(sides: Sides) -> None:
    assert sorted(sides.presence.index) == sorted(sides.reference.visits.index)
    assert tuple(sides.presence.columns) == MODALITIES and (sides.presence == 1).all(axis=None)


@pytest.mark.parametrize("modality", MODALITIES)
def test_every_feature_of_every_visit(sides: Sides, modality: str) -> None:
    wanted, given = sides.wanted[modality], sides.given[modality]
    assert sorted(given.columns) == sorted(wanted.columns)
    assert sorted(given.index) == sorted(wanted.index)
    given = given.loc[wanted.index, wanted.columns]
    equal = np.isclose(given.to_numpy("float64"), wanted.to_numpy("float64"), rtol=1e-6, atol=1e-6, equal_nan=True)
    different = [
        f"{wanted.index[i]} {wanted.columns[j]}: {given.iat[i, j]}, should be {wanted.iat[i, j]}"
        for i, j in np.argwhere(~equal)
    ]
    assert different[:10] == []


def test_no_person_is_in_two_splits_and_shares_are_stratified(sides: Sides) -> None:
    split = sides.cohort["split"].loc[sides.reference.visits.index]
    people = sides.reference.visits.assign(split=split)
    assert people["patient_id"].is_unique and set(split) == set(SHARES)
    for name, share in SHARES.items():
        for label in range(3):
            of_class = people[people["diagnosis"] == label]
            assert abs((of_class["split"] == name).sum() - share * len(of_class)) <= 2


def test_files_hold_the_special_cases(sides: Sides) -> None:
    """Limits, diagnoses from DX alone, unknown diagnoses, several complete visits: else they are not tested."""
    chosen = sides.reference.visits
    rows = read(sides.raw / FILE).assign(unit=lambda own: own["RID"] + "_" + own["VISCODE"]).set_index("unit")
    rows = rows.loc[chosen.index]
    assert rows[list(CSF)].map(lambda cell: cell.strip().startswith(("<", ">"))).any(axis=None)
    if len(rows.columns) > 1907:  # the worn file
        assert (~rows["DXCHANGE"].map(number).isin(list(CHANGES))).sum() >= 3
        assert rows["EXAMDATE"].eq("2012-06-15").any()
    *_, complete, known, latest = sides.reference.attrition
    assert complete[0] > known[0] > latest[0] and known[1] == latest[1]


def test_the_project_has_the_column_list_of_the_facts(columns: pd.DataFrame) -> None:
    path = Path(__file__).parents[2] / "data_specs" / "tadpole_columns.csv"
    pd.testing.assert_frame_equal(pd.read_csv(path), columns)
