"""A trained model on new raw files: the same answers, labels unknown, data that are other ones."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import yaml
from mlflow.models import Model

from ovo_clinic import cli, drift, experiment, runs, scrub, served, terminal, training
from ovo_clinic import spec as specs
from ovo_clinic.errors import UserError
from ovo_clinic.new_data import prepare_new
from ovo_clinic.predict import Predictions, predict
from ovo_clinic.prepare import prepare_task
from ovo_clinic.raw import RawFolder
from ovo_clinic.tracking import models
from tests.small_data import FIRST_UNIT, PERSON, QUICK, flat_files

STAYS = 240


@dataclass(frozen=True)
class Trained:
    config: Path
    folder: Path
    model: Path

    def predict(self, raw: Path, out: Path | None = None, model: Path | str | None = None) -> Predictions:
        return predict(model or self.folder, raw, out, config=str(self.config))

    def evaluated(self) -> pd.Series:
        """What training itself said of its validation and test units, by unit."""
        return pd.read_parquet(self.folder / "predictions.parquet").set_index("unit_id")["probability_0"]


@pytest.mark.parametrize(
    ("data_set", "task", "instead"),
    [
        ("eicu", "eicu_paper", "eicu_mortality_24h"),
        ("mimic", "mimic_paper", "mimic_mortality_48h or mimic_phenotyping"),
        ("mimic", "mimic_phenotyping_replica", "mimic_mortality_48h or mimic_phenotyping"),
        ("tadpole", "tadpole_paper_text", "tadpole_clean"),
        ("tadpole", "tadpole_paper_code", "tadpole_clean"),
    ],
)
def test_models_of_tasks_that_need_outcomes_or_all_rows_are_refused(data_set: str, task: str, instead: str) -> None:
    described, path = specs.load(data_set)
    tables = specs.pipeline_function(described, task, path)
    with pytest.raises(UserError, match=rf"^predict: {task} [^\n]+; use a model of {instead}$"):
        tables(RawFolder({}, {}).for_prediction(), described)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    folder = tmp_path_factory.mktemp("predict")
    config = flat_files(folder / "files", "binary", STAYS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVO_CLINIC_HOME", str(folder / "home"))
        settings = experiment.load(str(config), [*QUICK, "model.fusion=ovo", "split.train=0.6", "split.test=0.3"])
        prepared = prepare_task(settings, config.parent / "raw")
        run = runs.run_folder(settings, prepared)
        training.train(settings, prepared, run)
        (folder / "store").mkdir()
        models.save(run, folder / "store" / "mlflow", Model())
        yield Trained(config, run, folder / "store" / "mlflow")


def changed(trained: Trained, folder: Path, table: str, **columns: object) -> Path:
    """A copy of the raw files in which columns of one of them are others; a function is applied, None removes."""
    raw = shutil.copytree(trained.config.parent / "raw", folder / "new")
    frame = pd.read_csv(raw / f"{table}.csv")
    for name, value in columns.items():
        if value is None:
            frame = frame.drop(columns=name)
        else:
            frame[name] = value(frame[name]) if callable(value) else value
    frame.to_csv(raw / f"{table}.csv", index=False)
    return raw


def test_without_labels_the_answers_are_those_of_the_evaluation(trained: Trained, tmp_path: Path) -> None:
    found = trained.predict(changed(trained, tmp_path, "stays", died="", stage="", pain="", fever=""))
    frame = pd.read_csv(found.file).set_index("unit_id")
    assert sorted(frame.index) == list(range(FIRST_UNIT, FIRST_UNIT + STAYS))
    known = trained.evaluated()
    assert len(known) > 80
    np.testing.assert_allclose(frame["probability_dead"].loc[known.index], known, atol=1e-6)
    measured = set(pd.read_csv(trained.config.parent / "raw" / "labs.csv")["stay_id"])
    missing = frame["missing_modalities"].fillna("")
    assert {unit for unit in frame.index if missing[unit] == "labs"} == set(frame.index) - measured
    assert set(missing) == {"", "labs"} and frame["prediction_hours"].isna().all()
    assert frame["patient_id"].str.startswith(PERSON).all()
    assert found.attrition == {"rows of stays.csv": STAYS}


def test_the_column_of_the_label_may_be_absent_and_no_other(trained: Trained, tmp_path: Path) -> None:
    found = trained.predict(changed(trained, tmp_path, "stays", died=None), tmp_path / "out.csv").frame.to_pandas()
    known = trained.evaluated()
    answers = found.set_index("unit_id")["probability_dead"]
    assert len(answers) == STAYS
    np.testing.assert_allclose(answers.loc[known.index], known, atol=1e-6)
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError, match=r"stays\.csv: has no column stage "):
        trained.predict(changed(trained, tmp_path / "other", "stays", died=None, stage=None), tmp_path / "none.csv")


def test_the_file_is_for_its_owner_and_nothing_else_is_left(trained: Trained, tmp_path: Path) -> None:
    raw, out = trained.config.parent / "raw", tmp_path / "out.parquet"
    home = Path(os.environ["OVO_CLINIC_HOME"])
    before = {path for path in home.rglob("*")}
    trained.predict(raw, out)
    assert out.stat().st_mode & 0o777 == 0o600 and pl.read_parquet(out).height == STAYS
    assert {path for path in home.rglob("*")} == before and list(tmp_path.iterdir()) == [out]
    with pytest.raises(UserError, match=r"--out: .* exists; name a new file"):
        trained.predict(raw, out)
    for wrong in (tmp_path / "out.xlsx", tmp_path / "nowhere" / "out.csv"):
        with pytest.raises(UserError, match=r"^--out: [^\n]+$"):
            trained.predict(raw, wrong)


def test_answers_about_others_do_not_take_the_place_of_the_first_ones(trained: Trained, tmp_path: Path) -> None:
    raw = trained.config.parent / "raw"
    first, again = trained.predict(raw), trained.predict(raw)
    other = trained.predict(changed(trained, tmp_path, "stays", age=lambda age: age + 1))
    assert first.file == again.file != other.file
    for found in (first, other):
        assert found.file.parent.name == "predictions" and found.file.stat().st_mode & 0o777 == 0o600
        answers = pd.read_csv(found.file)["probability_dead"]
        np.testing.assert_allclose(answers, found.frame["probability_dead"], atol=1e-6)


def test_scrub_leaves_the_folder_of_a_running_predict(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[str] = []

    def prepared_while_scrubbed(*given: Any) -> Any:
        running = [item for item in scrub.holdings() if item.path.name.startswith("predict-")]
        left.extend(item.path.name for item in scrub.remove(running))
        return prepare_new(*given)

    monkeypatch.setattr("ovo_clinic.predict.prepare_new", prepared_while_scrubbed)
    assert trained.predict(trained.config.parent / "raw", tmp_path / "out.csv").frame.height == STAYS
    assert len(left) == 1


def test_the_hash_is_of_settings_weights_scaling_and_columns(trained: Trained, tmp_path: Path) -> None:
    found = trained.predict(trained.config.parent / "raw", tmp_path / "out.csv")
    digest = hashlib.sha256(json.loads((trained.folder / "result.json").read_text())["digests"]["config"].encode())
    for name in ("model.safetensors", "preprocessing.json", "inputs.json"):
        digest.update((trained.folder / name).read_bytes())
    assert set(found.frame["model"]) == {digest.hexdigest()}
    assert yaml.safe_load((trained.model / "MLmodel").read_text())["metadata"]["model_hash"] == digest.hexdigest()


def test_a_run_may_be_named_by_its_id_or_be_an_mlflow_model(trained: Trained, tmp_path: Path) -> None:
    raw = trained.config.parent / "raw"
    of_folder = trained.predict(raw, tmp_path / "folder.csv").frame
    for number, model in enumerate((trained.folder.name, trained.model)):
        assert trained.predict(raw, tmp_path / f"{number}.csv", model).frame.equals(of_folder)


@pytest.mark.parametrize(
    ("table", "columns", "told"),
    [
        ("stays", {"age": lambda age: age * 12}, "demographics: half of the age values are above .* is the unit"),
        ("labs", {"value": lambda value: value / 18}, "labs: half of the sodium.min values are below"),
        ("labs", {"variable": "Na"}, "labs: none of 160 new rows has sodium; look for another name there"),
        ("stays", {"age": None}, "stays.csv.*age"),
    ],
)
def test_other_units_names_and_columns_are_refused(
    trained: Trained, tmp_path: Path, table: str, columns: dict[str, object], told: str
) -> None:
    raw = changed(trained, tmp_path, table, **columns)
    with pytest.raises(UserError, match=rf"^[^\n]*{told}[^\n]*$"):
        trained.predict(raw, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_another_spec_no_model_and_an_unsafe_one_are_refused(trained: Trained, tmp_path: Path) -> None:
    files = shutil.copytree(trained.config.parent, tmp_path / "files")
    spec = files / "ward.spec.yaml"
    spec.write_text(spec.read_text().replace("title: A ward", "title: Another ward"))
    with pytest.raises(UserError, match="ward.spec.yaml: is not the data spec that the model was trained with"):
        predict(trained.folder, files / "raw", tmp_path / "out.csv", config=str(files / "ward.yaml"))
    with pytest.raises(UserError, match="data set is private .* --config"):
        predict(trained.folder, files / "raw", tmp_path / "out.csv")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UserError, match="empty: holds no result.json, model.safetensors"):
        predict(empty, files / "raw", tmp_path / "out.csv")
    unsafe = shutil.copytree(trained.folder, tmp_path / "unsafe")
    result = json.loads((unsafe / "result.json").read_text()) | {"unsafe": "patients see each other"}
    (unsafe / "result.json").write_text(json.dumps(result))
    with pytest.raises(UserError, match="patients see each other"):
        trained.predict(files / "raw", tmp_path / "out.csv", unsafe)


def test_the_command_prints_counts_and_no_patient(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["predict", str(trained.folder), "--raw", str(trained.config.parent / "raw")]
    words += ["--out", str(tmp_path / "out.csv"), "--config", str(trained.config)]
    monkeypatch.setattr(sys, "argv", ["ovo-clinic", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    told = capsys.readouterr().out
    assert ended.value.code == 0 and "240 units, 80 of them without some modality" in told and "out.csv" in told
    assert PERSON not in told and not any(str(unit) in told for unit in range(FIRST_UNIT, FIRST_UNIT + STAYS))


@pytest.mark.parametrize(("units", "noted"), [(drift.LEAST_VALUES - 1, True), (drift.LEAST_VALUES, False)])
def test_so_few_units_that_nothing_can_be_checked_are_told(
    units: int, noted: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pl.DataFrame({"missing_modalities": [""] * units, "model": ["0" * 64] * units})
    terminal.print_predictions(Predictions(frame, tmp_path / "out.csv", {}, None))
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: fewer than 20 units")]
    assert len(notes) == noted and all("could not be checked" in note for note in notes)


def table(trained: Trained) -> pd.DataFrame:
    """The model's columns, made from the raw files with pandas; one row a stay."""
    raw = trained.config.parent / "raw"
    stays = pd.read_csv(raw / "stays.csv").set_index("stay_id")[["age"]].add_prefix("demographics|")
    values = pd.read_csv(raw / "labs.csv").groupby("stay_id")["value"].agg(["min", "max", "mean", "count"])
    return stays.join(values.add_prefix("labs|sodium|"))


