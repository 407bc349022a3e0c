"""The synthetic MIMIC folders: form, quirks, and the planted signal, checked with pandas, Pillow and scikit-learn."""

import csv
import gzip
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pydicom
import pytest
from PIL import Image
from sklearn.metrics import roc_auc_score

from ovo_clinic.errors import UserError
from ovo_clinic.registry import SYNTHETIC
from ovo_clinic.synthetic.mimic import write
from ovo_clinic.synthetic.mimic_signal import PHASES, draw, intercepts, probabilities, terms
from ovo_clinic.synthetic.mimic_targets import OTHER_ICD9, OTHER_ICD10, PHENOTYPES, SEPTIC_SHOCK, TARGETS

HEADERS = {
    "hosp/patients": "subject_id,gender,anchor_age,anchor_year,anchor_year_group,dod",
    "hosp/admissions": "subject_id,hadm_id,admittime,dischtime,deathtime,admission_type,admit_provider_id,"
    "admission_location,discharge_location,insurance,language,marital_status,race,edregtime,edouttime,"
    "hospital_expire_flag",
    "hosp/diagnoses_icd": "subject_id,hadm_id,seq_num,icd_code,icd_version",
    "hosp/d_icd_diagnoses": "icd_code,icd_version,long_title",
    "hosp/d_labitems": "itemid,label,fluid,category",
    "hosp/labevents": "labevent_id,subject_id,hadm_id,specimen_id,itemid,order_provider_id,charttime,storetime,value,"
    "valuenum,valueuom,ref_range_lower,ref_range_upper,flag,priority,comments",
    "icu/icustays": "subject_id,hadm_id,stay_id,first_careunit,last_careunit,intime,outtime,los",
    "icu/chartevents": "subject_id,hadm_id,stay_id,caregiver_id,charttime,storetime,itemid,value,valuenum,valueuom,"
    "warning",
    "icu/d_items": "itemid,label,abbreviation,linksto,category,unitname,param_type,lownormalvalue,highnormalvalue",
}
NOTE_HEADER = "note_id,subject_id,hadm_id,note_type,note_seq,charttime,storetime,text"
IMAGE_HEADER = (
    "dicom_id,subject_id,study_id,PerformedProcedureStepDescription,ViewPosition,Rows,Columns,StudyDate,StudyTime,"
    "ProcedureCodeSequence_CodeMeaning,ViewCodeSequence_CodeMeaning,PatientOrientationCodeSequence_CodeMeaning"
)
NAMES = [target.name for target in TARGETS]


def header(path: Path) -> str:
    with gzip.open(path, "rt") as file:
        return file.readline().rstrip("\n")


def table(path: Path, **options: object) -> pd.DataFrame:
    """A file with its texts as they are; `times` become timestamps."""
    frame = pd.read_csv(path, keep_default_na=False, na_values={}, dtype=str, **options)  # type: ignore[call-overload]
    for name in frame.columns.intersection("intime outtime admittime dischtime deathtime charttime storetime".split()):
        frame[name] = pd.to_datetime(frame[name].replace("", None))
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("synthetic") / "mimic"
    write(out, patients=900, seed=7, chart_rows_per_stay=150)
    return out


@pytest.fixture(scope="module")
def report(folder: Path) -> dict:
    return json.loads((folder / "SYNTHETIC.json").read_text())


@pytest.fixture(scope="module")
def admissions(folder: Path) -> pd.DataFrame:
    return table(folder / "iv/hosp/admissions.csv.gz")


@pytest.fixture(scope="module")
def stays(folder: Path) -> pd.DataFrame:
    return table(folder / "iv/icu/icustays.csv.gz")


@pytest.fixture(scope="module")
def charts(folder: Path, stays: pd.DataFrame) -> pd.DataFrame:
    """chartevents with the times of the stay beside each row."""
    frame = table(folder / "iv/icu/chartevents.csv.gz")
    frame["number"] = pd.to_numeric(frame["valuenum"])
    return frame.merge(stays[["stay_id", "intime", "outtime"]], on="stay_id", validate="many_to_one")


