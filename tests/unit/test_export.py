"""What is exported is what was prepared."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

from ovo_clinic import experiment
from ovo_clinic.errors import UserError
from ovo_clinic.export import Format, export
from ovo_clinic.prepare import Prepared, prepare

PIPELINE = """
import polars as pl

from ovo_clinic.tables import CodesTable, SequenceTable, Step, Tables, VectorTable, Vocabulary


def tables(raw, spec) -> Tables:
    units = pl.int_range(0, 30, eager=True)
    cohort = pl.DataFrame({"unit_id": units, "patient_id": units // 2, "label": units % 2, "ward": units % 3})
    some = units.filter(units % 4 != 0)
    age = pl.DataFrame({"unit_id": some, "age": some / 7}).with_columns(
        age=pl.when(pl.col("unit_id") % 5 > 0).then("age"), male=pl.col("unit_id") % 2 == 0
    )
    drugs = pl.DataFrame({"unit_id": some, "code": (some % 3).cast(pl.String)})
    rare = pl.DataFrame({"unit_id": some, "code": some.cast(pl.String)})
    variables = pl.Series(["hours", "na"] * 11)
    labs = pl.DataFrame({"unit_id": some, "hours": some / 3, "variable": variables, "value": some * 1.5})
    later = labs.with_columns(pl.col("hours") + 0.1)
    modalities = {
        "vitals": VectorTable(age),
        "drugs": CodesTable(drugs, Vocabulary(0.0)),
        "rare": CodesTable(rare, Vocabulary(0.9)),
        "labs": SequenceTable(pl.concat([labs, later]), Vocabulary(0.0)),
    }
    return Tables(cohort, modalities, [Step("all", 30, 15, 15), Step("kept, with a comma", 30, 15)])
"""

SPEC = """
name: small
title: Small
pipeline: small.py
raw: false
modalities: {vitals: a, drugs: b, rare: c, labs: d}
tasks: {small: {title: Small, target: [label]}}
"""


@pytest.fixture
def prepared(tmp_path: Path, home: Path) -> Prepared:
    folder = tmp_path / "private"
    folder.mkdir()
    (folder / "small.py").write_text(PIPELINE)
    (folder / "small.spec.yaml").write_text(SPEC)
    (folder / "small.yaml").write_text("dataset: small.spec.yaml\n")
    return prepare(experiment.load(str(folder / "small.yaml")).data_request(), {})


def test_a_neighbour_of_the_folder_is_left_alone(prepared: Prepared, tmp_path: Path) -> None:
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "thesis.txt").write_text("all of it")
    export(prepared, tmp_path / "out")
    assert (tmp_path / "out.partial" / "thesis.txt").read_text() == "all of it"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "out", "out.partial", "private"]


def read(folder: Path, name: str) -> pd.DataFrame:
    path = folder / f"{name}.csv.gz"
    return pd.read_csv(path) if path.exists() else pd.read_parquet(folder / f"{name}.parquet")


SOME = np.array([unit for unit in range(30) if unit % 4 != 0])


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_round_trip(prepared: Prepared, tmp_path: Path, kind: Format) -> None:
    out = tmp_path / "export"
    files = export(prepared, out, kind)
    assert sorted(files) == sorted(out.iterdir())
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600} and out.stat().st_mode & 0o777 == 0o700
    assert {path.name.split(".")[0] for path in files} == {
        "cohort", "presence", "attrition", "vitals", "drugs", "rare", "labs"
    }  # fmt: skip

    cohort = read(out, "cohort")
    assert list(cohort.columns) == ["unit_id", "patient_id", "split", "label", "ward"]
    assert cohort["patient_id"].tolist() == [unit // 2 for unit in range(30)]
    assert cohort["split"].tolist() == prepared.split.tolist()
    presence = read(out, "presence").set_index("unit_id")
    assert presence.index[presence["vitals"] == 1].tolist() == SOME.tolist()

    attrition = read(out, "attrition")
    assert attrition["rule"].tolist() == ["all", "kept, with a comma"]
    np.testing.assert_array_equal(attrition["positives"], [15, np.nan])


@pytest.fixture(params=[2000, 7], ids=["at once", "in parts"])
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ovo_clinic.export.UNITS_AT_ONCE", request.param)


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_features(prepared: Prepared, tmp_path: Path, kind: Format) -> None:
    out = tmp_path / "export"
    export(prepared, out, kind)
    vitals = read(out, "vitals")
    assert list(vitals.columns) == ["unit_id", "age", "male"] and vitals["unit_id"].tolist() == SOME.tolist()
    np.testing.assert_allclose(vitals["age"], np.where(SOME % 5 > 0, SOME / 7, np.nan), rtol=1e-6)
    np.testing.assert_array_equal(vitals["male"], SOME % 2 == 0)

    drugs = read(out, "drugs")
    np.testing.assert_array_equal(drugs[["0", "1", "2"]], np.eye(3)[SOME % 3])
    assert read(out, "rare")["unit_id"].tolist() == SOME.tolist() and read(out, "rare").shape == (22, 1)

    labs = read(out, "labs")
    assert list(labs.columns) == ["unit_id", "hours", "variable", "value"] and len(labs) == 44
    np.testing.assert_array_equal(labs["unit_id"], np.repeat(SOME, 2))
    np.testing.assert_allclose(labs["hours"], (SOME[:, None] / 3 + [0, 0.1]).ravel(), rtol=1e-6)
    assert labs["variable"].tolist() == np.repeat(["hours", "na"] * 11, 2).tolist()
    np.testing.assert_allclose(labs["value"], np.repeat(SOME * 1.5, 2))


def test_equal_data_give_equal_files(prepared: Prepared, tmp_path: Path) -> None:
    first, second = export(prepared, tmp_path / "first"), export(prepared, tmp_path / "second")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert gzip.decompress(first[0].read_bytes()).startswith(b"rule,units,patients,positives\n")


def test_a_folder_with_content_is_refused_and_untouched(prepared: Prepared, tmp_path: Path) -> None:
    out = tmp_path / "export"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="export is not empty"):
        export(prepared, out)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]


def test_an_empty_folder_is_used(prepared: Prepared, tmp_path: Path) -> None:
    out = tmp_path / "export"
    out.mkdir(mode=0o755)
    assert len(export(prepared, out)) == 7
    assert pl.read_csv(out / "vitals.csv.gz").height == 22
