"""The synthetic eICU folder: form, quirks, and the planted signal, checked with pandas and scikit-learn."""

import gzip
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from ovo_clinic.errors import UserError
from ovo_clinic.registry import SYNTHETIC
from ovo_clinic.synthetic.eicu import write
from ovo_clinic.synthetic.eicu_signal import draw, probability, terms

HEADERS = {
    "patient": "patientunitstayid,patienthealthsystemstayid,gender,age,ethnicity,hospitalid,wardid,apacheadmissiondx,"
    "admissionheight,hospitaladmittime24,hospitaladmitoffset,hospitaladmitsource,hospitaldischargeyear,"
    "hospitaldischargetime24,hospitaldischargeoffset,hospitaldischargelocation,hospitaldischargestatus,unittype,"
    "unitadmittime24,unitadmitsource,unitvisitnumber,unitstaytype,admissionweight,dischargeweight,unitdischargetime24,"
    "unitdischargeoffset,unitdischargelocation,unitdischargestatus,uniquepid",
    "diagnosis": "diagnosisid,patientunitstayid,activeupondischarge,diagnosisoffset,diagnosisstring,icd9code,"
    "diagnosispriority",
    "treatment": "treatmentid,patientunitstayid,treatmentoffset,treatmentstring,activeupondischarge",
    "medication": "medicationid,patientunitstayid,drugorderoffset,drugstartoffset,drugivadmixture,drugordercancelled,"
    "drugname,drughiclseqno,dosage,routeadmin,frequency,loadingdose,prn,drugstopoffset,gtc",
    "lab": "labid,patientunitstayid,labresultoffset,labtypeid,labname,labresult,labresulttext,labmeasurenamesystem,"
    "labmeasurenameinterface,labresultrevisedoffset",
    "apacheApsVar": "apacheapsvarid,patientunitstayid,intubated,vent,dialysis,eyes,motor,verbal,meds,urine,wbc,"
    "temperature,respiratoryrate,sodium,heartrate,meanbp,ph,hematocrit,creatinine,albumin,pao2,pco2,bun,glucose,"
    "bilirubin,fio2",
}
OFFSETS = {"diagnosis": "diagnosisoffset", "treatment": "treatmentoffset", "medication": "drugstartoffset"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("synthetic") / "eicu"
    write(out, patients=3000, seed=7)
    return out


@pytest.fixture(scope="module")
def raw(folder: Path) -> dict[str, pd.DataFrame]:
    return {name: pd.read_csv(folder / f"{name}.csv.gz", dtype={"age": str}, low_memory=False) for name in HEADERS}


@pytest.fixture(scope="module")
def cohort(raw: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """The stays of eicu_mortality_24h by the rules of the task, indexed by patientunitstayid."""
    patient = raw["patient"].sort_values(
        ["patienthealthsystemstayid", "hospitaladmitoffset", "unitvisitnumber", "patientunitstayid"],
        ascending=[True, False, True, True],
    )
    first = patient.drop_duplicates("patienthealthsystemstayid")
    age = pd.to_numeric(first["age"].replace("> 89", "90"))
    hospital, unit = first["hospitaldischargestatus"], first["unitdischargestatus"]
    kept = (age >= 18) & (first["unitdischargeoffset"] >= 1440) & hospital.notna()
    return first[kept & ~((unit == "Expired") & (hospital == "Alive"))].set_index("patientunitstayid").sort_index()


def test_headers_are_the_real_ones(folder: Path) -> None:
    for name, header in HEADERS.items():
        with gzip.open(folder / f"{name}.csv.gz", "rt") as file:
            assert file.readline() == header + "\n"


def test_form_is_that_of_the_demo(raw: dict[str, pd.DataFrame], shared: Path) -> None:
    for name, frame in raw.items():
        demo = pd.read_csv(shared / "data" / "eicu-demo" / f"{name}.csv.gz", dtype={"age": str}, low_memory=False)
        assert list(frame) == list(demo)
        for column in frame:
            texts = pd.api.types.is_numeric_dtype(frame[column]), pd.api.types.is_numeric_dtype(demo[column])
            assert texts[0] == texts[1], (name, column)
    real = pd.read_csv(shared / "data" / "eicu-demo" / "patient.csv.gz", dtype=str)
    for column in ("ethnicity", "unittype", "unitstaytype", "hospitaldischargestatus", "unitdischargestatus"):
        assert set(raw["patient"][column].dropna()) <= set(real[column].dropna()), column


def test_identifiers(raw: dict[str, pd.DataFrame]) -> None:
    patient = raw["patient"]
    assert patient["uniquepid"].nunique() == 3000
    for name, frame in raw.items():
        assert frame.iloc[:, 0].is_unique, name
        assert frame["patientunitstayid"].isin(patient["patientunitstayid"]).all(), name
    assert raw["apacheApsVar"]["patientunitstayid"].is_unique
    owners = patient.groupby("patienthealthsystemstayid")["uniquepid"].nunique()
    assert (owners == 1).all()
    # The order of the rows says nothing about the order in time.
    several = patient.groupby("patienthealthsystemstayid").filter(lambda group: len(group) > 1)
    ranks = several.groupby("patienthealthsystemstayid")[["patientunitstayid", "hospitaladmitoffset"]].rank()
    assert abs(ranks.corr().iloc[0, 1]) < 0.15


def test_quirks_of_patients(raw: dict[str, pd.DataFrame]) -> None:
    patient = raw["patient"]
    age = patient["age"]
    assert (age == "> 89").any() and age.isna().any()
    known = pd.to_numeric(age[age.notna() & (age != "> 89")])
    assert known.max() == 89 and (known < 18).any()
    assert {"Male", "Female", "Other", "Unknown"} == set(patient["gender"].dropna()) and patient["gender"].isna().any()
    assert patient["ethnicity"].isna().any()
    assert patient.groupby("uniquepid")["patienthealthsystemstayid"].nunique().max() >= 2
    stays = patient.groupby("patienthealthsystemstayid")
    assert stays.size().max() >= 3
    assert (stays["unitvisitnumber"].min() > 1).any()
    ordered = patient.sort_values("hospitaladmitoffset", ascending=False).groupby("patienthealthsystemstayid")
    assert (ordered["unitvisitnumber"].first() != ordered["unitvisitnumber"].min()).any()
    assert {"admit", "readmit", "transfer", "stepdown/other"} == set(patient["unitstaytype"])
    assert (patient["hospitaladmitoffset"] > 0).any()
    length = patient["unitdischargeoffset"]
    assert 0.1 < (length < 1440).mean() < 0.3 and (length == 1440).any() and (length == 1439).any()
    assert (patient["hospitaldischargeoffset"] < 1440)[length >= 1440].any()
    assert not patient["admissionheight"].dropna().between(100, 250).all()
    assert not patient["admissionweight"].dropna().between(20, 300).all()


def test_outcomes_agree_with_each_other(raw: dict[str, pd.DataFrame]) -> None:
    patient = raw["patient"]
    hospital, unit = patient["hospitaldischargestatus"], patient["unitdischargestatus"]
    assert hospital.isna().any() and unit.isna().any()
    assert ((unit == "Expired") & (hospital == "Alive")).sum() >= 3
    assert ((unit == "Expired") == (patient["unitdischargelocation"] == "Death")).all()
    assert ((hospital == "Expired") == (patient["hospitaldischargelocation"] == "Death")).all()
    assert (patient.groupby("patienthealthsystemstayid")["hospitaldischargestatus"].nunique(dropna=False) == 1).all()
    deaths = patient[hospital == "Expired"].groupby("uniquepid")["patienthealthsystemstayid"].nunique()
    assert deaths.max() == 1
    died = patient[(unit == "Expired") & (patient["hospitaldischargeoffset"] >= 1440)]
    assert (died["hospitaldischargeoffset"] - died["unitdischargeoffset"]).median() < 20


def test_quirks_of_the_apache_table(raw: dict[str, pd.DataFrame]) -> None:
    aps = raw["apacheApsVar"]
    assert (aps.drop(columns=["apacheapsvarid", "patientunitstayid"]) == -1).any().all()
    coma = aps[["eyes", "motor", "verbal"]]
    assert (aps["meds"] == 1).any() and (coma[aps["meds"] == 1] == 0).all(axis=None)
    assert not (coma[aps["meds"] != 1] == 0).any(axis=None)
    assert 0.82 < len(aps) / len(raw["patient"]) < 0.88


def test_rows_lie_before_admission_and_after_discharge(raw: dict[str, pd.DataFrame]) -> None:
    length = raw["patient"].set_index("patientunitstayid")["unitdischargeoffset"]
    for name, column in {**OFFSETS, "lab": "labresultoffset"}.items():
        offset = raw[name][column]
        assert (offset < 0).mean() > 0.01 and (offset < -360).any(), name
        assert (offset > raw[name]["patientunitstayid"].map(length)).mean() > 0.01, name
        assert (offset == 1440).any() and (offset == 1439).any() and (offset == -360).any(), name


def test_quirks_of_medication(raw: dict[str, pd.DataFrame]) -> None:
    orders = raw["medication"]
    name, code = orders["drugname"], orders["drughiclseqno"]
    assert 0.25 < (name.isna() & code.notna()).mean() < 0.5
    assert (name.notna() & code.isna()).any()
    assert {"No", "Yes", "YES"} == set(orders["drugordercancelled"].dropna()) and orders[
        "drugordercancelled"
    ].isna().any()
    spellings = orders.dropna(subset=["drugname", "drughiclseqno"]).groupby("drughiclseqno")["drugname"]
    assert (spellings.nunique() >= 3).all()
    assert (spellings.apply(lambda names: names.str.lower().nunique()) < spellings.nunique()).any()
    start, ordered = orders["drugstartoffset"], orders["drugorderoffset"]
    assert (start.between(-360, 1439) & (ordered >= 1440)).any() and (ordered == 1440).any() and (ordered < 0).any()
    assert orders["dosage"].str.contains(",").any()


def test_quirks_of_lab(raw: dict[str, pd.DataFrame]) -> None:
    lab = raw["lab"]
    versions = lab.groupby(["patientunitstayid", "labname", "labresultoffset"])
    assert 0.01 < (versions.size() > 1).mean() < 0.1
    several = lab[lab.duplicated(["patientunitstayid", "labname", "labresultoffset"], keep=False)]
    assert (
        several.groupby(["patientunitstayid", "labname", "labresultoffset"])["labresultrevisedoffset"].nunique() > 1
    ).mean() > 0.99
    inside = lab["labresultoffset"].between(-360, 1439)
    assert (lab["labresultrevisedoffset"][inside] == 1440).any() and (
        lab["labresultrevisedoffset"][inside] > 1440
    ).any()
    text_only = lab[lab["labresult"].isna()]
    assert text_only["labresulttext"].notna().all() and text_only["labresulttext"].str.startswith("<").any()
    assert text_only["labresulttext"].str.contains('"').any() and text_only["labresulttext"].str.contains("\n").any()
    fio2 = lab.loc[lab["labname"] == "FiO2", "labresult"]
    assert fio2.between(0.2, 1).any() and fio2.between(21, 100).any() and (fio2 > 100).any()
    temperature = lab.loc[lab["labname"] == "Temperature", "labresult"]
    assert temperature.between(34, 41).any() and temperature.between(93, 106).any() and (temperature < 10).any()


def test_modalities_are_missing_for_stays_and_whole_hospitals(raw: dict[str, pd.DataFrame]) -> None:
    patient = raw["patient"]
    for name in ("treatment", "medication"):
        seen = patient["patientunitstayid"].isin(raw[name]["patientunitstayid"])
        coverage = seen.groupby(patient["hospitalid"]).mean()
        assert (coverage == 0).sum() >= 3 and coverage.max() > 0.9, name
    assert 0.01 < (~patient["patientunitstayid"].isin(raw["lab"]["patientunitstayid"])).mean() < 0.1


def test_vocabularies_follow_zipf(raw: dict[str, pd.DataFrame]) -> None:
    for name, column in (
        ("diagnosis", "diagnosisstring"),
        ("treatment", "treatmentstring"),
        ("medication", "drughiclseqno"),
    ):
        counts = raw[name][column].value_counts()
        assert 60 <= len(counts) <= 61 and counts.iloc[0] > 5 * counts.iloc[59], name
    labs = raw["lab"]["labname"].value_counts()
    assert len(labs) == 40 and labs.iloc[0] > 3 * labs.iloc[39]


def test_the_last_hours_leak_the_outcome_only_after_24_hours(
    raw: dict[str, pd.DataFrame], cohort: pd.DataFrame
) -> None:
    arrest = raw["diagnosis"][raw["diagnosis"]["diagnosisstring"].str.contains("cardiac arrest")]
    arrest = arrest[arrest["patientunitstayid"].isin(cohort.index)]
    assert (arrest["diagnosisoffset"] >= 1440).all()
    assert (cohort.loc[arrest["patientunitstayid"], "hospitaldischargestatus"] == "Expired").mean() > 0.9


def test_the_oracle_reaches_what_is_written(folder: Path, cohort: pd.DataFrame) -> None:
    report = json.loads((folder / "SYNTHETIC.json").read_text())
    oracle = pd.read_csv(folder / "oracle.csv.gz", index_col="patientunitstayid")["probability"].loc[cohort.index]
    died = (cohort["hospitaldischargestatus"] == "Expired").to_numpy()
    assert report["oracle"]["stays"] == len(cohort) and report["oracle"]["deaths"] == died.sum()
    assert report["oracle"]["auroc"] == pytest.approx(roc_auc_score(died, oracle), abs=1e-12)
    assert 0.87 < report["oracle"]["auroc"] < 0.93 and 0.12 < died.mean() < 0.2
    assert 0.65 < report["oracle"]["auroc_best_single_modality"] < 0.75
    best, rest = report["oracle"]["auroc_best_single_modality"], report["oracle"]["auroc_without_product"]
    assert report["oracle"]["auroc"] - rest > 0.6 * (report["oracle"]["auroc"] - best)
    # The probability is calibrated: deaths are within sampling error of its sum, in each of four groups.
    for _, group in pd.DataFrame({"p": oracle.to_numpy(), "died": died}).groupby(pd.qcut(oracle.to_numpy(), 4)):
        error = np.sqrt((group["p"] * (1 - group["p"])).sum())
        assert abs(group["died"].sum() - group["p"].sum()) < 3.5 * error


def test_the_age_term_is_the_documented_one(folder: Path, cohort: pd.DataFrame) -> None:
    report = json.loads((folder / "SYNTHETIC.json").read_text())
    age = pd.to_numeric(cohort["age"].replace("> 89", "90"))
    died = cohort["hospitaldischargestatus"] == "Expired"
    expected = roc_auc_score(died, age)
    assert report["oracle"]["auroc_single_modality"]["demographics"] == pytest.approx(expected, abs=1e-12)


def test_the_product_is_invisible_to_one_modality() -> None:
    rng = np.random.default_rng(3)
    count = 200_000
    everywhere = {name: np.ones(count, bool) for name in ("diagnosis", "treatment", "medication", "lab", "aps")}
    latents = draw(rng, rng.normal(0, 1, count), everywhere)
    died = rng.random(count) < probability(terms(latents))
    error = np.sqrt(count / (12 * died.sum() * (~died).sum()))  # of an AUROC of 0.5 (Hanley and McNeil)
    for modality in ("lab", "aps"):
        for score in (np.cos, np.sin, lambda a: np.cos(a) ** 2, lambda a: np.cos(a) * np.sin(a)):
            assert abs(roc_auc_score(died, score(latents.angle[modality])) - 0.5) < 4 * error
        # Flat everywhere, not only on average: the death rate in 12 sectors of the circle.
        sector = (latents.angle[modality] // (np.pi / 6)).astype(int)
        rates = pd.Series(died).groupby(sector).mean()
        assert (abs(rates - died.mean()) < 4 * np.sqrt(died.mean() / (count / 12))).all()
    both = np.cos(latents.angle["lab"]) * np.cos(latents.angle["aps"])
    assert roc_auc_score(died, both) > 0.65


def test_latents_can_be_read_from_the_tables(raw: dict[str, pd.DataFrame], cohort: pd.DataFrame, folder: Path) -> None:
    """A few columns of two tables, multiplied, tell what neither tells alone."""
    aps = raw["apacheApsVar"].replace(-1, np.nan).set_index("patientunitstayid")
    lab = raw["lab"]
    lab = lab[lab["labresultoffset"].between(-360, 1439) & (lab["labresultrevisedoffset"] < 1440)]
    means = lab.pivot_table(index="patientunitstayid", columns="labname", values="labresult", aggfunc="mean")
    rows = cohort.index.intersection(aps.index).intersection(means.index)
    z = [((table - table.median()) / table.std()).loc[rows] for table in (means, aps)]
    cos_a, sin_a = z[0][["albumin", "calcium", "Hgb"]].mean(axis=1), z[0][["sodium", "chloride", "RDW"]].mean(axis=1)
    cos_b, sin_b = z[1][["heartrate", "temperature"]].mean(axis=1), z[1][["respiratoryrate", "wbc"]].mean(axis=1)
    died = cohort.loc[rows, "hospitaldischargestatus"] == "Expired"
    parts = [part.fillna(0) for part in (cos_a, sin_a, cos_b, sin_b)]
    assert all(abs(roc_auc_score(died, part) - 0.5) < 0.06 for part in parts)
    assert roc_auc_score(died, parts[0] * parts[2] - parts[1] * parts[3]) > 0.75


def _digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "a", patients=1000, seed=1)
    write(tmp_path / "b", patients=1000, seed=1)
    write(tmp_path / "c", patients=1000, seed=2)
    first, again, other = (_digests(tmp_path / name) for name in "abc")
    assert len(first) == 8 and first == again
    assert all(first[name] != other[name] for name in first)


def test_lab_rows_can_be_chosen(tmp_path: Path) -> None:
    for rows in (60, 400):
        report = write(tmp_path / str(rows), patients=200, lab_rows_per_stay=rows)
        assert 0.8 * rows < report["counts"]["rows"]["lab"] / report["counts"]["unit_stays"] < 1.2 * rows


@pytest.mark.parametrize("patients", [1, 2, 2001])
def test_any_number_of_patients(tmp_path: Path, patients: int) -> None:
    report = write(tmp_path / "out", patients=patients, lab_rows_per_stay=1)
    patient = pd.read_csv(tmp_path / "out" / "patient.csv.gz")
    assert patient["uniquepid"].nunique() == patients and len(patient) == report["counts"]["unit_stays"]


def test_mistakes_are_named_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="not a new or empty folder"):
        write(full)
    with pytest.raises(UserError, match="patients: 0"):
        write(tmp_path / "out", patients=0)
    with pytest.raises(UserError, match="no such setting; did you mean 'patients'"):
        SYNTHETIC.build("eicu", tmp_path / "out", options={"patient": 3})

    def fail(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ovo_clinic.synthetic.eicu.lab_table", fail)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "out", patients=10)
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    out = tmp_path / "empty"
    out.mkdir()
    write(out, patients=5)
    assert (out / "patient.csv.gz").is_file()


def test_nothing_heavy_is_imported() -> None:
    code = "import sys, ovo_clinic.synthetic.eicu; print([m for m in ('torch', 'scipy', 'mlflow') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
