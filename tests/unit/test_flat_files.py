"""A private data set from three files to arrays, against plain pandas."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from ovo_clinic import experiment
from ovo_clinic.cli import app
from ovo_clinic.errors import UserError
from ovo_clinic.new_dataset import new_dataset
from ovo_clinic.prepare import Prepared, prepare

STAYS = 120
CUT = 24.0


def stays(random: np.random.Generator) -> pd.DataFrame:
    patients = random.integers(0, 70, STAYS)
    return pd.DataFrame(
        {
            "Stay_ID": 5000 + random.permutation(STAYS),
            "Subject_ID": [f"person-{number}" for number in patients],
            "Age": np.where(random.random(STAYS) < 0.1, np.nan, random.normal(60, 12, STAYS).round(1)),
            "Sex": random.choice(["F", "M", None], STAYS, p=[0.45, 0.45, 0.1]),
            "Ventilated": random.integers(0, 2, STAYS),
            "Died": random.integers(0, 2, STAYS),
            "Discharge_Location": random.choice(["home", "ward"], STAYS),
        }
    )


def labs(random: np.random.Generator, units: pd.Series) -> pd.DataFrame:
    rows = 1500
    frame = pd.DataFrame(
        {
            "stay_id": random.choice(units[:90], rows),
            "hours": random.integers(-4, 40, rows).astype(float),
            "variable": random.choice(["sodium", "glucose", "lactate"], rows, p=[0.5, 0.45, 0.05]),
            "value": random.normal(5, 1, rows).round(3),
        }
    )
    frame.loc[::50, "hours"] = np.nan
    frame.loc[::70, "value"] = np.nan
    frame.loc[1, "hours"] = CUT
    return frame


def diagnoses(random: np.random.Generator, units: pd.Series) -> pd.DataFrame:
    codes = random.choice(["0389", "389", "I10", "E11"], 400)
    return pd.DataFrame(
        {"stay_id": random.choice(units[20:], 400), "icd_code": codes, "hour": random.integers(0, 48, 400)}
    )


@dataclass(frozen=True)
class Source:
    folder: Path
    stays: pd.DataFrame
    labs: pd.DataFrame
    diagnoses: pd.DataFrame

    def write(self) -> list[Path]:
        files = [self.folder / "stays.csv", self.folder / "labs.csv.gz", self.folder / "diagnoses.csv"]
        for path, frame in zip(files, (self.stays, self.labs, self.diagnoses), strict=True):
            frame.to_csv(path, index=False)
        return files


@pytest.fixture
def source(tmp_path: Path, home: Path) -> Source:
    random = np.random.default_rng(7)
    folder = tmp_path / "raw"
    folder.mkdir()
    frame = stays(random)
    return Source(folder, frame, labs(random, frame["Stay_ID"]), diagnoses(random, frame["Stay_ID"]))


def described(source: Source, **options: Any) -> Path:
    """The config that `new-dataset` writes."""
    return new_dataset("mine", source.write(), source.folder.parent / "described", **options).config


def edited(config: Path, **options: Any) -> Path:
    """The config after a change of the task's options in the spec."""
    path = config.with_name("mine.spec.yaml")
    content = yaml.safe_load(path.read_text())
    content["tasks"]["mine"]["options"] |= options
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return config


def prepared(config: Path, source: Source, *overrides: str) -> Prepared:
    return prepare(experiment.load(str(config), overrides).data_request(), {"": source.folder})


def features(data: Prepared, name: str) -> pd.DataFrame:
    """A modality's array as a table of the units in which it is present."""
    array = data.array(name)
    frame = pd.DataFrame(np.asarray(array.values), columns=[column.name for column in array.columns])
    frame.index = pd.Index(data.cohort["unit_id"].to_numpy())
    return frame[array.present]


def training(data: Prepared) -> list[int]:
    return data.cohort["unit_id"].to_numpy()[data.split == "train"].tolist()


def test_cohort_and_vector(source: Source) -> None:
    data = prepared(described(source), source)
    expected = source.stays.sort_values("Stay_ID").set_index("Stay_ID")
    assert data.cohort["unit_id"].to_list() == expected.index.tolist()
    assert data.cohort["patient_id"].to_list() == expected["Subject_ID"].tolist()
    assert data.target.tolist() == expected["Died"].tolist()
    found = features(data, "stays")
    assert list(found.columns) == ["age", "ventilated", "sex=(blank)", "sex=F", "sex=M"]
    np.testing.assert_array_equal(found["age"], expected["Age"].astype(np.float32))
    np.testing.assert_array_equal(found["ventilated"], expected["Ventilated"])
    np.testing.assert_array_equal(found["sex=F"], expected["Sex"] == "F")
    np.testing.assert_array_equal(found["sex=(blank)"], expected["Sex"].isna())