@pytest.fixture(scope="module")
def images(folder: Path, stays: pd.DataFrame) -> pd.DataFrame:
    """The metadata, with the file's path and time."""
    frame = table(folder / "cxr/mimic-cxr-2.0.0-metadata.csv.gz")
    clock = frame["StudyTime"].str.split(".").str[0].str.zfill(6)
    frame["time"] = pd.to_datetime(frame["StudyDate"] + clock, format="%Y%m%d%H%M%S")
    frame["path"] = [
        folder / "cxr" / "files" / f"p{row.subject_id[:2]}" / f"p{row.subject_id}" / f"s{row.study_id}" / row.dicom_id
        for row in frame.itertuples()
    ]
    frame["path"] = frame["path"].map(lambda path: path.with_name(f"{path.name}.jpg"))
    return frame


@pytest.fixture(scope="module")
def cohort(folder: Path, admissions: pd.DataFrame, stays: pd.DataFrame) -> pd.DataFrame:
    """Stays by the rules of mimic_phenotyping, with the true probabilities (`p `) and the label of death."""
    diagnoses = table(folder / "iv/hosp/diagnoses_icd.csv.gz")
    single = ~stays.duplicated("hadm_id", keep=False)
    kept = stays[single & (stays["first_careunit"] == stays["last_careunit"]) & (stays["los"] != "")]
    kept = kept[kept["hadm_id"].isin(diagnoses["hadm_id"])].merge(admissions, on=["subject_id", "hadm_id"])
    kept = kept.merge(table(folder / "iv/hosp/patients.csv.gz"), on="subject_id")
    oracle = table(folder / "oracle.csv.gz").set_index("stay_id").astype(float).add_prefix("p ")
    return kept.merge(oracle, left_on="stay_id", right_index=True).set_index("stay_id").sort_index()


def phenotypes(diagnoses: pd.DataFrame, shared: Path) -> dict[str, set[str]]:
    """hadm_id -> labels, by the facts' tables of codes."""
    known: dict[tuple[str, str], set[str]] = {}
    with (shared / "facts/mimic/phenotype_codes.csv").open() as file:
        for row in csv.DictReader(file):
            known.setdefault((row["icd_code"], "9"), set()).add(row["name"])
    with (shared / "facts/mimic/phenotype_codes_icd10.csv").open() as file:
        for row in csv.DictReader(file):
            if row["in_gem2018_any_target"] == "1":
                known.setdefault((row["icd_code"], "10"), set()).add(row["name"])
    septicemia, pneumonia = "Septicemia (except in labor)", PHENOTYPES[21].name
    overrides = {
        "I10": {"Essential hypertension"},
        "R7881": {septicemia},
        "B250": {pneumonia},
        SEPTIC_SHOCK: {septicemia, "Shock"},
    }
    known |= {(code, "10"): names for code, names in overrides.items()}
    found: dict[str, set[str]] = {}
    for row in diagnoses.itertuples():
        names = set[str]()
        least = len(row.icd_code) if row.icd_version == "9" else 3
        for length in range(len(row.icd_code), least - 1, -1):
            names = known.get((row.icd_code[:length], row.icd_version), set())
            if names:
                break
        found.setdefault(row.hadm_id, set()).update(names)
    return found


def test_headers_of_the_versions(folder: Path, tmp_path: Path) -> None:
    for version in ("1.0", "3.1"):
        write(tmp_path / version, patients=60, seed=1, version=version, cxr="none", notes=False)
    for name, expected in HEADERS.items():
        assert header(folder / "iv" / f"{name}.csv.gz") == header(tmp_path / "3.1/iv" / f"{name}.csv.gz") == expected
    first = tmp_path / "1.0" / "iv"
    for name in ("patients", "admissions"):
        assert not (first / "hosp" / f"{name}.csv.gz").exists()
    assert header(first / "core/admissions.csv.gz") == HEADERS["hosp/admissions"].replace(
        "admit_provider_id,", ""
    ).replace("race", "ethnicity")
    assert header(first / "hosp/labevents.csv.gz") == HEADERS["hosp/labevents"].replace("order_provider_id,", "")
    assert header(first / "icu/chartevents.csv.gz") == HEADERS["icu/chartevents"].replace("caregiver_id,", "")
    assert header(first / "hosp/d_labitems.csv.gz") == "itemid,label,fluid,category,loinc_code"
    assert table(tmp_path / "3.1/iv/hosp/patients.csv.gz")["anchor_year_group"].eq("2020 - 2022").any()
    young = table(first / "core/patients.csv.gz")["anchor_age"].astype(int)
    assert young.min() == 0 or (young < 18).any()
    assert table(folder / "iv/hosp/patients.csv.gz")["anchor_age"].astype(int).between(18, 91).all()
    assert not (tmp_path / "3.1" / "cxr").exists() and not (tmp_path / "3.1" / "note").exists()


