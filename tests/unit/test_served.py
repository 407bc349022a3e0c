"""MLflow models of images, notes, series and embeddings: they answer tables where nothing of the training is left."""

import io
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from mlflow.models import Model
from PIL import Image

from ovo_clinic import experiment, portable, runs, served, training
from ovo_clinic import predict as predicting
from ovo_clinic.arrays import Column
from ovo_clinic.drift import Profile
from ovo_clinic.errors import UserError
from ovo_clinic.predict import model_hash, predict
from ovo_clinic.prepare import prepare_task
from ovo_clinic.tracking import models
from tests.tiny_models import tiny_bert, tiny_image_model

UNITS, FIRST, SIZE = 60, 8_420_000_001, 16
CANARY = "canarynote"
PIPELINE = f"""
import polars as pl

from ovo_clinic.tables import ImageTable, Step, StepsTable, Tables, TextTable


def tables(raw, spec) -> Tables:
    rows = raw.collect(raw.scan("ward"), "ward").rename({{"unit": "unit_id"}})
    path = str(raw.folder()) + "/" + pl.col("film")
    films = rows.drop_nulls("film").select("unit_id", path=path)
    steps = rows.select("unit_id", hours=pl.lit(0.0), pulse="pulse")
    later = rows.select("unit_id", hours=pl.lit(1.0), pulse=pl.col("pulse") + 1)
    modalities = {{
        "film": ImageTable(films, {SIZE}, "squash"),
        "note": TextTable(rows.drop_nulls("note").select("unit_id", text="note")),
        "series": StepsTable(pl.concat([steps, later])),
    }}
    cohort = rows.select("unit_id", pl.col("unit_id").alias("patient_id"), "label")
    return Tables(cohort, modalities, [Step("all", rows.height, rows.height)])
"""
SPEC = """
name: ward
title: A ward
pipeline: ward.py
tables:
  ward: {file: ward, columns: {unit: integer, label: integer, film: text, note: text, pulse: number}}
modalities: {film: pictures, note: letters, series: pulses}
tasks: {ward: {title: A ward, target: [label], split: {train: 0.5, validation: 0.25, test: 0.25}}}
"""
QUICK = ["model.dim=8", "training.epochs=1", "training.batch_size=16"]


def table() -> pd.DataFrame:
    """The raw table; every fifth unit has no film, every third no note."""
    random = np.random.default_rng(7)
    unit = FIRST + np.arange(UNITS)
    words = ["acute fever", "lungs are clear"]
    return pd.DataFrame(
        {
            "unit": unit,
            "label": np.arange(UNITS) // 2 % 2,
            "film": [f"{number}.png" if number % 5 else None for number in unit],
            "note": [f"{words[number % 2]} {CANARY}" if number % 3 else None for number in unit],
            "pulse": random.normal(80, 10, UNITS),
        }
    )


def given(raw: Path) -> pd.DataFrame:
    """What a user gives, made of the raw files alone; one row a unit."""
    frame = pd.read_csv(raw / "ward.csv").set_index("unit")
    film = [None if pd.isna(name) else (raw / name).read_bytes() for name in frame["film"]]
    pulse = [[value, value + 1] for value in frame["pulse"]]
    columns = {"film": film, "note": frame["note"].astype(object).where(frame["note"].notna(), None)}
    return pd.DataFrame(columns | {"series|pulse": pulse}, index=frame.index)


