"""The first 97 columns of the synthetic TADPOLE file: the study's merged table, with its copies of the first visit."""

from collections.abc import Mapping

import numpy as np
import polars as pl

from ovo_clinic.synthetic.tadpole_cells import choose, dates, draw_text, numbers, spoiled, where
from ovo_clinic.synthetic.tadpole_people import PHASES, People, Visits
from ovo_clinic.synthetic.tadpole_signal import Booleans, Floats, Integers, Latents

ECOG = tuple(
    f"Ecog{who}{part}"
    for who in ("Pt", "SP")
    for part in ("Mem", "Lang", "Visspat", "Plan", "Organ", "Divatt", "Total")
)
VOLUMES = ("Ventricles", "Hippocampus", "WholeBrain", "Entorhinal", "Fusiform", "MidTemp", "ICV")
TESTS = (
    "CDRSB ADAS11 ADAS13 MMSE RAVLT_immediate RAVLT_learning RAVLT_forgetting RAVLT_perc_forgetting FAQ MOCA".split()
)
COPIED = ("EXAMDATE", *TESTS[:9], "FLDSTRENG", "FSVERSION", *VOLUMES, "MOCA", *ECOG, "FDG", "PIB", "AV45")
HEADER = (
    *"RID PTID VISCODE SITE D1 D2 COLPROT ORIGPROT EXAMDATE DX_bl DXCHANGE AGE PTGENDER PTEDUCAT PTETHCAT".split(),
    *"PTRACCAT PTMARRY APOE4 FDG PIB AV45".split(),
    *TESTS,
    *ECOG,
    *("FLDSTRENG", "FSVERSION", *VOLUMES, "DX"),
    *(f"{name}_bl" for name in COPIED),
    *("Years_bl", "Month_bl", "Month", "M", "update_stamp"),
)

# value = centre + per unit of the driver, within the bounds, to the number of decimals.
SCALES: Mapping[str, tuple[float, float, float, float, int]] = {
    "CDRSB": (1.8, 1.7, 0, 18, 1),
    "MMSE": (27, -1.7, 0, 30, 0),
    "FAQ": (5, 4, 0, 30, 0),
    "MOCA": (22, -2.5, 0, 30, 0),
    "ADAS11": (11, 4, 0, 70, 2),
    "ADAS13": (17, 6, 0, 85, 2),
    "RAVLT_immediate": (34, -9, 0, 75, 0),
    "RAVLT_learning": (4, -1.8, -2, 14, 0),
    "RAVLT_forgetting": (4.4, 1.2, -3, 15, 0),
    "RAVLT_perc_forgetting": (58, 20, -50, 100, 3),
    "Ventricles": (42_000, 12_000, 5_000, 150_000, 0),
    "Hippocampus": (6_700, -750, 2_500, 11_000, 0),
    "WholeBrain": (1_020_000, -60_000, 650_000, 1_500_000, 0),
    "Entorhinal": (3_450, -420, 1_000, 6_500, 0),
    "Fusiform": (17_200, -1_500, 8_000, 30_000, 0),
    "MidTemp": (19_300, -1_700, 8_000, 32_000, 0),
    "FDG": (6.0, -0.5, 3, 8.7, 5),
    "AV45": (1.2, 0.12, 0.8, 2.6, 5),
}
CRITERIA = ("CDRSB", "MMSE", "FAQ", "MOCA")
NOISE = 0.35
"""Standard deviation of a value about its driver, in the driver's unit."""
BASELINE_GROUPS = (("CN", "SMC"), ("EMCI", "LMCI"), ("AD", "AD"))
CURRENT = ("NL", "MCI", "Dementia")
CHANGES = np.array([[1, 4, 6], [7, 2, 5], [9, 8, 3]])
"""DXCHANGE by the stage before and the stage now."""
GENDERS = {"Male": 0.54, "Female": 0.46}
ETHNICITIES = {"Not Hisp/Latino": 0.96, "Hisp/Latino": 0.03, "Unknown": 0.01}
RACES = {
    "White": 0.92,
    "Black": 0.04,
    "Asian": 0.02,
    "More than one": 0.01,
    "Am Indian/Alaskan": 0.004,
    "Hawaiian/Other PI": 0.003,
    "Unknown": 0.003,
}
MARRIAGES = {"Married": 0.75, "Widowed": 0.12, "Divorced": 0.09, "Never married": 0.035, "Unknown": 0.005}


def merged_table(rng: np.random.Generator, people: People, visits: Visits, latents: Latents) -> pl.DataFrame:
    """The 97 columns, every cell as text, in the order of the visits."""
    columns = _person(rng, people, visits) | _visit(visits) | _diagnosis(rng, people, visits)
    for name, (text, has) in _measurements(rng, people, visits, latents).items():
        columns[name] = spoiled(rng, where(has, text, ""), has)
    first = np.searchsorted(visits.person, visits.person, side="left")
    columns |= {f"{name}_bl": columns[name].gather(first) for name in COPIED}
    return pl.DataFrame({name: columns[name] for name in HEADER})


