"""The MIMIC tasks on hand-written folders: versions, cohort rules, windows, layouts, leaks, resuming."""

import gzip
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from ovo_clinic import raw as raw_files
from ovo_clinic import spec, staging
from ovo_clinic.errors import UserError
from ovo_clinic.resources import load_pipeline
from ovo_clinic.tables import Tables
from tests.unit.mimic_folder import Row, admission, chart, diagnosis, lab, patient, stay, tables, write

MIMIC, SPEC = load_pipeline("mimic"), spec.load("mimic")[0]
P, H, S = 10_000_001, 20_000_001, 30_000_001  # the first patient, admission and stay of `tables`


def run(folder: Path, name: str = "tables", memory: int | None = None, work: str = "work", **options: Any) -> Tables:
    raw = raw_files.RawFolder({"": folder}, SPEC.tables, memory).working_in(folder / work)
    return getattr(MIMIC, name)(raw, SPEC, **options)


def of(folder: Path, rows: Mapping[str, Sequence[Row]], name: str = "tables", **options: Any) -> Tables:
    return run(write(folder, rows), name, **options)


def series(found: Tables, unit: int = S) -> pd.DataFrame:
    frame = found.modalities["time_series"].frame.filter(pl.col("unit_id") == unit)
    return frame.drop("unit_id").to_pandas().set_index("hours")


def changed(rows: Mapping[str, Sequence[Row]], name: str, change: Mapping[str, object]) -> dict[str, Sequence[Row]]:
    """The first row of a table changed."""
    first, *rest = rows[name]
    return {**rows, name: [{**first, **change}, *rest]}


def units(found: Tables) -> list[int]:
    return sorted(found.cohort["unit_id"])


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
@pytest.mark.parametrize("version", ["1.0", "2.2", "3.1"])
def test_layouts_of_all_versions_give_the_same_tables(tmp_path: Path, version: str, suffix: str) -> None:
    rows = tables(chartevents=[chart(P, H, S, "12:00", 220739, "None")])
    if version == "3.1":
        rows = changed(rows, "patients", {"anchor_year_group": "2020 - 2022"})
    found = run(write(tmp_path / "raw", rows, version, suffix))
    wanted = of(tmp_path / "wanted", tables(chartevents=[chart(P, H, S, "12:00", 220739, "None")]))
    assert found.notes["MIMIC-IV version"][0] == version[0] and wanted.notes["MIMIC-IV version"][0] == "2"
    drop = ["anchor_year_group"]
    assert found.cohort.drop(drop).equals(wanted.cohort.drop(drop))
    for name, table in found.modalities.items():
        assert table.frame.equals(wanted.modalities[name].frame), name
    assert series(found)["Glascow coma scale eye opening"].tolist()[:3] == [4, 1, 1]  # `None` is a score


def test_a_full_release_is_known_by_its_rows_and_shown_beside_published_counts(tmp_path: Path) -> None:
    folder = write(tmp_path, tables())
    known = SPEC.model_copy(update={"releases": {"MIMIC-IV 2.2": {"admissions": 6, "icustays": 6, "patients": 9}}})
    raw = raw_files.RawFolder({"": folder}, known.tables).working_in(folder / "work")
    notes = MIMIC.tables(raw, known).notes
    assert notes["MIMIC-IV version"] == "2.2"
    assert any(name.startswith("published: ") and "56,888 stays; here 6" in str(text) for name, text in notes.items())


def test_cohort_rules(tmp_path: Path) -> None:
    people = [*range(11, 18)]
    rows = tables(
        patients=[patient(p, anchor_age=17 if p == 13 else 95 if p == 14 else 60) for p in people if p != 15],
        admissions=[admission(p, 100 + p) for p in people],
        icustays=[
            stay(11, 111, 1),
            stay(11, 111, 2, first_careunit="SICU"),  # a second stay of the admission, with a change of unit
            stay(12, 112, 3, last_careunit="SICU"),
            stay(13, 113, 4),
            stay(14, 114, 5),
            stay(15, 115, 6),  # no patient
            stay(16, 116, 7, los=""),
            stay(17, 117, 8),  # no event
        ],
        diagnoses_icd=[diagnosis(p, 100 + p, "4019", 9) for p in people],
        chartevents=[chart(p, 100 + p, number, "10:30", 220045, 80) for p, number in ((11, 1), (12, 3), (14, 5))],
    )
    found = of(tmp_path / "a", rows)
    assert units(found) == [5, *range(S, S + 6)]
    assert found.cohort.filter(pl.col("unit_id") == 5)["age"].item() == 91
    assert [step.units for step in found.attrition] == [14, 12, 11, 10, 9, 9, 8, 7]
    assert 1 in units(of(tmp_path / "b", rows, count_after_unit_filter=True))
    assert 3 in units(of(tmp_path / "c", rows, same_unit=False))
    replica = of(tmp_path / "d", rows, "replica_tables")
    assert units(replica) == [1, 5, *range(S, S + 6)]
    assert replica.attrition[3].rule.startswith("the only such stay")