@dataclass(frozen=True)
class Ward:
    """Trained runs by variant, as they were evaluated, and their MLflow models; the checkpoints are gone."""

    raw: Path
    config: Path
    runs: dict[str, Path]
    models: dict[str, Path]

    def evaluated(self, variant: str) -> pd.Series:
        return pd.read_parquet(self.runs[variant] / "predictions.parquet").set_index("unit_id")["probability_0"]


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ward]:
    folder = tmp_path_factory.mktemp("served")
    raw, private, checkpoints = folder / "raw", folder / "private", folder / "checkpoints"
    for made in (raw, private, checkpoints):
        made.mkdir()
    random = np.random.default_rng(3)
    frame = table()
    frame.to_csv(raw / "ward.csv", index=False)
    for name in frame["film"].dropna():
        Image.fromarray(random.integers(0, 256, (20, 30), dtype=np.uint8)).save(raw / name)
    (private / "ward.py").write_text(PIPELINE)
    (private / "ward.spec.yaml").write_text(SPEC)
    config = private / "ward.yaml"
    config.write_text("dataset: ward.spec.yaml\n")
    np.savez(checkpoints / "pulses.npz", unit_id=frame["unit"], values=random.normal(size=(UNITS, 3)))
    bert, vit = tiny_bert(checkpoints / "bert"), tiny_image_model(checkpoints / "vit", channels=3)
    (bert / "training_notes.txt").write_text(CANARY)
    text, film = {"name": "text", "checkpoint": str(bert)}, {"name": "pretrained_image", "checkpoint": str(vit)}
    variants = {
        "tuned": {"film": {"name": "cnn"}, "note": text},
        "frozen": {"film": {**film, "frozen": True}, "note": {**text, "frozen": True, "output": "tokens"}},
        "embeddings": {"series": {"name": "precomputed", "file": str(checkpoints / "pulses.npz")}},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVO_CLINIC_HOME", str(folder / "home"))
        trained, stored = {}, {}
        for name, encoders in variants.items():
            chosen = [f"model.encoders.{modality}={json.dumps(encoder)}" for modality, encoder in encoders.items()]
            chosen += ["modalities=[series]", "model.fusion=concat"] if name == "embeddings" else []
            settings = experiment.load(str(config), [*QUICK, *chosen])
            prepared = prepare_task(settings, raw)
            trained[name], stored[name] = runs.run_folder(settings, prepared), folder / name / "mlflow"
            training.train(settings, prepared, trained[name])
            stored[name].parent.mkdir()
            models.save(trained[name], stored[name], Model())
        shutil.copyfile(checkpoints / "pulses.npz", folder / "pulses.npz")
        shutil.rmtree(checkpoints)
        yield Ward(raw, config, trained, stored)


CLEAN = """
import importlib.util, pickle, sys
assert importlib.util.find_spec("ovo_clinic") is None
import mlflow.pyfunc, pandas
for model, given in zip(sys.argv[1::2], sys.argv[2::2]):
    found = mlflow.pyfunc.load_model(model).predict(pandas.read_parquet(given))
    found.to_parquet(given + ".out")
"""


def test_tables_are_answered_where_package_home_and_checkpoints_are_not(ward: Ward, tmp_path: Path) -> None:
    whole = given(ward.raw)
    embeddings = np.load(ward.raw.parent / "pulses.npz")["values"]
    names = [f"series|values {place}" for place in range(3)]
    tables = {
        "tuned": whole,
        "frozen": whole,
        "embeddings": pd.DataFrame(embeddings, columns=names, index=whole.index),
    }
    words: list[str | Path] = []
    for name, frame in tables.items():
        frame.to_parquet(tmp_path / name)
        words += [ward.models[name], tmp_path / name]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": sysconfig.get_path("purelib"), "HOME": str(tmp_path)}
    command = [sys.executable, "-B", "-S", "-c", CLEAN, *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in tables:
        found, known = pd.read_parquet(tmp_path / f"{name}.out"), ward.evaluated(name)
        assert len(known) == UNITS // 2 and found.shape == (UNITS, 1)
        np.testing.assert_allclose(found.iloc[:, 0].loc[known.index], known, atol=1e-5)


def test_raw_files_are_answered_by_what_the_model_carries(ward: Ward, tmp_path: Path) -> None:
    for name in ("tuned", "frozen"):
        found = predict(ward.models[name], ward.raw, tmp_path / f"{name}.parquet", config=str(ward.config)).frame
        frame, known = found.to_pandas().set_index("unit_id"), ward.evaluated(name)
        np.testing.assert_allclose(frame["probability_positive"].loc[known.index], known, atol=1e-5)
        missing = frame["missing_modalities"]
        assert missing.map(lambda text: "film" in text).sum() == UNITS // 5
        assert set(frame["model"]) == {model_hash(ward.runs[name])}


def test_another_checkpoint_in_the_place_of_that_of_the_training_is_refused(ward: Ward, tmp_path: Path) -> None:
    run, place = ward.runs["frozen"], ward.raw.parent / "checkpoints" / "bert"
    try:
        tiny_bert(place)
        (place / "vocab.txt").write_text((place / "vocab.txt").read_text().replace("clear\nno", "no\nclear"))
        told = r"^model.encoders.note.checkpoint: [^\n]+ is not what it was when the model was trained; put .* again$"
        with pytest.raises(UserError, match=told):
            predict(run, ward.raw, tmp_path / "out.csv", config=str(ward.config))
        with pytest.raises(UserError, match=told):
            models.save(run, tmp_path / "mlflow", Model())
        tiny_bert(place)
        (place / "training_notes.txt").write_text(CANARY)
        with pytest.raises(UserError, match="vit holds no transformers model"):  # that of the films is gone
            predict(run, ward.raw, tmp_path / "out.csv", config=str(ward.config))
    finally:
        shutil.rmtree(place.parent, ignore_errors=True)


def test_nothing_of_a_unit_of_a_machine_or_of_others_files_is_carried(ward: Ward) -> None:
    secrets = [CANARY, str(ward.raw.parent), *(str(FIRST + place) for place in range(UNITS))]
    for folder in ward.models.values():
        files = [path for path in folder.rglob("*") if path.is_file() and "code" not in path.relative_to(folder).parts]
        assert not {path.suffix for path in files} & {".pkl", ".pickle", ".pt", ".bin", ".ckpt", ".npz"}
        texts = {path: path.read_bytes() for path in files}
        found = [(path.name, secret) for path, text in texts.items() for secret in secrets if secret.encode() in text]
        assert not found
    carried = {path.name for path in (ward.models["tuned"] / "data" / "model" / "checkpoints" / "note").iterdir()}
    assert {"config.json", "model.safetensors", "vocab.txt"} <= carried and "training_notes.txt" not in carried


def test_the_example_is_made_up_and_the_signature_says_what_cells_are(ward: Ward) -> None:
    description = Model.load(ward.models["tuned"])
    kinds = {spec["name"]: spec["type"] for spec in description.signature.inputs.to_dict()}
    assert kinds == {"film": "binary", "note": "string", "series|pulse": "array"}
    example = description.load_input_example(str(ward.models["tuned"]))
    assert "made-up" in example["note"][0] and pd.isna(example["note"][1])
    assert [Image.open(io.BytesIO(picture)).size for picture in example["film"]] == [(64, 64)] * 2


def test_cells_that_are_none_are_absent_and_wrong_ones_are_told(ward: Ward) -> None:
    model = served.TableModel(ward.models["tuned"] / "data" / "model")
    whole = given(ward.raw).iloc[:6]
    without = model.predict(whole.drop(columns="film"))
    pd.testing.assert_frame_equal(model.predict(whole.assign(film=None)), without)
    pd.testing.assert_frame_equal(model.predict(whole.assign(film=np.nan)), without)
    blank = model.predict(whole.assign(note=" "))
    pd.testing.assert_frame_equal(blank, model.predict(whole.drop(columns="note")))
    for cell, told in {
        b"no picture": "holds no image that can be read",
        "film.png": "holds str; give the bytes",
    }.items():
        with pytest.raises(UserError, match=rf"^row 0: column 'film' [^\n]*{told}[^\n]*$") as caught:
            model.predict(whole.assign(film=[cell] * 6))
        assert "film.png" not in str(caught.value)
    assert portable.columns(portable.inputs(ward.runs["tuned"]))["film"] == "file"


def small_table(kind: str, **columns: list[object]) -> served._Table:
    names = [Column(name, "numeric", name) for name in ("pulse", "sodium")]
    profile = Profile(kind, names, [1.0] * 2, [0.0] * 2, [9.0] * 2)
    frame = pd.DataFrame({f"ward|{name}": cells for name, cells in columns.items()})
    return served._Table(Path(), {}, frame, {"ward": profile})


def test_a_number_in_place_of_a_list_is_not_taken_for_nothing() -> None:
    found = small_table("sequence", pulse=[[70.0, 75.0], None, []], sodium=[[140.0, None], np.nan, None]).array("ward")
    assert found.present.tolist() == [True, False, False] and found.offsets is not None
    np.testing.assert_array_equal(found.values, [[70, 140], [75, np.nan]])
    with pytest.raises(
        UserError, match=r"^row 1: column 'ward\|pulse' holds float; give a list, one number a time step$"
    ):
        small_table("sequence", pulse=[[70.0, 75.0], 80.0]).array("ward")


def test_a_text_in_place_of_a_number_is_told_without_its_words() -> None:
    found = small_table("vector", pulse=[70, "75", None]).array("ward")
    np.testing.assert_array_equal(found.values, [[70, np.nan], [75, np.nan], [np.nan, np.nan]])
    assert found.present.tolist() == [True, True, False]
    with pytest.raises(UserError, match=r"^column 'ward\|sodium' holds a cell that is no number; ") as caught:
        small_table("vector", sodium=[140, CANARY]).array("ward")
    assert CANARY not in str(caught.value)


def test_a_unit_without_an_embedding_lacks_the_modality(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its raw files hold the modality: the model is fed the embeddings."""
    cohort = pl.DataFrame({"unit_id": [1, 2, 3], "patient_id": [1, 1, 2]})
    raw = {"series": np.array([True, True, True]), "labs": np.array([True, False, True])}
    fed = {**raw, "series": np.array([True, False, False])}
    arrays: Any = {name: SimpleNamespace(present=there) for name, there in fed.items()}
    predictor: Any = SimpleNamespace(probabilities=lambda _: np.array([0.1, 0.2, 0.3]))
    monkeypatch.setattr(runs, "read_result", lambda _: {"task": {"kind": "binary", "classes": ["no", "yes"]}})
    prepared: Any = SimpleNamespace(cohort=cohort, present=raw.__getitem__)
    request: Any = SimpleNamespace(options={})
    found = predicting._frame(Path(), prepared, request, "digest", arrays, predictor)
    assert found["missing_modalities"].to_list() == ["", "series;labs", "series"]
    assert found["probability_yes"].to_list() == [0.1, 0.2, 0.3]
