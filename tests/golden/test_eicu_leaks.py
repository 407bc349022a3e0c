"""Metamorphic tests: what becomes known at or after the prediction time changes no exported byte."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from ovo_clinic.registry import SYNTHETIC
from tests.golden.eicu_folders import Tables, contents, in_process, read, table, write

NOW = 1440
OFFSET = {"diagnosis": "diagnosisoffset", "treatment": "treatmentoffset", "lab": "labresultoffset"}
TEXT = {"diagnosis": "diagnosisstring", "treatment": "treatmentstring", "medication": "drughiclseqno", "lab": "labname"}
KEY = {"diagnosis": "diagnosisid", "treatment": "treatmentid", "medication": "medicationid", "lab": "labid"}
CODE = {"diagnosis": "leak|code", "treatment": "leak|code", "medication": "99999", "lab": "leaked lab"}


def minute(rows: pd.DataFrame, column: str) -> pd.Series:
    """An offset column as numbers; blank is NaN and so neither before nor after anything."""
    return pd.to_numeric(rows[column].where(rows[column] != ""))


def known(name: str, rows: pd.DataFrame) -> pd.Series:
    """True where the record was known before the prediction time."""
    if name == "medication":
        return (minute(rows, "drugstartoffset") < NOW) & (minute(rows, "drugorderoffset") < NOW)
    if name == "lab":
        return (minute(rows, "labresultoffset") < NOW) & (minute(rows, "labresultrevisedoffset") < NOW)
    return minute(rows, OFFSET[name]) < NOW


def record(tables: Tables, name: str, **cells: str) -> pd.DataFrame:
    """One new record for every stay, stated by these cells; the rest as in the table's first row."""
    stays = tables["patient"]["patientunitstayid"]
    first = tables[name].iloc[0].to_dict() | {TEXT[name]: CODE[name]} | cells
    rows = pd.DataFrame([first] * len(stays)).assign(patientunitstayid=stays.to_list())
    return rows.assign(**{KEY[name]: [str(900_000_000 + number) for number in range(len(rows))]})


def grown(tables: Tables, new: dict[str, list[pd.DataFrame]]) -> Tables:
    """The tables with records added; keys made unique."""
    result = dict(tables)
    for name, frames in new.items():
        for number, rows in enumerate(frames):
            keys = [str(int(key) + 1_000_000 * number) for key in rows[KEY[name]]]
            result[name] = pd.concat([result[name], rows.assign(**{KEY[name]: keys})], ignore_index=True)
    return result


def at(tables: Tables, moment: int) -> dict[str, list[pd.DataFrame]]:
    """A record of a new code and a new lab for every stay at one minute."""
    text, before = str(moment), str(min(moment, NOW) - 30)
    standing = {"drugordercancelled": "No"}
    numeric = {"labresult": "7.5", "labresulttext": "7.5"}
    return {
        "diagnosis": [record(tables, "diagnosis", diagnosisoffset=text)],
        "treatment": [record(tables, "treatment", treatmentoffset=text)],
        "medication": [
            record(tables, "medication", drugorderoffset=before, drugstartoffset=text, **standing),
            record(tables, "medication", drugorderoffset=text, drugstartoffset=before, **standing),
        ],
        "lab": [
            record(tables, "lab", labresultoffset=text, labresultrevisedoffset=text, **numeric),
            record(tables, "lab", labresultoffset=before, labresultrevisedoffset=text, **numeric),
        ],
    }


def added(tables: Tables) -> Tables:
    """New records at 1,440, at 1,441 and much later."""
    for moment in (NOW, NOW + 1, 20_000):
        tables = grown(tables, at(tables, moment))
    return tables


def revised(tables: Tables) -> Tables:
    """Every earlier lab result gets a revision posted at exactly 1,440, with the highest labid."""
    early = tables["lab"][known("lab", tables["lab"])]
    keys = [str(800_000_000 + number) for number in range(len(early))]
    late = early.assign(labid=keys, labresult="1.25", labresulttext="1.25", labresultrevisedoffset=str(NOW))
    return tables | {"lab": pd.concat([tables["lab"], late], ignore_index=True)}


