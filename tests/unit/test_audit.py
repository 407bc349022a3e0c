"""The checks against independent numbers, and the command: exit codes, what is printed, what is declared."""

import io
import json
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import scipy.stats
import sklearn.metrics
from PIL import Image
from typer.testing import CliRunner, Result

from ovo_clinic import experiment
from ovo_clinic.arrays import Column, ModalityArray
from ovo_clinic.audit import Subject, audit, look, population
from ovo_clinic.audit.duplicates import equal_rows, similar_images, similar_texts
from ovo_clinic.audit.telling import Outcomes
from ovo_clinic.cli import app
from ovo_clinic.errors import UserError
from ovo_clinic.prepare import prepare_task
from tests.small_data import flat_files
from tests.small_ward import ward_config


def outcomes(yes: np.ndarray) -> Outcomes:
    return Outcomes(np.arange(len(yes)), [str(index) for index in range(yes.shape[1])], yes.astype(float))


def test_areas_are_those_of_scikit_learn_with_missing_values_and_labels() -> None:
    rng = np.random.default_rng(0)
    yes = (rng.random((300, 3)) < [0.1, 0.4, 0.5]).astype(float)
    yes[rng.random(yes.shape) < 0.2] = np.nan
    values = np.round(rng.normal(size=300) + np.nan_to_num(yes[:, 1]), 1)  # with ties
    values[rng.random(300) < 0.1] = np.nan
    area, errors = outcomes(yes).auroc(values)
    for question in range(3):
        known = ~np.isnan(values) & ~np.isnan(yes[:, question])
        auroc = sklearn.metrics.roc_auc_score(yes[known, question], values[known])
        assert area[question] == pytest.approx(max(auroc, 1 - auroc), abs=1e-12)
        one, zero = (values[known & (yes[:, question] == label)] for label in (1, 0))
        p = scipy.stats.mannwhitneyu(one, zero, use_continuity=False, method="asymptotic").pvalue
        # The test corrects its error for ties, of which one decimal leaves few.
        assert 2 * scipy.stats.norm.sf(errors[question]) == pytest.approx(p, rel=0.05)


def test_a_code_in_any_order_tells_its_class_and_five_units_are_too_few() -> None:
    classes = np.repeat([0, 1, 2], 20)
    code = np.array([7.0, 1.0, 4.0])[classes]  # class 2 has the value in the middle
    area, _ = outcomes(classes[:, None] == np.arange(3)).auroc(code)
    assert area.tolist() == [1.0, 1.0, 1.0]
    rare = np.zeros((60, 1))
    rare[:4] = 1
    assert np.isnan(outcomes(rare).auroc(rare[:, 0])[0]).all()


def test_the_effect_is_cohens_h() -> None:
    assert population.effect(np.array(0.5), np.array(0.25)) == pytest.approx(np.pi / 2 - np.pi / 3)  # 2·asin(1/2) = π/3
    assert population.effect(np.array(0.0), np.array(1.0)) == pytest.approx(np.pi)


def vectors(values: np.ndarray) -> ModalityArray:
    columns = [Column(f"c{index}", "numeric", f"c{index}") for index in range(values.shape[1])]
    return ModalityArray(columns, values.astype(np.float32), np.ones(len(values), dtype=np.bool_))


def test_equal_rows_need_more_than_chance() -> None:
    rng = np.random.default_rng(1)
    measured = rng.normal(size=(500, 6))
    measured[[40, 90]] = measured[[3, 3]]
    measured[41] = measured[4]
    measured[41, 5] += 0.01
    # One of the training and one of the test between two that stand on no list; 5 and 6 are of one part.
    measured[[200, 300, 499]] = measured[[0, 0, 0]]
    measured[6] = measured[5]
    split = np.array(["train"] * 90 + ["test"] * 410, dtype="<U10")
    split[[0, 499]], split[[200, 300]] = "unlisted", ["train", "test"]
    assert {
        frozenset(pair) for pair in zip(*map(np.ndarray.tolist, equal_rows(vectors(measured), split)), strict=True)
    } == {frozenset(pair) for pair in ((3, 90), (40, 90), (0, 200), (0, 300), (499, 200), (499, 300), (200, 300))}
    sparse = np.full((500, 6), np.nan)
    sparse[:, 0] = rng.integers(0, 30, 500)  # an age alone: many have the same
    assert all(rows.size == 0 for rows in equal_rows(vectors(sparse), split))