def test_form_is_that_of_the_demo(folder: Path, shared: Path) -> None:
    for name in HEADERS:
        demo = pd.read_csv(shared / "data/mimic-iv-demo" / f"{name}.csv.gz", nrows=20_000, low_memory=False)
        own = pd.read_csv(folder / "iv" / f"{name}.csv.gz", nrows=20_000, low_memory=False)
        assert list(own) == list(demo), name
        for column in own:
            if own[column].notna().any() and demo[column].notna().any():
                kinds = pd.api.types.is_numeric_dtype(own[column]), pd.api.types.is_numeric_dtype(demo[column])
                assert kinds[0] == kinds[1], (name, column)
            if column.endswith("time") and own[column].notna().any():
                assert own[column].dropna().str.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d").all(), (name, column)
    for name in ("d_items", "d_labitems"):
        place = f"{'icu' if name == 'd_items' else 'hosp'}/{name}.csv.gz"
        real = table(shared / "data/mimic-iv-demo" / place).set_index("itemid")
        own = table(folder / "iv" / place).set_index("itemid")
        assert (own["label"] == real.loc[own.index, "label"]).all()


def test_identifiers_cannot_be_real(folder: Path, admissions: pd.DataFrame, stays: pd.DataFrame) -> None:
    patients = table(folder / "iv/hosp/patients.csv.gz")
    assert patients["subject_id"].is_unique and len(patients) == 900
    assert admissions["hadm_id"].is_unique and stays["stay_id"].is_unique
    for frame in (patients, admissions, stays, table(folder / "cxr/mimic-cxr-2.0.0-metadata.csv.gz")):
        for column, first in {"subject_id": "9", "hadm_id": "8", "stay_id": "7", "study_id": "6"}.items():
            if column in frame:
                assert frame[column].str.fullmatch(rf"{first}\d{{7}}").all()
    assert patients["subject_id"].str[:2].nunique() == 10
    assert stays["hadm_id"].isin(admissions["hadm_id"]).all()
    assert admissions["subject_id"].isin(patients["subject_id"]).all()
    # The order of the numbers says nothing about the order in time.
    several = stays[stays.duplicated("subject_id", keep=False)].assign(number=lambda own: own["stay_id"].astype(int))
    ranks = several.groupby("subject_id")[["number", "intime"]].rank()
    assert abs(ranks.corr().iloc[0, 1]) < 0.25


def test_quirks_of_stays(admissions: pd.DataFrame, stays: pd.DataFrame) -> None:
    assert 0.04 < (stays["first_careunit"] != stays["last_careunit"]).mean() < 0.13
    assert stays.groupby("hadm_id").size().max() >= 2
    assert not admissions["hadm_id"].isin(stays["hadm_id"]).all()
    assert (stays["los"] == "").any() and (stays["outtime"].isna() == (stays["los"] == "")).all()
    known = stays[stays["outtime"].notna()]
    length = (known["outtime"] - known["intime"]).dt.total_seconds() / 86_400
    assert known["los"].astype(float).to_numpy() == pytest.approx(length.to_numpy(), rel=1e-9)
    assert 0.3 < (length >= 2).mean() < 0.7
    both = known.merge(admissions, on="hadm_id")
    assert (both["intime"] >= both["admittime"]).all()
    times = stays.sort_values("intime").groupby("hadm_id")
    assert (
        times["intime"].shift(-1).dropna() > stays["outtime"].loc[times["intime"].shift(-1).dropna().index]
    ).sum() > 5


def test_outcomes_agree_with_each_other(folder: Path, admissions: pd.DataFrame) -> None:
    died = admissions["hospital_expire_flag"] == "1"
    assert 0.06 < died.mean() < 0.2
    assert (died == admissions["deathtime"].notna()).all()
    assert (died == (admissions["discharge_location"] == "DIED")).all()
    assert (admissions["deathtime"] <= admissions["dischtime"])[died].all()
    assert admissions[died]["subject_id"].is_unique
    last = admissions.groupby("subject_id")["admittime"].max()
    assert (admissions[died].set_index("subject_id")["admittime"] == last[admissions[died]["subject_id"]]).all()
    dod = table(folder / "iv/hosp/patients.csv.gz").set_index("subject_id")["dod"]
    assert (
        dod[admissions[died]["subject_id"]] == admissions[died]["deathtime"].dt.strftime("%Y-%m-%d").to_numpy()
    ).all()
    assert (dod != "").sum() > died.sum()