def test_age_is_that_of_the_admission(tmp_path: Path) -> None:
    rows = changed(tables(), "patients", {"anchor_age": 16, "anchor_year": 2148})
    found = of(tmp_path / "a", rows)
    assert found.cohort.filter(pl.col("unit_id") == S)["age"].item() == 18
    assert S not in units(of(tmp_path / "b", rows, "replica_tables"))  # which looks at anchor_age


def test_both_ends_of_the_window_are_closed_and_laboratory_rows_need_no_admission(tmp_path: Path) -> None:
    rows = tables(
        chartevents=[
            chart(P, H, S, "2150-03-01 10:00:00", 220277, 91),
            chart(P, H, S, "2150-03-04 10:00:00", 220277, 92),
            chart(P, H, S, "2150-03-04 10:00:01", 220277, 93),
            chart(P, H, S, "09:59:59", 220179, 140),
        ],
        labevents=[
            lab(P, "", "10:30", 50820, 7.31),
            lab(P, H, "09:59", 50820, 7.11),
            lab(P, H, "10:20", 50820, 7.21, valuenum=""),
        ],
    )
    found = of(tmp_path, rows)
    saturation = series(found)["Oxygen saturation"]
    assert len(saturation) == 72 and saturation.iloc[0] == 91 and saturation.iloc[-1] == 92
    assert series(found)["pH"].unique().tolist() == [np.float32(7.31)]
    assert not series(found)["mask->Systolic blood pressure"].any()
    assert found.notes["chartevents rows after the window"] == found.notes["chartevents rows before the window"] == 1
    assert found.notes["labevents rows before the window"] == found.notes["labevents rows without a value"] == 1


def test_medfuse_wants_an_admission_and_the_same_stay(tmp_path: Path) -> None:
    rows = tables(
        chartevents=[chart(P, H, 5, "10:40", 220277, 91), chart(P, "", S, "10:50", 220277, 92)],
        labevents=[lab(P, "", "10:30", 50820, 7.31), lab(P, H, "10:31", 50831, 7.9)],
    )
    found = series(of(tmp_path, rows, "replica_tables"))
    assert not found["mask->Oxygen saturation"].any()
    assert found["pH"].iloc[0] == np.float32(7.9)  # of another body fluid


def test_the_76_columns_of_medfuse(tmp_path: Path, shared: Path) -> None:
    wanted = pd.read_csv(shared / "facts" / "mimic" / "discretizer_columns.csv")["name"].tolist()
    rows = tables(
        chartevents=[chart(P, H, S, "11:30", 220739, "To Speech"), chart(P, H, S, "11:30", 223900, "No Response")]
    )
    eye = "Glascow coma scale eye opening->"
    clean = series(of(tmp_path / "a", rows, layout="medfuse"))
    replica = series(of(tmp_path / "b", rows, "replica_tables"))
    assert clean.columns.tolist() == replica.columns.tolist() == wanted
    for frame, normal in ((clean, "Spontaneously"), (replica, "4 Spontaneously")):
        one_hot = frame[[name for name in wanted if name.startswith(eye)]]
        assert (one_hot.sum(axis=1) == 1).all()
        assert one_hot.idxmax(axis=1).tolist()[:3] == [f"{eye}{normal}", f"{eye}To Speech", f"{eye}To Speech"]
    assert replica["Glascow coma scale total->15"].all() and clean["Glascow coma scale total->15"].all()
    assert replica["Capillary refill rate->0.0"].all()
    assert clean["Glascow coma scale verbal response->No Response"].tolist()[:2] == [False, True]