def test_near_duplicate_texts_and_templates() -> None:
    rng = np.random.default_rng(2)
    words = [f"word{number}" for number in range(800)]
    own = [rng.choice(words, 80).tolist() for _ in range(300)]
    form = "the lungs are clear and no effusion is seen in either of the two bases on this view".split()
    texts = [" ".join([*form, *text]) for text in own]
    changed = own[0].copy()
    changed[20], changed[60] = "left", "right"
    texts[200] = " ".join([*form, *changed])
    texts[201] = texts[1]
    texts[10:60] = [" ".join([*form, *form])] * 50  # fifty notes that say nothing but the form
    split = np.array(["train"] * 150 + ["test"] * 150)
    found = similar_texts(pl.Series(texts), np.arange(300), split)
    assert {frozenset(pair) for pair in zip(*map(np.ndarray.tolist, found), strict=True)} == {
        frozenset((0, 200)),
        frozenset((1, 201)),
    }


def test_images_alike_but_for_light_and_compression(shared: Path) -> None:
    """Real X-rays of other people are not alike; each is alike to itself as a darker JPG of low quality."""
    files = sorted((shared / "data" / "cxr" / "nih_64px").rglob("*.png"))[:300]
    images = [np.asarray(Image.open(file).convert("L")) for file in files]
    for image in images[:20]:
        packed = io.BytesIO()
        Image.fromarray((0.8 * image + 10).astype(np.uint8)).save(packed, "JPEG", quality=60)
        images.append(np.asarray(Image.open(packed)))
    present, index = np.ones(320, dtype=np.bool_), np.arange(320)
    array = ModalityArray(
        [Column("intensity", "numeric", "intensity")], np.stack(images)[:, None], present, kind="image", index=index
    )
    found = similar_images(array, np.array(["train"] * 300 + ["test"] * 20))
    assert sorted(zip(*map(np.ndarray.tolist, found), strict=True)) == [(place, 300 + place) for place in range(20)]


DRIFT = """
from pathlib import Path

import numpy as np
import polars as pl

from ovo_clinic.tables import Step, Tables, VectorTable


def tables(raw, spec, *, units: int = 600) -> Tables:
    '''Every patient of the second half of the year is dead; the split is by half.'''
    rng = np.random.default_rng(0)
    number = np.arange(units)
    died = (rng.random(units) < np.where(number % 10 < 7, 0.1, 0.5)).astype(int)
    cohort = pl.DataFrame({"unit_id": number, "patient_id": number, "died": died, "half": number % 10})
    part = pl.when(pl.col("half") < 7).then(pl.lit("train")).when(pl.col("half") < 8).then(pl.lit("validation"))
    cohort = cohort.with_columns(part=part.otherwise(pl.lit("test")))
    frame = pl.DataFrame({"unit_id": number, "pulse": rng.normal(80, 9, units)})
    return Tables(cohort, {"vitals": VectorTable(frame)}, [Step("all", units, units)])
"""