def test_codes_stand_for_the_phenotypes(shared: Path) -> None:
    rows = [(target.name, "9", code) for target in PHENOTYPES for code in target.icd9]
    rows += [(target.name, "10", code) for target in PHENOTYPES for code in target.icd10]
    rows += [("", "9", code) for code in OTHER_ICD9] + [("", "10", code) for code in OTHER_ICD10]
    frame = pd.DataFrame(rows, columns=["name", "icd_version", "icd_code"]).assign(hadm_id=lambda f: f.index)
    found = phenotypes(frame, shared)
    assert [found[row] for row in frame.index] == [{name} - {""} for name in frame["name"]]
    names = pd.read_csv(shared / "facts/mimic/phenotypes.csv")["name"]
    assert [target.name for target in PHENOTYPES] == list(names)


def test_codes_are_text_of_two_versions(folder: Path) -> None:
    diagnoses = table(folder / "iv/hosp/diagnoses_icd.csv.gz")
    assert {"0389", "0031", "00845"} <= set(diagnoses.loc[diagnoses["icd_version"] == "9", "icd_code"])
    assert {"I10", "N1831", SEPTIC_SHOCK} <= set(diagnoses.loc[diagnoses["icd_version"] == "10", "icd_code"])
    assert (diagnoses.groupby("hadm_id")["icd_version"].nunique() == 1).all()
    numbers = diagnoses.assign(seq_num=diagnoses["seq_num"].astype(int)).groupby("hadm_id")["seq_num"]
    assert (numbers.min() == 1).all() and (numbers.max() == numbers.size()).all()
    assert not diagnoses.duplicated(["hadm_id", "icd_code"]).any()


def test_labels_follow_the_probabilities(
    folder: Path, cohort: pd.DataFrame, images: pd.DataFrame, report: dict, shared: Path
) -> None:
    found = phenotypes(table(folder / "iv/hosp/diagnoses_icd.csv.gz"), shared)
    truth = cohort[[f"p {name}" for name in NAMES]].to_numpy()
    label = np.array([[name in found[hadm] for name in NAMES[:-1]] for hadm in cohort["hadm_id"]])
    died = (cohort["hospital_expire_flag"] == "1").to_numpy()[:, None]
    label = np.concatenate([label, died], axis=1)
    assert label.mean(0) == pytest.approx(truth.mean(0), abs=0.06)
    scores = [roc_auc_score(label[:, place], truth[:, place]) for place in range(26)]
    assert np.mean(scores[:25]) == pytest.approx(report["oracle"]["phenotyping_macro_auroc"]["oracle"], abs=0.02)
    assert np.mean(scores[:25]) > 0.87 and scores[25] > 0.82
    assert report["oracle"]["stays"] <= len(cohort)


def test_quirks_of_charts(charts: pd.DataFrame) -> None:
    text = charts.groupby("itemid")["value"].agg(set)
    assert text["220739"] == {"None", "To Pain", "To Speech", "Spontaneously"}
    assert {"No Response-ETT", "Oriented"} <= text["223900"]
    assert {"Normal <3 Seconds", "Abnormal >3 Seconds"} <= text["223951"]
    assert ((charts["valuenum"] == "") <= (charts["valueuom"] == "")).all()
    coma = charts[charts["itemid"] == "220739"]
    assert coma.groupby("value")["valuenum"].agg(set).to_dict() == {
        "None": {"1"},
        "To Pain": {"2"},
        "To Speech": {"3"},
        "Spontaneously": {"4"},
    }
    number = charts.groupby("itemid")["number"]
    assert number.max()["220045"] == 10_000_000
    assert number.median()["223761"] == pytest.approx(98.4, abs=0.3)
    assert 79 <= number.max()["223762"] < 110 and number.median()["223762"] == pytest.approx(36.9, abs=0.3)
    oxygen = charts.loc[charts["itemid"] == "223835", "number"]
    assert (oxygen <= 1).any() and (oxygen >= 21).any() and ((oxygen <= 1) | (oxygen >= 20)).all()
    inches, height = (charts[charts["itemid"] == item] for item in ("226707", "226730"))
    assert (inches["charttime"] < inches["intime"]).mean() > 0.9
    assert len(inches) > len(height)
    pair = inches.merge(height, on=["stay_id", "charttime"], suffixes=("", "_cm"))
    right = pair["number_cm"] > 0
    assert len(pair) > 100 and (~right).sum() < 10
    assert ((pair["number"] * 2.54 - pair["number_cm"]).abs()[right] < 1.5).all()
    same_time = charts[charts["itemid"].isin(["220050", "220179"])].groupby(["stay_id", "charttime"]).size()
    assert (same_time == 2).any()
    outside = (charts["charttime"] < charts["intime"]) | (charts["charttime"] > charts["outtime"])
    assert 0.005 < outside[charts["itemid"] == "220045"].mean() < 0.1
    assert not charts.duplicated(["stay_id", "charttime", "itemid"]).mean() > 0.02