def test_what_the_outcome_is_changes_no_feature(tmp_path: Path) -> None:
    """Discharge, death and where the patient went are read by no modality; names come from a list."""
    plain = of(tmp_path / "a", tables())
    rows = changed(
        tables(), "admissions", {"dischtime": "2150-03-05 09:00:00", "deathtime": "", "discharge_location": "DIED"}
    )
    told = of(tmp_path / "b", changed(rows, "patients", {"dod": "2150-03-05"}))
    for name, table in plain.modalities.items():
        assert table.frame.equals(told.modalities[name].frame), name
    allowed = "unit_id age gender race admission_type admission_location insurance language marital_status".split()
    assert set(plain.modalities["demographics"].frame.columns) == set(allowed)
    paper = load_pipeline("mimic_cohort").paper_demographics(_cohort(tmp_path / "a"))
    eleven = {"admittime", "anchor_age", "anchor_year", "anchor_year_group"} | set(allowed) - {"age"}
    assert set(paper.frame.columns) == eleven and len(eleven) == 12  # unit_id too
    assert not {*SPEC.banned} & {*paper.frame.columns, *allowed}


def _cohort(folder: Path) -> pl.DataFrame:
    return load_pipeline("mimic_cohort").read_stays(raw_files.RawFolder({"": folder}, SPEC.tables))


@pytest.mark.parametrize(
    ("race", "group"),
    [
        ("WHITE - RUSSIAN", "WHITE"),
        ("BLACK/AFRICAN AMERICAN", "BLACK"),
        ("NATIVE HAWAIIAN OR OTHER PACIFIC ISLANDER", "NATIVE HAWAIIAN"),
        ("AMERICAN INDIAN/ALASKA NATIVE", "AMERICAN INDIAN"),
        ("UNABLE TO OBTAIN", "UNKNOWN"),
        ("PATIENT DECLINED TO ANSWER", "DECLINED"),
        ("MULTIPLE RACE/ETHNICITY", "OTHER"),
        (None, None),
    ],
)
def test_race_groups(race: str | None, group: str | None) -> None:
    frame = pl.DataFrame({"race": [race]}, schema={"race": pl.String})
    assert frame.select(load_pipeline("mimic_cohort").race_group(SPEC.settings["race_groups"])).item() == group


def test_mortality_sees_nothing_from_the_prediction_on(tmp_path: Path) -> None:
    rows = tables(
        icustays=[
            stay(P, H, 5, intime="2150-03-05 10:00:00", outtime="2150-03-08 10:00:00"),
            stay(P + 1, H + 1, 6, days=1, intime="2150-03-05 10:00:00", outtime="2150-03-06 10:00:00"),
        ],
        chartevents=[
            chart(P, H, S, "2150-03-03 09:59:59", 220277, 91),
            chart(P, H, S, "2150-03-03 10:00:00", 220277, 92),
            chart(P, H, 5, "2150-03-05 12:00:00", 220277, 93),
        ],
    )
    rows = changed(rows, "admissions", {"hospital_expire_flag": 1})
    found = of(tmp_path / "a", rows, "mortality_tables")
    assert units(found) == list(range(S, S + 6))  # a later stay of an admission is left out
    assert found.cohort.filter(pl.col("unit_id") == S)["died"].item() == 1
    saturation = series(found)["Oxygen saturation"]
    assert len(saturation) == 48 and saturation.iloc[-1] == 91
    assert found.notes["chartevents rows after the window"] == 1
    dead = changed(rows, "admissions", {"deathtime": "2150-03-03 09:00:00"})
    assert S not in units(of(tmp_path / "b", dead, "mortality_tables"))


def test_mortality_takes_no_result_that_was_stored_after_the_prediction(tmp_path: Path) -> None:
    rows = tables(
        chartevents=[
            chart(P, H, S, "2150-03-03 09:10:00", 220277, 91, storetime="2150-03-03 09:59:59"),
            chart(P, H, S, "2150-03-03 09:20:00", 220277, 92, storetime="2150-03-03 10:00:00"),
        ],
        labevents=[
            lab(P, H, "2150-03-03 08:10:00", 50931, 101, storetime="2150-03-03 08:50:00"),
            lab(P, H, "2150-03-03 09:10:00", 50931, 102, storetime="2150-03-03 10:30:00"),
            lab(P, H, "2150-03-03 07:10:00", 50931, 103, storetime=""),
        ],
    )
    found = of(tmp_path / "a", rows, "mortality_tables")
    last = series(found).iloc[-1]
    assert (last["Oxygen saturation"], last["Glucose"]) == (91, 101)
    for table in ("chartevents", "labevents"):
        assert found.notes[f"{table} rows charted, but not stored before the prediction"] == 1
    latest = found.modalities["time_series"].latest
    assert latest.filter(pl.col("unit_id") == S)["hours"].item() == pytest.approx(48 - 1 / 3600)
    whole = of(tmp_path / "b", rows, "tables")
    assert "chartevents rows charted, but not stored before the prediction" not in whole.notes
    assert {92, 102} <= set(series(whole)[["Oxygen saturation", "Glucose"]].to_numpy().ravel())