CLEAN = """
import importlib.util, sys
assert importlib.util.find_spec("ovo_clinic") is None
import mlflow.pyfunc, pandas
model = mlflow.pyfunc.load_model(sys.argv[1])
model.predict(pandas.read_parquet(sys.argv[2])).to_parquet(sys.argv[3])
import ovo_clinic
assert ovo_clinic.__file__.startswith(sys.argv[1])
"""


def test_the_mlflow_model_answers_a_table_where_the_package_is_not_installed(trained: Trained, tmp_path: Path) -> None:
    given = table(trained)
    given.to_parquet(tmp_path / "given.parquet")
    # Without site there are the installed libraries, and not the package's editable installation.
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": sysconfig.get_path("purelib"), "HOME": str(tmp_path)}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, "-S", "-c", CLEAN, trained.model, tmp_path / "given.parquet", tmp_path / "out.parquet"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = pd.read_parquet(tmp_path / "out.parquet")
    known = trained.evaluated()
    np.testing.assert_allclose(found["probability_dead"].loc[known.index], known, atol=1e-5)


def test_the_mlflow_model_is_files_with_pinned_requirements_and_a_made_up_example(trained: Trained) -> None:
    names = {path.name for path in trained.model.rglob("*") if path.is_file()}
    assert not {name for name in names if name.endswith((".pkl", ".pickle", ".pt", ".ckpt", ".pyc"))}
    assert "model.safetensors" in names and "predictions.parquet" not in names
    lines = (trained.model / "requirements.txt").read_text().split()
    pins = dict(line.split("==") for line in lines)
    assert {"torch", "mlflow", "numpy", "polars", "safetensors"} <= pins.keys() and not any("+" in v for v in lines)
    example = json.loads((trained.model / "input_example.json").read_text())
    assert example["columns"] == list(table(trained).columns) and len(example["data"]) == 2
    ages = pd.read_csv(trained.config.parent / "raw" / "stays.csv")["age"]
    assert np.abs(ages - example["data"][0][0]).min() > 0 and pd.isna(example["data"][1][0])


