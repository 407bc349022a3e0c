"""`demo`: a study with nothing to download."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ovo_clinic import resources
from ovo_clinic.prepared import Prepared
from ovo_clinic.verbs.study import Study, compare
from ovo_clinic.verbs.work import Progress, no_progress


@dataclass(frozen=True)
class SyntheticStudy:
    """What the demo shows.

    Attributes:
        study: the comparison on synthetic data.
        oracle: AUROC of the probabilities that the labels were drawn from, on the same test units.
        best_single: (modality, mean AUROC) of the best modality alone.
        gains: head -> share of the way from the best single modality to the oracle; none where the test units are so
            few that the oracle is no better.
    """

    study: Study
    oracle: float
    best_single: tuple[str, float]
    gains: Mapping[str, float]


def demo(
    *, patients: int, seeds: int, workers: int | None = None, on_progress: Progress = no_progress
) -> SyntheticStudy:
    """The main job with nothing to download: synthetic eICU folder, prepare, compare, statistics, MLflow.

    Args:
        patients: people in the synthetic folder.
        seeds: runs per head and modality.
        workers: parallel processes (default: one per core).
        on_progress: called with (runs done, runs in all).
    """
    from ovo_clinic.registry import SYNTHETIC

    raw = resources.home() / "demo" / f"eicu-{patients}"
    if not raw.is_dir():
        raw.parent.mkdir(mode=0o700, exist_ok=True)
        SYNTHETIC.build("eicu", raw, options={"patients": patients})
    found = compare("eicu_mortality_24h", raw=raw, seeds=seeds, unimodal=True, workers=workers, on_progress=on_progress)
    oracle = oracle_auroc(found.comparison.prepared, raw)
    rows = found.table.rows
    single = rows[rows["kind"] == "modality"].sort_values("auroc_mean").iloc[-1]
    start = float(single["auroc_mean"])
    heads = rows[rows["kind"] == "head"]
    gains = (
        {str(row["model"]): (float(row["auroc_mean"]) - start) / (oracle - start) for _, row in heads.iterrows()}
        if oracle > start
        else {}
    )
    return SyntheticStudy(found, oracle, (str(single["model"]), start), gains)


def oracle_auroc(prepared: Prepared, raw: Path) -> float:
    """AUROC on the test units of the probabilities that a synthetic folder's labels were drawn from."""
    import polars as pl

    from ovo_clinic.metrics import auroc

    rows = prepared.rows("test")
    units = prepared.cohort.select(pl.col("unit_id").gather(rows))
    truth = pl.read_csv(raw / "oracle.csv.gz").rename({"patientunitstayid": "unit_id"})
    probability = units.join(truth, on="unit_id", how="left", maintain_order="left")["probability"]
    assert probability.null_count() == 0, "a unit has no oracle"
    return auroc(probability.to_numpy(), np.asarray(prepared.target[rows]))
