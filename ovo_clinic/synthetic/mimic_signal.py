"""The planted signal of the synthetic MIMIC folders: latents, coefficients, logits of 25 phenotypes and of death.

The logit of a label is a sum of one term per modality and two terms that two modalities share:

    logit_k = intercept_k + series + demographics + image + text + series_image + text_demographics
    series_image      = CIRCLE * cos(a + b - phase_k)      a: an angle seen in the time series, b: one seen in the X-ray
    text_demographics = SIGN * sign_k * t * g              t = +-1 by the wording of the text, g = +-1 by the sex

a and b are uniform on the circle, t and g are fair coins, and all are independent of everything else. Given one of the
two alone the probability of a label is therefore *exactly* flat: only both modalities together tell.

Every admission has all latents. A modality that a stay lacks only hides its own, so that presence tells nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ovo_clinic.synthetic.mimic_targets import TARGETS

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

SERIES = ("circulation", "respiration", "metabolism", "coma")
IMAGE = ("haze", "heart")
TOPICS = ("veil", "bases", "outline", "lines")

SERIES_TERM = 1.1
IMAGE_TERM = 0.8
TEXT_TERM = 0.8
CIRCLE = 2.0
SIGN = 1.0

PHASES = 2 * np.pi * np.arange(len(TARGETS)) / len(TARGETS)
SIGNS = np.where(np.arange(len(TARGETS)) % 2 == 0, 1.0, -1.0)


@dataclass(frozen=True)
class Rows:
    """A table as arrays of one length; fields that are no arrays are such tables themselves."""

    def rows(self, chosen: Booleans | Integers) -> Self:
        """Some of its rows."""
        values = (getattr(self, field.name) for field in fields(self))
        return type(self)(*(value[chosen] if isinstance(value, np.ndarray) else value.rows(chosen) for value in values))


@dataclass(frozen=True)
class Latents(Rows):
    """What drives the records of V admissions.

    Attributes:
        age: (V,) years above 63, in units of 17 years, as they can be told from the files.
        female: (V,) bool, a fair coin.
        series: (V,4) standard normal, clipped to +-2.5, in the order of SERIES.
        series_angle: (V,) uniform on the circle.
        image: (V,2) as `series`, in the order of IMAGE.
        image_angle: (V,) uniform on the circle.
        topics: (V,4) bool, fair coins, in the order of TOPICS.
        amber: (V,) bool, a fair coin: the text's wording.
    """

    age: Floats
    female: Booleans
    series: Floats
    series_angle: Floats
    image: Floats
    image_angle: Floats
    topics: Booleans
    amber: Booleans

    def __len__(self) -> int:
        return len(self.age)

    def driver(self, name: str) -> Floats:
        """(V,) of zero mean and unit variance: what a measurement of the time series follows."""
        if name in SERIES:
            return self.series[:, SERIES.index(name)]
        direction = np.cos(self.series_angle) if name == "cosine" else np.sin(self.series_angle)
        return np.asarray(math.sqrt(2) * direction, dtype=np.float64)


def draw(rng: np.random.Generator, age: Floats, female: Booleans) -> Latents:
    """Latents of admissions whose age and sex are known."""
    count = len(age)
    return Latents(
        age=age,
        female=female,
        series=np.clip(rng.standard_normal((count, len(SERIES))), -2.5, 2.5),
        series_angle=rng.uniform(0, 2 * np.pi, count),
        image=np.clip(rng.standard_normal((count, len(IMAGE))), -2.5, 2.5),
        image_angle=rng.uniform(0, 2 * np.pi, count),
        topics=rng.random((count, len(TOPICS))) < 0.5,
        amber=rng.random(count) < 0.5,
    )


def terms(latents: Latents) -> dict[str, Floats]:
    """The summands of the logits without their intercepts, each (V,26), in the order of TARGETS."""
    ages = np.array([target.age for target in TARGETS])
    angle = (latents.series_angle + latents.image_angle)[:, None] - PHASES
    coins = np.where(latents.amber == latents.female, 1.0, -1.0)[:, None]
    return {
        "series": SERIES_TERM * latents.series[:, [SERIES.index(target.series) for target in TARGETS]],
        "demographics": ages * latents.age[:, None],
        "image": IMAGE_TERM * latents.image[:, [IMAGE.index(target.image) for target in TARGETS]],
        "text": TEXT_TERM * np.where(latents.topics[:, [TOPICS.index(target.topic) for target in TARGETS]], 1.0, -1.0),
        "series_image": CIRCLE * np.cos(angle),
        "text_demographics": SIGN * SIGNS * coins,
    }


def probabilities(summands: Mapping[str, Floats]) -> Floats:
    """(V,26) probability of every label, the summands being those of `terms`."""
    return _sigmoid(intercepts() + np.sum(list(summands.values()), axis=0))


@cache
def intercepts() -> Floats:
    """(26,) such that the mean probabilities are the prevalences of TARGETS, found by bisection on a fixed sample."""
    rng = np.random.default_rng(0)
    sample = draw(rng, np.clip(rng.standard_normal(20_000), -2.5, 1.65), rng.random(20_000) < 0.5)
    total = np.sum(list(terms(sample).values()), axis=0)
    wanted = np.array([target.prevalence for target in TARGETS])
    low, high = np.full(len(TARGETS), -12.0), np.full(len(TARGETS), 6.0)
    for _ in range(16):
        middle = (low + high) / 2
        above = _sigmoid(middle + total).mean(0) > wanted
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.asarray(np.round((low + high) / 2, 3), dtype=np.float64)


def _sigmoid(logit: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-logit)), dtype=np.float64)


def describe() -> dict[str, object]:
    """The signal in words and numbers, for SYNTHETIC.json."""
    return {
        "label": "a phenotype's codes in diagnoses_icd, or hospital_expire_flag ~ Bernoulli(sigmoid(logit))",
        "logit": "intercept + series + demographics + image + text + series_image + text_demographics",
        "absent": "a modality that a stay lacks hides its latents; whether it is there tells nothing",
        "series": {"coefficient": SERIES_TERM, "seen in": "charts and labs inside the ICU stay", "latents": SERIES},
        "demographics": {"term": "coefficient of the label * (min(age, 91) - 63) / 17"},
        "image": {"coefficient": IMAGE_TERM, "seen in": "AP images inside the ICU stay", "latents": IMAGE},
        "text": {"coefficient": TEXT_TERM, "seen in": "radiology reports inside the ICU stay", "topics": TOPICS},
        "series_image": {
            "term": "coefficient * cos(a + b - phase of the label)",
            "coefficient": CIRCLE,
            "a": "cos a in Temperature, sin a in Diastolic blood pressure",
            "b": "the bright spot lies in the direction b from the centre of the AP image",
            "flat": "given a alone, or b alone, every probability is constant",
        },
        "text_demographics": {
            "term": "coefficient * sign of the label * t * g",
            "coefficient": SIGN,
            "t": "+1 where the reports speak of the amber series, -1 of the cobalt series",
            "g": "+1 for F, -1 for M",
            "flat": "given t alone, or g alone, every probability is constant",
        },
        "leak": "discharge notes name the diagnoses; records outside the ICU stay are noise",
        "labels": {
            target.name: {
                "intercept": float(intercept),
                "age": target.age,
                "series": target.series,
                "image": target.image,
                "text": target.topic,
                "phase": round(float(phase), 4),
                "sign": float(sign),
            }
            for target, intercept, phase, sign in zip(TARGETS, intercepts(), PHASES, SIGNS, strict=True)
        },
    }
