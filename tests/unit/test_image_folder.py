"""The data set of a folder of images and a csv of labels: synthetic, in several forms of labels, and real X-rays."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image

from ovo_clinic import experiment as experiments
from ovo_clinic.errors import UserError
from ovo_clinic.prepare import Prepared, prepare_task
from ovo_clinic.registry import SYNTHETIC
from ovo_clinic.resources import folder

PATIENTS = 40


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("raw") / "xrays"
    SYNTHETIC.build("image_folder", out, options={"patients": PATIENTS, "size": 32, "seed": 3})
    return out


def prepared(task: str, raw: Path, *overrides: str) -> Prepared:
    return prepare_task(experiments.load(task, ["data.size=16", *overrides]), raw)


def units(found: Prepared) -> list[str]:
    return [str(unit) for unit in found.cohort["unit_id"]]


def test_labels_patients_and_pixels_are_those_of_the_files(raw: Path, home: Path) -> None:
    found = prepared("xray_abnormal", raw)
    table = pd.read_csv(raw / "nih_labels.csv").set_index("file").loc[units(found)]
    assert len(table) == json.loads((raw / "SYNTHETIC.json").read_text())["counts"]["images"]
    assert np.array_equal(found.target, (table["Finding Labels"] != "No Finding").astype(float))
    parts = pd.Series(
        {part: set(table["Patient ID"].iloc[found.rows(part)]) for part in ("train", "validation", "test")}
    )
    assert sum(map(len, parts)) == table["Patient ID"].nunique() == PATIENTS
    expected = [
        np.asarray(Image.open(raw / name).resize((16, 16), Image.Resampling.BILINEAR)) for name in table.index[:5]
    ]
    array = found.array("image")
    assert array.index is not None and np.array_equal(array.values[array.index[:5], 0], expected)


def test_findings_of_one_cell_are_labels_of_their_own(raw: Path, home: Path) -> None:
    found = prepared("xray_findings", raw)
    cells = pd.read_csv(raw / "nih_labels.csv").set_index("file").loc[units(found), "Finding Labels"]
    expected = pd.DataFrame({name: cells.str.split("|").map(lambda parts, name=name: name in parts) for name in LABELS})
    assert np.array_equal(found.target, expected.to_numpy(dtype=float))


LABELS = ("Atelectasis", "Effusion", "Infiltration", "Mass", "Nodule")


def private(folder_: Path, rows: pd.DataFrame, task: Mapping[str, Any] | None = None, **options: Any) -> Path:
    """A private data set: its images, csv file, spec and config; returns the config."""
    raw = folder_ / "raw"
    for number, name in enumerate(rows["image"]):
        path = raw / "deep" / ("a" if number % 2 else "b") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(0, 255, (20, 20), dtype=np.uint8)).save(path)
    rows.to_csv(raw / "mine.csv", index=False)
    options = {"file": "{image}", "patient": "person", **options}
    types = {name: "integer" if kind == "int64" else "text" for name, kind in rows.dtypes.astype(str).items()}
    spec = {
        "name": "mine",
        "title": "mine",
        "pipeline": "image_folder",
        "tables": {"labels": {"file": "mine", "columns": types}},
        "modalities": {"photo": "a photo"},
        "tasks": {"mine": {"title": "made up", "target": ["sick"], "options": options, **(task or {})}},
    }
    (folder_ / "spec.yaml").write_text(yaml.safe_dump(spec))
    (folder_ / "mine.yaml").write_text(yaml.safe_dump({"dataset": "spec.yaml", "task": "mine"}))
    return folder_ / "mine.yaml"


def rows(count: int = 24) -> pd.DataFrame:
    numbers = np.arange(count)
    return pd.DataFrame(
        {
            "image": [f"{number}.png" for number in numbers],
            "person": numbers // 2,
            "sick": np.where(numbers % 3 == 0, -1, numbers % 2),
            "part": np.array(["Train", "valid", "test"])[numbers // 2 % 3],
        }
    )


SICK = {"kind": "columns", "columns": ["sick"], "uncertain": "positive"}


def test_files_are_found_by_name_below_and_the_csv_may_name_the_parts(tmp_path: Path, home: Path) -> None:
    frame = rows()
    task = {"split": {"column": "part"}}
    config = private(tmp_path, frame, label=SICK, columns=["part"], task=task)
    found = prepared(str(config), tmp_path / "raw")
    table = frame.set_index("image").loc[units(found)]
    assert len(table) == 24 and np.array_equal(found.target, np.where(table["sick"] == 0, 0, 1))
    for part, name in {"train": "Train", "validation": "valid", "test": "test"}.items():
        assert np.array_equal(found.rows(part), np.flatnonzero(table["part"] == name))


def test_blanks_around_a_separator_are_no_part_of_a_finding(tmp_path: Path, home: Path) -> None:
    cells = ["edema, mass", "mass ,edema", "no finding"]
    frame = rows().assign(cell=[cells[number % 3] for number in range(24)]).drop(columns="sick")
    label = {"kind": "findings", "column": "cell", "names": ["edema", "mass"], "separator": ","}
    config = private(tmp_path, frame, {"kind": "multilabel", "target": ["edema", "mass"]}, label=label)
    found = prepared(str(config), tmp_path / "raw")
    sick = frame.set_index("image").loc[units(found), "cell"] != "no finding"
    assert sick.sum() == 16
    assert np.array_equal(found.target, np.column_stack([sick, sick]).astype(float))


def test_texts_as_numbers_and_rows_without_a_patient(tmp_path: Path, home: Path) -> None:
    frame = rows()
    config = private(tmp_path, frame.assign(sick=frame["sick"].map({0: "no", 1: "yes", -1: "?"})), label=SICK)
    with pytest.raises(UserError, match=r"mine.csv: column 'sick' holds 24 cell\(s\) that are no number; 1, 0, -1"):
        prepared(str(config), tmp_path / "raw")
    people = frame["person"].map(str).where(frame["person"] != 3)  # two images of nobody
    found = prepared(str(private(tmp_path, frame.assign(person=people), label=SICK)), tmp_path / "raw")
    assert len(units(found)) == 22
    assert found.manifest["notes"]["rows without a patient or the name of an image (left out)"] == 2


def test_a_missing_image_is_counted_and_comes_in_when_it_is_there(tmp_path: Path, home: Path) -> None:
    config = private(tmp_path, rows(), label=SICK)
    (tmp_path / "raw/deep/b/0.png").rename(tmp_path / "0.png")
    found = prepared(str(config), tmp_path / "raw")
    assert len(units(found)) == 23
    assert [step["units"] for step in found.manifest["attrition"]] == [24, 24, 23]
    (tmp_path / "0.png").rename(tmp_path / "raw/0.png")
    assert len(units(prepared(str(config), tmp_path / "raw"))) == 24


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"file": "{picture}"}, "data: no column 'picture' is declared"),
        ({"file": "{image"}, "is no template"),
        ({"file": "{image:a}"}, "should give a number of characters"),
        ({"patient": "who"}, "data: no column 'who' is declared"),
        ({"file": "{person}"}, "12 row(s) name an image again"),
        ({"label": {"kind": "columns", "columns": []}}, "data.label.columns"),
        ({"task": {"split": {"column": "part"}}}, "split.column: the cohort has no column 'part'"),
        ({"columns": ["person"], "task": {"split": {"column": "person"}}}, "have another value in 'person' than train"),
        (
            {"columns": ["sick"], "task": {"split": {"column": "sick"}, "target": ["sick"]}},
            "have another value in 'sick' than train",
        ),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path: Path, home: Path, options: dict[str, Any], message: str) -> None:
    config = private(tmp_path, rows(), **{"label": SICK, **options})
    with pytest.raises(UserError, match="^[^\n]*$") as caught:
        prepared(str(config), tmp_path / "raw")
    assert message in str(caught.value)


def test_parts_that_share_a_patient_are_refused(tmp_path: Path, home: Path) -> None:
    frame = rows().assign(part=np.array(["train", "test", "val", "train"])[np.arange(24) % 4])
    config = private(tmp_path, frame, label=SICK, columns=["part"], task={"split": {"column": "part"}})
    with pytest.raises(UserError, match=r"puts 12 value\(s\) of patient_id into two parts"):
        prepared(str(config), tmp_path / "raw")


def test_two_files_of_one_name_are_refused(tmp_path: Path, home: Path) -> None:
    config = private(tmp_path, rows(), label=SICK)
    (tmp_path / "raw/deep/a/0.png").write_bytes((tmp_path / "raw/deep/b/0.png").read_bytes())
    with pytest.raises(UserError, match="holds 2 files of one name"):
        prepared(str(config), tmp_path / "raw")


def test_mimic_s_labels_metadata_and_split_come_together(tmp_path: Path, home: Path) -> None:
    ids = pd.DataFrame({"subject_id": 10_000_001 + np.arange(12) // 2, "study_id": 50_000_001 + np.arange(12)})
    spec = yaml.safe_load((folder("data_specs") / "mimic_cxr.yaml").read_text())
    names = [name for name, kind in spec["tables"]["labels"]["columns"].items() if kind == "number"]
    random = np.random.default_rng(0)
    for name in names:
        ids[name.title()] = random.choice([1.0, 0.0, -1.0, np.nan], 12)
    images = ids[["subject_id", "study_id"]].assign(
        dicom_id=[f"d{number}" for number in range(12)], ViewPosition=["PA", "AP", "LATERAL"] * 4
    )
    part = np.array(["train", "validate", "test"])[np.arange(12) // 2 % 3]
    ids.to_csv(tmp_path / "mimic-cxr-2.0.0-chexpert.csv.gz", index=False)
    images.to_csv(tmp_path / "mimic-cxr-2.0.0-metadata.csv.gz", index=False)
    images.assign(split=part)[["dicom_id", "study_id", "split"]].to_csv(
        tmp_path / "mimic-cxr-2.0.0-split.csv.gz", index=False
    )
    for subject, study, name in images[["subject_id", "study_id", "dicom_id"]].itertuples(index=False):
        path = tmp_path / f"files/p10/p{subject}/s{study}/{name}.jpg"
        path.parent.mkdir(parents=True)
        Image.fromarray(random.integers(0, 255, (20, 20), dtype=np.uint8)).save(path)
    found = prepared("mimic_cxr_findings", tmp_path)
    frontal = images["ViewPosition"] != "LATERAL"
    expected = [f"files/p10/p{a}/s{b}/{c}.jpg" for a, b, c, _ in images[frontal].itertuples(index=False)]
    assert units(found) == sorted(expected)
    labels = ids.loc[frontal, [name.title() for name in found.task.target]].fillna(0).replace(-1, np.nan)
    np.testing.assert_array_equal(found.target, labels.to_numpy())
    assert [str(name) for name in found.split] == [{"validate": "validation"}.get(name, name) for name in part[frontal]]


def test_the_real_x_rays(shared: Path, home: Path) -> None:
    found = prepared("xray_abnormal", shared / "data/cxr", "data.size=64")
    names = {path.relative_to(shared / "data/cxr").as_posix() for path in (shared / "data/cxr/nih_64px").rglob("*.png")}
    assert set(units(found)) == names and len(names) == 800
    findings = pd.read_csv(shared / "data/cxr/nih_labels.csv").set_index("file")["Finding Labels"].loc[units(found)]
    assert np.array_equal(found.target, (findings != "No Finding").astype(float))
    assert (found.target != ["1_abnormal" in name for name in units(found)]).sum() == 1  # one lies in the other folder
    patients = {
        part: set(found.cohort["patient_id"].gather(found.rows(part))) for part in ("train", "validation", "test")
    }
    assert not patients["train"] & patients["test"] and not patients["validation"] & patients["test"]