def test_summaries_before_the_prediction_time(source: Source) -> None:
    data = prepared(described(source, prediction_hours=CUT), source)
    known = source.labs.dropna(subset=["value"])
    early = known[known["hours"] < CUT]
    assert data.manifest["notes"]["labs: records at or after the prediction time"] == (known["hours"] >= CUT).sum()
    assert data.manifest["notes"]["labs: records of unknown time"] == known["hours"].isna().sum() > 0
    found = features(data, "labs")
    assert sorted(found.index) == sorted(early["stay_id"].unique())
    for variable in ("sodium", "glucose", "lactate"):
        group = early[early["variable"] == variable].groupby("stay_id")
        statistics = group["value"].agg(["min", "max", "mean", "count"]).reindex(found.index)
        for name in ("min", "max", "mean"):
            np.testing.assert_allclose(found[f"{variable}|{name}"], statistics[name], rtol=1e-6)
        np.testing.assert_array_equal(found[f"{variable}|count"], statistics["count"].fillna(0))
        latest = early[early["variable"] == variable].groupby(["stay_id", "hours"])["value"].mean().reset_index()
        last = latest.sort_values("hours").groupby("stay_id")["value"].last().reindex(found.index)
        np.testing.assert_allclose(found[f"{variable}|last"], last, rtol=1e-6)


def test_codes_keep_leading_zeros_and_obey_the_cut(source: Source) -> None:
    data = prepared(described(source, prediction_hours=CUT), source)
    early = source.diagnoses[source.diagnoses["hour"] < CUT]
    expected = pd.crosstab(early["stay_id"], early["icd_code"]).clip(upper=1)
    pd.testing.assert_frame_equal(features(data, "diagnoses"), expected, check_dtype=False, check_names=False)


def test_share_counts_training_units(source: Source) -> None:
    config = described(source)
    everything = prepared(config, source)
    units = source.labs.dropna(subset=["value"]).query("variable == 'lactate'")["stay_id"].unique()
    share = np.isin(training(everything), units).mean()
    for factor, kept in ((0.99, True), (1.01, False)):
        data = prepared(config, source, f"data.modalities.labs.share={share * factor}")
        assert any(column.group == "lactate" for column in data.array("labs").columns) is kept


def test_sequence(source: Source) -> None:
    config = described(source)
    options = {"kind": "sequence", "table": "labs", "time": "hours", "variable": "variable", "value": "value"}
    modalities = yaml.safe_load(config.with_name("mine.spec.yaml").read_text())["tasks"]["mine"]["options"][
        "modalities"
    ]
    data = prepared(edited(config, modalities=modalities | {"labs": options}), source)
    array = data.array("labs")
    names = [column.name for column in array.columns]
    known = source.labs.dropna()
    expected = known.groupby(["stay_id", "hours", "variable"])["value"].mean().unstack()
    assert array.offsets is not None and array.values.shape == (len(expected), 1 + expected.shape[1])
    units = np.repeat(data.cohort["unit_id"].to_numpy(), np.diff(array.offsets))
    np.testing.assert_array_equal(units, expected.index.get_level_values("stay_id"))
    np.testing.assert_array_equal(array.values[:, 0], expected.index.get_level_values("hours"))
    np.testing.assert_allclose(array.values[:, 1:], expected[names[1:]].to_numpy(), rtol=1e-6)
    assert data.manifest["notes"]["labs: records of unknown time"] > 0


def test_order_of_rows_changes_nothing(source: Source) -> None:
    config = described(source)
    first = prepared(config, source)
    frames = [frame.sample(frac=1, random_state=1) for frame in (source.stays, source.labs, source.diagnoses)]
    shuffled = Source(source.folder, *frames)
    shuffled.write()
    second = prepared(config, shuffled)
    assert first.folder != second.folder
    assert first.manifest["digests"] == second.manifest["digests"]
    for name in first.modalities:
        np.testing.assert_array_equal(first.array(name).values, second.array(name).values)