def test_prevalence_that_differs_between_parts(tmp_path: Path, home: Path) -> None:
    (tmp_path / "drift.py").write_text(DRIFT)
    spec = "{name: drift, title: Drift, pipeline: drift.py, raw: false, modalities: {vitals: pulse}, "
    spec += "tasks: {drift: {title: Drift, target: [died], split: {stratify: false}}}}"
    (tmp_path / "drift.spec.yaml").write_text(spec)
    (tmp_path / "drift.yaml").write_text("dataset: drift.spec.yaml\n")
    request = experiment.load(str(tmp_path / "drift.yaml")).data_request()
    prepared = prepare_task(experiment.load(str(tmp_path / "drift.yaml")), None)
    assert look(Subject(prepared, request.spec, request.task)).findings == []
    half = prepared.cohort["half"].to_numpy()
    by_half = np.where(half < 7, "train", np.where(half < 8, "validation", "test"))
    pl.DataFrame({"unit_id": prepared.cohort["unit_id"], "split": by_half}).write_parquet(
        prepared.folder / "split.parquet"
    )
    report = look(Subject(type(prepared).open(prepared.folder), request.spec, request.task))
    assert [finding.check for finding in report.findings] == ["prevalence_drift"]
    died = prepared.target
    share = f"{died[half < 7].mean():.1%}"
    assert f"train {share}" in report.findings[0].what
    assert report.findings[0].declared is None

    request = experiment.load(str(tmp_path / "drift.yaml"), ["split.column=part"]).data_request()
    divided = prepare_task(experiment.load(str(tmp_path / "drift.yaml"), ["split.column=part"]), None)
    (finding,) = look(Subject(divided, request.spec, request.task)).findings
    assert (finding.check, finding.declared) == ("prevalence_drift", "the parts are those of the column 'part'")


ON_THE_HOUR = """
import numpy as np
import polars as pl

from ovo_clinic.tables import SequenceTable, Step, Tables, Vocabulary


def tables(raw, spec, *, late: int = 0, prediction_hours: float = 24.0) -> Tables:
    '''A pulse every six hours up to 18 h; the first units also have one at the very prediction. No `latest`.'''
    rng = np.random.default_rng(0)
    unit, hours = np.repeat(np.arange(80), 4), np.tile(np.arange(4) * 6.0, 80)
    unit, hours = np.append(unit, np.arange(late)), np.append(hours, np.full(late, prediction_hours))
    frame = pl.DataFrame({"unit_id": unit, "hours": hours, "value": rng.normal(80, 9, unit.size)})
    cohort = pl.DataFrame({"unit_id": np.arange(80), "patient_id": np.arange(80), "died": np.arange(80) % 2})
    table = SequenceTable(frame.with_columns(variable=pl.lit("pulse")), Vocabulary(0.1))
    return Tables(cohort, {"vitals": table}, [Step("all", 80, 80)])
"""


def test_a_record_at_the_very_prediction_is_late(tmp_path: Path, home: Path) -> None:
    (tmp_path / "hour.py").write_text(ON_THE_HOUR)
    spec = "{name: hour, title: Hour, pipeline: hour.py, raw: false, modalities: {vitals: pulse}, "
    (tmp_path / "hour.spec.yaml").write_text(spec + "tasks: {hour: {title: Hour, target: [died]}}}")
    (tmp_path / "hour.yaml").write_text("dataset: hour.spec.yaml\n")
    assert audit(str(tmp_path / "hour.yaml")).findings == []
    found = audit(str(tmp_path / "hour.yaml"), ["data.late=7"]).findings
    assert [(finding.check, finding.count) for finding in found] == [("records_after_prediction", 7)]


YEARS = """
import numpy as np
import polars as pl

from ovo_clinic.tables import Step, Tables, VectorTable


def tables(raw, spec) -> Tables:
    '''Two columns of years.'''
    rng, number = np.random.default_rng(0), np.arange(200)
    cohort = pl.DataFrame({"unit_id": number, "patient_id": number, "died": number % 2})
    years = {name: rng.integers(1930, 2000, 200).astype(float) for name in ("born", "built")}
    return Tables(cohort, {"ward": VectorTable(pl.DataFrame({"unit_id": number, **years}))}, [Step("all", 200, 200)])
"""


