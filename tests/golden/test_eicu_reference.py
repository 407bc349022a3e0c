"""What the package makes of raw eICU folders, against the independent recomputation of `eicu_reference`.

Three folders: the open demo (by the command line), a synthetic one, and the synthetic one worn: values at and around
every limit of the task's definition, blanks, repeats and odd spellings strewn in at random.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from ovo_clinic.registry import SYNTHETIC
from tests.conftest import REPOSITORY
from tests.golden.eicu_folders import Tables, by_command_line, in_process, read, table, write
from tests.golden.eicu_reference import CATEGORIES, Entry, Ranges, Reference, Vocabularies, in_window

MODALITIES = ("demographics", "diagnosis", "treatment", "medication", "lab", "aps")
SHARES = {"train": 0.7, "validation": 0.1, "test": 0.2}
EDGES = ("", "-361", "-360", "-359", "1439", "1440", "1441")


@dataclass(frozen=True)
class Sides:
    """Both sides of the comparison.

    Attributes:
        reference, vocabulary, wanted: recomputed; `wanted` = all features of all present stays by modality.
        cohort, presence, attrition, given: exported.
    """

    reference: Reference
    vocabulary: Vocabularies
    wanted: dict[str, pd.DataFrame]
    cohort: pd.DataFrame
    presence: pd.DataFrame
    attrition: pd.DataFrame
    given: dict[str, pd.DataFrame]

    @classmethod
    def of(cls, reference: Reference, out: Path) -> "Sides":
        """Reads the export of the recomputed folder; only the split is taken over."""
        cohort = table(out, "cohort")
        vocabulary = reference.vocabularies(cohort.index[cohort["split"] == "train"])
        features = reference.features(reference.stays.index, vocabulary, spec_ranges())
        wanted = {}
        for name in MODALITIES:
            units = [unit for unit, found in features.items() if name in found]
            wanted[name] = pd.DataFrame([features[unit][name] for unit in units], index=units)
        given = {name: table(out, name) for name in MODALITIES}
        return cls(reference, vocabulary, wanted, cohort, table(out, "presence"), table(out, "attrition"), given)


def spec_ranges() -> Ranges:
    """The lab ranges and unit conversions, which are data of the spec."""
    settings = yaml.safe_load((REPOSITORY / "data_specs" / "eicu.yaml").read_text())["settings"]
    return {name: [Entry(**entry) for entry in entries] for name, entries in settings["lab_ranges"].items()}


def worn(tables: Tables, seed: int = 7) -> Tables:
    """A folder with a share of its cells overwritten by limits, blanks and odd spellings, and results repeated."""
    random = np.random.default_rng(seed)
    result = {name: rows.copy() for name, rows in tables.items()}

    def strew(name: str, column: str, values: Sequence[str], share: float) -> None:
        hit = random.random(len(result[name])) < share
        result[name].loc[hit, column] = random.choice(values, size=int(hit.sum()))

    lab = result["lab"]
    for _ in range(3):
        again = lab.sample(frac=0.05, random_state=random)
        ids = (700_000_000 + random.permutation(len(again))).astype(str)
        lab = pd.concat(
            [lab, again.assign(labid=ids, labresult=again["labresult"].sample(frac=1, random_state=random).to_numpy())]
        )
    result["lab"] = lab.drop_duplicates("labid").reset_index(drop=True)
    for name, column in (
        ("diagnosis", "diagnosisoffset"),
        ("treatment", "treatmentoffset"),
        ("medication", "drugstartoffset"),
        ("medication", "drugorderoffset"),
        ("lab", "labresultoffset"),
        ("lab", "labresultrevisedoffset"),
    ):
        strew(name, column, EDGES, 0.2)
    strew("lab", "labresult", ["", "0", "-5", "0.2", "1", "20", "100", "100.5", "250", "10000"], 0.1)
    strew("medication", "drugordercancelled", ["", "No", "YES", "yes", "Yes"], 0.2)
    strew("medication", "drughiclseqno", [""], 0.2)
    strew("medication", "drugname", [""], 0.3)
    for column in ("eyes", "motor", "verbal", "urine", "ph", "heartrate"):
        strew("apacheApsVar", column, ["-1", "0", ""], 0.2)
    strew("patient", "age", ["", "17", "18", "89", "> 89"], 0.1)
    strew("patient", "admissionheight", ["", "99.9", "100", "250", "250.1"], 0.2)
    strew("patient", "admissionweight", ["", "19.9", "20", "300", "300.1"], 0.2)
    strew("patient", "hospitaladmitoffset", ["-100000", "-60", "-1", "0", "1", "500"], 0.2)
    strew("patient", "unitvisitnumber", ["1", "2"], 0.2)
    strew("patient", "unitdischargeoffset", ["0", "1439", "1440", "1441"], 0.2)
    strew("patient", "hospitaldischargestatus", ["", "Alive", "Expired"], 0.1)
    strew("patient", "unitdischargestatus", ["", "Alive", "Expired"], 0.1)
    for column in CATEGORIES:
        strew("patient", column, ["", "Unheard-of"], 0.05)
    return result


@pytest.fixture(scope="module")
def demo(shared: Path) -> Reference:
    return Reference.of(shared / "data" / "eicu-demo")


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw = tmp_path_factory.mktemp("synthetic") / "raw"
    SYNTHETIC.get("eicu")(raw, patients=400, seed=3)
    return raw


@pytest.fixture(scope="module", params=["demo", "synthetic", "worn"])
def sides(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sides:
    work = tmp_path_factory.mktemp(request.param)
    if request.param == "demo":
        raw = request.getfixturevalue("shared") / "data" / "eicu-demo"
        return Sides.of(request.getfixturevalue("demo"), by_command_line(raw, work))
    raw = request.getfixturevalue("synthetic")
    if request.param == "worn":
        raw = write(worn(read(raw)), work / "raw")
    return Sides.of(Reference.of(raw), in_process(raw, work))


def different(given: pd.DataFrame, wanted: pd.DataFrame) -> list[str]:
    """Cells that differ by more than float32 rounding."""
    equal = np.isclose(given.to_numpy("float64"), wanted.to_numpy("float64"), rtol=1e-6, atol=1e-6, equal_nan=True)
    return [
        f"{wanted.index[i]} {wanted.columns[j]}: {given.iat[i, j]}, should be {wanted.iat[i, j]}"
        for i, j in np.argwhere(~equal)
    ]


def test_attrition_counts_every_rule(sides: Sides) -> None:
    wanted = pd.DataFrame(sides.reference.attrition, columns=["units", "patients", "positives"])
    given = sides.attrition
    assert given[["units", "patients"]].to_numpy().tolist() == wanted[["units", "patients"]].to_numpy().tolist()
    told = given["positives"].notna()
    assert told.iloc[-1]
    assert given.loc[told, "positives"].tolist() == wanted.loc[told, "positives"].tolist()


def test_cohort_and_labels(sides: Sides) -> None:
    stays = sides.reference.stays
    assert sorted(sides.cohort.index) == stays.index.tolist()
    given = sides.cohort.loc[stays.index]
    assert given["patient_id"].tolist() == stays["uniquepid"].tolist()
    assert given["died"].tolist() == stays["died"].tolist()


def test_presence_of_every_stay(sides: Sides) -> None:
    wanted = sides.reference.presence
    assert tuple(sides.presence.columns) == MODALITIES
    assert sorted(sides.presence.index) == wanted.index.tolist()
    assert different(sides.presence.loc[wanted.index], wanted[list(MODALITIES)]) == []


@pytest.mark.parametrize("modality", MODALITIES)
def test_names_and_rows_of_a_table(sides: Sides, modality: str) -> None:
    """Names are the vocabulary (codes, labnames, levels), which the training stays decide; rows the present stays."""
    given, present = sides.given[modality], sides.reference.presence[modality]
    assert sorted(given.columns) == sorted(sides.wanted[modality].columns)
    assert sorted(given.index) == present.index[present == 1].tolist()


@pytest.mark.parametrize("modality", MODALITIES)
def test_every_feature_of_every_stay(sides: Sides, modality: str) -> None:
    wanted = sides.wanted[modality]
    assert different(sides.given[modality].loc[wanted.index, wanted.columns], wanted)[:10] == []


def test_no_person_and_no_hospital_stay_is_in_two_splits(sides: Sides) -> None:
    split = sides.cohort["split"].loc[sides.reference.stays.index]
    assert set(split) == set(SHARES)
    for column in ("uniquepid", "patienthealthsystemstayid"):
        assert split.groupby(sides.reference.stays[column]).nunique().max() == 1


def test_split_shares_are_of_people_and_stratified_by_any_death(sides: Sides) -> None:
    stays = sides.reference.stays.assign(split=sides.cohort["split"])
    people = stays.groupby("uniquepid").agg(split=("split", "first"), died=("died", "max"))
    for name, share in SHARES.items():
        mine = people[people["split"] == name]
        assert abs(len(mine) - share * len(people)) <= 2
        assert abs(mine["died"].sum() - share * people["died"].sum()) <= 2


def test_demo_holds_the_special_cases(demo: Reference) -> None:
    """`> 89`, labs, results corrected in time, stays with nothing but demographics: else they are not tested."""
    lab = demo.tables["lab"].query("labresult != ''")
    known = lab[in_window(lab["labresultoffset"]) & in_window(lab["labresultrevisedoffset"])]
    versions = known.groupby(["patientunitstayid", "labname", "labresultoffset"])["labresult"].nunique()
    corrected = versions.index[versions > 1].get_level_values("patientunitstayid").astype("int64")
    assert (demo.stays["age"] == "> 89").sum() == 59
    assert demo.presence["lab"].sum() == 96
    assert demo.stays.index.isin(corrected).sum() == 3
    assert (demo.presence.drop(columns="demographics").sum(axis=1) == 0).sum() == 7


def test_attrition_of_the_demo(demo: Reference) -> None:
    """Stays, people, deaths after each rule: all, first, adult, in the unit at 24 h, label known, no contradiction."""
    assert demo.attrition == [
        (2520, 1841, 212),
        (2174, 1841, 182),
        (2166, 1834, 180),
        (1459, 1282, 124),
        (1441, 1267, 124),
        (1438, 1264, 124),
    ]
