"""Synthetic TADPOLE: D1_D2 with all 1,907 columns, D3 and D4 files with the real names, and a known signal.

No row comes from a real person. The signal is described in `tadpole_signal`: a part in every modality alone, and a part
that only MRI and AV45 together tell.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ovo_clinic.errors import UserError
from ovo_clinic.registry import SYNTHETIC
from ovo_clinic.synthetic import tadpole_signal
from ovo_clinic.synthetic.folders import appearing
from ovo_clinic.synthetic.tadpole_blocks import block_names, blocks_table, chunk_of, presence
from ovo_clinic.synthetic.tadpole_challenge import d3_table, d4_table
from ovo_clinic.synthetic.tadpole_merge import merged_table, rolled_over
from ovo_clinic.synthetic.tadpole_people import People, Visits, draw_people, draw_visits
from ovo_clinic.synthetic.tadpole_signal import COMBINED, MODALITIES, STAGES, Floats, Integers, Latents

CHUNK_VISITS = 2_000


@SYNTHETIC.register("tadpole")
def write(out: Path, *, patients: int = 1737, seed: int = 0) -> dict[str, Any]:
    """TADPOLE (ADNI): TADPOLE_D1_D2.csv of 1,907 columns, D3 and D4; label the current diagnosis.

    Beside the three files it writes `oracle.csv` (RID, VISCODE and the probability of each diagnosis given the latents
    at everybody's latest complete visit) and `SYNTHETIC.json` (the returned value). The same options give the same
    bytes.

    Args:
        out: folder that is new or empty; it appears when all is written.
        patients: number of people; the default gives 12,741 visits, as many as the real file holds.
        seed: of all randomness.

    Returns:
        seed, options, counts, the signal with its coefficients, and the mAUC of the oracle.

    Raises:
        UserError: a number out of range, or `out` is not a new or empty folder.
    """
    for name, value, least in (("patients", patients, 1), ("seed", seed, 0)):
        if value < least:
            raise UserError(f"{name}: {value} is too small; give {least} or more")
    with appearing(out) as folder:
        report = _write_files(folder, patients, seed)
        (folder / "SYNTHETIC.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


def _write_files(folder: Path, patients: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    people = draw_people(rng, patients)
    visits = draw_visits(rng, people)
    latents = tadpole_signal.draw_latents(rng, visits.stage, visits.person)
    merged = merged_table(rng, people, visits, latents)
    last = _write_d1_d2(folder / "TADPOLE_D1_D2.csv", rng, merged, people, visits, latents)
    d4 = d4_table(rng, people, visits)
    for name, frame in (("TADPOLE_D3.csv", d3_table(last)), ("TADPOLE_D4_corr.csv", d4)):
        frame.write_csv(folder / name, quote_style="never")
    oracle, chosen = _oracle(people, visits, latents)
    found = pl.DataFrame({f"probability_{stage}": oracle[:, place] for place, stage in enumerate(STAGES)})
    merged[chosen, ["RID", "VISCODE"]].hstack(found).write_csv(folder / "oracle.csv")
    return {
        "data_set": "tadpole",
        "note": "synthetic: no row comes from a real person",
        "seed": seed,
        "options": {"patients": patients},
        "counts": {
            "patients": patients,
            "visits": len(visits),
            "d3": last.height,
            "d4": d4.height,
            "visits_with": {name: int(flags.sum()) for name, flags in visits.present.items()},
        },
        "signal": tadpole_signal.describe(),
        "oracle": _oracle_report(people, visits, latents, chosen),
    }


def _write_d1_d2(
    path: Path, rng: np.random.Generator, merged: pl.DataFrame, people: People, visits: Visits, latents: Latents
) -> pl.DataFrame:
    """Writes the file, a few thousand rows at a time; returns the last visits of the people of D2, for D3."""
    has = presence(rng, visits)
    # People one after the other, the visits of each in any order: the order of the rows says nothing about time.
    order = np.lexsort((rng.random(len(visits)), rng.permutation(len(people))[visits.person]))
    ends = np.append(visits.person[1:] != visits.person[:-1], True)
    wanted = ends & rolled_over(people, visits)[visits.person]
    sectional = block_names("sectional")
    last = []
    with path.open("wb") as file:
        for start in range(0, len(visits), CHUNK_VISITS):
            rows = order[start : start + CHUNK_VISITS]
            blocks = blocks_table(rng, chunk_of(rows, visits, latents, has))
            frame = merged[rows].hstack(blocks)
            frame.write_csv(file, include_header=start == 0, quote_style="never")
            last.append(frame.filter(pl.Series(wanted[rows])).select([*merged.columns, *sectional]))
    return pl.concat(last).sort(pl.col("RID").cast(pl.Int64))


def _complete(visits: Visits) -> Integers:
    """Everybody's latest visit with all six modalities and a known diagnosis."""
    rows = np.flatnonzero(np.all(list(visits.present.values()), axis=0) & visits.known)
    return rows[np.append(visits.person[rows][1:] != visits.person[rows][:-1], True)] if rows.size else rows


def _terms(people: People, visits: Visits, latents: Latents, rows: Integers) -> dict[str, Floats]:
    return tadpole_signal.log_likelihoods(latents.of(rows), people.traits, visits.person[rows], visits.stage[rows])


def _oracle(people: People, visits: Visits, latents: Latents) -> tuple[Floats, Integers]:
    """Probabilities (C,3) of the diagnoses at the C chosen visits, and these."""
    rows = _complete(visits)
    if not rows.size:
        return np.empty((0, 3)), rows
    terms = _terms(people, visits, latents, rows)
    return tadpole_signal.posterior(terms, visits.stage[rows]), rows


def _oracle_report(people: People, visits: Visits, latents: Latents, rows: Integers) -> dict[str, Any]:
    """mAUC of the posterior from all terms, from subsets of them and from each alone."""
    stage = visits.stage[rows]
    counts = np.bincount(stage, minlength=3)
    about = "everybody's latest visit with all six modalities and a known diagnosis, no split"
    report: dict[str, Any] = {
        "cohort": about,
        "visits": len(rows),
        "classes": dict(zip(STAGES, counts.tolist(), strict=True)),
    }
    if counts.min() == 0:
        return report
    terms = _terms(people, visits, latents, rows)
    without_criteria = {name: term for name, term in terms.items() if name != "criteria"}
    single = {name: _mauc({name: terms[name]}, stage) for name in MODALITIES}
    return report | {
        "mauc": _mauc(terms, stage),
        "mauc_without_criteria": _mauc(without_criteria, stage),
        "mauc_without_criteria_and_combination": _mauc({name: terms[name] for name in MODALITIES}, stage),
        "mauc_single_modality": single,
        "mauc_best_single_modality": max(single.values()),
        "mauc_criteria_alone": _mauc({"criteria": terms["criteria"]}, stage),
        f"mauc_combination_of_{'_and_'.join(COMBINED)}_alone": _mauc({"combination": terms["combination"]}, stage),
    }


def _mauc(terms: Mapping[str, Floats], stage: Integers) -> float:
    from ovo_clinic.metrics import mauc  # slow to import, and this module is imported to list data sets

    return mauc(tadpole_signal.posterior(terms, stage), stage)
