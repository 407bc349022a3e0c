"""People, hospital stays and unit stays of the synthetic eICU folder, their outcomes and times."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ovo_clinic.synthetic.eicu_signal import Booleans, Floats, Integers, Latents, draw, probability, terms

Texts = NDArray[np.str_]

HOSPITALS = 40
DAY = 1440
ABSENT = {"diagnosis": 0.04, "treatment": 0.05, "medication": 0.04, "lab": 0.08, "aps": 0.15}
"""Share of stays without a modality, beyond the hospitals that do not record it."""


@dataclass(frozen=True)
class Stays:
    """S unit stays in the order person, hospital stay, time; arrays are (S,) unless said otherwise.

    Attributes:
        nest: which hospital stay and person each belongs to.
        outcome, times: statuses and offsets.
        age: (people,) as it stands in the file.
        hospital: 0 ... HOSPITALS - 1.
        unit_id: patientunitstayid, whose order carries no meaning.
        interfaced: by diagnosis, treatment, medication and lab: the hospital records them at all.
        latents: what drives the records.
        summands: of the logit of death in the stay's hospital stay, by modality.
        probability: that logit's probability, which the label was drawn from.
        eligible: the stay belongs to the cohort of `eicu_mortality_24h`.
    """

    nest: "Nest"
    outcome: "Outcome"
    times: "Times"
    age: Texts
    hospital: Integers
    unit_id: Integers
    interfaced: dict[str, Booleans]
    latents: Latents
    summands: dict[str, Floats]
    probability: Floats
    eligible: Booleans

    @property
    def length(self) -> Integers:
        """(S,) unitdischargeoffset in minutes."""
        return self.times.length

    @property
    def positive(self) -> Booleans:
        """(S,) the label is Expired."""
        expired: Booleans = self.outcome.hospital_status == "Expired"
        return expired[self.nest.visit]


def draw_stays(rng: np.random.Generator, people: int, start: int) -> Stays:
    """The stays of so many people.

    Args:
        rng: source of randomness.
        people: how many.
        start: number of people drawn before, so that identifiers differ.
    """
    nest = Nest.draw(rng, people)
    person = nest.person[nest.visit]
    hospital = pick(rng, people, 1 / np.arange(3, HOSPITALS + 3))[person]
    ages, known_age = _ages(rng, people)
    interfaced = _interfaced(hospital)
    present = {name: rng.random(nest.stays) >= share for name, share in ABSENT.items()}
    present = {name: chosen & interfaced.get(name, True) for name, chosen in present.items()}
    latents = draw(rng, np.where(known_age, (np.minimum(ages, 90) - 63) / 17, 0)[person], present)

    summands = {name: term[nest.first][nest.visit] for name, term in terms(latents).items()}
    chance = probability(summands)
    outcome = Outcome.draw(rng, nest, chance[nest.first])
    times = Times.draw(rng, nest, outcome)
    hospital_status = outcome.hospital_status[nest.visit]
    contradiction = (outcome.unit_status == "Expired") & (hospital_status == "Alive")
    adult = (known_age & (ages >= 18))[person]
    return Stays(
        nest=nest,
        outcome=outcome,
        times=times,
        age=np.where(known_age, np.where(ages > 89, "> 89", ages.astype(str)), ""),
        hospital=hospital,
        # 70: above 7 times the most stays that one person may have, so that no two calls give one identifier.
        unit_id=140_000 + 70 * start + 7 * rng.permutation(nest.stays) + rng.integers(0, 7, nest.stays),
        interfaced=interfaced,
        latents=latents,
        summands=summands,
        probability=chance,
        eligible=(nest.position == 0) & adult & (times.length >= DAY) & (hospital_status != "") & ~contradiction,
    )


def _interfaced(hospital: Integers) -> dict[str, Booleans]:
    everywhere = np.ones(len(hospital), np.bool_)
    return {
        "diagnosis": everywhere,
        "treatment": hospital % 7 != 5,
        "medication": hospital % 4 != 3,
        "lab": everywhere,
    }


@dataclass(frozen=True)
class Nest:
    """Which unit stay (S,) belongs to which hospital stay (V,) of which person.

    Attributes:
        person: (V,) person of a hospital stay.
        visit: (S,) hospital stay of a unit stay.
        first: (V,) row of the first unit stay.
        position: (S,) 0 for the first unit stay of its hospital stay.
        last: (S,) bool.
    """

    person: Integers
    visit: Integers
    first: Integers
    position: Integers
    last: Booleans

    @property
    def stays(self) -> int:
        """S, the number of unit stays."""
        return len(self.visit)

    @classmethod
    def draw(cls, rng: np.random.Generator, people: int) -> "Nest":
        """One to three hospital stays a person, one to three unit stays each."""
        visits = 1 + (rng.random(people) < 0.1) + (rng.random(people) < 0.02)
        person = np.repeat(np.arange(people), visits)
        units = 1 + (rng.random(len(person)) < 0.16) + (rng.random(len(person)) < 0.05)
        visit = np.repeat(np.arange(len(person)), units)
        first = np.cumsum(units) - units
        position = np.arange(len(visit)) - first[visit]
        return cls(person, visit, first, position, position == units[visit] - 1)


@dataclass(frozen=True)
class Outcome:
    """Statuses: of hospital stays (V,) and unit stays (S,), `Alive`, `Expired` or blank."""

    hospital_status: Texts
    unit_status: Texts

    @classmethod
    def draw(cls, rng: np.random.Generator, nest: Nest, chance: Floats) -> "Outcome":
        """Labels drawn from `chance` (V,), and what follows from them."""
        visits = len(chance)
        dead = rng.random(visits) < chance
        # One person dies once: the other of two deaths loses its status, as do 1 % of all hospital stays.
        deaths = np.bincount(nest.person, dead)
        latest = np.full(len(deaths), -1)
        latest[nest.person[dead]] = np.flatnonzero(dead)
        second = dead & (deaths[nest.person] > 1) & (latest[nest.person] != np.arange(visits))
        unknown = second | (rng.random(visits) < 0.01)
        hospital = np.where(unknown, "", np.where(dead, "Expired", "Alive"))

        in_unit = (rng.random(visits) < 0.6) & (hospital == "Expired")
        contradiction = (rng.random(visits) < 0.004) & (hospital == "Alive")
        unit = np.where((in_unit | contradiction)[nest.visit] & nest.last, "Expired", "Alive")
        unit[(rng.random(nest.stays) < 0.002) & (unit == "Alive")] = ""
        return cls(hospital, unit)


@dataclass(frozen=True)
class Times:
    """Minutes from unit admission, (S,): unit discharge, hospital admission and discharge."""

    length: Integers
    admitted: Integers
    left: Integers

    @classmethod
    def draw(cls, rng: np.random.Generator, nest: Nest, outcome: Outcome) -> "Times":
        """Lengths of stays and of what lies before, between and after them."""
        stays = nest.stays
        dead = (outcome.hospital_status == "Expired")[nest.visit]
        # Whether a stay reaches 24 h is drawn apart from the label, or the cohort would be selected by it; how long it
        # goes on after that is not.
        beyond = np.floor(rng.lognormal(6.9, 1.1, stays) * np.where(dead, 1.6, 1)).astype(np.int64)
        short = rng.integers(0, DAY, stays)
        boundary = rng.random(stays)
        length = np.where(rng.random(stays) < 0.16, short, DAY + np.minimum(beyond, 60_000))
        length = np.where(boundary < 0.004, DAY, np.where(boundary < 0.008, DAY - 1, length))

        gap = np.where(rng.random(stays) < 0.5, rng.integers(1, 10, stays), rng.integers(60, 4000, stays))
        elapsed = np.cumsum(length + gap) - (length + gap)
        elapsed = elapsed - elapsed[nest.first][nest.visit]
        before = -np.floor(rng.lognormal(5, 1.8, len(nest.first))).astype(np.int64)
        odd = rng.random(len(before))
        before = np.where(odd < 0.04, 0, np.where(odd < 0.05, rng.integers(1, 60, len(before)), before))
        admitted = np.maximum(before, -80_000)[nest.visit] - elapsed

        after = np.floor(rng.lognormal(7.5, 1, stays)).astype(np.int64)
        after = np.where(outcome.unit_status == "Expired", rng.integers(0, 15, stays), after)
        end = (elapsed + length + after)[nest.last]
        left = end[nest.visit] - elapsed
        # A few rows say that the person left the hospital before leaving the unit.
        left = np.where(rng.random(stays) < 0.004, np.minimum(left, rng.integers(900, DAY, stays)), left)
        return cls(length, admitted, left)


def _ages(rng: np.random.Generator, people: int) -> tuple[Integers, Booleans]:
    ages = np.clip(np.round(rng.normal(63, 17, people)), 18, 99).astype(np.int64)
    ages = np.where(rng.random(people) < 0.008, rng.integers(0, 18, people), ages)
    return ages, rng.random(people) >= 0.006


def pick(rng: np.random.Generator, count: int, weights: Floats) -> Integers:
    """(count,) positions in `weights`, drawn with those weights."""
    return rng.choice(len(weights), count, p=weights / weights.sum())