def test_paper_needs_every_download(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give cxr=DIR too"):
        of(tmp_path, tables(), "paper_tables")


def test_a_folder_without_a_usable_event_is_refused(tmp_path: Path) -> None:
    rows = tables()
    for name in ("chartevents", "labevents"):
        rows[name] = [{**row, "itemid": 1} for row in rows[name]]
    with pytest.raises(UserError, match="no usable event"):
        of(tmp_path, rows)


def test_little_memory_and_another_order_of_rows_change_nothing(tmp_path: Path) -> None:
    rows = tables(labevents=[lab(P, H, "10:30", 50820, 7.3 + n / 1000) for n in range(5)])
    plain = of(tmp_path / "a", rows)
    other = run(write(tmp_path / "b", {name: list(found)[::-1] for name, found in rows.items()}), memory=8192 * 100)
    # Six stays of 72 hours each, 100 hours at a time by where a stay begins: 0, 72 | 144 | 216, 288 | 360.
    assert len(list((tmp_path / "b" / "work").glob("chartevents-4-*/part=*"))) == 4
    for name in ("time_series", "demographics"):
        order = ["unit_id", "hours"] if name == "time_series" else ["unit_id"]
        first, second = (found.modalities[name].frame.sort(order) for found in (plain, other))
        assert first.equals(second), name
    assert plain.notes == other.notes


def test_a_finished_pass_is_found_again_and_an_unfinished_one_starts_again(tmp_path: Path) -> None:
    folder = write(tmp_path, tables())
    first = run(folder)
    passes = sorted((folder / "work").glob("*events-1-*"))
    for finished in passes:
        partial = finished.with_name(f"{finished.name}.partial") / "part=0"
        partial.mkdir(parents=True)
        (partial / "half.parquet").write_bytes(b"PAR1")
    shutil.rmtree(passes[1])
    with gzip.open(folder / "icu" / "chartevents.csv.gz", "rt") as file:
        header = file.readline()
    with gzip.open(folder / "icu" / "chartevents.csv.gz", "wt") as file:  # would be empty if it were read again
        file.write(header + ",".join("0" * len(header.split(","))) + "\n")
    again = run(folder)
    assert again.modalities["time_series"].frame.equals(first.modalities["time_series"].frame)
    assert again.notes == first.notes


@pytest.mark.parametrize("name", ["tables", "replica_tables"])
def test_a_killed_run_goes_on_with_other_memory(tmp_path: Path, name: str) -> None:
    """Stays of 72 hours begin at 0, 72 ... 360: cut at 190 and at 250, they are in two parts of other stays."""
    rows = tables(labevents=[lab(P, H, "10:30", 50820, 7.3)])
    plain = of(tmp_path / "a", rows, name)
    folder = write(tmp_path / "b", rows)
    run(folder, name, memory=8192 * 190)
    shutil.rmtree(next((folder / "work").glob("labevents-*")))  # as one that was killed in between leaves it
    other = run(folder, name, memory=8192 * 250)
    assert len({found.name.split("-")[-2] for found in (folder / "work").glob("chartevents-*")}) == 1
    assert len(list((folder / "work").glob("chartevents-*"))) == 2
    frames = [found.modalities["time_series"].frame.sort("unit_id", "hours") for found in (plain, other)]
    assert frames[0].equals(frames[1])


def test_a_damaged_file_is_told_in_one_line(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    more = [chart(P, H, S, "10:30", int(item), 7) for item in random.integers(1, 300_000, 50_000)]
    folder = write(tmp_path, tables(chartevents=more))
    path = folder / "icu" / "chartevents.csv.gz"
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(UserError, match="chartevents.csv.gz: is cut off or damaged"):
        run(folder)
    assert not [found for found in (folder / "work").iterdir() if found.suffix != ".partial"]


def test_rows_are_counted_as_they_stream(tmp_path: Path) -> None:
    folder = write(tmp_path, tables())
    raw = raw_files.RawFolder({"": folder}, SPEC.tables).working_in(folder / "work")

    def query(scan: pl.LazyFrame) -> pl.LazyFrame:
        return scan.select("subject_id", part=pl.lit(3, pl.Int32))

    drops = {"the second": pl.col("subject_id") == P + 1}
    found = staging.stage(raw, "chartevents", pl.col("subject_id") > P, query, drops, "x", ["subject_id"])
    assert dict(found.counts) == {"looked at": 5, "the second": 1}
    assert found.read(0) is None and sorted(found.read(3)["subject_id"]) == [P + 2, P + 3, P + 4, P + 5]
