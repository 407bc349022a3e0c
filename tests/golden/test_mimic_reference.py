"""What the package makes of the MIMIC-IV demo, against the independent recomputation of `mimic_reference`."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ovo_clinic import experiment, prepare
from ovo_clinic.export import export
from tests.golden.mimic_reference import Reference

STAYS = 5


@dataclass(frozen=True)
class Sides:
    """Recomputed and exported."""

    reference: Reference
    out: Path

    def exported(self, name: str) -> pd.DataFrame:
        return pd.read_csv(self.out / f"{name}.csv.gz")


@pytest.fixture(scope="module")
def sides(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Sides:
    folder, work = shared / "data" / "mimic-iv-demo", tmp_path_factory.mktemp("mimic")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVO_CLINIC_HOME", str(work / "home"))
        prepared = prepare.prepare(experiment.load("mimic_phenotyping").data_request(), {"": folder})
    export(prepared, work / "out")
    return Sides(Reference(folder, shared / "facts" / "mimic"), work / "out")


def test_cohort_and_attrition(sides: Sides) -> None:
    cohort, attrition = sides.exported("cohort"), sides.exported("attrition")
    assert list(attrition[["units", "patients"]].itertuples(index=False, name=None)) == sides.reference.attrition
    assert cohort["unit_id"].tolist() == sides.reference.stays.index.tolist()
    assert cohort["patient_id"].tolist() == sides.reference.stays["subject_id"].astype(int).tolist()
    assert cohort["age"].tolist() == sides.reference.stays["age"].tolist()
    assert len(cohort) == 110  # so that a recomputation of nothing does not pass


def test_all_labels_of_all_stays(sides: Sides) -> None:
    cohort, wanted = sides.exported("cohort").set_index("unit_id"), sides.reference.labels()
    assert len(wanted.columns) == 25 and 300 < wanted.to_numpy().sum() < 900
    pd.testing.assert_frame_equal(cohort[wanted.columns], wanted, check_dtype=False, check_names=False)


def test_binned_values_of_stays(sides: Sides) -> None:
    """Five stays that together observe every channel, a comatose one among them, and one that is short."""
    long = sides.exported("time_series")
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
    long = sides.exported("time_series")
    given = long.groupby("variable")["value"].sum()
    wanted = sum(sides.reference.series(stay).sum() for stay in sides.reference.stays.index)
    np.testing.assert_allclose(given[wanted.index], wanted, rtol=1e-5)


def test_what_is_noted(sides: Sides) -> None:
    manifest = next((sides.out.parent / "home" / "cache" / "mimic").glob("*/manifest.json"))
    notes = json.loads(manifest.read_text())["notes"]
    assert notes["chartevents rows read"] == 257_474 and notes["labevents rows read"] == 107_727
    assert notes["MIMIC-IV version"].startswith("2.x") and notes["phenotype mapping"].startswith("version 1 ")