def test_times_in_other_units(source: Source) -> None:
    config = described(source, prediction_hours=CUT)
    hours = prepared(config, source)
    moved = Source(source.folder, source.stays, source.labs.assign(hours=source.labs["hours"] * 60), source.diagnoses)
    moved.write()
    minutes = prepared(config, moved, "data.modalities.labs.time_unit=minutes")
    np.testing.assert_array_equal(hours.array("labs").values, minutes.array("labs").values)
    assert hours.manifest["notes"] == minutes.manifest["notes"]


def test_parquet_reads_as_csv_does(source: Source, tmp_path: Path) -> None:
    from_csv = prepared(described(source), source)
    folder = tmp_path / "parquet"
    folder.mkdir()
    files = [folder / f"{name}.parquet" for name in ("stays", "labs", "diagnoses")]
    for path, frame in zip(files, (source.stays, source.labs, source.diagnoses), strict=True):
        frame.to_parquet(path)
    config = new_dataset("mine", files, tmp_path / "from_parquet").config
    from_parquet = prepare(experiment.load(str(config)).data_request(), {"": folder})
    assert from_parquet.modalities == from_csv.modalities == ["stays", "labs", "diagnoses"]
    for name in from_csv.modalities:
        pd.testing.assert_frame_equal(features(from_parquet, name), features(from_csv, name))
    files[1].write_bytes(files[1].read_bytes()[:500])
    with pytest.raises(UserError, match="labs.parquet: is cut off"):
        prepare(experiment.load(str(config)).data_request(), {"": folder})


def test_text_labels_need_their_order(source: Source) -> None:
    outcome = source.stays["Died"].map({0: "alive", 1: "dead"})
    changed = Source(source.folder, source.stays.assign(Died=outcome), source.labs, source.diagnoses)
    with pytest.raises(UserError, match="--classes: column 'died' of stays.csv has 2 different values"):
        described(changed)
    data = prepared(described(changed, classes=["alive", "dead"]), changed)
    expected = source.stays.sort_values("Stay_ID")["Died"]
    assert data.target.tolist() == expected.tolist()
    assert data.manifest["attrition"][0]["positives"] == expected.sum()


def test_the_negative_class_may_be_the_1(source: Source) -> None:
    data = prepared(described(source, classes=["1", "0"]), source)
    assert data.manifest["classes"] == ["1", "0"]
    assert data.target.tolist() == (1 - source.stays.sort_values("Stay_ID")["Died"]).tolist()