def test_a_table_may_lack_columns_and_values(trained: Trained) -> None:
    model = served.TableModel(trained.model / "data" / "model")
    whole = table(trained).iloc[:6]
    answers = model.predict(whole)
    without_labs = whole.assign(**{name: np.nan for name in whole if name.startswith("labs")})
    pd.testing.assert_frame_equal(model.predict(without_labs), model.predict(whole[["demographics|age"]]))
    shuffled = model.predict(whole[whole.columns[::-1]].iloc[::-1])
    pd.testing.assert_frame_equal(shuffled.loc[answers.index], answers, atol=1e-6)
    with pytest.raises(UserError, match=r"column 'labs\|sodum\|min': .*did you mean"):
        model.predict(whole.rename(columns={"labs|sodium|min": "labs|sodum|min"}))


def test_a_table_without_rows_has_an_empty_answer(trained: Trained) -> None:
    model, nobody = served.TableModel(trained.model / "data" / "model"), table(trained).iloc[:0]
    found = model.predict(nobody)
    assert found.shape == (0, 1) and list(found) == ["probability_dead"] and found.dtypes.tolist() == [np.float64]
    pd.testing.assert_index_equal(found.index, nobody.index)
    with pytest.raises(UserError, match=r"column 'labs\|sodum\|min'"):
        model.predict(nobody.rename(columns={"labs|sodium|min": "labs|sodum|min"}))
    assert len(model.predict(pd.DataFrame(index=[1, 2]))) == 2  # no column is no empty table


