"""Diagnosis, treatment and medication rows of the synthetic eICU folder.

Exactly the codes of a stay's latents are visible under the rules of `eicu_mortality_24h`. Around them lie rows that
those rules must leave out: too early, too late, cancelled, ordered too late, without a code.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from ovo_clinic.synthetic.eicu_patients import pick_text
from ovo_clinic.synthetic.eicu_signal import Booleans, Integers, code_shares
from ovo_clinic.synthetic.eicu_stays import DAY, Stays, pick
from ovo_clinic.synthetic.eicu_vocabulary import DIAGNOSES, DRUGS, TERMINAL_DIAGNOSIS, TERMINAL_TREATMENT, TREATMENTS

EARLIEST = -360
"""Start of the windows of `eicu_mortality_24h`, in minutes."""


@dataclass(frozen=True)
class Rows:
    """R rows: position of the stay, position of the code, minutes from unit admission; each (R,)."""

    stay: Integers
    code: Integers
    offset: Integers

    def __len__(self) -> int:
        return len(self.stay)


def diagnosis_table(rng: np.random.Generator, stays: Stays, first_id: int) -> pl.DataFrame:
    """Rows of diagnosis.csv."""
    rows = _with_terminal(rng, stays, _picklist_rows(rng, stays, "diagnosis"), "diagnosis", len(DIAGNOSES))
    paths, icd9 = zip(*DIAGNOSES, TERMINAL_DIAGNOSIS, strict=True)
    frame = pl.DataFrame(
        {
            "diagnosisid": first_id + rng.permutation(len(rows)),
            "patientunitstayid": stays.unit_id[rows.stay],
            "activeupondischarge": _choose(rng, ["False", "True"], [0.7, 0.3], len(rows)),
            "diagnosisoffset": rows.offset,
            "diagnosisstring": _gather(paths, rows.code),
            "icd9code": _gather([code or None for code in icd9], rows.code),
            "diagnosispriority": _choose(rng, ["Major", "Other", "Primary"], [0.42, 0.39, 0.19], len(rows)),
        }
    )
    return frame.sort("patientunitstayid", "diagnosisid")


def treatment_table(rng: np.random.Generator, stays: Stays, first_id: int) -> pl.DataFrame:
    """Rows of treatment.csv."""
    rows = _with_terminal(rng, stays, _picklist_rows(rng, stays, "treatment"), "treatment", len(TREATMENTS))
    frame = pl.DataFrame(
        {
            "treatmentid": first_id + rng.permutation(len(rows)),
            "patientunitstayid": stays.unit_id[rows.stay],
            "treatmentoffset": rows.offset,
            "treatmentstring": _gather([*TREATMENTS, TERMINAL_TREATMENT], rows.code),
            "activeupondischarge": _choose(rng, ["False", "True"], [0.7, 0.3], len(rows)),
        }
    )
    return frame.sort("patientunitstayid", "treatmentid")


def medication_table(rng: np.random.Generator, stays: Stays, first_id: int) -> pl.DataFrame:
    """Rows of medication.csv: orders."""
    shown = _shown(rng, stays, "medication")
    repeated = _repeated(rng, stays, shown)
    hidden = _hidden(rng, stays, "medication")
    # A third of the orders that must stay hidden start inside the window, and are hidden by something else.
    inside = rng.random(len(hidden)) < 0.34
    hidden = Rows(hidden.stay, hidden.code, np.where(inside, _inside(rng, stays, hidden.stay), hidden.offset))
    rows = _concat(shown, repeated, hidden)
    count = len(rows)
    reason = np.concatenate(
        [
            np.full(len(shown), ""),
            pick_text(rng, len(repeated), {"": 0.9, "cancelled": 0.06, "uncoded": 0.04}),
            np.where(inside, rng.choice(["cancelled", "late", "uncoded"], len(hidden)), ""),
        ]
    )
    ordered = _order_times(rng, rows.offset, reason == "late")
    columns = {
        "medicationid": pl.Series(first_id + rng.permutation(count)),
        "patientunitstayid": pl.Series(stays.unit_id[rows.stay]),
        "drugorderoffset": pl.Series(ordered),
        "drugstartoffset": pl.Series(rows.offset),
        "drugivadmixture": _choose(rng, ["No", "Yes"], [0.8, 0.2], count),
        "drugordercancelled": _cancelled(rng, reason == "cancelled"),
        **_drug_columns(rng, stays, rows, reason == "uncoded"),
        "loadingdose": _choose(rng, [None, "0 mg", "150 ml"], [0.998, 0.0015, 0.0005], count),
        "prn": _choose(rng, ["No", "Yes", None], [0.725, 0.274, 0.001], count),
        "drugstopoffset": pl.Series(np.where(rng.random(count) < 0.04, 0, rows.offset + rng.integers(5, 5000, count))),
        "gtc": pl.Series(np.array([drug.gtc for drug in DRUGS])[rows.code]),
    }
    return pl.DataFrame({name: columns[name] for name in MEDICATION_HEADER.split(",")}).sort(
        "patientunitstayid", "medicationid"
    )


MEDICATION_HEADER = (
    "medicationid,patientunitstayid,drugorderoffset,drugstartoffset,drugivadmixture,drugordercancelled,drugname,"
    "drughiclseqno,dosage,routeadmin,frequency,loadingdose,prn,drugstopoffset,gtc"
)


def _drug_columns(rng: np.random.Generator, stays: Stays, rows: Rows, uncoded: Booleans) -> dict[str, pl.Series]:
    """Name, code, dose, route and frequency; each hospital has its own way to write names."""
    count = len(rows)
    hospital = stays.hospital[rows.stay]
    style = np.where(rng.random(count) < 0.8, hospital % 4, rng.integers(0, 4, count))
    unnamed = (rng.random(count) < np.where(hospital % 3 == 0, 0.75, 0.2)) & ~uncoded
    names = [name for drug in DRUGS for name in _spellings(drug.generic, drug.brand, drug.form)]
    return {
        "drugname": _gather([*names, None], np.where(unnamed, len(names), 4 * rows.code + style)),
        "drughiclseqno": _gather(
            [*(drug.hicl for drug in DRUGS), None], np.where(uncoded, len(DRUGS), rows.code), pl.Int64
        ),
        "dosage": _choose(
            rng,
            ["40 mg", "40 MG", "PYXIS", "1,000 mL", "5 3", "1 EACH", None],
            [0.25, 0.2, 0.1, 0.1, 0.1, 0.1, 0.15],
            count,
        ),
        "routeadmin": _gather([drug.route for drug in DRUGS], rows.code),
        "frequency": _choose(
            rng,
            [None, "Once", "Daily", "DAILY", "PRN", "BID", "Q6H PRN"],
            [0.16, 0.2, 0.15, 0.14, 0.13, 0.12, 0.1],
            count,
        ),
    }


def _spellings(generic: str, brand: str, form: str) -> tuple[str, str, str, str]:
    return generic, f"{generic.upper()} {form}", brand, brand.title()


def _cancelled(rng: np.random.Generator, cancelled: Booleans) -> pl.Series:
    chance = rng.random(len(cancelled))
    return _gather(
        ["No", None, "Yes", "YES"], np.where(cancelled, np.where(chance < 0.9, 2, 3), np.where(chance < 0.93, 0, 1))
    )


def _order_times(rng: np.random.Generator, start: Integers, late: Booleans) -> Integers:
    """Most orders are written before they start, some afterwards but before 24 h, `late` ones at 24 h or after it."""
    count = len(start)
    before = start - rng.integers(0, 240, count)
    afterwards = np.minimum(start + rng.integers(0, 300, count), DAY - 1)
    ordered = np.where((start < DAY) & (rng.random(count) < 0.15), afterwards, before)
    return np.where(late, DAY + np.where(rng.random(count) < 0.1, 0, rng.integers(0, 600, count)), ordered)


def _picklist_rows(rng: np.random.Generator, stays: Stays, modality: str) -> Rows:
    shown = _shown(rng, stays, modality)
    return _concat(shown, _repeated(rng, stays, shown), _hidden(rng, stays, modality))


def _shown(rng: np.random.Generator, stays: Stays, modality: str) -> Rows:
    """One row inside the window for every code of the latents."""
    stay, code = np.nonzero(stays.latents.codes[modality])
    return Rows(stay, code, _inside(rng, stays, stay))


def _repeated(rng: np.random.Generator, stays: Stays, shown: Rows) -> Rows:
    """The same codes again, at any time: before admission, in the stay, after discharge."""
    again = np.floor(rng.random(len(shown)) * len(shown)).astype(np.int64)
    stay = shown.stay[again]
    return Rows(stay, shown.code[again], rng.integers(-1000, stays.length[stay] + 600))


def _hidden(rng: np.random.Generator, stays: Stays, modality: str) -> Rows:
    """Codes that the latents do not have, outside the window; also in stays where the modality is absent."""
    active = stays.latents.codes[modality]
    stay = np.repeat(np.arange(len(active)), rng.poisson(3, len(active)) * stays.interfaced[modality])
    code = pick(rng, len(stay), code_shares(modality))
    other = ~active[stay, code]
    stay, code = stay[other], code[other]
    chance = rng.random(len(stay))
    late = DAY + np.where(chance < 0.05, 0, rng.exponential(2000, len(stay)).astype(np.int64))
    early = EARLIEST - 1 - np.where(chance > 0.97, 0, rng.exponential(2000, len(stay)).astype(np.int64))
    return Rows(stay, code, np.where(chance < 0.75, late, early))


def _inside(rng: np.random.Generator, stays: Stays, stay: Integers) -> Integers:
    """Times inside the window and before unit discharge, its first and last minute among them."""
    end = np.clip(stays.length[stay], 1, DAY)
    chance = rng.random(len(stay))
    offset = np.where(chance < 0.1, rng.integers(EARLIEST, 0, len(stay)), rng.integers(0, end))
    return np.where(chance < 0.005, EARLIEST, np.where(chance > 0.995, end - 1, offset))


def _with_terminal(rng: np.random.Generator, stays: Stays, rows: Rows, modality: str, code: int) -> Rows:
    """Adds the record of the last hours, never before 24 h in a stay that lasts so long."""
    dying = stays.positive & stays.nest.last
    shown = (rng.random(len(dying)) < np.where(dying, 0.7, 0.003)) & stays.interfaced[modality]
    stay = np.flatnonzero(shown)
    length = stays.length[stay]
    earliest = np.where(length >= DAY, np.maximum(DAY, length - 300), np.maximum(0, length - 300))
    return _concat(rows, Rows(stay, np.full(len(stay), code), rng.integers(earliest, length + 1)))


def _concat(*parts: Rows) -> Rows:
    return Rows(
        np.concatenate([part.stay for part in parts]),
        np.concatenate([part.code for part in parts]),
        np.concatenate([part.offset for part in parts]),
    )


def _gather(values: Sequence[str | int | None], index: Integers, dtype: type[pl.DataType] = pl.String) -> pl.Series:
    return pl.Series(values, dtype=dtype).gather(index)


def _choose(rng: np.random.Generator, values: list[str | None], shares: list[float], count: int) -> pl.Series:
    return _gather(values, pick(rng, count, np.array(shares)))