@pytest.mark.parametrize("names", [None, ["home", "ward", "dead"]])
def test_units_are_counted_by_class_where_there_are_three(source: Source, names: list[str] | None) -> None:
    stage = pd.Series(np.arange(len(source.stays)) % 5 // 2, index=source.stays.index)
    outcome = stage if names is None else stage.map(dict(enumerate(names)))
    changed = Source(source.folder, source.stays.assign(Died=outcome), source.labs, source.diagnoses)
    config = described(changed, classes=names or ["0", "1", "2"])
    if names is None:  # by hand: the spec's own `classes` may name the numbers in any way
        path = config.with_name("mine.spec.yaml")
        spec = yaml.safe_load(path.read_text())
        del spec["tasks"]["mine"]["options"]["cohort"]["classes"]
        spec["tables"]["stays"]["columns"]["died"] = "integer"
        path.write_text(yaml.safe_dump(spec, sort_keys=False))
    data = prepared(config, changed)
    expected = {(names or ["0", "1", "2"])[label]: int((stage == label).sum()) for label in range(3)}
    assert data.manifest["kind"] == "multiclass"
    for step in data.manifest["attrition"]:
        assert (step["classes"], step["positives"]) == (expected, None)


def test_text_label_with_another_value(source: Source) -> None:
    outcome = source.stays["Died"].map({0: "alive", 1: "dead"})
    changed = Source(source.folder, source.stays.assign(Died=outcome), source.labs, source.diagnoses)
    config = described(changed, classes=["alive", "dead"])
    changed.stays.loc[3, "Died"] = "unknown"
    changed.write()
    with pytest.raises(UserError, match="stays.csv: column 'died' holds 1 value.* data.cohort.classes"):
        prepared(config, changed)


def test_units_without_label_or_required_value_are_counted_out(source: Source) -> None:
    source.stays["Died"] = source.stays["Died"].astype("Int64")
    source.stays.loc[:4, "Died"] = pd.NA
    data = prepared(described(source), source, "data.cohort.require=[age]")
    kept = source.stays.dropna(subset=["Age"])
    labelled = kept.dropna(subset=["Died"])
    steps = [(step["units"], step["patients"], step["positives"]) for step in data.manifest["attrition"]]
    assert steps == [
        (len(rows), rows["Subject_ID"].nunique(), rows["Died"].sum()) for rows in (source.stays, kept, labelled)
    ]
    assert data.cohort["unit_id"].to_list() == sorted(labelled["Stay_ID"])


def test_people_stay_together(source: Source) -> None:
    data = prepared(described(source), source)
    sides = pd.Series(data.split).groupby(data.cohort["patient_id"].to_numpy()).nunique()
    assert (sides == 1).all() and len(sides) < STAYS


def test_a_unit_in_two_rows_is_named(source: Source) -> None:
    config = described(source)
    source.stays.loc[1, "Stay_ID"] = source.stays.loc[0, "Stay_ID"]
    source.write()
    with pytest.raises(UserError, match="stays.csv: column 'stay_id' holds 1 value"):
        prepared(config, source)


def test_a_binary_column_with_an_empty_cell_is_named(source: Source) -> None:
    config = described(source)
    source.stays["Ventilated"] = source.stays["Ventilated"].astype("Int64")
    source.stays.loc[2, "Ventilated"] = pd.NA
    source.write()
    with pytest.raises(UserError, match="stays.csv: column 'ventilated' is declared binary, and 1 cell"):
        prepared(config, source)


def test_a_missing_column_is_named(source: Source) -> None:
    config = described(source)
    Source(source.folder, source.stays.drop(columns="Age"), source.labs, source.diagnoses).write()
    with pytest.raises(UserError, match="stays.csv: has no column age"):
        prepared(config, source)


MISTAKES = {
    "data.modalities.labs.valeu=x": "data.modalities.labs.valeu: no such setting; did you mean 'value'",
    "data.modalities.labs.kind=lab": "data.modalities.labs: .*'vector', 'codes', 'summaries', 'sequence'",
    "data.modalities.labs.value=valeu": "data.modalities.labs.value: table 'labs' has no column 'valeu'; .* 'value'",
    "data.modalities.labs.value=variable": "data.modalities.labs.value: column 'variable' is declared as text",
    "data.modalities.labs.share=2": "data.modalities.labs.share: 2: ",
    "data.modalities.stays.numeric=[died]": "data.modalities.stays.numeric: 'died' is an id, a label or banned",
    "data.modalities.stays.table=labz": "data.modalities.stays.table: no table 'labz'; did you mean 'labs'",
    "data.cohort.labels=[dead]": "data.cohort.labels: table 'stays' has no column 'dead'",
    "data.cohort.unit=[1]": "data.cohort.unit: ",
    "data.prediction_hours=soon": "data.prediction_hours: 'soon': ",
    "data.prediction_hours=.nan": "data.prediction_hours: nan: ",
    "data.prediction_hours=.inf": "data.prediction_hours: inf: ",
    "data.modalities.labs.share=.nan": "data.modalities.labs.share: nan: ",
    "data.modalities.labs.share=-0.1": "data.modalities.labs.share: -0.1: ",
    "split.train=.nan": "split.train: nan: ",
}


@pytest.mark.parametrize("override", MISTAKES)
def test_mistakes_are_named_by_their_path(source: Source, override: str) -> None:
    with pytest.raises(UserError, match=f"^{MISTAKES[override]}") as raised:
        prepared(described(source), source, override)
    assert "\n" not in str(raised.value)


def test_a_prediction_time_needs_times(source: Source) -> None:
    untimed = Source(source.folder, source.stays, source.labs, source.diagnoses.drop(columns="hour"))
    config = described(untimed, prediction_hours=CUT)
    with pytest.raises(UserError, match="^data.modalities.diagnoses.time: is needed"):
        prepared(config, untimed)
    data = prepared(config, untimed, "data.modalities.diagnoses.known_before=true")
    assert sorted(features(data, "diagnoses").index) == sorted(untimed.diagnoses["stay_id"].unique())


def test_what_no_prediction_time_cuts_is_noted(source: Source) -> None:
    notes = prepared(described(source), source).manifest["notes"]
    for name in ("labs", "diagnoses"):
        assert notes[name] == "no prediction time, every record is used"
    assert "stays" not in notes
    untimed = Source(source.folder, source.stays, source.labs, source.diagnoses.drop(columns="hour"))
    (source.folder.parent / "described" / "mine.spec.yaml").unlink()
    (source.folder.parent / "described" / "mine.yaml").unlink()
    data = prepared(described(untimed, prediction_hours=CUT), untimed, "data.modalities.diagnoses.known_before=true")
    notes = data.manifest["notes"]
    assert notes["stays"] == "no column of times, every value is taken as known before the prediction time"
    assert notes["diagnoses"] == "known_before, every record is taken as known before the prediction time"
    assert "labs" not in notes


def test_blank_records_are_counted(source: Source) -> None:
    source.labs.loc[[3, 8, 9], "variable"] = None
    source.diagnoses.loc[[5, 6], "icd_code"] = None
    notes = prepared(described(source), source).manifest["notes"]
    blank = source.labs["variable"].isna() | source.labs["value"].isna()
    assert notes["labs: records with a blank variable or value"] == blank.sum() > 20
    assert notes["diagnoses: records with a blank code"] == 2


def test_blanks_around_texts_make_no_difference(source: Source) -> None:
    outcome = source.stays["Died"].map({0: "no", 1: "yes"})
    source.stays["Died"] = outcome
    plain = prepared(described(source, classes=["no", "yes"]), source)
    sloppy = Source(source.folder, source.stays.copy(), source.labs.copy(), source.diagnoses.copy())
    for frame, columns in ((sloppy.stays, ["Subject_ID", "Sex", "Died"]), (sloppy.labs, ["variable"])):
        for column in columns:
            frame.loc[::2, column] = frame.loc[::2, column] + " "
    sloppy.write()
    data = prepared(source.folder.parent / "described" / "mine.yaml", sloppy)
    assert data.cohort["patient_id"].to_list() == plain.cohort["patient_id"].to_list()
    assert data.target.tolist() == plain.target.tolist()
    for name in data.modalities:
        pd.testing.assert_frame_equal(features(data, name), features(plain, name))


def test_text_that_is_not_utf8_is_counted_and_refused_in_ids(source: Source) -> None:
    config = described(source)
    source.stays.loc[[3, 4], "Sex"] = "männlich"
    source.write()
    source.stays.to_csv(source.folder / "stays.csv", index=False, encoding="latin-1")
    assert prepared(config, source).manifest["notes"]["stays: cells that are not UTF-8 text"] == 2
    source.stays.loc[[3, 4, 7], "Subject_ID"] = "Müller"
    source.stays.to_csv(source.folder / "stays.csv", index=False, encoding="latin-1")
    with pytest.raises(UserError, match="stays.csv: column 'subject_id' holds 3 cell.* not UTF-8 text.*CSV"):
        prepared(config, source)


def test_all_columns_by_type_but_never_the_outcome(source: Source) -> None:
    config = described(source)
    path = config.with_name("mine.spec.yaml")
    content = yaml.safe_load(path.read_text())
    content["tables"]["stays"]["columns"]["discharge_location"] = "text"
    content["tasks"]["mine"]["options"]["modalities"]["stays"] = {"kind": "vector", "table": "stays"}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    groups = {column.group for column in prepared(config, source).array("stays").columns}
    assert groups == {"age", "ventilated", "sex"}
    # What another task predicts, or splits by, tells of this one's outcome, or of the parts.
    other = {**content["tasks"]["mine"], "target": ["ventilated"], "split": {"by": "sex"}}
    content["tasks"]["other"] = other
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    assert {column.group for column in prepared(config, source).array("stays").columns} == {"age"}


def test_description_holds_no_values_and_bans_outcomes(source: Source) -> None:
    spec_file, config, _ = new_dataset("mine", source.write(), source.folder.parent)
    text = spec_file.read_text() + config.read_text()
    content = yaml.safe_load(spec_file.read_text())
    assert content["banned"] == ["discharge_location"]
    assert content["tasks"]["mine"]["options"]["cohort"]["patient"] == "subject_id"
    assert "discharge_location" not in content["tables"]["stays"]["columns"]
    for value in ("person-", "sodium", "home", "I10", "0389", *source.stays["Stay_ID"].astype(str)):
        assert value not in text


def test_description_overwrites_nothing(source: Source) -> None:
    spec_file, config, _ = new_dataset("mine", source.write(), source.folder.parent)
    config.unlink()
    before = spec_file.read_text()
    with pytest.raises(UserError, match="mine.spec.yaml: exists already"):
        new_dataset("mine", source.write(), source.folder.parent)
    assert spec_file.read_text() == before and not config.exists()


def test_unclear_parts_are_asked_for(source: Source) -> None:
    both = Source(source.folder, source.stays.assign(target=source.stays["Died"]), source.labs, source.diagnoses)
    with pytest.raises(UserError, match="^--label: .*'died' of stays.csv, 'target' of stays.csv"):
        described(both)
    neither = Source(source.folder, source.stays.rename(columns={"Died": "y"}), source.labs, source.diagnoses)
    with pytest.raises(UserError, match="^--label: .*'y' of stays.csv"):
        described(neither)
    with pytest.raises(UserError, match="^--unit: 'age' is not a column of every file; these are: stay_id"):
        described(source, unit="age")
    people = Source(source.folder, source.stays.assign(mrn=source.stays["Subject_ID"]), source.labs, source.diagnoses)
    with pytest.raises(UserError, match="^--patient: .*subject_id, mrn"):
        described(people)
    assert prepared(described(people, patient="MRN"), people).cohort["patient_id"].n_unique() > 1


def one_file(tmp_path: Path, name: str = "stays", **columns: Any) -> Path:
    """A table of 40 stays of 20 people, with these columns too (None takes one away)."""
    rows = np.arange(40)
    given = {
        "stay_id": rows * 7 % 40 + 100,
        "patient_id": rows // 2,
        "age": 50 + rows % 13,
        "died": (rows % 3 == 0) * 1,
    }
    frame = pd.DataFrame({key: value for key, value in (given | columns).items() if value is not None})
    path = tmp_path / f"{name}.csv"
    frame.to_csv(path, index=False)
    return path


def told_of(path: Path, *others: Path, **options: Any) -> tuple[dict[str, Any], str]:
    """(the task's options in the spec, what the command says)."""
    written = new_dataset("one", [path, *others], path.parent / f"out_{path.stem}", **options)
    spec = yaml.safe_load(written.spec.read_text())
    return spec | {"options": spec["tasks"]["one"]["options"]}, "\n".join(written.told)


PEOPLE = """Participant_ID participant_id pat_id subjid USUBJID study_id empi nhs_number NHS-Number case_no patientId
patient SubjectNo mrn PID proband_id medical_record_number uniquepid""".split()


@pytest.mark.parametrize("name", PEOPLE)
def test_people_are_recognised(tmp_path: Path, name: str) -> None:
    path = one_file(tmp_path, patient_id=None, **{name: np.arange(40) // 2 + 900})
    spec, _ = told_of(path)
    assert spec["options"]["cohort"]["patient"] == name.lower()


@pytest.mark.parametrize("name", ["lipid", "rapid", "covid", "hr", "los_group", "pt"])
def test_no_person_is_guessed_where_none_is_named(tmp_path: Path, name: str) -> None:
    path = one_file(tmp_path, patient_id=None, **{name: np.arange(40) // 2 + 900, "ward_code": np.arange(40) // 2})
    expected = "^--patient: no column of stays.csv .* candidates: .*ward_code.*--patient stay_id where each row"
    with pytest.raises(UserError, match=expected) as raised:
        told_of(path)
    assert "\n" not in str(raised.value) and not list(tmp_path.glob("out_*"))
    assert told_of(path, patient="stay_id")[0]["options"]["cohort"]["patient"] == "stay_id"


def test_a_decimal_column_is_no_person(tmp_path: Path) -> None:
    path = one_file(tmp_path, patient_id=None, lipid=np.arange(40) + 0.5)
    with pytest.raises(UserError, match="--patient: column 'lipid' of stays.csv holds decimal numbers"):
        told_of(path, patient="lipid")


def test_a_name_that_only_ends_like_an_id_is_a_feature(tmp_path: Path) -> None:
    measured = dict.fromkeys(["covid", "steroid", "opioid", "carotid", "fluid"], np.arange(40) // 2 + 3)
    ids = dict.fromkeys(["ward_id", "deviceId", "encounter_no"], np.arange(40) // 2 + 3)
    spec, told = told_of(one_file(tmp_path, **measured, **ids))
    assert spec["options"]["modalities"]["stays"]["numeric"] == ["age", *measured]
    assert "stays.csv: left out, an id: ward_id, deviceid, encounter_no" in told


OUTCOMES = """los icu_los ICULOS hospital_los_days length_of_stay disposition vital_status ventilator_days exitus
mortality expired dod deceased date_of_death discharge_ward alive icu_days ventilator_free_days hospiceCare""".split()


def test_what_follows_the_outcome_is_banned(tmp_path: Path) -> None:
    harmless = dict.fromkeys(["glos", "dodge", "event_days_before", "studied_drug_dose"], np.arange(40) // 2 + 3)
    columns = dict.fromkeys(OUTCOMES, np.arange(40) // 2 + 3)
    spec, told = told_of(one_file(tmp_path, **columns, **harmless), label="died")
    assert spec["banned"] == sorted(name.lower() for name in OUTCOMES)
    assert spec["options"]["modalities"]["stays"]["numeric"] == ["age", *harmless]
    assert "stays.csv: left out, states or follows the outcome (banned): los, icu_los" in told


def test_times_that_are_dates_cut_nothing_and_the_command_says_so(tmp_path: Path) -> None:
    labs = pd.DataFrame({"stay_id": np.arange(80) // 2 + 100, "variable": "sodium", "value": np.arange(80) / 7})
    labs["charttime"] = pd.date_range("2101-01-01", periods=80, freq="h").astype(str)
    labs.to_csv(tmp_path / "labs.csv", index=False)
    path = one_file(tmp_path, admitted="2101-01-01", seen="03.04.2101")
    spec, told = told_of(path, tmp_path / "labs.csv")
    assert "time" not in spec["options"]["modalities"]["labs"]
    assert "labs.csv: records of this table are not cut at any prediction time (times in charttime are dates" in told
    assert "stays.csv: left out, dates: admitted, seen" in told
    written = (tmp_path / "out_stays" / "one.spec.yaml").read_text()
    assert "# CHECK: records of this table are not cut at any prediction time" in written


def test_row_numbers_are_no_feature(tmp_path: Path) -> None:
    path = one_file(tmp_path, row=np.arange(40)[::-1] + 3)
    pd.read_csv(path).to_csv(path)  # a column without a name
    frame = pd.read_csv(path)  # which pandas calls "Unnamed: 0"
    assert frame.columns[0] == "Unnamed: 0"
    frame.to_csv(path)
    assert path.read_text().startswith(",Unnamed: 0,stay_id")
    spec, told = told_of(path)
    assert spec["options"]["modalities"]["stays"]["numeric"] == ["age"]
    assert "stays.csv: left out, row numbers: (no name), unnamed: 0, row" in told
    data = prepare(experiment.load(str(tmp_path / "out_stays" / "one.yaml")).data_request(), {"": tmp_path})
    assert [column.name for column in data.array("stays").columns] == ["age"]


def test_an_exported_split_is_no_feature(tmp_path: Path) -> None:
    spec, told = told_of(one_file(tmp_path, split=["train", "test"] * 20, cv_fold=np.arange(40) % 5))
    assert spec["options"]["modalities"]["stays"] == {"kind": "vector", "table": "stays", "numeric": ["age"]}
    assert "stays.csv: left out, a split of the data: split, cv_fold" in told


def test_cells_that_say_not_available_are_missing(tmp_path: Path, home: Path) -> None:
    sodium = (np.arange(40) / 3 + 130).round(2).astype(str)
    sodium[:6] = ["NA", "N/A", "NULL", ".", "NaN", ""]
    spec, told = told_of(one_file(tmp_path, sodium=sodium))
    assert spec["options"]["modalities"]["stays"]["numeric"] == ["age", "sodium"]
    assert "stays.csv: cells that read . or N/A or NA or NULL or NaN are missing values" in told
    data = prepare(experiment.load(str(tmp_path / "out_stays" / "one.yaml")).data_request(), {"": tmp_path})
    found = features(data, "stays")["sodium"]
    expected = pd.read_csv(tmp_path / "stays.csv", na_values=["."]).sort_values("stay_id")["sodium"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.isna().sum() == 6


def test_numbers_with_texts_among_them_are_told_and_refused(tmp_path: Path, home: Path) -> None:
    potassium = (np.arange(40) / 20 + 3).round(2).astype(str)
    potassium[[5, 9]] = "hemolyzed"
    _, told = told_of(one_file(tmp_path, potassium=potassium, note=[f"note {row % 60}" for row in range(40)]))
    assert "stays.csv: column potassium holds 38 numbers and 2 other texts" in told and "hemolyzed" not in told
    spec_file = tmp_path / "out_stays" / "one.spec.yaml"
    assert "hemolyzed" not in spec_file.read_text()
    request = experiment.load(str(tmp_path / "out_stays" / "one.yaml")).data_request
    with pytest.raises(UserError, match="'potassium' should be a number"):
        prepare(request(), {"": tmp_path})
    content = yaml.safe_load(spec_file.read_text())
    content["tables"]["stays"]["missing"] = ["hemolyzed"]
    spec_file.write_text(yaml.safe_dump(content, sort_keys=False))
    assert features(prepare(request(), {"": tmp_path}), "stays")["potassium"].isna().sum() == 2


def test_sodium_called_na_stays_a_variable(tmp_path: Path, home: Path) -> None:
    labs = pd.DataFrame({"stay_id": np.arange(80) // 2 + 100, "variable": ["NA", "K"] * 40, "value": np.arange(80) / 7})
    labs.to_csv(tmp_path / "labs.csv", index=False)
    spec, _ = told_of(one_file(tmp_path), tmp_path / "labs.csv")
    assert "missing" not in spec["tables"]["labs"]
    labs["value"] = labs["value"].astype(str)
    labs.loc[3, "value"] = "NA"
    labs.to_csv(tmp_path / "labs.csv", index=False)
    _, told = told_of(one_file(tmp_path, "again"), tmp_path / "labs.csv")
    assert "labs.csv: column variable holds NA too" in told


def test_a_unit_that_stands_twice_is_counted(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--unit: 'stay_id' has 3 value.s. twice.* stays.csv"):
        told_of(one_file(tmp_path, stay_id=[1, 1, 1, 2, 2, *range(50, 85)]))


def test_labels_with_blanks_around_them_are_the_same(tmp_path: Path) -> None:
    path = one_file(tmp_path, died=None, outcome=["yes", "yes ", "no", " no"] * 10)
    spec, _ = told_of(path, classes=["no", "yes"])
    assert spec["options"]["cohort"]["classes"] == ["no", "yes"]


def test_ids_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    path = one_file(tmp_path, patient_id=["Müller", "Böll"] * 20, ward=["Süd", "Nord"] * 20)
    text = path.read_text(encoding="utf-8")
    path.write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match="stays.csv: column 'patient_id' holds 40 cell.* not UTF-8"):
        told_of(path)
    path.write_text(text.replace("ü", "ue").replace("ö", "oe").replace("Sued", "Süd"), encoding="latin-1")
    assert "stays.csv: column ward holds 20 cells that are not UTF-8 text" in told_of(path)[1]


def test_a_single_modality_gets_a_head_that_takes_one(tmp_path: Path) -> None:
    told_of(one_file(tmp_path))
    one = experiment.load(str(tmp_path / "out_stays" / "one.yaml"))
    assert one.model.fusion.name == "concat"
    assert [choice.name for choice in one.compare.fusion] == ["concat", "self_attention"]


def test_two_modalities_keep_the_default_head(source: Source) -> None:
    assert experiment.load(str(described(source))).model.fusion.name == "ovo"


@pytest.mark.parametrize("hours", [float("nan"), float("inf")])
def test_prediction_hours_are_finite(source: Source, hours: float) -> None:
    with pytest.raises(UserError, match="^--prediction-hours: "):
        described(source, prediction_hours=hours)


def test_command_line(source: Source, tmp_path: Path) -> None:
    files = [str(path) for path in source.write()]
    done = CliRunner().invoke(
        app, ["new-dataset", "mine", "--csv", *files, "--out", str(tmp_path / "out"), "--unit", "Stay_ID"]
    )
    assert done.exit_code == 0, done.output
    assert "stays.csv: unit stay_id, patient subject_id, label died" in done.output
    assert "stays.csv: left out, states or follows the outcome (banned): discharge_location" in done.output
    assert prepared(tmp_path / "out" / "mine.yaml", source).modalities == ["stays", "labs", "diagnoses"]


def test_a_wide_file_is_looked_at_in_little_memory(tmp_path: Path) -> None:
    names = ["stay_id", "patient_id", "died", *(f"v{number}" for number in range(300))]
    rows = [",".join(["1.5"] * 300)] * 40
    lines = [f"{stay},{stay // 2},{stay % 3 % 2},{row}" for stay, row in enumerate(rows)]
    (tmp_path / "wide.csv").write_text("\n".join([",".join(names), *lines]) + "\n")
    program = (
        "from pathlib import Path\nfrom ovo_clinic.new_dataset import new_dataset\n"
        "new_dataset('wide', [Path('wide.csv')], Path('out'))\n"
        # Not ru_maxrss: a process inherits that from the one that started it.
        "print(Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])"
    )
    found = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert int(found.stdout.split()[-1]) < 1_000_000  # KB
    assert "v299: number" in (tmp_path / "out" / "wide.spec.yaml").read_text()
