"""Synthetic eICU-CRD: six raw files with the real names, headers, codings and quirks, and a known signal.

No row comes from a real person. The signal is described in `eicu_signal`: a part in every modality alone, and a part
that only products of laboratory and APACHE latents tell.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ovo_clinic.errors import UserError
from ovo_clinic.registry import SYNTHETIC
from ovo_clinic.synthetic import eicu_signal
from ovo_clinic.synthetic.eicu_events import diagnosis_table, medication_table, treatment_table
from ovo_clinic.synthetic.eicu_measurements import aps_table, lab_table
from ovo_clinic.synthetic.eicu_patients import patient_table
from ovo_clinic.synthetic.eicu_signal import Booleans, Floats
from ovo_clinic.synthetic.eicu_stays import Stays, draw_stays
from ovo_clinic.synthetic.folders import appearing, gzipped

FILES = ("patient", "diagnosis", "treatment", "medication", "lab", "apacheApsVar", "oracle")
CHUNK_LAB_ROWS = 250_000


@SYNTHETIC.register("eicu")
def write(out: Path, *, patients: int = 6000, seed: int = 0, lab_rows_per_stay: int = 60) -> dict[str, Any]:
    """eICU-CRD 2.0: patient, diagnosis, treatment, medication, lab, apacheApsVar; label hospital death.

    Beside the six files it writes `oracle.csv.gz` (patientunitstayid, probability: of death in the hospital stay, the
    one the label was drawn from) and `SYNTHETIC.json` (the returned value). The same options give the same bytes.
    Everything is streamed, a few thousand stays at a time.

    Args:
        out: folder that is new or empty; it appears when all is written.
        patients: number of people.
        seed: of all randomness.
        lab_rows_per_stay: about how many laboratory rows a stay has on average (at least about 30).

    Returns:
        seed, options, counts, the signal with its coefficients, and the AUROC of the oracle.

    Raises:
        UserError: a number out of range, or `out` is not a new or empty folder.
    """
    for name, value, least in (
        ("patients", patients, 1),
        ("seed", seed, 0),
        ("lab_rows_per_stay", lab_rows_per_stay, 1),
    ):
        if value < least:
            raise UserError(f"{name}: {value} is too small; give {least} or more")
    with appearing(out) as folder:
        report = _write_files(folder, patients, seed, lab_rows_per_stay)
        (folder / "SYNTHETIC.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


def _write_files(folder: Path, patients: int, seed: int, lab_rows_per_stay: int) -> dict[str, Any]:
    rows = dict.fromkeys(FILES, 0)
    counts = {"patients": patients, "hospital_stays": 0, "unit_stays": 0}
    cohort = []
    step = max(20, min(2000, CHUNK_LAB_ROWS // (2 * lab_rows_per_stay)))
    with ExitStack() as stack:
        files = {name: stack.enter_context(gzipped(folder / f"{name}.csv.gz")) for name in FILES}
        for start in range(0, patients, step):
            rng = np.random.default_rng([seed, start])
            stays = draw_stays(rng, min(step, patients - start), start)
            for name, frame in _tables(rng, stays, start, rows, lab_rows_per_stay):
                frame.write_csv(files[name], include_header=rows[name] == 0)
                rows[name] += len(frame)
            counts["hospital_stays"] += len(stays.nest.first)
            counts["unit_stays"] += stays.nest.stays
            cohort.append(_Cohort(stays))
    return {
        "data_set": "eicu",
        "note": "synthetic: no row comes from a real person",
        "seed": seed,
        "options": {"patients": patients, "lab_rows_per_stay": lab_rows_per_stay},
        "counts": {**counts, "rows": rows},
        "signal": eicu_signal.describe(),
        "oracle": _oracle(cohort),
    }


def _tables(
    rng: np.random.Generator, stays: Stays, start: int, rows: Mapping[str, int], lab_rows_per_stay: int
) -> Iterator[tuple[str, pl.DataFrame]]:
    """One chunk's rows, file by file; only one frame is held at a time."""
    yield "patient", patient_table(rng, stays, start)
    yield "diagnosis", diagnosis_table(rng, stays, 7_000_000 + rows["diagnosis"])
    yield "treatment", treatment_table(rng, stays, 9_000_000 + rows["treatment"])
    yield "medication", medication_table(rng, stays, 7_000_000 + rows["medication"])
    yield "lab", lab_table(rng, stays, lab_rows_per_stay, 150_000_000 + rows["lab"])
    # By unit stays, not by rows: identifiers are drawn for the stays without a row as well.
    yield "apacheApsVar", aps_table(rng, stays, 90_000 + rows["patient"] - stays.nest.stays)
    oracle = pl.DataFrame({"patientunitstayid": stays.unit_id, "probability": stays.probability})
    yield "oracle", oracle.sort("patientunitstayid")


class _Cohort:
    """What the oracle's AUROC needs of the eligible stays of one chunk."""

    def __init__(self, stays: Stays) -> None:
        chosen: Booleans = stays.eligible
        self.label = stays.positive[chosen]
        self.probability = stays.probability[chosen]
        self.summands = {name: term[chosen] for name, term in stays.summands.items()}


def _oracle(chunks: list[_Cohort]) -> dict[str, Any]:
    """AUROC over the cohort: of the true probability, of each modality's own term, and of all terms but the product."""
    label = np.concatenate([chunk.label for chunk in chunks])
    summands = {name: np.concatenate([chunk.summands[name] for chunk in chunks]) for name in chunks[0].summands}
    product = summands.pop("product")
    single = {name: _auroc(label, term) for name, term in summands.items()}
    known = [value for value in single.values() if value is not None]
    return {
        "cohort": "eligible stays of the task eicu_mortality_24h, whole, no split",
        "stays": len(label),
        "deaths": int(label.sum()),
        "prevalence": float(label.mean()) if len(label) else None,
        "auroc": _auroc(label, np.concatenate([chunk.probability for chunk in chunks])),
        "auroc_single_modality": single,
        "auroc_best_single_modality": max(known, default=None),
        "auroc_without_product": _auroc(label, np.sum(list(summands.values()), axis=0)),
        "auroc_product_alone": _auroc(label, product),
    }


def _auroc(label: Booleans, score: Floats) -> float | None:
    """AUROC; None where a class is missing."""
    from scipy.stats import mannwhitneyu  # slow to import, and this module is imported to list data sets

    positives, negatives = score[label], score[~label]
    if not len(positives) or not len(negatives):
        return None
    return float(mannwhitneyu(positives, negatives).statistic / (len(positives) * len(negatives)))
