"""Each planted leak is found, by the check that looks for it and by no other; without one there is no finding."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from ovo_clinic import arrays, experiment, preprocessing, resources, runs
from ovo_clinic.audit import Finding, Report, Subject, audit, fitting, look
from ovo_clinic.audit.subject import trained_on
from ovo_clinic.experiment import DataRequest
from ovo_clinic.prepare import prepare_task
from ovo_clinic.prepared import Prepared
from ovo_clinic.registry import SYNTHETIC
from tests.small_ward import COPIES, UNITS, ward_config

LATE_PIPELINE = """
from ovo_clinic.resources import load_pipeline


def tables(raw, spec, *, prediction_hours: float = {hours}):
    '''Says that it predicts at this hour, and reads records of twelve more.'''
    return load_pipeline("{pipeline}").{function}(raw, spec, prediction_hours=prediction_hours + 12{more})
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit")


@pytest.fixture(scope="module")
def config(folder: Path) -> str:
    return ward_config(folder / "ward")


@pytest.fixture(autouse=True)
def _home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVO_CLINIC_HOME", str(folder / "home"))


def request(config: str) -> DataRequest:
    return experiment.load(config).data_request()


def looked(config: str, prepared: Prepared, *folders: Path) -> Report:
    return look(Subject(prepared, request(config).spec, request(config).task, folders))


def only(report: Report) -> Finding:
    assert len(report.findings) == 1, report.findings
    assert report.undeclared == report.findings
    return report.findings[0]