def changed(tables: Tables) -> Tables:
    """Every later record says something else."""
    result = dict(tables)
    for name in TEXT:
        rows, late = tables[name].copy(), ~known(name, tables[name])
        assert late.any(), f"{name} has no record after the prediction time: nothing is tested"
        rows.loc[late, TEXT[name]] = CODE[name]
        if name == "lab":
            rows.loc[late, ["labresult", "labresulttext"]] = "3.5"
        if name == "medication":
            rows.loc[late, "drugordercancelled"] = "No"
        result[name] = rows
    return result


def moved(tables: Tables) -> Tables:
    """Every later record is moved to exactly 1,440."""
    result = dict(tables)
    for name, column in (OFFSET | {"medication": "drugstartoffset"}).items():
        rows, late = tables[name].copy(), ~known(name, tables[name])
        rows.loc[late & (minute(rows, column) >= NOW), column] = str(NOW)
        result[name] = rows
    return result


def removed(tables: Tables) -> Tables:
    """Every later record is gone."""
    return tables | {name: tables[name][known(name, tables[name])] for name in TEXT}


def discharged(tables: Tables) -> Tables:
    """Every discharge field says something else, as far as cohort and label allow."""
    patient = tables["patient"].copy()
    stayed = minute(patient, "unitdischargeoffset") >= NOW
    expired = patient["hospitaldischargestatus"] == "Expired"
    counter = pd.Series(range(len(patient)), index=patient.index)
    patient["unitdischargeoffset"] = (stayed * NOW + counter % NOW).astype(str)
    patient["hospitaldischargeoffset"] = (counter * 7).astype(str)
    patient["dischargeweight"] = (40 + counter % 90).astype(str)
    patient["unitdischargestatus"] = patient["unitdischargestatus"].where(~expired, "Alive")
    patient["hospitaldischargeyear"] = "2015"
    for column in ("unitdischargelocation", "hospitaldischargelocation"):
        patient[column] = ["Death" if number % 2 else "Home" for number in counter]
    for column in ("unitdischargetime24", "hospitaldischargetime24"):
        patient[column] = "03:04:05"
    result = tables | {"patient": patient}
    for name in ("diagnosis", "treatment"):
        rows = tables[name]
        result[name] = rows.assign(activeupondischarge=[str(number % 3 == 0) for number in range(len(rows))])
    stop = range(len(tables["medication"]))
    result["medication"] = tables["medication"].assign(drugstopoffset=[str(NOW + number) for number in stop])
    return result


def permuted(tables: Tables) -> Tables:
    """Rows of every file in another order."""
    return {name: rows.sample(frac=1, random_state=5) for name, rows in tables.items()}


def reshaped(tables: Tables) -> Tables:
    """Upper-case headers, an extra column, columns in another order."""
    wide = {name: rows.assign(unheard_of="x,y") for name, rows in tables.items()}
    return {name: rows[rows.columns[::-1]].rename(columns=str.upper) for name, rows in wide.items()}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    raw = tmp_path_factory.mktemp("synthetic") / "raw"
    SYNTHETIC.get("eicu")(raw, patients=300, seed=1)
    return read(raw)


@pytest.fixture(scope="module")
def original(tables: Tables, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    work = tmp_path_factory.mktemp("original")
    return contents(in_process(write(tables, work / "raw"), work))


CHANGES: list[Callable[[Tables], Tables]] = [added, revised, changed, moved, removed, discharged, permuted, reshaped]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_export_is_the_same_byte_for_byte(
    change: Callable[[Tables], Tables], tables: Tables, original: dict[str, bytes], tmp_path: Path
) -> None:
    given = contents(in_process(write(change(tables), tmp_path / "raw"), tmp_path))
    assert sorted(given) == sorted(original)
    assert [name for name in original if given[name] != original[name]] == []


def test_plain_csv_gives_the_same(tables: Tables, original: dict[str, bytes], tmp_path: Path) -> None:
    assert contents(in_process(write(tables, tmp_path / "raw", suffix=".csv"), tmp_path)) == original


def test_a_minute_earlier_every_record_counts(tables: Tables, tmp_path: Path) -> None:
    """The control: the records of `added`, placed at 1,439, reach every present and absent stay."""
    out = in_process(write(grown(tables, at(tables, NOW - 1)), tmp_path / "raw"), tmp_path)
    presence = table(out, "presence")
    for name, code in CODE.items():
        assert presence[name].all(), name
        features = table(out, name)
        column = f"{code}|count" if name == "lab" else code
        assert (features[column] == (2 if name == "lab" else 1)).all(), name
