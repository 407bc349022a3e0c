"""The planted signal of the synthetic eICU folder: latents, coefficients and the logit of hospital death.

The logit of a stay is a sum of one term per modality and one term that two modalities share:

    logit = INTERCEPT + age + aps + diagnosis + treatment + medication + lab + product
    product = PRODUCT * cos(a + b) - CENTRE,   cos(a + b) = cos a cos b - sin a sin b

a is an angle that drives laboratory values (some by cos a, some by sin a), b one that drives APACHE columns. Both are
uniform on the circle and independent of everything else, so cos(a + b) has the same distribution whatever a is, and
whatever b is: given one of them alone the probability of death is *exactly* flat, under any link, intercept and other
terms. Only their (smooth, bounded) products tell. CENTRE makes the mean probability equal with and without the term.

A term is 0 where its modality is absent, the product where lab or aps is. Terms of codes are centred on their mean.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ovo_clinic.synthetic.eicu_vocabulary import DIAGNOSES, DRUGS, TREATMENTS, Driver

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

INTERCEPT = -2.0
AGE = 0.4
APS = 0.4
LAB = 1.3
PRODUCT = 3.7
CENTRE = 1.3

CODED = ("diagnosis", "treatment", "medication")
CODES: Mapping[str, tuple[str, ...]] = {
    "diagnosis": tuple(path for path, _ in DIAGNOSES),
    "treatment": TREATMENTS,
    "medication": tuple(str(drug.hicl) for drug in DRUGS),
}
EFFECTS: Mapping[str, Mapping[str, float]] = {
    "diagnosis": {
        "cardiovascular|shock / hypotension|septic shock": 0.9,
        "endocrine|glucose metabolism|DKA": -0.8,
        "renal|disorder of acid base|metabolic acidosis|lactic acidosis": 0.8,
    },
    "treatment": {
        "pulmonary|ventilation and oxygenation|mechanical ventilation": 0.6,
        "cardiovascular|shock|vasopressors|norepinephrine > 0.1 micrograms/kg/min": 0.7,
        "general|support services|physical therapy consult": -0.6,
    },
    "medication": {"2051": 0.7, "2839": 0.7, "2102": -0.5},
}
PREVALENCE: Mapping[str, float] = {"diagnosis": 0.38, "treatment": 0.42, "medication": 0.45}
"""Share of present stays that have the most frequent code; the others follow Zipf's law with exponent ZIPF."""
ZIPF = 0.6


@dataclass(frozen=True)
class Latents:
    """What drives a stay's records; S stays, C codes.

    Attributes:
        age: (S,) years above 63, in units of 17 years, ages over 89 counted as 90; 0 where the age is not known.
        severity: by `lab` and `aps`, (S,) standard normal, clipped to +-2.5.
        angle: by `lab` and `aps`, (S,) uniform on the circle.
        codes: by diagnosis, treatment and medication, (S,C) bool: recorded before the prediction time.
        present: by modality, (S,) bool.
    """

    age: Floats
    severity: Mapping[str, Floats]
    angle: Mapping[str, Floats]
    codes: Mapping[str, Booleans]
    present: Mapping[str, Booleans]

    def driver(self, modality: str, name: Driver) -> Floats:
        """(S,) of zero mean and unit variance, the driver of a measurement of the modality `lab` or `aps`."""
        if name == "severity":
            return self.severity[modality]
        angle = self.angle[modality]
        return math.sqrt(2) * (np.cos(angle) if name == "cosine" else np.sin(angle))


def code_shares(modality: str) -> Floats:
    """(C,) share of present stays that have each code."""
    return np.arange(1, len(CODES[modality]) + 1, dtype=np.float64) ** -ZIPF * PREVALENCE[modality]


def draw(rng: np.random.Generator, age: Floats, present: Mapping[str, Booleans]) -> Latents:
    """Latents of stays whose age and present modalities are known."""
    stays = len(age)
    codes = {}
    for modality in CODED:
        active = rng.random((stays, len(CODES[modality]))) < code_shares(modality)
        active[~active.any(1), 0] = True  # a present stay has at least one record
        codes[modality] = active & present[modality][:, None]
    return Latents(
        age=age,
        severity={name: np.clip(rng.standard_normal(stays), -2.5, 2.5) for name in ("lab", "aps")},
        angle={name: rng.uniform(0, 2 * np.pi, stays) for name in ("lab", "aps")},
        codes=codes,
        present=present,
    )


def terms(latents: Latents) -> dict[str, Floats]:
    """The summands of the logit, each (S,), by modality; `product` is the one that lab and aps share."""
    present = latents.present
    both = present["lab"] & present["aps"]
    found = {
        "demographics": AGE * latents.age,
        **{name: _codes_term(name, latents) for name in CODED},
        "lab": LAB * latents.severity["lab"] * present["lab"],
        "aps": APS * latents.severity["aps"] * present["aps"],
    }
    found["product"] = np.where(both, PRODUCT * np.cos(latents.angle["lab"] + latents.angle["aps"]) - CENTRE, 0)
    return found


def probability(summands: Mapping[str, Floats]) -> Floats:
    """(S,) probability of hospital death."""
    logit = INTERCEPT + np.sum(list(summands.values()), axis=0)
    return np.asarray(1 / (1 + np.exp(-logit)), dtype=np.float64)


def _codes_term(modality: str, latents: Latents) -> Floats:
    effects = np.array([EFFECTS[modality].get(code, 0.0) for code in CODES[modality]])
    term = (latents.codes[modality] - code_shares(modality)) @ effects
    return np.where(latents.present[modality], term, 0.0)


def describe() -> dict[str, object]:
    """The signal in words and numbers, for SYNTHETIC.json."""
    return {
        "label": "hospitaldischargestatus of a hospital stay ~ Bernoulli(sigmoid(logit of its first unit stay))",
        "logit": "intercept + demographics + diagnosis + treatment + medication + lab + aps + product",
        "blank": "1 % of the labels are blanked at random, and all but one where a person would die twice",
        "after 24 h": "cardiac arrest and comfort care, recorded near death, tell the outcome; earlier rows do not",
        "absent": "a term is 0 where its modality is absent, product where lab or aps is",
        "intercept": INTERCEPT,
        "demographics": {"term": "coefficient * (min(age, 90) - 63) / 17", "coefficient": AGE},
        **{name: {"term": "sum of effects of codes, minus its mean", "effects": EFFECTS[name]} for name in CODED},
        "lab": {"term": "coefficient * severity, seen in lactate, bicarbonate, ...", "coefficient": LAB},
        "aps": {"term": "coefficient * severity, seen in creatinine, bun, ...", "coefficient": APS},
        "product": {
            "term": "coefficient * cos(a + b) - centre = coefficient * (cos a cos b - sin a sin b) - centre",
            "coefficient": PRODUCT,
            "centre": CENTRE,
            "a": "angle in lab: cos a in albumin, potassium, ..., sin a in sodium, platelets, ...",
            "b": "angle in aps: cos b in heartrate, temperature, ..., sin b in meanbp, respiratoryrate, ...",
            "flat": "given a alone, or b alone, the probability of death is constant",
        },
    }