def test_quirks_of_labs(folder: Path, stays: pd.DataFrame, report: dict) -> None:
    labs = table(folder / "iv/hosp/labevents.csv.gz")
    assert labs["labevent_id"].is_unique
    assert 0.2 < (labs["hadm_id"] == "").mean() < 0.5
    assert {"50931", "50809", "50820", "50817", "51478", "51491", "51094", "50831"} <= set(labs["itemid"])
    hidden = labs[labs["value"] == "___"]
    assert len(hidden) > 50 and (hidden["valuenum"] != "").mean() > 0.9
    negative = labs[labs["comments"] == "NEG."]
    assert (negative["itemid"] == "51478").all() and (negative["valuenum"] == "").all() and len(negative)
    assert report["counts"]["rows"]["iv/hosp/labevents"] == len(labs)
    both = labs.merge(stays, on="subject_id")
    inside = (both["charttime"] >= both["intime"]) & (both["charttime"] <= both["outtime"])
    assert (inside & (both["hadm_id_x"] == "")).any()
    assert 0.3 < inside.mean() < 0.95


def test_quirks_of_images(folder: Path, images: pd.DataFrame, stays: pd.DataFrame) -> None:
    assert header(folder / "cxr/mimic-cxr-2.0.0-metadata.csv.gz") == IMAGE_HEADER
    assert {"AP", "PA", "LATERAL", "LL", ""} == set(images["ViewPosition"])
    assert images["dicom_id"].is_unique and images["dicom_id"].str.startswith("00000000-").all()
    clock = images["StudyTime"].astype(float)
    assert (images["StudyTime"].str.split(".").str[0].str.len() < 6).any() and (clock % 1 > 0).any()
    written = images[images["path"].map(Path.exists)]
    assert 0.005 < 1 - len(written) / len(images) < 0.08
    assert len(written) == sum(1 for _ in (folder / "cxr" / "files").rglob("*.jpg"))
    broken = []
    for row in written.itertuples():
        try:
            with Image.open(row.path) as image:
                image.load()
                assert image.mode == "L" and image.size == (int(row.Columns), int(row.Rows))
        except OSError:
            broken.append(row)
    assert len(broken) == 1 and broken[0].ViewPosition == "AP"
    strangers = ~images["subject_id"].isin(table(folder / "iv/hosp/patients.csv.gz")["subject_id"])
    assert 0 < strangers.sum() < 0.03 * len(images)
    tied = images[images["ViewPosition"] == "AP"].groupby("study_id")
    assert (tied.size() == 2).any() and (tied["time"].nunique() == 1).all()
    assert (
        images[images["ViewPosition"] == "PA"]["study_id"]
        .isin(images[images["ViewPosition"].isin(["LATERAL", "LL"])]["study_id"])
        .all()
    )