def _person(rng: np.random.Generator, people: People, visits: Visits) -> dict[str, pl.Series]:
    """What is constant over a person's visits."""
    count = len(people)
    baseline = people.traits.baseline
    second = (rng.random(count) < np.where(people.phase > 0, 0.55, 0.0)) ^ (baseline == 1) & (people.phase == 0)
    groups = [name for pair in BASELINE_GROUPS for name in pair]
    several = np.bincount(visits.person, minlength=count) > 1
    age = np.clip(73 + 7 * people.traits.age, 45, 99)
    apoe4 = numbers(people.traits.apoe4 + 0.0, 1)
    columns = {
        "RID": numbers(people.rid),
        "PTID": pl.Series(f"{site:03d}_S_{rid:04d}" for site, rid in zip(people.site, people.rid, strict=True)),
        "SITE": numbers(people.site),
        "D1": numbers(several),
        "D2": numbers(rolled_over(people, visits)),
        "ORIGPROT": choose(PHASES, people.phase),
        "DX_bl": choose(groups, 2 * baseline + second),
        "AGE": numbers(age, 1),
        "PTGENDER": draw_text(rng, GENDERS, count),
        "PTEDUCAT": numbers(np.clip(rng.normal(16, 2.8, count), 4, 20)),
        "PTETHCAT": draw_text(rng, ETHNICITIES, count),
        "PTRACCAT": draw_text(rng, RACES, count),
        "PTMARRY": draw_text(rng, MARRIAGES, count),
        "APOE4": where(rng.random(count) > 0.01, apoe4, ""),
    }
    return {name: values.gather(visits.person) for name, values in columns.items()}


def rolled_over(people: People, visits: Visits) -> Booleans:
    """(P,) whether a person belongs to D2."""
    seen = np.bincount(visits.person, weights=visits.phase == 2, minlength=len(people)) > 0
    return people.rollover & seen


def _visit(visits: Visits) -> dict[str, pl.Series]:
    """Codes and times of the visits."""
    first = np.searchsorted(visits.person, visits.person, side="left")
    days = (visits.date - visits.date[first]).astype(np.int64)
    return {
        "VISCODE": pl.Series("bl" if month == 0 else f"m{month:02d}" for month in visits.month),
        "COLPROT": choose(PHASES, visits.phase),
        "EXAMDATE": dates(visits.date),
        "Years_bl": numbers(days / 365.25, 6),
        "Month_bl": numbers(days / 30.5, 4),
        "Month": numbers(visits.month),
        "M": numbers(visits.month),
        "update_stamp": pl.Series(["2017-04-20 23:00:00.0"]).new_from_index(0, len(visits)),
    }


def _diagnosis(rng: np.random.Generator, people: People, visits: Visits) -> dict[str, pl.Series]:
    """DXCHANGE and DX: both from the stage, each missing now and then, a few in disagreement."""
    before = _last_known_stage(visits)
    change = CHANGES[before, visits.stage]
    texts = [now if old == now else f"{old} to {now}" for old in CURRENT for now in CURRENT]
    text = choose(texts, 3 * before + visits.stage)
    alone = rng.random(len(visits))
    in_change, in_text = visits.known & (alone > 0.01), visits.known & (alone < 0.985)
    minus = ~in_change & (rng.random(len(visits)) < 0.3)
    other = in_change & in_text & (rng.random(len(visits)) < 0.001)
    text = text.zip_with(pl.Series(~other), choose(CURRENT, (visits.stage + 1) % 3))
    return {
        "DXCHANGE": where(~minus, numbers(change + 0.0, 1, in_change), "-1.0"),
        "DX": where(in_text, text, ""),
    }


def _last_known_stage(visits: Visits) -> Integers:
    """(R,) the stage at a person's last earlier visit at which it was known; at the first visit, the stage itself."""
    rows = np.arange(len(visits))
    known = np.maximum.accumulate(np.where(visits.known, rows, 0))
    return visits.stage[np.where(visits.month == 0, rows, known[rows - 1])]


def _measurements(
    rng: np.random.Generator, people: People, visits: Visits, latents: Latents
) -> dict[str, tuple[pl.Series, Booleans]]:
    """Measured columns: text, and which visits have it."""
    found: dict[str, tuple[pl.Series, Booleans]] = {}
    cognitive, mri, later = visits.present["cognitive_tests"], visits.present["mri"], visits.phase > 0
    for name in (*TESTS, *VOLUMES[:6]):
        modality = "cognitive_tests" if name in TESTS else "mri"
        driver = latents.criteria if name in CRITERIA else latents.severity[modality]
        has = visits.present[modality] & (later if name == "MOCA" else True)
        found[name] = (_scaled(rng, name, driver), has)
    found["FDG"] = (_scaled(rng, "FDG", latents.severity["fdg_pet"]), visits.present["fdg_pet"])
    found["AV45"] = (_scaled(rng, "AV45", latents.severity["av45_pet"]), visits.present["av45_pet"])
    own = rng.normal(1_530_000, 150_000, len(people))[visits.person]
    found["ICV"] = (numbers(own + rng.normal(0, 5_000, len(visits))), mri)
    for name in ECOG:
        value = np.clip(1.7 + 0.3 * latents.criteria + rng.normal(0, 0.3, len(visits)), 1, 4)
        found[name] = (numbers(value, 5), cognitive & later)
    pib = (visits.phase == 0) & visits.present["fdg_pet"] & (rng.random(len(visits)) < 0.1)
    found["PIB"] = (numbers(rng.normal(1.7, 0.3, len(visits)), 4), pib)
    found["FLDSTRENG"] = (choose(("1.5 Tesla MRI", "3 Tesla MRI"), later.astype(np.int64)), mri)
    versions = ("Cross-Sectional FreeSurfer (FreeSurfer Version 4.3)", "Cross-Sectional FreeSurfer (5.1)")
    found["FSVERSION"] = (choose(versions, later.astype(np.int64)), mri)
    return found


def _scaled(rng: np.random.Generator, name: str, driver: Floats) -> pl.Series:
    centre, unit, low, high, decimals = SCALES[name]
    value = np.clip(centre + unit * (driver + rng.normal(0, NOISE, driver.size)), low, high)
    return numbers(np.round(2 * value) / 2 if name == "CDRSB" else value, decimals)
