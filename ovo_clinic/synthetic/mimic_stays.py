"""People, admissions and ICU stays of the synthetic MIMIC folders: identifiers, times, outcomes.

Identifiers have eight digits, as the real ones, but begin with digits that no real one begins with: people with 9,
admissions with 8, ICU stays with 7, imaging studies with 6.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import polars as pl

from ovo_clinic.synthetic.mimic_signal import Booleans, Floats, Integers, Latents, Rows, draw, probabilities, terms

Version = Literal["1.0", "2.2", "3.1"]

MOST_PATIENTS = 1_000_000
MINUTE, HOUR, DAY = 60, 3600, 86_400
NEVER = np.iinfo(np.int64).min
"""The time of what did not happen: NaT, in numpy's words."""


@dataclass(frozen=True)
class People(Rows):
    """P people; each attribute (P,).

    Attributes:
        subject_id: ascending.
        female: a fair coin.
        anchor_age: 91 for all ages above 89.
        anchor_year: shifted.
        group: index of anchor_year_group, 0 = 2008 - 2010.
    """

    subject_id: Integers
    female: Booleans
    anchor_age: Integers
    anchor_year: Integers
    group: Integers

    @classmethod
    def draw(cls, rng: np.random.Generator, first: int, count: int, patients: int, version: Version) -> Self:
        """People number `first` to `first + count` of `patients`."""
        space = 9_900_000 // patients
        age = np.clip(np.rint(rng.normal(62, 17, count)), 18, 99).astype(np.int64)
        if version == "1.0":  # newborns and minors were taken out of 2.0
            age = np.where(rng.random(count) < 0.02, rng.choice([0, 0, 0, 16, 17], count), age)
        shares = {"1.0": [3, 3, 3, 2], "2.2": [3, 3, 3, 2], "3.1": [3, 3, 3, 2, 3]}[version]
        return cls(
            subject_id=90_000_000 + (first + np.arange(count)) * space + rng.integers(0, space, count),
            female=rng.random(count) < 0.5,
            anchor_age=np.where(age > 89, 91, age),
            anchor_year=rng.integers(2110, 2195, count),
            group=rng.choice(len(shares), count, p=np.array(shares) / sum(shares)),
        )


