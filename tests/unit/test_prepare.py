"""The cache: what makes a new entry, what does not, and what a failure or a killed process leaves behind."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ovo_clinic import experiment, resources, sources
from ovo_clinic.errors import UserError
from ovo_clinic.prepare import Prepared, find, prepare

UNITS = 40

# Notes every run in a file, so that runs of other processes count too.
PIPELINE = """
from pathlib import Path

import polars as pl

from ovo_clinic.tables import CodesTable, SequenceTable, Step, Tables, VectorTable, Vocabulary


def tables(raw, spec, *, factor: float = 1.0, fail: bool = False) -> Tables:
    with Path(__file__).with_name("runs.log").open("a") as log:
        log.write("run\\n")
    if fail:
        raise RuntimeError("broken")
    rows = raw.read("people")
    unit, every = pl.col("unit").alias("unit_id"), Vocabulary(0.0)
    own = (pl.lit("own-") + pl.col("unit").cast(pl.String))
    cohort = rows.select(unit, pl.col("person").alias("patient_id"), "label", pl.col("admission"))
    modalities = {
        "vitals": VectorTable(rows.select(unit, pl.col("age") * factor, own.alias("level"))),
        "codes": CodesTable(rows.select(unit, own.alias("code")), every),
        "series": SequenceTable(
            rows.select(unit, pl.lit(1.0).alias("hours"), own.alias("variable"), pl.col("age").alias("value")), every
        ),
    }
    return Tables(cohort, modalities, [Step("all", rows.height, rows["person"].n_unique())], {"seen": rows.height})
"""

SPEC = """
name: people
title: People
pipeline: people.py
tables:
  people:
    file: people
    columns: {unit: integer, person: text, admission: integer, label: integer, age: number}
modalities: {vitals: numbers, codes: codes, series: series}
banned: [length_of_stay]
tasks:
  people: {title: People, target: [label], identifiers: [admission]}