@pytest.mark.parametrize(
    ("kept", "undeclared"),
    [("{}", ["born, built"]), ("{born: as asked}", ["built"]), ("{born: as asked, built: old wards}", [])],
)
def test_each_column_of_years_is_declared_by_itself(
    kept: str, undeclared: list[str], tmp_path: Path, home: Path
) -> None:
    (tmp_path / "years.py").write_text(YEARS)
    spec = "{name: years, title: Years, pipeline: years.py, raw: false, modalities: {ward: of a ward}, "
    spec += f"tasks: {{years: {{title: Years, target: [died], kept_on_purpose: {kept}}}}}}}"
    (tmp_path / "years.spec.yaml").write_text(spec)
    (tmp_path / "years.yaml").write_text("dataset: years.spec.yaml\n")
    found = audit(str(tmp_path / "years.yaml")).undeclared
    assert {finding.check for finding in found} <= {"identifier_or_calendar_proxies"}
    assert [finding.what.rpartition(": ")[2] for finding in found] == undeclared


ROW_NUMBER = """
import numpy as np
import polars as pl

from ovo_clinic.tables import Step, Tables, VectorTable


def tables(raw, spec) -> Tables:
    '''Texts as ids, P1 to P400, and a column that rises with their numbers.'''
    number = np.arange(1, 401)
    ids = [f"P{place}" for place in number]
    cohort = pl.DataFrame({"unit_id": ids, "patient_id": ids, "died": number % 2})
    fluid = number * 3 + np.random.default_rng(0).uniform(0, 2, 400)
    frame = pl.DataFrame({"unit_id": ids, "fluid": fluid})
    return Tables(cohort, {"ward": VectorTable(frame)}, [Step("all", 400, 400)])
"""


def test_a_feature_that_runs_with_the_numbers_in_ids(tmp_path: Path, home: Path) -> None:
    (tmp_path / "row.py").write_text(ROW_NUMBER)
    spec = "{name: row, title: Row, pipeline: row.py, raw: false, modalities: {ward: of a ward}, "
    (tmp_path / "row.spec.yaml").write_text(spec + "tasks: {row: {title: Row, target: [died]}}}")
    (tmp_path / "row.yaml").write_text("dataset: row.spec.yaml\n")
    assert [finding.what for finding in audit(str(tmp_path / "row.yaml")).findings] == [
        "1 feature column(s) are near-unique and run with unit_id: fluid"
    ]


def command(*words: str) -> Result:
    return CliRunner().invoke(app, ["audit", *words])


def test_the_command_on_private_files(tmp_path: Path, home: Path) -> None:
    """0 for flat files without a leak, and JSON; a mistake where they are not prepared."""
    config = flat_files(tmp_path, "binary")
    mistake = command(str(config)).exception
    assert isinstance(mistake, UserError) and "not prepared" in str(mistake)
    done = command(str(config), "--raw", str(tmp_path / "raw"), "--json")
    assert done.exit_code == 0, done.output
    content = json.loads(done.stdout)
    assert (content["task"], content["units"], content["findings"], content["undeclared"]) == ("ward", 240, [], 0)


def test_the_command_on_findings_and_on_declared_ones(tmp_path: Path, home: Path) -> None:
    config = ward_config(tmp_path / "ward")
    done = command(config, 'data.leaks=["label", "date"]')
    assert done.exit_code == 1
    assert done.stdout.count("FINDING (") == 2 and "2 finding(s), 0 declared" in done.stdout
    assert not re.search(r"55\d{5}|88\d{4}", done.stdout)  # ids of units and people
    reasons = "    kept_on_purpose: {score: copied to show what it does, admitted: dates stay}\n"
    done = command(ward_config(tmp_path / "declared", reasons), 'data.leaks=["label", "date"]')
    assert done.exit_code == 0, done.output
    assert "FINDING" not in done.stdout and "copied to show what it does" in done.stdout
    assert "no finding(s), 4 declared" in done.stdout  # each both as kept and as found
