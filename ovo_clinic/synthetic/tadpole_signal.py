"""The planted signal of the synthetic TADPOLE file: what is drawn given the diagnosis, and how the oracle reads it.

A visit's stage c (0 CN, 1 MCI, 2 AD) is drawn first, then everything that it moves, independently given c:

    severity of a modality  ~ N(SHIFT * (c - 1), 1), part of it a person's own over all visits
    criteria                ~ N(CRITERIA * (c - 1), 1): CDRSB, MMSE, FAQ, MOCA, from which a diagnosis is made
    clinical                AGE ~ N(73 + 7 * SHIFT * (g - 1), 7) and APOE4 ~ ALLELES[g], g = the stage at baseline
    combination             a uniform on the circle, b = 2 pi c / 3 + von Mises(0, CONCENTRATION) - a

a drives regional MRI columns (some by cos a, some by sin a), b regional AV45 columns. Given c, each of a and b alone is
uniform: neither modality alone says anything through its angle, only a + b does.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

STAGES = ("CN", "MCI", "AD")
SHIFT: Mapping[str, float] = {
    "mri": 0.55,
    "fdg_pet": 0.45,
    "av45_pet": 0.45,
    "csf": 0.55,
    "cognitive_tests": 0.6,
    "clinical": 0.35,
}
MODALITIES = tuple(SHIFT)
CRITERIA = 2.0
CONCENTRATION = 2.0
ALLELES = np.array([[0.72, 0.25, 0.03], [0.52, 0.38, 0.1], [0.34, 0.47, 0.19]])
"""Share of people with 0, 1, 2 APOE4 alleles, by the stage at baseline."""
OWN = 0.6
"""Share of the variance of a severity, given the stage, that is the person's own."""
COMBINED = ("mri", "av45_pet")


@dataclass(frozen=True)
class Latents:
    """What drives the values of R visits.

    Attributes:
        severity: by modality but for clinical, (R,).
        criteria: (R,).
        angle: of mri and av45_pet, (R,), on the circle.
    """

    severity: Mapping[str, Floats]
    criteria: Floats
    angle: Mapping[str, Floats]

    def of(self, rows: Integers) -> "Latents":
        """The chosen visits."""
        severity = {name: values[rows] for name, values in self.severity.items()}
        return Latents(severity, self.criteria[rows], {name: values[rows] for name, values in self.angle.items()})


@dataclass(frozen=True)
class Traits:
    """What a person keeps over all visits; P people.

    Attributes:
        baseline: (P,) stage at the first visit.
        age: (P,) of zero mean and unit variance given a stage, plus SHIFT.
        apoe4: (P,) number of alleles.
    """

    baseline: Integers
    age: Floats
    apoe4: Integers


def draw_traits(rng: np.random.Generator, baseline: Integers) -> Traits:
    """Age and alleles given the stage at baseline."""
    age = SHIFT["clinical"] * (baseline - 1) + rng.standard_normal(baseline.size)
    cumulative = ALLELES.cumsum(axis=1)[baseline]
    return Traits(baseline, age, (rng.random(baseline.size)[:, None] > cumulative).sum(axis=1).clip(max=2))


def draw_latents(rng: np.random.Generator, stage: Integers, person: Integers) -> Latents:
    """Latents of visits, (R,), given their stages and whose they are."""

    def around(shift: float) -> Floats:
        own = rng.standard_normal(int(person.max()) + 1)[person]
        return shift * (stage - 1) + math.sqrt(OWN) * own + math.sqrt(1 - OWN) * rng.standard_normal(stage.size)

    severity = {name: around(SHIFT[name]) for name in MODALITIES if name != "clinical"}
    criteria = around(CRITERIA)
    first = rng.uniform(0, 2 * np.pi, stage.size)
    second = 2 * np.pi * stage / 3 + rng.vonmises(0, CONCENTRATION, stage.size) - first
    return Latents(severity, criteria, dict(zip(COMBINED, (first, second), strict=True)))


def log_likelihoods(latents: Latents, traits: Traits, person: Integers, stage: Integers) -> dict[str, Floats]:
    """(R,3) by term: the logarithm of the density given each stage, up to a constant of the visit.

    Terms: the modalities, `criteria`, `combination`. Clinical traits depend on the stage at baseline; how often each
    goes with a stage at the visit is counted on the given visits, whose true stages are `stage`.
    """
    found = {name: _normal(values, SHIFT[name]) for name, values in latents.severity.items()}
    joint = np.zeros((3, 3))
    np.add.at(joint, (traits.baseline[person], stage), 1)
    of_baseline = joint / np.maximum(joint.sum(axis=0), 1)  # [g, c] = P(g | c)
    given_baseline = np.exp(_normal(traits.age[person], SHIFT["clinical"])) * ALLELES[:, traits.apoe4[person]].T
    found["clinical"] = np.log(np.maximum(given_baseline @ of_baseline, 1e-300))
    found["criteria"] = _normal(latents.criteria, CRITERIA)
    total = latents.angle["mri"] + latents.angle["av45_pet"]
    found["combination"] = CONCENTRATION * np.cos(total[:, None] - 2 * np.pi * np.arange(3) / 3)
    return found


def posterior(terms: Mapping[str, Floats], stage: Integers) -> Floats:
    """(R,3) probability of each stage given the terms; the prior is the share of each stage among the visits."""
    prior = np.bincount(stage, minlength=3) / stage.size
    logit = np.sum(list(terms.values()), axis=0) + np.log(np.maximum(prior, 1e-300))
    odds = np.exp(logit - logit.max(axis=1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True), dtype=np.float64)


def _normal(values: Floats, shift: float) -> Floats:
    return -0.5 * (values[:, None] - shift * np.arange(-1, 2)) ** 2


def describe() -> dict[str, object]:
    """The signal in words and numbers, for SYNTHETIC.json."""
    return {
        "label": "the stage of the visit, c = 0 CN, 1 MCI, 2 AD, is drawn first, and the values given c",
        "severity": {
            "law": "N(shift * (c - 1), 1), seen in a modality's columns with noise",
            "shift": {name: shift for name, shift in SHIFT.items() if name != "clinical"},
        },
        "clinical": {
            "law": "AGE ~ N(73 + 7 shift (g - 1), 7 years), APOE4 ~ alleles[g], g = stage at baseline",
            "shift": SHIFT["clinical"],
            "alleles": ALLELES.tolist(),
        },
        "criteria": {"law": "N(shift * (c - 1), 1), seen in CDRSB, MMSE, FAQ, MOCA and ECog", "shift": CRITERIA},
        "combination": {
            "law": "a uniform on the circle, b = 2 pi c / 3 + von Mises(0, concentration) - a",
            "concentration": CONCENTRATION,
            "a": "cos a and sin a in regional FreeSurfer columns (UCSFFSL, UCSFFSX)",
            "b": "cos b and sin b in regional AV45 columns",
            "flat": "a alone and b alone are uniform whatever the stage",
        },
    }
