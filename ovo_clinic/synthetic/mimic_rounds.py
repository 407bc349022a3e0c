"""Rounds of charting or blood draws: when a stay's records are made, and which of them tell its latents."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from ovo_clinic.synthetic.mimic_items import Item
from ovo_clinic.synthetic.mimic_signal import Booleans, Floats, Integers
from ovo_clinic.synthetic.mimic_stays import HOUR, MINUTE, Stays


@dataclass(frozen=True)
class Rounds:
    """R rounds; each attribute (R,).

    Attributes:
        stay: position in Stays, ascending.
        time: seconds since 1970, whole minutes.
        inside: within the stay; records of other rounds are noise.
    """

    stay: Integers
    time: Integers
    inside: Booleans

    def __len__(self) -> int:
        return len(self.stay)

    @classmethod
    def draw(cls, rng: np.random.Generator, stays: Stays, mean: float, outside: float) -> Self:
        """About `mean` rounds a stay, more in longer ones and at least two; the share `outside` before or after it."""
        hours = stays.hours
        expected = mean * (hours + 6) / 77  # the mean length is about 71 h
        count = np.maximum(2, rng.poisson(expected))
        stay = np.repeat(np.arange(len(stays)), count)
        order = np.arange(len(stay)) - np.repeat(np.cumsum(count) - count, count)
        length = (stays.end - stays.start)[stay]
        offset = np.floor((order + 0.05 + 0.9 * rng.random(len(stay))) / count[stay] * length).astype(np.int64)
        away = (order > 1) & (rng.random(len(stay)) < outside)
        early = rng.random(len(stay)) < 0.5
        distance = rng.integers(10 * MINUTE, 8 * HOUR, len(stay))
        offset = np.where(away, np.where(early, -distance, length + distance), offset)
        time = (stays.start[stay] + offset + MINUTE - 1) // MINUTE * MINUTE
        time = np.where(away, time, np.minimum(time, stays.end[stay] // MINUTE * MINUTE))
        return cls(stay=stay, time=time, inside=~away)


def levels(rng: np.random.Generator, stays: Stays, drivers: list[tuple[str, int]]) -> Floats:
    """(S,items) of about unit variance: where a stay stands on every item, by (driver, sign)."""
    own = rng.standard_normal((len(stays), len(drivers)))
    for position, (driver, sign) in enumerate(drivers):
        if driver:
            own[:, position] = sign * stays.latents.driver(driver) + 0.2 * own[:, position]
    return own


def measured(rng: np.random.Generator, level: Floats, inside: Booleans) -> Floats:
    """(rows,) z of single measurements: near the stay's level inside the stay, noise elsewhere."""
    noise = rng.standard_normal(len(level))
    return np.where(inside, level + 0.35 * noise, 1.1 * noise)


def on_scale(items: list[Item], index: Integers, z: Floats) -> Floats:
    """(rows,) values of items, as they are printed."""
    centre, scale, low, high = (
        np.array([getattr(item, name) for item in items], dtype=np.float64)[index]
        for name in ("centre", "scale", "low", "high")
    )
    places = 10.0 ** np.array([item.decimals for item in items])[index]
    return np.asarray(np.rint(np.clip(centre + scale * z, low, high) * places) / places, dtype=np.float64)