def test_notes(folder: Path, admissions: pd.DataFrame, cohort: pd.DataFrame, shared: Path) -> None:
    for name in ("radiology", "discharge"):
        assert header(folder / "note" / f"{name}.csv.gz") == NOTE_HEADER
        detail = table(folder / "note" / f"{name}_detail.csv.gz")
        assert list(detail) == "note_id subject_id field_name field_value field_ordinal".split()
        notes = table(folder / "note" / f"{name}.csv.gz")
        assert notes["note_id"].is_unique and set(detail["note_id"]) == set(notes["note_id"])
        assert (notes["note_id"] == notes["subject_id"] + "-" + notes["note_type"] + "-" + notes["note_seq"]).all()
        assert notes["text"].str.strip().ne("").all()
    assert set(notes["note_type"]) == {"DS", "AD"}
    assert 0.6 < admissions["hadm_id"].isin(notes["hadm_id"]).mean() < 0.9
    assert notes["hadm_id"].duplicated().any()
    assert (notes["charttime"].dt.normalize() == notes["charttime"]).all()
    found = phenotypes(table(folder / "iv/hosp/diagnoses_icd.csv.gz"), shared)
    summaries = notes[(notes["note_type"] == "DS") & notes["hadm_id"].isin(cohort["hadm_id"])]
    named = [name in row.text for row in summaries.itertuples() for name in found[row.hadm_id]]
    assert np.mean(named) > 0.85
    reports = table(folder / "note/radiology.csv.gz")
    assert set(reports["note_type"]) == {"RR", "AR"} and (reports["hadm_id"] == "").any()
    assert not any(target.name in text for text in reports["text"] for target in PHENOTYPES)


@pytest.fixture(scope="module")
def measured(cohort: pd.DataFrame, charts: pd.DataFrame) -> pd.DataFrame:
    """Mean values of items inside the stay."""
    inside = (charts["charttime"] >= charts["intime"]) & (charts["charttime"] <= charts["outtime"])
    means = charts[inside & (charts["number"] < 1000)].pivot_table(index="stay_id", columns="itemid", values="number")
    return means.reindex(cohort.index)


@pytest.fixture(scope="module")
def chosen(cohort: pd.DataFrame, images: pd.DataFrame) -> pd.Series:
    """The file of the first AP image inside each stay, by stay_id."""
    usable = images[(images["ViewPosition"] == "AP") & images["path"].map(Path.exists)]
    both = cohort.reset_index()[["stay_id", "subject_id", "intime", "outtime"]].merge(usable, on="subject_id")
    inside = both[(both["time"] >= both["intime"]) & (both["time"] <= both["outtime"])]
    return inside.sort_values("time").groupby("stay_id")["path"].first()


def scores(label: np.ndarray, score: pd.Series) -> float:
    known = score.notna().to_numpy()
    return float(roc_auc_score(label[known], score[known]))


@pytest.fixture(scope="module")
def labels(folder: Path, cohort: pd.DataFrame, shared: Path) -> pd.DataFrame:
    found = phenotypes(table(folder / "iv/hosp/diagnoses_icd.csv.gz"), shared)
    rows = [[name in found[hadm] for name in NAMES[:-1]] for hadm in cohort["hadm_id"]]
    return pd.DataFrame(rows, index=cohort.index, columns=NAMES[:-1])


def test_every_modality_tells_something_alone(
    folder: Path, cohort: pd.DataFrame, measured: pd.DataFrame, labels: pd.DataFrame, chosen: pd.Series
) -> None:
    series = {"circulation": measured["220045"], "respiration": measured["220210"], "coma": -measured["220739"]}
    series["metabolism"] = measured["225664"]
    text = last_report(folder, cohort)["text"].str.contains("A thin veil|patchy veil|new veil").astype(float)
    age = cohort["anchor_age"].astype(int)
    haze = chosen.map(lower_lungs).reindex(cohort.index)
    by_modality: dict[str, list[float]] = {"series": [], "image": [], "text": [], "age": []}
    for target in PHENOTYPES:
        label = labels[target.name].to_numpy()
        by_modality["series"].append(scores(label, series[target.series]))
        if target.image == "haze":
            by_modality["image"].append(scores(label, haze))
        if target.topic == "veil":
            by_modality["text"].append(scores(label, text.reindex(cohort.index)))
        if target.age >= 0.4:
            by_modality["age"].append(scores(label, age))
    assert np.mean(by_modality["series"]) > 0.62
    assert np.mean(by_modality["image"]) > 0.57
    assert np.mean(by_modality["text"]) > 0.57
    assert np.mean(by_modality["age"]) > 0.53