def held_out_copies(prepared: Prepared) -> int:
    """Units of validation and test that are a copy, or have one, in another part, as the pipeline made them."""
    rng = np.random.default_rng(3)
    unit = 5_500_000 + rng.permutation(9 * UNITS)[:UNITS]  # as in the pipeline, before anything else is drawn
    part = dict(zip(prepared.cohort["unit_id"].to_list(), prepared.split.tolist(), strict=True))
    pairs = [(int(unit[i]), int(unit[i + UNITS // 2])) for i in range(COPIES)]
    return len({one for pair in pairs if part[pair[0]] != part[pair[1]] for one in pair if part[one] != "train"})


def test_nothing_is_found_where_nothing_is_planted(config: str) -> None:
    report = audit(config)
    assert report.findings == []
    assert report.units == UNITS and len(report.checks) == len(set(report.checks)) >= 14
    # What the checks could not look at is told: of these there are no times.
    assert [gap.where for gap in report.unchecked] == ["vitals, ward, orders, film"]


@pytest.fixture(scope="module")
def planted(config: str, folder: Path) -> tuple[Report, Prepared]:
    """Nine leaks at once, each in a place of its own."""
    names = ["copied stay", "note", "film", "label", "discharge", "row number", "date", "revised lab", "selection"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVO_CLINIC_HOME", str(folder / "home"))
        settings = [f"data.leaks={json.dumps(names)}"]
        prepared = prepare_task(experiment.load(config, settings), None)
        return looked(config, prepared), prepared


def test_each_planted_leak_is_found_once(planted: tuple[Report, Prepared]) -> None:
    report, prepared = planted
    copies = held_out_copies(prepared)
    assert copies > 5
    # The pipeline revises the first 20 results, of as many units, some thirty hours later.
    assert {(found.check, found.where): found.count for found in report.undeclared} == {
        ("rows_under_two_ids", "vitals"): copies,
        ("notes_in_two_parts", "note"): copies,
        ("images_alike_in_two_parts", "film"): copies,
        ("records_after_prediction", "labs"): 20,
        ("names_of_outcomes", "ward"): 1,
        ("features_that_tell", "ward"): 1,
        ("identifier_or_calendar_proxies", "ward"): 1,
        ("selection_by_outcome", "attrition: with an autopsy report"): UNITS,
    }
    assert len(report.findings) == 9  # a row number and a date by one check


@pytest.mark.parametrize(
    "named",
    [
        "score tells died (AUROC 1.000)",
        "only after the outcome: dischargeDestinationCode",
        "run with unit_id: visit",
        "hold years, dates or seconds since 1970: admitted",
    ],
)
def test_the_column_of_a_leak_is_named(planted: tuple[Report, Prepared], named: str) -> None:
    found = [finding for finding in planted[0].findings if named in finding.what]
    assert len(found) == 1 and found[0].why and found[0].mend


def test_a_patient_in_two_parts(config: str, folder: Path) -> None:
    """The split of a finished folder is changed: one of each of 10 people's two units goes to another part."""
    prepared = prepare_task(experiment.load(config), None)
    copy = folder / "crossed"
    shutil.copytree(prepared.folder, copy)
    twice = prepared.cohort.filter(pl.col("patient_id").is_duplicated()).with_columns(
        split=pl.Series(prepared.split).filter(prepared.cohort["patient_id"].is_duplicated())
    )
    moved = twice.filter(pl.col("split") == "train").unique("patient_id", maintain_order=True)["unit_id"].head(10)
    split = pl.read_parquet(copy / "split.parquet")
    changed = pl.when(pl.col("unit_id").is_in(moved.implode())).then(pl.lit("test")).otherwise("split").alias("split")
    split.with_columns(changed).write_parquet(copy / "split.parquet")
    report = looked(config, Prepared.open(copy))
    found = next(finding for finding in report.findings if finding.check == "people_in_two_parts")
    assert (found.where, found.count) == ("cohort: patient_id", 10)
    assert str(moved[0]) not in json.dumps(report.to_dict())


def test_an_image_file_of_units_in_two_parts(config: str, folder: Path) -> None:
    prepared = prepare_task(experiment.load(config), None)
    copy = folder / "shared_film"
    shutil.copytree(prepared.folder, copy)
    index = pl.read_parquet(copy / "film.index.parquet").with_columns(study_id=pl.int_range(pl.len()) // UNITS)
    index.write_parquet(copy / "film.index.parquet")
    report = looked(config, Prepared.open(copy))
    assert [(found.check, found.where, found.count) for found in report.findings] == [
        ("images_in_two_parts", "film: study_id", 1)
    ]


def test_a_vocabulary_of_all_units(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build: Callable[..., arrays.ModalityArray] = arrays.build
    monkeypatch.setattr(arrays, "build", lambda table, units, training: build(table, units, np.ones_like(training)))
    prepared = prepare_task(experiment.load(config, ["split.seed=5"]), None)
    found = only(looked(config, prepared))
    assert (found.check, found.where.split(":")[0]) == ("vocabularies", "orders")
    held = np.asarray(prepared.array("orders").values)[prepared.split == "train"].sum(axis=0)
    least = -(-6 * int((prepared.split == "train").sum()) // 100)  # 6 % of the training units, rounded up
    assert found.count == (held < least).sum() > 0


def test_scaling_of_all_rows(config: str) -> None:
    """A run's folder as training leaves it, of which the scaling was fitted on every row."""
    prepared = prepare_task(experiment.load(config), None)
    array = prepared.array("vitals")
    for name, rows in (("sound", prepared.rows("train")), ("leaky", np.arange(UNITS))):
        run = resources.home() / "runs" / name
        run.mkdir(parents=True)
        preprocessing.save({"vitals": preprocessing.fit(array, rows)}, run / "preprocessing.json")
        runs.write_result(run, {"digests": {"data": prepared.manifest["key"]}})
    other = resources.home() / "runs" / "of_other_data"
    shutil.copytree(run, other)
    runs.write_result(other, {"digests": {"data": "another key"}})
    folders = trained_on(prepared)
    assert [folder.name for folder in folders] == ["leaky", "sound"]
    found = only(looked(config, prepared, *folders))
    assert (found.check, found.where.split(":")[0], found.count) == ("scalings", "vitals", 1)
    assert "one fitted on all rows" in found.what
    for folder in (*folders, other):
        shutil.rmtree(folder)


def test_a_checkpoint_pretrained_on_another_split(config: str, folder: Path) -> None:
    """Of this split, of another one, of files, downloaded; runs and records as they are left behind."""
    prepared = prepare_task(experiment.load(config), None)
    other = prepare_task(experiment.load(config, ["split.seed=6"]), None)
    origins = {
        "same": {"task": "small_ward", "split": prepared.manifest["digests"]["split"]},
        "other": {"task": "small_ward", "split": other.manifest["digests"]["split"]},
        "files": {"files": 3},
        "downloaded": None,
    }
    found = {}
    for name, origin in origins.items():
        checkpoint, run = folder / f"bert_{name}", folder / f"run_{name}"
        checkpoint.mkdir()
        run.mkdir()
        if origin is not None:
            (checkpoint / "pretraining.json").write_text(json.dumps({"texts": origin}))
        encoders = {"note": {"name": "text", "checkpoint": str(checkpoint)}, "default": {"name": "mlp"}}
        runs.write_result(run, {"config": {"model": {"encoders": encoders}}})
        subject = Subject(prepared, request(config).spec, request(config).task, (run,))
        found[name] = look(subject, [fitting.pretrained_texts])
    assert only(found["other"]).where == "encoder of note"
    assert [report.findings for name, report in found.items() if name != "other"] == [[], [], []]
    assert {name: len(report.unchecked) for name, report in found.items()} == {
        "same": 0,
        "other": 0,
        "files": 1,
        "downloaded": 0,
    }


def private(folder: Path, dataset: str, task: str, **pipeline: str) -> str:
    """A task of a shipped data set with a pipeline of its own; the path of its config."""
    folder.mkdir()
    content = resources.read_yaml(resources.find("data_specs", dataset))
    content |= {"pipeline": "late.py", "tasks": {task: {**content["tasks"][task], "tables": "tables"}}}
    content.pop("releases", None)
    for file in content.get("lists", {}).values():
        shutil.copy(resources.folder("data_specs") / file, folder)
    (folder / "late.spec.yaml").write_text(json.dumps(content))
    (folder / "late.py").write_text(LATE_PIPELINE.format(**pipeline))
    (folder / "late.yaml").write_text(f"dataset: late.spec.yaml\ntask: {task}\n")
    return str(folder / "late.yaml")


def test_laboratory_results_after_the_prediction(folder: Path) -> None:
    SYNTHETIC.get("eicu")(folder / "eicu", patients=120, seed=2)
    late = private(
        folder / "late_eicu", "eicu", "eicu_mortality_24h", pipeline="eicu", function="tables", hours="24", more=""
    )
    report = audit(late, raw=folder / "eicu")
    assert {finding.check for finding in report.undeclared} == {"records_after_prediction"}
    assert {finding.where for finding in report.findings} == {"diagnosis", "treatment", "medication", "lab"}
    prepared = prepare_task(experiment.load(late), None)
    labs = pl.read_csv(folder / "eicu" / "lab.csv.gz", infer_schema_length=None).join(
        prepared.cohort.select(patientunitstayid="unit_id"), on="patientunitstayid", how="semi"
    )
    known = labs.filter(pl.max_horizontal("labresultoffset", "labresultrevisedoffset").is_between(24 * 60, 36 * 60 - 1))
    found = next(finding for finding in report.findings if finding.where == "lab")
    assert 0 < found.count <= known["patientunitstayid"].n_unique()
    assert audit("eicu_mortality_24h", raw=folder / "eicu").findings == []


def test_notes_and_films_after_the_prediction(folder: Path) -> None:
    SYNTHETIC.get("mimic")(folder / "mimic", patients=60, seed=4)
    raw = {source: folder / "mimic" / source for source in ("iv", "cxr", "note")}
    late = private(
        folder / "late_mimic",
        "mimic",
        "mimic_mortality_48h",
        pipeline="mimic",
        function="mortality_tables",
        hours="48",
        more=", image_size=64",
    )
    report = audit(late, raw=raw)
    assert {finding.check for finding in report.undeclared} == {"records_after_prediction"}
    assert {finding.where for finding in report.findings} == {"time_series", "image", "text"}
    assert audit("mimic_mortality_48h", ["data.image_size=64"], raw=raw).findings == []