"""


@pytest.fixture
def config(tmp_path: Path, home: Path) -> Path:
    """A private data set in a folder of its own."""
    folder = tmp_path / "private"
    folder.mkdir()
    (folder / "people.py").write_text(PIPELINE)
    (folder / "people.spec.yaml").write_text(SPEC)
    (folder / "people.yaml").write_text("dataset: people.spec.yaml\n")
    return folder / "people.yaml"


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    folder = tmp_path / "raw"
    folder.mkdir()
    write(folder)
    return folder


def write(folder: Path, units: int = UNITS, shift: float = 0.0) -> None:
    numbers = np.arange(units)
    frame = pd.DataFrame(
        {
            "unit": 7000 + numbers,
            "person": [f"person-{number // 2}" for number in numbers],
            "admission": 90_000 + numbers // 3,
            "label": numbers % 2,
            "age": 40.125 + numbers + shift,
        }
    )
    frame.to_csv(folder / "people.csv", index=False)


def run(config: Path, raw: Path, *overrides: str) -> Prepared:
    return prepare(experiment.load(str(config), overrides).data_request(), {"": raw})


def runs(config: Path) -> int:
    log = config.with_name("runs.log")
    return len(log.read_text().splitlines()) if log.exists() else 0


def folders(home: Path) -> list[str]:
    """What lies in the cache but locks and pointers."""
    return sorted(path.name for path in (home / "cache" / "people").iterdir() if path.is_dir())


def test_second_time_comes_from_the_cache(config: Path, raw: Path) -> None:
    first, second = run(config, raw), run(config, raw)
    assert first.folder == second.folder and runs(config) == 1


def test_a_copy_with_other_dates_is_the_same_data(config: Path, raw: Path, tmp_path: Path) -> None:
    first = run(config, raw)
    copy = tmp_path / "elsewhere"
    shutil.copytree(raw, copy)
    os.utime(copy / "people.csv", (1, 1))
    assert run(config, copy).folder == first.folder and runs(config) == 1


def test_whatever_decides_the_content_makes_a_new_entry(config: Path, raw: Path) -> None:
    found = [run(config, raw), run(config, raw, "data.factor=2"), run(config, raw, "split.seed=1")]
    write(raw, shift=0.5)
    found.append(run(config, raw))
    spec = config.with_name("people.spec.yaml")
    spec.write_text(spec.read_text().replace("title: People\n", "title: Persons\n"))
    found.append(run(config, raw))
    pipeline = config.with_name("people.py")
    pipeline.write_text(pipeline.read_text() + "# changed\n")
    found.append(run(config, raw))
    assert len({prepared.folder for prepared in found}) == runs(config) == 6


def test_a_file_beside_the_pipeline_counts_where_the_pipeline_speaks_of_it(config: Path, raw: Path) -> None:
    pipeline, part, other = (config.with_name(name) for name in ("people.py", "ages.py", "unrelated.py"))
    pipeline.write_text(PIPELINE + "# its parts: ages\n")
    part.write_text("FACTOR = 1\n")
    first = run(config, raw)
    other.write_text("x = 1\n")
    assert run(config, raw).folder == first.folder
    part.write_text("FACTOR = 2\n")
    assert run(config, raw).folder != first.folder and runs(config) == 2


def test_the_key_covers_what_a_pipeline_imports_of_the_package() -> None:
    def covered(name: str) -> set[str]:
        return {path.name for path in sources.closure([resources.find("pipelines", name)])}

    assert {"flat_files.py", "flat_options.py", "registry.py", "spec.py", "raw.py"} <= covered("flat_files")
    assert "flat_options.py" not in covered("eicu") and "events.py" in covered("eicu")
    assert not covered("eicu") & {"training.py", "cli.py", "report.py"}


def test_published_lists_split_and_leave_the_rest_unlisted(config: Path, raw: Path, tmp_path: Path) -> None:
    parts = {f"person-{n}": ("test", "validation", "train", "train")[n % 4] for n in range(16)}
    lists = tmp_path / "mine.csv"
    lists.write_text("".join(f"{person},{part}\n" for person, part in parts.items()))
    spec = config.with_name("people.spec.yaml")
    spec.write_text(spec.read_text().replace(", identifiers: [admission]", ""))
    prepared = run(config, raw, f"split_lists=[{lists}]")
    expected = [parts.get(person, "unlisted") for person in prepared.cohort["patient_id"]]
    assert prepared.split.tolist() == expected and prepared.manifest["units"]["unlisted"] == 8
    assert prepared.manifest["split"]["lists"] == {"mine.csv": hashlib.sha256(lists.read_bytes()).hexdigest()}
    assert prepared.manifest["notes"]["patients of split list mine.csv"] == "16 of 16 in cohort"
    assert run(config, raw).folder != prepared.folder
    lists.write_text(lists.read_text().replace("person-0,test", "person-0,train"))
    assert run(config, raw, f"split_lists=[{lists}]").folder != prepared.folder


def test_what_is_prepared_is_found_without_the_raw_files(config: Path, raw: Path) -> None:
    request = experiment.load(str(config)).data_request()
    with pytest.raises(UserError, match="is not prepared .*--raw DIR"):
        find(request)
    with pytest.raises(UserError, match="^--raw: "):
        prepare(request, {})
    first = run(config, raw)
    shutil.rmtree(raw)
    assert find(request).folder == first.folder
    with pytest.raises(UserError, match="is not prepared"):
        find(experiment.load(str(config), ["data.factor=3"]).data_request())


def test_rows_of_every_array_are_the_cohorts(config: Path, raw: Path) -> None:
    prepared = run(config, raw, "data.factor=2")
    assert prepared.cohort["unit_id"].to_list() == list(range(7000, 7000 + UNITS))
    assert prepared.modalities == ["vitals", "codes", "series"]
    numbers = np.arange(UNITS)
    np.testing.assert_array_equal(prepared.target, numbers % 2)
    np.testing.assert_array_equal(prepared.array("vitals").values[:, 0], 2 * (40.125 + numbers))
    parts = [prepared.rows(name) for name in ("train", "validation", "test")]
    assert sorted(np.concatenate(parts)) == numbers.tolist()
    assert [prepared.manifest["units"][name] for name in ("train", "validation", "test")] == [
        len(part) for part in parts
    ]


def test_vocabularies_and_levels_are_those_of_training_units(config: Path, raw: Path) -> None:
    prepared = run(config, raw)
    own = [f"own-{7000 + row}" for row in prepared.rows("train")]
    assert [column.name for column in prepared.array("vitals").columns] == ["age", *(f"level={name}" for name in own)]
    assert [column.name for column in prepared.array("codes").columns] == own
    assert [column.name for column in prepared.array("series").columns] == ["hours", *own]
    np.testing.assert_array_equal(prepared.array("codes").values[prepared.rows("train")], np.eye(len(own)))
    assert not prepared.array("codes").values[prepared.rows("test")].any()


def test_nobody_and_no_identifier_crosses(config: Path, raw: Path) -> None:
    prepared = run(config, raw)
    for column in ("patient_id", "admission"):
        sides = pd.Series(prepared.split).groupby(prepared.cohort[column].to_numpy()).nunique()
        assert (sides == 1).all()


def test_files_are_the_owners_alone(config: Path, raw: Path, home: Path) -> None:
    prepared = run(config, raw)
    modes = {path.name: path.stat().st_mode & 0o777 for path in prepared.folder.iterdir()}
    assert modes and set(modes.values()) == {0o600}
    assert prepared.folder.stat().st_mode & 0o777 == home.stat().st_mode & 0o777 == 0o700
    beside = [path for path in prepared.folder.parent.iterdir() if path.is_file()]
    assert {path.suffix for path in beside} == {".latest", ".lock"}
    assert {path.stat().st_mode & 0o777 for path in beside} == {0o600}


def test_manifest_holds_no_rows(config: Path, raw: Path) -> None:
    manifest = dict(run(config, raw).manifest)
    # The levels and codes of this data set are made of unit ids on purpose; all else may not name a unit or a value.
    modalities = {name: entry | {"columns": []} for name, entry in manifest.pop("modalities").items()}
    text = json.dumps([manifest, modalities])
    for row in range(UNITS):
        for value in (f"person-{row // 2}", str(7000 + row), str(90_000 + row // 3), str(40.125 + row)):
            assert f'"{value}"' not in text and f" {value}," not in text


def test_a_failure_leaves_nothing(config: Path, raw: Path, home: Path) -> None:
    with pytest.raises(UserError, match="RuntimeError: broken"):
        run(config, raw, "data.fail=true")
    assert folders(home) == []
    (raw / "people.csv").write_text("unit,person,admission,label,age\n1,a,1,0,1.5\n1,b,2,1,2.5\n")
    with pytest.raises(UserError, match="stands in two rows"):
        run(config, raw)
    assert folders(home) == []


def test_labels_are_checked(config: Path, raw: Path) -> None:
    header = "unit,person,admission,label,age\n"
    (raw / "people.csv").write_text(header + "".join(f"{row},p{row},{row},{row % 3},1.5\n" for row in range(9)))
    with pytest.raises(UserError, match="label column 'label' holds 3 values other than 0 to 1"):
        run(config, raw)
    (raw / "people.csv").write_text(header + "".join(f"{row},p{row},{row},1,1.5\n" for row in range(9)))
    with pytest.raises(UserError, match="'label' has fewer than two different values among 9 units"):
        run(config, raw)


def test_a_feature_named_after_a_banned_column_is_refused(config: Path, raw: Path) -> None:
    spec = config.with_name("people.spec.yaml")
    spec.write_text(spec.read_text().replace("[length_of_stay]", "[AGE]"))
    with pytest.raises(UserError, match="modality 'vitals' uses columns that state the outcome: age"):
        run(config, raw)


# A process of its own that stops inside the writing of the second modality, or before the first for a while.
CHILD = """
import sys, time
from pathlib import Path
from ovo_clinic import arrays, experiment, prepare