def lower_lungs(path: Path) -> float:
    """Brightness of the lower half of a lung beside that of its upper half."""
    with Image.open(path) as image:
        grey = np.asarray(image.resize((64, 64)), dtype=float)
    return float(np.median(grey[33:44, 13:23]) - np.median(grey[18:30, 13:23]))


def last_report(folder: Path, cohort: pd.DataFrame) -> pd.DataFrame:
    """The last report inside each stay, by stay_id."""
    reports = table(folder / "note/radiology.csv.gz")
    both = cohort.reset_index()[["stay_id", "subject_id", "intime", "outtime"]].merge(reports, on="subject_id")
    inside = both[(both["charttime"] >= both["intime"]) & (both["charttime"] <= both["outtime"])]
    return inside.sort_values("charttime").groupby("stay_id").last()


ANGLES = np.linspace(0, 2 * np.pi, 72, endpoint=False)


@pytest.fixture(scope="module")
def rings() -> np.ndarray:
    """(72,64 * 64): the brightness of a place on a ring around the centre, less that of its surroundings."""
    y, x = np.meshgrid(np.linspace(-1, 1, 64), np.linspace(-1, 1, 64), indexing="ij")
    distance = np.stack([np.hypot(x - 0.6 * np.cos(angle), y - 0.6 * np.sin(angle)).ravel() for angle in ANGLES])
    near, around = distance < 0.1, (distance >= 0.1) & (distance < 0.28)
    return near / near.sum(1, keepdims=True) - around / around.sum(1, keepdims=True)


def spot(path: Path, rings: np.ndarray) -> float:
    """Direction of the bright spot from the centre of an image."""
    with Image.open(path) as image:
        return float(ANGLES[(rings @ np.asarray(image.resize((64, 64)), dtype=float).ravel()).argmax()])


def test_series_and_image_tell_something_only_together(
    cohort: pd.DataFrame, measured: pd.DataFrame, labels: pd.DataFrame, chosen: pd.Series, rings: np.ndarray
) -> None:
    temperature, pressure = measured["223761"], measured["220180"].fillna(measured["220051"])
    a = np.arctan2((pressure - pressure.mean()) / pressure.std(), (temperature - 98.4) / 0.9)
    rows = chosen.index.intersection(a.dropna().index)
    b = np.array([spot(path, rings) for path in chosen[rows]])
    a = a[rows].to_numpy()
    together, alone = [], []
    for name, phase in zip(NAMES[:-1], PHASES, strict=False):
        label = labels.loc[rows, name].to_numpy()
        together.append(roc_auc_score(label, np.cos(a + b - phase)))
        alone += [roc_auc_score(label, np.cos(angle - phase)) for angle in (a, b)]
    assert len(rows) > 250
    assert np.mean(together) > 0.66
    assert abs(np.mean(alone) - 0.5) < 0.03


def test_text_and_sex_tell_something_only_together(folder: Path, cohort: pd.DataFrame, labels: pd.DataFrame) -> None:
    amber = last_report(folder, cohort)["text"].str.contains("amber")
    rows = cohort.index.intersection(amber.index)
    female = (cohort.loc[rows, "gender"] == "F").to_numpy()
    agree = amber[rows].to_numpy() == female
    together, alone = [], []
    for place, name in enumerate(NAMES[:-1]):
        label = labels.loc[rows, name].to_numpy() == (place % 2 == 0)
        together.append(roc_auc_score(label, agree))
        alone += [roc_auc_score(label, amber[rows]), roc_auc_score(label, female)]
    assert np.mean(together) > 0.58
    assert abs(np.mean(alone) - 0.5) < 0.03


def test_given_one_half_of_a_product_nothing_is_known() -> None:
    rng = np.random.default_rng(1)
    latents = draw(rng, rng.standard_normal(40_000), rng.random(40_000) < 0.5)
    p = probabilities(terms(latents))
    assert p.mean(0) == pytest.approx([target.prevalence for target in TARGETS], abs=0.01)
    halves = latents.series_angle < np.pi, latents.image_angle < np.pi, latents.amber, latents.female
    for half in halves:
        assert p[half].mean(0) == pytest.approx(p[~half].mean(0), abs=0.012)
    angle = latents.series_angle + latents.image_angle
    near = np.cos(angle[:, None] - PHASES) > 0
    assert ((p * near).sum(0) / near.sum(0) > 1.5 * p.mean(0)).mean() > 0.9
    assert intercepts().shape == (26,)


