"""The task `tadpole_paper_code` against the steps of the OvO notebooks, taken again in pandas on a synthetic file."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ovo_clinic import experiment
from ovo_clinic.prepare import Prepared, prepare
from ovo_clinic.registry import SYNTHETIC

Sides = tuple[pd.DataFrame, dict[str, pd.DataFrame], Prepared]
KEYS = ["RID", "PTID", "VISCODE"]
CODES = {"CN": 0, "MCI": 1, "AD": 2}
GROUPS = {"SMC": "CN", "EMCI": "MCI", "LMCI": "MCI"}
VOLUMES = ["Ventricles", "Hippocampus", "WholeBrain", "Entorhinal", "Fusiform", "MidTemp"]
UNUSED = ["FLDSTRENG", "FSVERSION", "FLDSTRENG_bl", "FSVERSION_bl", "PIB", "PIB_bl", "M"]


def modalities(header: list[str]) -> dict[str, list[str]]:
    """Columns by substrings of their names; what is left over is called clinical."""

    def holding(*parts: str) -> list[str]:
        return [name for name in header if any(part in name.lower() for part in parts)]

    found = {
        "mri": holding("ucsff") + VOLUMES + [f"{name}_bl" for name in VOLUMES],
        "fdg_pet": [*holding("baipet"), "FDG", "FDG_bl"],
        "av45_pet": holding("av45"),
        "csf": holding("upennbio"),
        "cognitive_tests": holding("cdr", "adas", "ravlt", "mmse"),
    }
    used = {name for names in found.values() for name in names} | set(holding("av1451", "dtiroi", "ecog"))
    return found | {"clinical": [name for name in header if name not in used.union(KEYS, UNUSED)]}


def joined(table: pd.DataFrame, columns: dict[str, list[str]]) -> pd.DataFrame:
    """Visits with at least one cell of every modality beside the three keys, in the order of the file."""
    for names in columns.values():
        table = table[table[KEYS + names].notna().sum(axis=1) >= 4]
    return table


def filled(visits: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Columns at most 70 % missing, filled forward, backward and with -1."""
    kept = [name for name in names if visits[name].isna().sum() <= 0.7 * len(visits)]
    frame = visits[["PTID", *kept]].copy()
    frame[kept] = frame.groupby("PTID")[kept].ffill()
    frame[kept] = frame.groupby("PTID")[kept].bfill()
    return frame[kept].astype(object).where(frame[kept].notna(), -1)


def encoded(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Numbers as they are, dates as seconds since 1970, other texts as codes of the sorted categories."""
    try:
        return pd.to_numeric(column)
    except (ValueError, TypeError):
        pass
    if "DATE" not in str(column.name):
        return column.astype("category").cat.codes
    dates = pd.to_datetime(column.where(column != -1), errors="coerce", format="%Y-%m-%d")
    seconds = dates.astype("datetime64[ns]").astype("int64") // 10**9
    return seconds.where(column != -1, -1)


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    """Visits and inputs by the notebooks' steps, and the prepared task."""
    folder: Path = tmp_path_factory.mktemp("tadpole")
    SYNTHETIC.get("tadpole")(folder / "raw", patients=200, seed=3)
    table = pd.read_csv(folder / "raw" / "TADPOLE_D1_D2.csv", dtype=str).replace(" ", np.nan)
    columns = modalities(list(table.columns))
    visits = joined(table, columns)
    visits.index = pd.Index(visits["RID"] + "_" + visits["VISCODE"])
    inputs = {}
    for name, names in columns.items():
        frame = filled(visits, names)
        dropped = [column for column in frame if "update_stamp" in column or column in ("DX", "DX_bl", "MMSE_bl")]
        inputs[name] = frame.drop(columns=dropped).apply(encoded)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVO_CLINIC_HOME", str(folder / "home"))
        request = experiment.load("tadpole_paper_code").data_request()
        yield visits, inputs, prepare(request, {"": folder / "raw"})


def test_visits_and_labels(sides: Sides) -> None:
    visits, _, data = sides
    units = data.cohort["unit_id"].to_list()
    assert units == sorted(visits.index) and len(units) > 30
    labels = visits["DX_bl"].replace(GROUPS).map(CODES).loc[units]
    np.testing.assert_array_equal(data.target, labels)


def test_split(sides: Sides) -> None:
    visits, _, data = sides
    order = sorted(visits.index)
    random.Random(42).shuffle(order)
    train, validation = int(0.7 * len(order)), int(0.15 * len(order))
    wanted = {
        "train": order[:train],
        "validation": order[train : train + validation],
        "test": order[train + validation :],
    }
    units = data.cohort["unit_id"].to_numpy()
    for part, names in wanted.items():
        assert sorted(units[data.split == part]) == sorted(names)


def test_every_input(sides: Sides) -> None:
    _, inputs, data = sides
    units = data.cohort["unit_id"].to_list()
    assert list(inputs) == data.modalities
    for name, frame in inputs.items():
        array = data.array(name)
        columns = [column.name for column in array.columns]
        assert set(columns) == set(frame.columns)
        np.testing.assert_array_equal(array.values, frame.loc[units, columns].to_numpy(np.float32), err_msg=name)