config, raw, seconds, at = sys.argv[1:]
build, calls = arrays.build, []

def slow(*arguments):
    calls.append(1)
    if len(calls) == int(at):
        time.sleep(float(seconds))
    return build(*arguments)

arrays.build = slow
prepared = prepare.prepare(experiment.load(config).data_request(), {"": Path(raw)})
print(prepared.folder)
"""


def child(config: Path, raw: Path, seconds: float, at: int) -> "subprocess.Popen[str]":
    line = [sys.executable, "-c", CHILD, str(config), str(raw), str(seconds), str(at)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


def test_a_killed_process_does_not_stand_in_the_way(config: Path, raw: Path, home: Path) -> None:
    with child(config, raw, seconds=60, at=2) as process:
        deadline = time.monotonic() + 30
        while not list(home.glob("cache/people/*.partial/vitals.npy")) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    assert [Path(name).suffix for name in folders(home)] == [".partial"]
    # Other data of the same set clear it away, too.
    other = run(config, raw, "data.factor=2")
    assert folders(home) == [other.folder.name]
    assert run(config, raw).array("series").values.shape[0] == UNITS


def test_two_at_once_work_once_and_agree(config: Path, raw: Path, home: Path) -> None:
    processes = [child(config, raw, seconds=1, at=1) for _ in range(2)]
    found = {process.communicate(timeout=60)[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert len(found) == 1 and runs(config) == 1
    assert folders(home) == [Path(found.pop().strip()).name]


def test_work_of_a_living_process_is_left_alone(config: Path, raw: Path, home: Path) -> None:
    with child(config, raw, seconds=2, at=2) as process:
        deadline = time.monotonic() + 30
        while not list(home.glob("cache/people/*.partial/vitals.npy")) and time.monotonic() < deadline:
            time.sleep(0.05)
        run(config, raw, "data.factor=2")
        assert any(name.endswith(".partial") for name in folders(home))
        process.communicate(timeout=60)
    assert process.returncode == 0 and len(folders(home)) == 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("import polars as pl", "import polars as pl\nimport nothing_of_this_name", "line 5: ModuleNotFoundError"),
        ("if fail:", "if fail", "SyntaxError"),
        ('rows = raw.read("people")', "rows = undefined", "NameError: name 'undefined' is not defined"),
        ("    return Tables(", "    Tables(", "tables returned NoneType; it should return Tables"),
        ("factor: float = 1.0", "factor=1.0", None),
    ],
)
def test_a_mistake_in_a_private_pipeline_is_one_line(
    config: Path, raw: Path, old: str, new: str, message: str | None
) -> None:
    pipeline = config.with_name("people.py")
    pipeline.write_text(PIPELINE.replace(old, new))
    if message is None:
        run(config, raw)
        return
    with pytest.raises(UserError, match="^[^\n]*$") as caught:
        run(config, raw)
    assert str(pipeline) in str(caught.value) and message in str(caught.value)


def test_a_modality_without_a_feature_is_refused_when_it_is_used(config: Path, raw: Path) -> None:
    config.with_name("people.py").write_text(PIPELINE.replace("Vocabulary(0.0)", "Vocabulary(0.9)"))
    prepared = run(config, raw)
    with pytest.raises(UserError, match=r"codes has no feature .* modalities=\[vitals,series\]"):
        prepared.chosen(None)
    assert prepared.chosen(["vitals"]) == ["vitals"]


def test_a_number_that_no_float_holds_is_refused_by_name(config: Path, raw: Path) -> None:
    config.with_name("people.py").write_text(PIPELINE.replace('pl.col("age") * factor', 'pl.col("age") * 1e300'))
    with pytest.raises(UserError, match="modality 'vitals': age holds values beyond 3e38"):
        run(config, raw)
