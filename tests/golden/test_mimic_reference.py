"""What the package makes of the MIMIC-IV demo, against the independent recomputation of `mimic_reference`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ovo_clinic import experiment, prepare
from ovo_clinic.export import export
from tests.golden.mimic_reference import Reference

STAYS = 5


@dataclass(frozen=True)
class Export:
    """A task prepared from the demo and exported.

    Attributes:
        raw: the demo.
        out: the exported tables.
        notes: counts of `prepare`.
    """

    raw: Path
    out: Path
    notes: Mapping[str, Any]

    def table(self, name: str) -> pd.DataFrame:
        return pd.read_csv(self.out / f"{name}.csv.gz")


def exported(task: str, shared: Path, work: Path) -> Export:
    folder = shared / "data" / "mimic-iv-demo"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVO_CLINIC_HOME", str(work / "home"))
        prepared = prepare.prepare(experiment.load(task).data_request(), {"": folder})
    export(prepared, work / "out")
    return Export(folder, work / "out", prepared.manifest["notes"])


@dataclass(frozen=True)
class Sides:
    """Exported and recomputed."""

    given: Export
    reference: Reference


@pytest.fixture(scope="module")
def sides(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Sides:
    given = exported("mimic_phenotyping", shared, tmp_path_factory.mktemp("mimic"))
    return Sides(given, Reference(given.raw, shared / "facts" / "mimic"))


def test_cohort_and_attrition(sides: Sides) -> None:
    cohort, attrition = sides.given.table("cohort"), sides.given.table("attrition")
    assert list(attrition[["units", "patients"]].itertuples(index=False, name=None)) == sides.reference.attrition
    assert cohort["unit_id"].tolist() == sides.reference.stays.index.tolist()
    assert cohort["patient_id"].tolist() == sides.reference.stays["subject_id"].astype(int).tolist()
    assert cohort["age"].tolist() == sides.reference.stays["age"].tolist()
    assert len(cohort) == 110  # so that a recomputation of nothing does not pass


def test_all_labels_of_all_stays(sides: Sides) -> None:
    cohort, wanted = sides.given.table("cohort").set_index("unit_id"), sides.reference.labels()
    assert len(wanted.columns) == 25 and 300 < wanted.to_numpy().sum() < 900
    pd.testing.assert_frame_equal(cohort[wanted.columns], wanted, check_dtype=False, check_names=False)


def test_binned_values_of_stays(sides: Sides) -> None:
    """Five stays that together observe every channel, a comatose one among them, and one that is short."""
    long = sides.given.table("time_series")
    lengths = long.groupby("unit_id")["hours"].nunique().sort_values()
    few = [*lengths.index[[0, len(lengths) // 2, -1]], *_rare(long)]
    observed = set()
    for stay in dict.fromkeys(few):
        given = long[long["unit_id"] == stay].pivot(index="hours", columns="variable", values="value")
        wanted = sides.reference.series(stay)
        np.testing.assert_allclose(given.index, wanted.index)
        assert set(given.columns) == set(wanted.columns)
        np.testing.assert_allclose(given[wanted.columns], wanted, rtol=1e-5, err_msg=str(stay))
        observed |= {name for name in wanted if name.startswith("mask->") and wanted[name].any()}
    charted = {f"mask->{name}" for name in sides.reference.names} - {"mask->Capillary refill rate"}  # none in the demo
    assert len(few) >= STAYS and observed >= charted


def _rare(long: pd.DataFrame) -> list[int]:
    """A stay with the lowest coma score, and one for each of the rarest observations."""
    total = long[long["variable"] == "Glascow coma scale total"]
    seen = long[long["variable"].str.startswith("mask->") & (long["value"] == 1)]
    rarest = [
        seen[seen["variable"] == name]["unit_id"].iloc[0] for name in seen["variable"].value_counts().index[::-1][:4]
    ]
    return [total.loc[total["value"].idxmin(), "unit_id"], *rarest]


def test_all_stays_agree(sides: Sides) -> None:
    """Sums over all stays, which a fault in any of them would move."""
    long = sides.given.table("time_series")
    given = long.groupby("variable")["value"].sum()
    wanted = sum(sides.reference.series(stay).sum() for stay in sides.reference.stays.index)
    np.testing.assert_allclose(given[wanted.index], wanted, rtol=1e-5)


def test_what_is_noted(sides: Sides) -> None:
    notes = sides.given.notes
    assert notes["chartevents rows looked at"] == 107_173 and notes["labevents rows looked at"] == 4_162
    assert notes["MIMIC-IV version"].startswith("2.x") and notes["phenotype mapping"].startswith("version 1 ")


@pytest.fixture(scope="module")
def replica(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Export:
    return exported("mimic_phenotyping_replica", shared, tmp_path_factory.mktemp("replica"))


def test_the_cohort_and_labels_of_medfuse(replica: Export, shared: Path) -> None:
    raw = {name: _read(replica.raw, name) for name in ("icu/icustays", "hosp/diagnoses_icd", "hosp/patients")}
    stays = raw["icu/icustays"]
    stays = stays[stays["first_careunit"] == stays["last_careunit"]]
    stays = stays[~stays["hadm_id"].duplicated(keep=False)].sort_values("stay_id")
    ages = raw["hosp/patients"].set_index("subject_id")["anchor_age"].astype(int)
    stays = stays[(stays["subject_id"].map(ages) >= 18) & stays["hadm_id"].isin(raw["hosp/diagnoses_icd"]["hadm_id"])]
    cohort = replica.table("cohort").set_index("unit_id")
    assert cohort.index.tolist() == stays["stay_id"].astype(int).tolist() and len(cohort) == 112
    facts = shared / "facts" / "mimic"
    codes = pd.read_csv(facts / "phenotype_codes_icd10.csv", dtype=str).query("in_medfuse_v2 == '1'")
    codes = pd.concat([pd.read_csv(facts / "phenotype_codes.csv", dtype=str), codes])[["icd_code", "name"]]
    pairs = raw["hosp/diagnoses_icd"].merge(codes, on="icd_code")  # whatever the version
    wanted = pd.crosstab(pairs["hadm_id"], pairs["name"]).clip(upper=1).reindex(stays["hadm_id"], fill_value=0)
    given = cohort[pd.read_csv(facts / "phenotypes.csv")["name"]]
    np.testing.assert_array_equal(given, wanted.reindex(columns=given.columns, fill_value=0))


def test_series_of_medfuse(replica: Export) -> None:
    """Pulse (the last text in their order), oxygen (divided by 100 always) and glucose (urine too) of some stays."""
    stays = _read(replica.raw, "icu/icustays").set_index("stay_id")
    items = {"Heart Rate": ["220045"], "Fraction inspired oxygen": ["223835"]}
    items["Glucose"] = ["50931", "50809", "51478", "225664", "220621", "226537"]
    rows = pd.concat([_read(replica.raw, name) for name in ("icu/chartevents", "hosp/labevents")])
    long = replica.table("time_series")
    for stay in sorted(long["unit_id"].unique())[::25]:
        owner = stays.loc[str(stay)]
        ours = rows[
            (rows["hadm_id"] == owner["hadm_id"]) & rows["stay_id"].isin([str(stay), np.nan]) & (rows["value"] != "")
        ]
        hours = (pd.to_datetime(ours["charttime"]) - pd.Timestamp(owner["intime"])).dt.total_seconds() / 3600
        ours = ours.assign(hours=hours)[(hours > -1e-6) & (hours < 24 * float(owner["los"]) + 1e-6)]
        for channel, normal in (("Heart Rate", 86), ("Fraction inspired oxygen", 0.21), ("Glucose", 128)):
            charted = ours[ours["itemid"].isin(items[channel])].copy()
            charted = charted[charted["value"].str.fullmatch(r"\d+\.?\d*")]
            charted["number"] = charted["value"].astype(float) / (100 if channel.startswith("Fraction") else 1)
            order = ["hours", "value" if channel == "Heart Rate" else "number"]
            last = charted.sort_values(order).groupby((charted["hours"] - 1e-6).astype(int))["number"].last()
            given = long[(long["unit_id"] == stay) & (long["variable"] == channel)].set_index("hours")["value"]
            wanted = last.reindex(range(len(given))).ffill().fillna(normal)
            np.testing.assert_allclose(given, wanted, rtol=1e-5, err_msg=f"{stay} {channel}")


def _read(folder: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(folder / f"{name}.csv.gz", dtype=str, keep_default_na=False)