def test_profiles_survive_their_file(trained: Trained, tmp_path: Path) -> None:
    found = drift.load(trained.folder / "inputs.json")
    drift.save(found, tmp_path / "again.json")
    assert drift.load(tmp_path / "again.json") == found
    ages = pd.read_csv(trained.config.parent / "raw" / "stays.csv")["age"]
    assert ages.min() < found["demographics"].low[0] < ages.median() < found["demographics"].high[0] < ages.max()


@pytest.fixture(scope="module")
def fed_embeddings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """A network that reads embeddings in place of the laboratory values."""
    folder = tmp_path_factory.mktemp("embedded")
    config = flat_files(folder / "files", "binary", STAYS)
    units = np.arange(FIRST_UNIT, FIRST_UNIT + STAYS)
    np.savez(folder / "training.npz", unit_id=units, values=np.random.default_rng(0).normal(size=(STAYS, 3)))
    encoder = json.dumps({"name": "precomputed", "file": str(folder / "training.npz")})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVO_CLINIC_HOME", str(folder / "home"))
        settings = experiment.load(str(config), [*QUICK, "model.fusion=concat", f"model.encoders.labs={encoder}"])
        prepared = prepare_task(settings, config.parent / "raw")
        run = runs.run_folder(settings, prepared)
        training.train(settings, prepared, run)
        yield Trained(config, run, folder)


def test_embeddings_of_the_training_are_not_taken_for_new_units_unasked(
    fed_embeddings: Trained, tmp_path: Path
) -> None:
    trained, raw = fed_embeddings, fed_embeddings.config.parent / "raw"
    for given, message in [
        (None, "reads embeddings in place of labs; name the file of the new units: --embeddings labs=FILE"),
        ({"vitals": tmp_path / "new.npz"}, r"reads none in place of 'vitals' \(but of: labs\)"),
        ({"labs": tmp_path / "new.npz"}, "new.npz does not exist"),
    ]:
        with pytest.raises(UserError, match=message):
            predict(trained.folder, raw, tmp_path / "none.csv", config=str(trained.config), embeddings=given)
    assert not (tmp_path / "none.csv").exists()

    same = {"labs": trained.model / "training.npz"}
    found = predict(trained.folder, raw, tmp_path / "same.csv", config=str(trained.config), embeddings=same).frame
    known = trained.evaluated()
    answers = found.to_pandas().set_index("unit_id")["probability_dead"]
    np.testing.assert_allclose(answers.loc[known.index], known, atol=1e-6)

    with np.load(trained.model / "training.npz") as training_file:
        units, values = training_file["unit_id"], training_file["values"]
    np.savez(tmp_path / "new.npz", unit_id=units[1:], values=values[1:] + 3)
    new = {"labs": tmp_path / "new.npz"}
    other = predict(trained.folder, raw, tmp_path / "new.csv", config=str(trained.config), embeddings=new).frame
    assert other.filter(pl.col("unit_id") == FIRST_UNIT)["missing_modalities"].item().split(";").count("labs") == 1
    assert not other.filter(pl.col("unit_id") > FIRST_UNIT)["missing_modalities"].str.contains("labs").any()
    assert (other["probability_dead"] - found["probability_dead"]).abs().max() > 1e-3
