"""Laboratory and APACHE rows of the synthetic eICU folder.

A driven variable follows a latent of its modality with little noise. Laboratory values do so inside the window of
`eicu_mortality_24h` only: earlier and later ones are mostly noise. The two tables are independent of each other (the
real creatinine of one is the worst creatinine of the other), or one modality would see the other's latents.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from ovo_clinic.synthetic.eicu_events import EARLIEST
from ovo_clinic.synthetic.eicu_patients import Columns
from ovo_clinic.synthetic.eicu_signal import Booleans, Floats, Integers
from ovo_clinic.synthetic.eicu_stays import DAY, Stays, pick
from ovo_clinic.synthetic.eicu_vocabulary import APS, LABS, Measurement

TEXTS = ("<0.02", ">600", "1", "cancelled", 'hemolyzed, "see comment"', "QNS\nrecollect")
"""Texts of results without a number."""
_TEXT_SHARES = np.array([0.4, 0.2, 0.15, 0.2, 0.04, 0.01])


@dataclass(frozen=True)
class Results:
    """R laboratory results, each (R,).

    Attributes:
        stay, lab: positions.
        offset, revised: labresultoffset and labresultrevisedoffset, minutes.
        value: labresult, NaN = no number.
        steady: kept as it is: the one result of a driven variable that every present stay should have.
    """

    stay: Integers
    lab: Integers
    offset: Integers
    revised: Integers
    value: Floats
    steady: Booleans


def lab_table(rng: np.random.Generator, stays: Stays, rows_per_stay: int, first_id: int) -> pl.DataFrame:
    """Rows of lab.csv, about `rows_per_stay` for each stay on average and more in longer ones."""
    drawn = _drawn(rng, stays, rows_per_stay)
    results = _revised(rng, _odd_units(rng, stays, drawn))
    index = pl.Series(results.lab)
    interface = (stays.hospital[results.stay] % 2).astype(np.bool_)
    system = pl.Series([lab.unit or None for lab in LABS]).gather(index)
    own = pl.Series([lab.interface or None for lab in LABS]).gather(index)
    value = pl.Series(results.value, nan_to_null=True)
    texts = pl.Series(TEXTS).gather(pick(rng, len(value), _TEXT_SHARES))
    frame = pl.DataFrame(
        {
            "labid": first_id + rng.permutation(len(value)),
            "patientunitstayid": stays.unit_id[results.stay],
            "labresultoffset": results.offset,
            "labtypeid": pl.Series([lab.kind for lab in LABS]).gather(index),
            "labname": pl.Series([lab.name for lab in LABS]).gather(index),
            "labresult": value,
            "labresulttext": value.cast(pl.String).str.strip_suffix(".0").fill_null(texts),
            "labmeasurenamesystem": system,
            "labmeasurenameinterface": own.zip_with(pl.Series(interface), system),
            "labresultrevisedoffset": results.revised,
        }
    )
    return frame.sort("patientunitstayid", "labid")


def _drawn(rng: np.random.Generator, stays: Stays, rows_per_stay: int) -> Results:
    """First versions: one result in the window for nearly every driven variable, further ones at any time."""
    present = stays.latents.present["lab"]
    driven = np.array([lab.driver != "" for lab in LABS])
    stay, lab = np.nonzero(driven & present[:, None] & (rng.random((len(present), len(LABS))) < 0.93))
    offset = rng.integers(0, np.clip(stays.length[stay], 1, DAY - 90))

    mean_length = stays.length.mean()
    extra = max(rows_per_stay - len(stay) / len(present), 1)
    more = np.repeat(np.arange(len(present)), rng.poisson(extra * (stays.length + 300) / (mean_length + 300)))
    more_lab = pick(rng, len(more), np.arange(2, len(LABS) + 2, dtype=np.float64) ** -0.8)
    more_offset = rng.integers(-720, stays.length[more] + 300)

    # Blood is drawn for several variables at once: times lie on a grid of the stay's own.
    spacing = int(np.clip(1500 // rows_per_stay, 1, 25))
    phase = rng.integers(0, spacing, len(present))
    stay, lab, offset = (np.concatenate(pair) for pair in ((stay, more), (lab, more_lab), (offset, more_offset)))
    offset = offset - offset % spacing + phase[stay]
    steady = np.arange(len(stay)) < len(stay) - len(more)
    # Absent: half of these stays have results outside the window, the others none at all.
    outside = (offset < EARLIEST) | (offset >= DAY)
    allowed = present[stay] | (outside & (stays.unit_id[stay] % 2 == 0))
    key = (stay * len(LABS) + lab) * 2**18 + offset + 2000
    kept = np.unique(np.where(allowed, key, -1), return_index=True)[1]
    kept = kept[allowed[kept]]
    stay, lab, offset, steady = stay[kept], lab[kept], offset[kept], steady[kept]

    delay = np.where(rng.random(len(kept)) < 0.01, rng.integers(1000, 9000, len(kept)), rng.exponential(45, len(kept)))
    revised = offset + np.where(steady, rng.integers(3, 60, len(kept)), delay.astype(np.int64))
    value = _values(rng, stays, stay, lab, ~outside[kept])
    value = np.where(~steady & (rng.random(len(kept)) < 0.015), np.nan, value)
    return Results(stay, lab, offset, revised, value, steady)


def _values(rng: np.random.Generator, stays: Stays, stay: Integers, lab: Integers, inside: Booleans) -> Floats:
    level = np.stack([_level(rng, stays, "lab", item) for item in LABS], axis=1)[stay, lab]
    noise = rng.standard_normal(len(stay))
    deviation = np.where(inside, level + 0.2 * noise, 0.4 * level + 0.9 * noise)
    return _on_scale(LABS, lab, deviation)


def _level(rng: np.random.Generator, stays: Stays, modality: str, item: Measurement) -> Floats:
    """(S,) of about unit variance: where a stay stands on a variable."""
    own = rng.standard_normal(len(stays.unit_id))
    if not item.driver:
        return own
    return item.sign * stays.latents.driver(modality, item.driver) + 0.25 * own


def _on_scale(items: tuple[Measurement, ...], index: Integers, deviation: Floats) -> Floats:
    centre = np.array([item.centre for item in items])[index]
    scale = np.array([item.scale for item in items])[index]
    places = 10.0 ** np.array([item.decimals for item in items])[index]
    # The smallest positive number that can be printed: a rare extreme may otherwise reach 0.
    return np.maximum(np.rint((centre + scale * deviation) * places), 1) / places


def _odd_units(rng: np.random.Generator, stays: Stays, results: Results) -> Results:
    """FiO2 as a fraction and Temperature in F at some hospitals, and values that cannot be."""
    names = [lab.name for lab in LABS]
    fio2, temperature, ph = (results.lab == names.index(name) for name in ("FiO2", "Temperature", "pH"))
    hospital = stays.hospital[results.stay]
    odd = rng.random(len(results.lab)) < 0.01
    value = np.where(fio2, np.clip(results.value, 21, 100), results.value)
    value = np.where(fio2 & (hospital % 3 == 1), value / 100, value)
    value = np.where(temperature & (hospital % 4 == 2), np.round(value * 1.8 + 32, 1), value)
    value = np.where(odd & fio2, 10_000, np.where(odd & ph, np.round(value * 100), value))
    value = np.where(odd & temperature, 3.7, value)
    return Results(results.stay, results.lab, results.offset, results.revised, value, results.steady)


def _revised(rng: np.random.Generator, results: Results) -> Results:
    """Adds later versions: corrections known before 24 h change little, those at 24 h or later are another value."""
    again = np.flatnonzero(rng.random(len(results.lab)) < 0.03)
    offset, before = results.offset[again], results.revised[again]
    revised = before + 1 + rng.exponential(300, len(again)).astype(np.int64)
    inside = (offset >= EARLIEST) & (before < DAY)
    revised = np.where(inside & (rng.random(len(again)) < 0.2), DAY, revised)
    noise = rng.standard_normal(len(again))
    places = 10.0 ** np.array([item.decimals for item in LABS])[results.lab[again]]
    scale = np.array([item.scale for item in LABS])[results.lab[again]]
    near = np.maximum(np.rint((results.value[again] + 0.1 * scale * noise) * places), 1) / places
    other = _on_scale(LABS, results.lab[again], noise)
    value = np.where(np.isnan(near) | (inside & (revised >= DAY)), other, near)
    return Results(
        np.concatenate([results.stay, results.stay[again]]),
        np.concatenate([results.lab, results.lab[again]]),
        np.concatenate([results.offset, offset]),
        np.concatenate([results.revised, revised]),
        np.concatenate([results.value, value]),
        np.concatenate([results.steady, results.steady[again]]),
    )


def aps_table(rng: np.random.Generator, stays: Stays, first_id: int) -> pl.DataFrame:
    """Rows of apacheApsVar.csv: the worst values of the first day, -1 = missing."""
    present = stays.latents.present["aps"]
    count = len(present)
    columns: Columns = _scores(rng, count)
    for position, item in enumerate(APS):
        level = _level(rng, stays, "aps", item) + 0.15 * rng.standard_normal(count)
        value = _on_scale(APS, np.full(count, position), level)
        value = np.clip(value, 21, 100) if item.name == "fio2" else value
        columns[item.name] = np.where(rng.random(count) < item.missing, -1, value)
    identifiers = {"apacheapsvarid": first_id + rng.permutation(count), "patientunitstayid": stays.unit_id}
    frame = pl.DataFrame({**identifiers, **columns}).filter(pl.Series(present)).sort("patientunitstayid")
    return frame.with_columns(pl.col(pl.Float64).cast(pl.String).str.strip_suffix(".0"))


def _scores(rng: np.random.Generator, count: int) -> Columns:
    """The flags and the Glasgow coma scale, which is 0 in the sedated (meds = 1)."""
    ventilated = rng.random(count) < 0.25
    flags = {
        "intubated": (ventilated & (rng.random(count) < 0.5)).astype(np.int64),
        "vent": ventilated.astype(np.int64),
        "dialysis": (rng.random(count) < 0.03).astype(np.int64),
    }
    meds = pick(rng, count, np.array([0.03, 0.955, 0.015])) - 1
    unknown = rng.random(count) < 0.04
    scale = {
        "eyes": np.array([4, 3, 2, 1])[pick(rng, count, np.array([0.75, 0.13, 0.04, 0.08]))],
        "motor": np.array([6, 5, 4, 3, 2, 1])[pick(rng, count, np.array([0.81, 0.07, 0.05, 0.01, 0.01, 0.05]))],
        "verbal": np.array([5, 4, 3, 2, 1])[pick(rng, count, np.array([0.68, 0.13, 0.03, 0.02, 0.14]))],
    }
    coma = {name: np.where(meds == 1, 0, np.where(unknown, -1, value)) for name, value in scale.items()}
    columns: Columns = {name: np.where(rng.random(count) < 0.01, -1, value) for name, value in flags.items()}
    return {**columns, **coma, "meds": meds}
