"""Invented people of the synthetic TADPOLE file: who they are, when they come, what is measured, how they decline."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovo_clinic.synthetic.tadpole_signal import Booleans, Integers, Traits, draw_traits

Dates = NDArray[np.datetime64]

VISITS_PER_PERSON = 12_741 / 1_737
SCHEDULE = np.array([0, 3, *range(6, 127, 6)])
"""Months from baseline; those of TELEPHONE are interviews without any examination."""
TELEPHONE = (30, 42, 54, 66, 78, 90, 102, 114, 126)
MOST_VISITS = 18
PHASES = ("ADNI1", "ADNIGO", "ADNI2")
BEGINS = np.array(["2005-09-01", "2010-01-01", "2011-07-01"], dtype="datetime64[D]")
ENDS = np.array(["2007-10-01", "2011-06-01", "2014-06-01"], dtype="datetime64[D]")
FIRST_RID = 8_000
"""Beyond the numbers of the real study's first three phases."""
BASELINE_SHARES = (0.3, 0.5, 0.2)
YEARLY = np.array([[0.955, 0.045, 0.0], [0.03, 0.83, 0.14], [0.0, 0.012, 0.988]])
"""Probability of a stage a year after another one."""


@dataclass(frozen=True)
class People:
    """P people.

    Attributes:
        rid: (P,) ascending.
        site: (P,).
        phase: (P,) position in PHASES of the phase they entered.
        entered: (P,) date of the first visit.
        traits: see there.
        rollover: (P,) bool, whether they belong to D2 if they are seen in ADNI2.
        consents: by `fdg_pet` and `csf`, (P,) bool: whether they ever have it.
    """

    rid: Integers
    site: Integers
    phase: Integers
    entered: Dates
    traits: Traits
    rollover: Booleans
    consents: Mapping[str, Booleans]

    def __len__(self) -> int:
        return len(self.rid)


@dataclass(frozen=True)
class Visits:
    """R visits, by person and then in time.

    Attributes:
        person: (R,) position among the people.
        month: (R,) of the schedule.
        date: (R,).
        phase: (R,) position in PHASES of the protocol in force.
        stage: (R,) 0 CN, 1 MCI, 2 AD.
        known: (R,) bool, whether the stage is recorded, in DXCHANGE or in DX.
        present: by modality, (R,) bool: whether anything was measured.
    """

    person: Integers
    month: Integers
    date: Dates
    phase: Integers
    stage: Integers
    known: Booleans
    present: Mapping[str, Booleans]

    def __len__(self) -> int:
        return len(self.person)


def draw_people(rng: np.random.Generator, patients: int) -> People:
    """People with ages, alleles, phases and sites."""
    phase = rng.choice(3, patients, p=[0.42, 0.08, 0.5])
    days = (ENDS - BEGINS).astype(np.int64)[phase]
    return People(
        rid=FIRST_RID + np.sort(rng.choice(max(2_000, patients + patients // 4), patients, replace=False)),
        site=900 + rng.integers(0, 58, patients),
        phase=phase,
        entered=BEGINS[phase] + (rng.random(patients) * days).astype(np.int64),
        traits=draw_traits(rng, rng.choice(3, patients, p=BASELINE_SHARES)),
        rollover=rng.random(patients) < 0.93,
        consents={
            "fdg_pet": rng.random(patients) < np.where(phase == 0, 0.6, 0.96),
            "csf": rng.random(patients) < np.where(phase == 0, 0.6, 0.82),
        },
    )


def draw_visits(rng: np.random.Generator, people: People) -> Visits:
    """Visits of everybody; the first one is the baseline."""
    counts = _visits_per_person(rng, len(people))
    person = np.repeat(np.arange(len(people)), counts)
    month = np.concatenate([_months(rng, int(count)) for count in counts])
    date = people.entered[person] + np.round(month * 30.44 + rng.integers(-9, 10, person.size) * (month > 0)).astype(
        np.int64
    )
    again = np.flatnonzero((month[1:] > 0) & (rng.random(person.size - 1) < 0.001)) + 1
    date[again] = date[again - 1]  # two visits on one day
    phase = np.maximum(people.phase[person], np.searchsorted(BEGINS, date, side="right") - 1)
    stage = _stages(rng, people.traits.baseline, counts, month)
    known = rng.random(person.size) > np.where(np.isin(month, TELEPHONE), 0.6, 0.06)
    present = _presence(rng, people, person, month, phase)
    return Visits(person, month, date, phase, stage, known | (month == 0), present)


def _visits_per_person(rng: np.random.Generator, patients: int) -> Integers:
    """(P,) of a mean as in the real file, to the row."""
    counts = np.clip(np.round(rng.gamma(4, VISITS_PER_PERSON / 4, patients)), 1, MOST_VISITS).astype(np.int64)
    while difference := round(patients * VISITS_PER_PERSON) - int(counts.sum()):
        step = int(np.sign(difference))
        able = np.flatnonzero(counts < MOST_VISITS if step > 0 else counts > 1)
        counts[rng.permutation(able)[: abs(difference)]] += step
    return counts


def _months(rng: np.random.Generator, count: int) -> Integers:
    """The baseline and count - 1 later months, a few of the schedule left out in between."""
    later = SCHEDULE[1 : min(count + 3, SCHEDULE.size)]
    return np.concatenate([[0], np.sort(rng.choice(later, count - 1, replace=False))])


def _stages(rng: np.random.Generator, baseline: Integers, counts: Integers, month: Integers) -> Integers:
    """(R,) a chain over half-years: each stage depends on the one at the visit before."""
    half_year = _square_root(YEARLY)
    ends = np.cumsum(counts)
    stage = np.empty(month.size, dtype=np.int64)
    for first, end, start in zip(ends - counts, ends, baseline, strict=True):
        stage[first] = start
        for row in range(first + 1, end):
            halves = round((month[row] - month[row - 1]) / 6)
            chances = np.linalg.matrix_power(half_year, halves)[stage[row - 1]]
            stage[row] = np.searchsorted(chances.cumsum()[:2], rng.random())
    return stage


def _square_root(chain: Any) -> Any:
    """Half a step of a Markov chain; tiny negative entries of the root are removed."""
    values, vectors = np.linalg.eig(chain)
    root = np.clip((vectors @ np.diag(np.sqrt(values)) @ np.linalg.inv(vectors)).real, 0, None)
    return root / root.sum(axis=1, keepdims=True)


def _presence(
    rng: np.random.Generator, people: People, person: Integers, month: Integers, phase: Integers
) -> dict[str, Booleans]:
    """What is measured at each visit: scans and the lumbar puncture fall on the same visits, or out together."""
    clinic = ~np.isin(month, TELEPHONE)
    session = clinic & (rng.random(person.size) < 0.9)
    every_second_year = month % 24 == 0
    early = (phase == 0) & np.isin(month, (6, 12, 18, 36))

    def drawn(share: float) -> Booleans:
        return rng.random(person.size) < share

    return {
        "mri": session & drawn(0.92),
        "fdg_pet": session & people.consents["fdg_pet"][person] & (every_second_year | early) & drawn(0.93),
        "av45_pet": session & (phase > 0) & every_second_year & drawn(0.95),
        "csf": session & people.consents["csf"][person] & every_second_year & drawn(0.88),
        "cognitive_tests": (clinic & drawn(0.97)) | drawn(0.1),
        "clinical": np.ones(person.size, dtype=bool),
    }