@dataclass(frozen=True)
class Admissions(Rows):
    """V admissions, by person and time; each attribute (V,) unless said otherwise.

    Attributes:
        hadm_id: its order means nothing.
        person: position in People.
        admitted: seconds since 1970.
        age: as the files tell it, anchor_age + years since anchor_year, at most 91.
        emergency: came through the emergency department.
        icd10: coded in ICD-10, not ICD-9.
        coded: has rows in diagnoses_icd.
        died: in hospital.
        labels: (V,26) bool in the order of TARGETS, death last.
        probability: (V,26) that the labels were drawn from.
        latents: what drives the records.
    """

    hadm_id: Integers
    person: Integers
    admitted: Integers
    age: Integers
    emergency: Booleans
    icd10: Booleans
    coded: Booleans
    died: Booleans
    labels: Booleans
    probability: Floats
    latents: Latents

    @classmethod
    def draw(cls, rng: np.random.Generator, people: People, first_id: int) -> Self:
        """One to three admissions a person, none after a death."""
        visits = 1 + (rng.random(len(people.female)) < 0.2) + (rng.random(len(people.female)) < 0.06)
        person = np.repeat(np.arange(len(visits)), visits)
        count = len(person)
        order = np.arange(count) - np.repeat(np.cumsum(visits) - visits, visits)
        year = people.anchor_year[person] + order
        start = (year - 1970).astype("datetime64[Y]").astype("datetime64[s]").astype(np.int64)
        age = np.minimum(people.anchor_age[person] + order, 91)
        latents = draw(rng, (age - 63) / 17, people.female[person])
        probability = probabilities(terms(latents))
        labels = rng.random(probability.shape) < probability
        died = labels[:, -1]
        deaths: Integers = np.cumsum(died) - died
        before: Integers = deaths - deaths[np.flatnonzero(order == 0)][person]
        chance = np.array([0.0, 0.0, 0.3, 1.0, 1.0])[people.group[person]]
        drawn = cls(
            hadm_id=first_id + rng.permutation(count),
            person=person,
            admitted=start + rng.integers(0, 270 * DAY // MINUTE, count) * MINUTE,
            age=age,
            emergency=rng.random(count) < 0.6,
            icd10=rng.random(count) < chance,
            coded=rng.random(count) >= 0.015,
            died=died,
            labels=labels,
            probability=probability,
            latents=latents,
        )
        return drawn.rows(before == 0)


@dataclass(frozen=True)
class Stays(Rows):
    """S ICU stays, by admission and time; each attribute (S,) unless said otherwise.

    Attributes:
        stay_id: its order means nothing.
        visit: position in Admissions.
        start, end: intime and outtime, seconds since 1970.
        transferred: the unit changed within the stay.
        open: outtime and los are not recorded.
        imaged, reported: have AP images and radiology reports inside the stay.
        latents: of the admission.
    """

    stay_id: Integers
    visit: Integers
    start: Integers
    end: Integers
    transferred: Booleans
    open: Booleans
    imaged: Booleans
    reported: Booleans
    latents: Latents

    def __len__(self) -> int:
        return len(self.visit)

    @property
    def hours(self) -> Floats:
        """(S,) length."""
        return (self.end - self.start) / HOUR

    @classmethod
    def draw(cls, rng: np.random.Generator, people: People, admissions: Admissions, first_id: int) -> Self:
        """No stay for some admissions, one for most, two or three for a few."""
        visits = len(admissions.died)
        units = np.where(rng.random(visits) < 0.12, 0, 1 + (rng.random(visits) < 0.06) + (rng.random(visits) < 0.01))
        visit = np.repeat(np.arange(visits), units)
        count = len(visit)
        # Whether a stay reaches 48 h is drawn apart from the labels, or a cohort would be selected by them.
        length = np.clip(HOUR * rng.lognormal(np.log(50), 0.85, count), 1.2 * HOUR, 30 * DAY).astype(np.int64)
        wait = np.where(rng.random(count) < 0.5, rng.integers(60, 7200, count), rng.integers(HOUR, 3 * DAY, count))
        elapsed = np.cumsum(wait + length)
        first = np.cumsum(units) - units
        before = np.concatenate([[0], elapsed])[first][visit]
        end = admissions.admitted[visit] + elapsed - before
        # Chest X-rays exist for people who came in 2011 to 2016, and for few others here.
        photographed = np.isin(people.group[admissions.person[visit]], (1, 2))
        return cls(
            stay_id=first_id + rng.permutation(count),
            visit=visit,
            start=end - length,
            end=end,
            transferred=rng.random(count) < 0.08,
            open=rng.random(count) < 0.004,
            imaged=rng.random(count) < np.where(photographed, 0.9, 0.35),
            reported=rng.random(count) < 0.85,
            latents=admissions.latents.rows(visit),
        )


@dataclass(frozen=True)
class Ends:
    """Discharge and death of V admissions, seconds since 1970; each (V,), `death` NEVER for those who left alive."""

    discharge: Integers
    death: Integers

    @classmethod
    def draw(cls, rng: np.random.Generator, admissions: Admissions, stays: Stays) -> Self:
        """After the last ICU stay; most deaths come within it."""
        visits = len(admissions.died)
        last = admissions.admitted + rng.integers(DAY, 6 * DAY, visits)
        last[stays.visit] = stays.end  # stays are in the order of time, so that the last one is kept
        has_stay = np.zeros(visits, np.bool_)
        has_stay[stays.visit] = True
        later = np.floor(rng.lognormal(np.log(3.0), 0.8, visits) * DAY).astype(np.int64) // MINUTE * MINUTE
        in_unit = admissions.died & has_stay & (rng.random(visits) < 0.65)
        death = last - last % MINUTE + np.where(in_unit, 0, later)
        discharge = np.where(admissions.died, death + rng.integers(0, 90, visits) * MINUTE, death)
        return cls(discharge=discharge, death=np.where(admissions.died, death, NEVER))


@dataclass(frozen=True)
class Chunk:
    """Everything about some people but their records.

    Attributes:
        version: of MIMIC-IV.
        people, admissions, stays, ends: see there.
        labs: rows of labevents written before.
    """

    version: Version
    people: People
    admissions: Admissions
    stays: Stays
    ends: Ends
    labs: int

    @classmethod
    def draw(
        cls,
        rng: np.random.Generator,
        span: range,
        patients: int,
        version: Version,
        labs: int,
    ) -> Self:
        """The people of `span` among so many patients."""
        people = People.draw(rng, span.start, len(span), patients, version)
        admissions = Admissions.draw(rng, people, 80_000_000 + 3 * span.start)
        stays = Stays.draw(rng, people, admissions, 70_000_000 + 9 * span.start)
        return cls(version, people, admissions, stays, Ends.draw(rng, admissions, stays), labs)

    def keys(self, stay: Integers) -> dict[str, Integers]:
        """subject_id, hadm_id and stay_id of rows that belong to these stays."""
        visit = self.stays.visit[stay]
        return {
            "subject_id": self.people.subject_id[self.admissions.person[visit]],
            "hadm_id": self.admissions.hadm_id[visit],
            "stay_id": self.stays.stay_id[stay],
        }


def moments(seconds: Integers) -> pl.Series:
    """Times since 1970 for a table; NEVER is an empty cell."""
    return pl.Series(seconds.astype("datetime64[s]").astype("datetime64[us]"))


def choose(rng: np.random.Generator, shares: Mapping[Any, float], count: int) -> pl.Series:
    """(count,) values drawn with their shares; `None` stands for an empty cell."""
    weights = np.array(list(shares.values()))
    return gather(list(shares), rng.choice(len(weights), count, p=weights / weights.sum()))


def gather(values: list[Any], index: Integers) -> pl.Series:
    """values[index] as a column."""
    return pl.Series(values).gather(pl.Series(index))