def test_dicom_says_what_the_metadata_would(tmp_path: Path) -> None:
    options = {"patients": 40, "seed": 3, "chart_rows_per_stay": 30}
    write(tmp_path / "dicom", cxr="dicom", **options)
    write(tmp_path / "jpg", cxr="jpg", **options)
    records = table(tmp_path / "dicom/cxr/cxr-record-list.csv.gz")
    assert list(records) == "subject_id study_id dicom_id path".split()
    metadata = table(tmp_path / "jpg/cxr/mimic-cxr-2.0.0-metadata.csv.gz").set_index("dicom_id")
    assert list(metadata.index) == list(records["dicom_id"])
    kinds, compared = set(), 0
    for row in records.itertuples():
        path = tmp_path / "dicom/cxr" / row.path
        drawn = (tmp_path / "jpg/cxr" / row.path).with_suffix(".jpg")
        assert path.exists() == drawn.exists()
        if not path.exists():
            continue
        head = pydicom.dcmread(path, stop_before_pixels=True)
        about = metadata.loc[row.dicom_id]
        assert (head.PatientID, head.ViewPosition, head.StudyDate) == (
            row.subject_id,
            about["ViewPosition"],
            about["StudyDate"],
        )
        assert head.StudyTime[:6] == about["StudyTime"].split(".")[0].zfill(6)
        assert (head.Rows, head.Columns) == (int(about["Rows"]), int(about["Columns"]))
        kinds.add(head.PhotometricInterpretation)
        try:
            grey = pydicom.dcmread(path).pixel_array.astype(float)
        except ValueError:
            continue
        grey = 4095 - grey if head.PhotometricInterpretation == "MONOCHROME1" else grey
        with Image.open(drawn) as image:
            ranks = pd.Series(grey.ravel()).corr(pd.Series(np.asarray(image).ravel()), method="spearman")
        assert ranks > 0.9
        compared += 1
    assert kinds == {"MONOCHROME1", "MONOCHROME2"} and compared > 20


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        SYNTHETIC.build("mimic", tmp_path / name, options={"patients": 45, "seed": seed, "chart_rows_per_stay": 40})
    first, again, other = (digests(tmp_path / name) for name in "abc")
    assert first == again
    data = [name for name in first if "/d_" not in name and name in other]
    assert len(data) >= 10 and all(first[name] != other[name] for name in data)
    write(tmp_path / "iv", patients=45, seed=1, chart_rows_per_stay=40, cxr="none", notes=False)
    assert digests(tmp_path / "iv" / "iv") == digests(tmp_path / "a" / "iv")


@pytest.mark.parametrize("patients", [1, 2])
def test_any_number_of_patients(tmp_path: Path, patients: int) -> None:
    report = write(tmp_path / "out", patients=patients, seed=patients)
    assert report["counts"]["rows"]["iv/hosp/patients"] == patients
    assert len(table(tmp_path / "out/iv/icu/icustays.csv.gz")) == report["counts"]["rows"]["iv/icu/icustays"]


def test_mistakes_are_named_and_leave_nothing(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="not a new or empty folder"):
        write(tmp_path / "full")
    with pytest.raises(UserError, match="patients: 0 is out of range"):
        write(tmp_path / "out", patients=0)
    with pytest.raises(UserError, match="version: '2.0'"):
        SYNTHETIC.build("mimic", tmp_path / "out", options={"version": "2.0"})
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_nothing_heavy_is_imported() -> None:
    heavy = "torch", "scipy", "sklearn", "mlflow", "pydicom"
    code = f"import sys, ovo_clinic.synthetic.mimic; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_the_rows_are_as_many_as_asked_for_and_memory_stays(tmp_path: Path) -> None:
    code = (
        "import json, resource, sys; from pathlib import Path; from ovo_clinic.synthetic.mimic import write\n"
        "report = write(Path(sys.argv[1]), patients=600, chart_rows_per_stay=4000, cxr='none', notes=False)\n"
        "print(json.dumps([report['counts']['rows'], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "out"], capture_output=True, text=True, check=True)
    rows, peak = json.loads(done.stdout)
    assert rows["iv/icu/chartevents"] / rows["iv/icu/icustays"] == pytest.approx(4000, rel=0.1)
    assert peak < 500_000  # KB, at 2.7 million rows
