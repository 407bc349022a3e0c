"""The synthetic TADPOLE folder: the real layout, its codes and quirks, and the signal that is documented."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from ovo_clinic.errors import UserError
from ovo_clinic.registry import SYNTHETIC
from ovo_clinic.synthetic.tadpole import write
from ovo_clinic.synthetic.tadpole_signal import draw_latents

BLOCKS = {  # suffix: (number of columns, in the order of the file)
    "_UCSFFSL_02_01_16_UCSFFSL51ALL_08_01_16": 372,
    "_UCSFFSX_11_02_15_UCSFFSX51_08_01_16": 364,
    "_BAIPETNMRC_09_12_16": 340,
    "_UCBERKELEYAV45_10_17_16": 240,
    "_UCBERKELEYAV1451_10_17_16": 244,
    "_DTIROI_04_30_14": 239,
    "_UPENNBIOMK9_04_19_17": 11,
}
CSF = "_UPENNBIOMK9_04_19_17"
STAGES = ("CN", "MCI", "AD")
NOW = {"1": 0, "7": 0, "9": 0, "2": 1, "4": 1, "8": 1, "3": 2, "5": 2, "6": 2}
MISSING = ("", "-4", "-4.0", "NA", "nan")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tadpole") / "raw"
    write(out, patients=500, seed=5)
    return out


@pytest.fixture(scope="module")
def visits(folder: Path) -> pd.DataFrame:
    """D1_D2 with every cell as text, blanks kept."""
    return pd.read_csv(folder / "TADPOLE_D1_D2.csv", dtype=str, keep_default_na=False)


def number(text: pd.Series) -> pd.Series:
    stripped = text.str.strip()
    return pd.to_numeric(stripped.where(~stripped.isin(MISSING)).str.strip("<>"))


def diagnosis(visits: pd.DataFrame) -> pd.Series:
    return visits["DXCHANGE"].str.removesuffix(".0").map(NOW)


def test_the_columns_are_the_real_ones(visits: pd.DataFrame, shared: Path) -> None:
    given = list(visits.columns)
    assert len(given) == len(set(given)) == 1907
    known = pd.read_csv(shared / "facts" / "tadpole" / "columns.csv")["column"]
    assert set(known) <= set(given)
    start = 97
    for suffix, count in BLOCKS.items():
        assert all(name.endswith(suffix) for name in given[start : start + count]), suffix
        start += count
    assert start == len(given)
    merged = given[:97]
    assert merged[:10] == "RID PTID VISCODE SITE D1 D2 COLPROT ORIGPROT EXAMDATE DX_bl".split()
    assert merged[-5:] == ["Years_bl", "Month_bl", "Month", "M", "update_stamp"]
    assert merged.index("ICV") + 1 == merged.index("DX") and merged.index("DX") + 1 == merged.index("EXAMDATE_bl")


def test_as_many_rows_as_the_real_file(folder: Path, visits: pd.DataFrame) -> None:
    assert len(visits) == round(500 * 12_741 / 1_737)
    assert json.loads((folder / "SYNTHETIC.json").read_text())["counts"]["visits"] == len(visits)
    assert visits["RID"].nunique() == 500


def test_written_without_quoting_and_within_100_bytes(folder: Path, visits: pd.DataFrame) -> None:
    for name in ("TADPOLE_D1_D2.csv", "TADPOLE_D3.csv", "TADPOLE_D4_corr.csv"):
        assert '"' not in (folder / name).read_text()
    assert visits.map(len).max(axis=None) <= 100


def test_keys_and_order(visits: pd.DataFrame) -> None:
    assert not visits.duplicated(["RID", "VISCODE"]).any()
    assert visits.groupby("RID")["PTID"].nunique().max() == visits.groupby("PTID")["RID"].nunique().max() == 1
    assert (visits["PTID"].str[-4:] == visits["RID"]).all()
    assert (visits["RID"].astype(int) >= 8000).all()
    dates = pd.to_datetime(visits["EXAMDATE"], format="%Y-%m-%d")
    assert not dates.groupby(visits["RID"]).apply(lambda own: own.is_monotonic_increasing).all()
    months = visits["VISCODE"].replace("bl", "m00").str[1:].astype(int)
    assert (months == visits["Month"].astype(int)).all()
    in_time = visits.assign(date=dates, month=months).sort_values(["RID", "month"])
    assert in_time.groupby("RID")["date"].apply(lambda own: own.is_monotonic_increasing).all()
    assert in_time.duplicated(["RID", "date"]).any()
    sizes = visits.groupby("RID").size()
    assert sizes.min() == 1 and sizes.max() > 10
    several = visits.groupby("RID")["VISCODE"].transform("size") > 1
    assert ((visits["D1"] == "1") == several).all()
    assert (visits.groupby("RID")[["D1", "D2"]].nunique() == 1).all(axis=None) and visits["D2"].nunique() == 2


def test_constants_and_baseline_copies(visits: pd.DataFrame) -> None:
    constant = "SITE DX_bl AGE PTGENDER PTEDUCAT PTETHCAT PTRACCAT PTMARRY APOE4 ORIGPROT EXAMDATE_bl FDG_bl".split()
    assert (visits.groupby("RID")[constant].nunique() == 1).all(axis=None)
    first = visits[visits["VISCODE"] == "bl"].set_index("RID")
    for name in ("EXAMDATE", "CDRSB", "MMSE", "Hippocampus", "ICV", "FDG", "AV45", "EcogPtMem"):
        assert (visits[f"{name}_bl"].to_numpy() == first.loc[visits["RID"], name].to_numpy()).all(), name
    days = pd.to_datetime(visits["EXAMDATE"]) - pd.to_datetime(visits["EXAMDATE_bl"])
    assert visits["Years_bl"].astype(float).to_numpy() == pytest.approx(days.dt.days / 365.25, abs=1e-5)


def test_codes_of_missing_values(visits: pd.DataFrame) -> None:
    merged, blocks = visits.iloc[:, :97], visits.iloc[:, 97:]
    assert (merged == "").any(axis=None) and not (blocks == "").any(axis=None)
    assert 0.3 < (blocks == " ").mean(axis=None) < 0.95
    for code in ("-4", "-4.0", "NA", "nan", "  "):
        assert (merged == code).any(axis=None) and (blocks == code).any(axis=None), code
    assert blocks.filter(regex="ST10.*UCSFFSX").apply(lambda cells: cells.str.fullmatch(r" [\d.]+ ")).any(axis=None)
    assert (blocks.filter(like="DATE") == "0000-00-00").any(axis=None)
    assert not (blocks == "-1").any(axis=None)


def test_diagnoses(visits: pd.DataFrame) -> None:
    change, text = visits["DXCHANGE"], visits["DX"]
    assert set(change) <= {"", "-1.0", *(f"{code}.0" for code in range(1, 10))}
    assert {"", "-1.0", "1.0", "2.0", "3.0", "4.0", "5.0"} <= set(change)
    assert {"", "NL", "MCI", "Dementia", "NL to MCI", "MCI to Dementia"} <= set(text)
    assert set(visits["DX_bl"]) == {"CN", "SMC", "EMCI", "LMCI", "AD"}
    current = diagnosis(visits)
    said = text.str.split(" to ").str[-1].map({"NL": 0, "MCI": 1, "Dementia": 2})
    both = current.notna() & said.notna()
    assert 0 < (current[both] != said[both]).sum() < 0.005 * both.sum()
    assert (current.isna() & said.notna()).any() and (current.notna() & said.isna()).any()
    first = visits["VISCODE"] == "bl"
    group = visits["DX_bl"].map({"CN": 0, "SMC": 0, "EMCI": 1, "LMCI": 1, "AD": 2})
    assert (current[first & current.notna()] == group[first & current.notna()]).all()
    assert (current != group)[current.notna()].mean() > 0.1


def test_censored_biomarkers(visits: pd.DataFrame) -> None:
    present = visits[visits[f"PHASE{CSF}"] != " "]
    seen = {name: set(present[f"{name}{CSF}"].str.strip()) for name in ("ABETA", "TAU", "PTAU")}
    limited = {name: {cell for cell in cells if cell.startswith(("<", ">"))} for name, cells in seen.items()}
    assert limited["ABETA"] <= {"<200"}
    assert {"<80", ">1300"} >= limited["TAU"] >= {"<80"} and {"<8", ">120"} >= limited["PTAU"] >= {"<8"}
    told = present[f"COMMENT{CSF}"].str.extract(r"ABETA is (\d+)")[0]
    again = told.notna() & ~present[f"ABETA{CSF}"].str.strip().isin(MISSING)
    assert again.any() and (present.loc[again, f"ABETA{CSF}"].str.strip() == told[again]).all()
    failed = (present[[f"{name}{CSF}" for name in seen]] == "-4").all(axis=1)
    assert failed.any() and failed.mean() < 0.1


def test_modalities_are_missing_together(visits: pd.DataFrame) -> None:
    has = pd.DataFrame(
        {
            "mri": visits["EXAMDATE_UCSFFSX_11_02_15_UCSFFSX51_08_01_16"] != " ",
            "fdg": visits["FDG"] != "",
            "av45": visits["EXAMDATE_UCBERKELEYAV45_10_17_16"] != " ",
            "csf": visits[f"PHASE{CSF}"] != " ",
        }
    )
    assert has.mean().round(1).tolist() == [0.6, 0.3, 0.2, 0.2]
    assert has.all(axis=1).mean() > 3 * has.mean().prod()
    assert not (has["av45"] & (visits["COLPROT"] == "ADNI1")).any()
    assert (has.sum(axis=1) == 0).mean() > 0.2
    longitudinal = visits["EXAMDATE_UCSFFSL_02_01_16_UCSFFSL51ALL_08_01_16"] != " "
    assert (longitudinal <= has["mri"]).all() and longitudinal.mean() < has["mri"].mean()


def test_d3_holds_the_last_visit_of_everybody_in_d2(folder: Path, visits: pd.DataFrame) -> None:
    d3 = pd.read_csv(folder / "TADPOLE_D3.csv", dtype=str, keep_default_na=False)
    assert (
        list(d3.columns[:20])
        == (
            "RID VISCODE EXAMDATE DX AGE PTGENDER PTEDUCAT PTETHCAT PTRACCAT PTMARRY COLPROT ADAS13 MMSE Ventricles"
            " Hippocampus WholeBrain Entorhinal Fusiform MidTemp ICV"
        ).split()
    )
    assert len(d3.columns) == 20 + 364 and all(name.endswith(list(BLOCKS)[1]) for name in d3.columns[20:])
    last = visits[visits["D2"] == "1"].assign(month=lambda own: own["Month"].astype(int))
    last = last.sort_values("month").groupby("RID").tail(1).set_index("RID")
    assert sorted(d3["RID"]) == sorted(last.index)
    assert (d3["VISCODE"].to_numpy() == last.loc[d3["RID"], "VISCODE"].to_numpy()).all()
    assert (d3 == "-4").any(axis=None) and not d3.map(str.strip).eq("").any(axis=None)


def test_d4_looks_ahead(folder: Path, visits: pd.DataFrame) -> None:
    d4 = pd.read_csv(folder / "TADPOLE_D4_corr.csv")
    assert list(d4) == ["RID", "CognitiveAssessmentDate", "Diagnosis", "ADAS13", "ScanDate", "Ventricles"]
    assert set(d4["Diagnosis"].dropna()) == set(STAGES)
    last = pd.to_datetime(visits["EXAMDATE"]).groupby(visits["RID"].astype(int)).max()
    assert (pd.to_datetime(d4["CognitiveAssessmentDate"]).to_numpy() > last.loc[d4["RID"]].to_numpy()).all()
    in_d2 = set(visits.loc[visits["D2"] == "1", "RID"].astype(int))
    assert set(d4["RID"]) <= in_d2 and not d4.duplicated(["RID", "CognitiveAssessmentDate"]).any()


def test_the_oracle_reaches_what_is_written(folder: Path, visits: pd.DataFrame) -> None:
    report = json.loads((folder / "SYNTHETIC.json").read_text())["oracle"]
    oracle = pd.read_csv(folder / "oracle.csv", dtype={"RID": str})
    assert len(oracle) == report["visits"] > 100 and oracle["RID"].is_unique
    p = oracle[[f"probability_{stage}" for stage in STAGES]].to_numpy()
    rows = (
        visits.assign(stage=diagnosis(visits))
        .set_index(["RID", "VISCODE"])
        .loc[list(zip(oracle["RID"], oracle["VISCODE"], strict=True))]
    )
    known = rows["stage"].notna().to_numpy()  # the others have DX only
    assert known.mean() > 0.97
    found = roc_auc_score(rows["stage"][known], p[known] / p[known].sum(1, keepdims=True), multi_class="ovo")
    assert found == pytest.approx(report["mauc"], abs=0.01)
    assert p.mean(0) == pytest.approx(np.array([report["classes"][stage] for stage in STAGES]) / len(p), abs=0.05)
    single, rest = report["mauc_best_single_modality"], report["mauc_without_criteria_and_combination"]
    assert single + 0.05 < rest < report["mauc_without_criteria"] - 0.08 < report["mauc"]
    assert min(report["mauc_single_modality"].values()) > 0.55


@pytest.mark.parametrize(
    ("modality", "column", "sign"),
    [
        ("mri", "Hippocampus", -1),
        ("mri", "ST104CV_UCSFFSX_11_02_15_UCSFFSX51_08_01_16", -1),
        ("fdg_pet", "ACI_BAIPETNMRC_09_12_16", -1),
        ("av45_pet", "SUMMARYSUVR_WHOLECEREBNORM_UCBERKELEYAV45_10_17_16", 1),
        ("csf", f"TAU{CSF}", 1),
        ("cognitive_tests", "ADAS13", 1),
        ("cognitive_tests", "CDRSB", 1),
        ("clinical", "APOE4", 1),
    ],
)
def test_every_modality_tells_something_alone(visits: pd.DataFrame, modality: str, column: str, sign: int) -> None:
    stage, value = diagnosis(visits), sign * number(visits[column])
    rows = value.notna() & stage.isin([0, 2])
    assert roc_auc_score(stage[rows] == 2, value[rows]) > 0.58, modality


def test_mri_and_av45_tell_something_only_together(visits: pd.DataFrame) -> None:
    def mean(pattern: str) -> pd.Series:
        values = visits.filter(regex=pattern).apply(number)
        return ((values - values.mean()) / values.std()).mean(axis=1)

    sectional = "UCSFFSX_11_02_15_UCSFFSX51_08_01_16"
    cosine = mean(rf"^ST(1|5|9|13|17|21|29|45)[A-Z]+_{sectional}")  # numbers that leave 1, and below 2, by four
    sine = mean(rf"^ST(2|6|10|14|18|26|30|34)[A-Z]+_{sectional}")
    regions = [name for name in visits if name.endswith("_UCBERKELEYAV45_10_17_16")]
    kept = [(place, name) for place, name in enumerate(regions) if not re.search("SIZE|SUMMARY|DATE|stamp", name)]
    parts = [mean("|".join(f"^{name}$" for place, name in kept if place % 4 == turn)) for turn in (1, 2)]
    stage = diagnosis(visits)
    rows = stage.notna() & cosine.notna() & parts[0].notna()
    angle = np.arctan2(-sine[rows], -cosine[rows]), np.arctan2(parts[1][rows], parts[0][rows])
    own = stage[rows].to_numpy().astype(int)

    def auroc(total: np.ndarray) -> list[float]:
        return [roc_auc_score(own == place, np.cos(total - 2 * np.pi * place / 3)) for place in range(3)]

    assert min(auroc((angle[0] + angle[1]).to_numpy())) > 0.8
    for alone in angle:
        assert np.abs(np.array(auroc(alone.to_numpy())) - 0.5).max() < 0.09


def test_the_angles_alone_are_uniform_whatever_the_stage() -> None:
    stage = np.repeat(np.arange(3), 20_000)
    latents = draw_latents(np.random.default_rng(1), stage, np.arange(stage.size))
    for angle in latents.angle.values():
        for place in range(3):
            turned = np.exp(1j * angle[stage == place])
            assert abs(turned.mean()) < 4 / np.sqrt(20_000) and abs((turned**2).mean()) < 4 / np.sqrt(20_000)
    severity = latents.severity["mri"]
    assert [severity[stage == place].mean() for place in range(3)] == pytest.approx([-0.55, 0, 0.55], abs=0.03)
    assert severity[stage == 1].std() == pytest.approx(1, abs=0.02)


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        SYNTHETIC.build("tadpole", tmp_path / name, options={"patients": 40, "seed": seed})
    first, again, other = (digests(tmp_path / name) for name in "abc")
    assert list(first) == ["SYNTHETIC.json", "TADPOLE_D1_D2.csv", "TADPOLE_D3.csv", "TADPOLE_D4_corr.csv", "oracle.csv"]
    assert first == again and all(first[name] != other[name] for name in first)


@pytest.mark.parametrize("patients", [1, 2, 3])
def test_any_number_of_patients(tmp_path: Path, patients: int) -> None:
    report = write(tmp_path / "out", patients=patients)
    visits = pd.read_csv(tmp_path / "out" / "TADPOLE_D1_D2.csv", low_memory=False)
    assert visits["RID"].nunique() == patients and len(visits) == report["counts"]["visits"]


@pytest.mark.slow
def test_the_default_is_of_the_real_size(tmp_path: Path) -> None:
    report = write(tmp_path / "out")
    with (tmp_path / "out" / "TADPOLE_D1_D2.csv").open() as file:
        assert sum(1 for _ in file) == 12_742
    assert report["oracle"]["visits"] > 600


def test_mistakes_are_named_and_leave_nothing(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="not a new or empty folder"):
        write(tmp_path / "full")
    with pytest.raises(UserError, match="patients: 0"):
        write(tmp_path / "out", patients=0)
    with pytest.raises(UserError, match="seed: -1"):
        write(tmp_path / "out", seed=-1)
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_nothing_heavy_is_imported() -> None:
    heavy = "torch", "scipy", "sklearn", "mlflow"
    code = f"import sys, ovo_clinic.synthetic.tadpole; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
