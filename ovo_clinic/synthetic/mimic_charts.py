"""Rows of chartevents of the synthetic MIMIC-IV folder, and d_items."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ovo_clinic.synthetic.mimic_items import (
    HEIGHT,
    HEIGHT_INCHES,
    ITEMS,
    KITS,
    TEXT_ITEMS,
    TUBE,
    VERBAL,
    WEIGHT,
    WEIGHT_POUNDS,
    Item,
    TextItem,
)
from ovo_clinic.synthetic.mimic_rounds import Rounds, levels, measured, on_scale
from ovo_clinic.synthetic.mimic_signal import Booleans, Floats, Integers
from ovo_clinic.synthetic.mimic_stays import HOUR, MINUTE, Chunk, Stays, gather, moments

ALL: tuple[Item | TextItem, ...] = (*ITEMS, *TEXT_ITEMS)
ITEM_IDS = np.array([item.itemid for item in ALL])
DRIVERS = [*((item.driver, item.sign) for item in ITEMS), *((item.driver, 1) for item in TEXT_ITEMS)]
UNITS = [*(item.unit for item in ITEMS), *(None for _ in TEXT_ITEMS)]


def chart_table(rng: np.random.Generator, chunk: Chunk, rows_per_stay: int) -> pl.DataFrame:
    """Rows of chartevents in the layout of the version, about so many a stay on average; by stay and time."""
    stays = chunk.stays
    chance = _kit_chances(rng, stays)
    kit = np.array([list(KITS).index(item.kit) for item in ALL])
    rounds = Rounds.draw(rng, stays, rows_per_stay / (0.95 * chance[:, kit].sum(1).mean()), outside=0.03)
    active = rng.random((len(rounds), len(KITS)), dtype=np.float32) < chance[rounds.stay]
    charted, index = np.nonzero(active[:, kit] & (rng.random((len(rounds), len(ALL)), dtype=np.float32) < 0.95))
    level = levels(rng, stays, DRIVERS)
    stay = rounds.stay[charted]
    z = measured(rng, level[stay, index], rounds.inside[charted])
    tube = chance[stay, list(KITS).index("ventilator")] > 0
    frame = pl.DataFrame(
        {"stay": stay, "time": rounds.time[charted], "itemid": ITEM_IDS[index], **_values(rng, index, z, tube)}
    ).with_columns(gather(UNITS, index).alias("valueuom"))
    return _finished(rng, chunk, pl.concat([frame, *_body_size(rng, stays)]).sort("stay", "time", maintain_order=True))


def item_names() -> pl.DataFrame:
    """d_items: the items that the folder uses."""
    columns = "itemid label abbreviation linksto category unitname param_type lownormalvalue highnormalvalue".split()
    numeric = [*((item.itemid, item.label, item.unit) for item in ITEMS), HEIGHT, HEIGHT_INCHES, WEIGHT, WEIGHT_POUNDS]
    rows = [(*item[:2], item[1], "chartevents", "Synthetic", item[2], "Numeric", None, None) for item in numeric]
    rows += [
        (item.itemid, item.label, item.label, "chartevents", "Synthetic", None, "Text", None, None)
        for item in TEXT_ITEMS
    ]
    return pl.DataFrame(rows, schema=columns, orient="row", infer_schema_length=None).sort("itemid")


def _kit_chances(rng: np.random.Generator, stays: Stays) -> Floats:
    """(S,kits) chance that a round includes a kit."""
    artery = rng.random(len(stays)) < 0.3
    ventilated = stays.latents.driver("respiration") + 0.5 * rng.standard_normal(len(stays)) > 0.9
    shares = {"": np.ones(len(stays)), "artery": artery, "ventilated": ventilated, "cuff": np.where(artery, 0.3, 1.0)}
    return np.stack([kit.chance * shares[kit.only] for kit in KITS.values()], axis=1)


def _values(rng: np.random.Generator, index: Integers, z: Floats, tube: Booleans) -> dict[str, pl.Series]:
    """`value` and `valuenum` of rows."""
    text = index >= len(ITEMS)
    number = np.full(len(index), np.nan)
    number[~text] = _odd(rng, index[~text], on_scale(list(ITEMS), index[~text], z[~text]))
    printed = pl.Series(number, nan_to_null=True).cast(pl.String).str.strip_suffix(".0")
    texts, numbers = _Texts.all()
    place = texts.place(rng, index[text] - len(ITEMS), z[text], tube[text])
    rows = pl.Series(np.flatnonzero(text))
    number[text] = numbers[place]
    return {
        "value": printed.scatter(rows, gather(texts.texts, place)),
        "valuenum": pl.Series(number, nan_to_null=True),
    }


@dataclass(frozen=True)
class _Texts:
    """The texts of all items with texts in one list, the tube's last; `starts` is each item's first position."""

    texts: list[str]
    starts: Integers

    @classmethod
    def all(cls) -> "tuple[_Texts, Floats]":
        """(the texts, the number charted beside each, NaN = none)."""
        pairs = [pair for item in TEXT_ITEMS for pair in item.texts]
        sizes = np.array([len(item.texts) for item in TEXT_ITEMS])
        texts = cls([text for text, _ in pairs] + [TUBE[0]], np.cumsum(sizes) - sizes)
        return texts, np.array([*(number for _, number in pairs), TUBE[1]], dtype=np.float64)

    def place(self, rng: np.random.Generator, item: Integers, z: Floats, tube: Booleans) -> Integers:
        """(rows,) position in the list of what is charted."""
        found = np.zeros(len(item), np.int64)
        for position, (about, start) in enumerate(zip(TEXT_ITEMS, self.starts, strict=True)):
            rows = item == position
            if about.cuts:
                found[rows] = start + np.searchsorted(about.cuts, z[rows])
            else:
                found[rows] = start + rng.integers(0, len(about.texts), rows.sum())
            if about.itemid == VERBAL:
                found[rows & tube] = len(self.texts) - 1
        return found


def _odd(rng: np.random.Generator, index: Integers, value: Floats) -> Floats:
    """Values that cannot be, other units under the same item, and fractions for per cent."""
    item = ITEM_IDS[index]
    chance = rng.random(len(value))
    odd = (
        (220045, 0.0005, 10_000_000.0),
        (220045, 0.0005, 0.0),
        (220277, 0.0003, 9_900.0),
        (225664, 0.003, 999_999.0),
        (223761, 0.002, 9.8),
        (220179, 0.0003, 1_190.0),
        (223830, 0.002, 73.0),
    )
    for itemid, share, wrong in odd:
        rows = (item == itemid) & (chance < share)
        value = np.where(rows, wrong, value)
        chance = np.where(rows, 1.0, chance)
    fraction = ((item == 223835) | (item == 220227)) & (chance < 0.1)
    fahrenheit = (item == 223762) & (chance < 0.02)
    value = np.where(fraction, np.round(value / 100, 2), value)
    return np.where(fahrenheit, np.round(value * 1.8 + 32, 1), value)


def _body_size(rng: np.random.Generator, stays: Stays) -> list[pl.DataFrame]:
    """Height and weight on arrival: most heights before intime, in cm and inches or in inches alone."""
    count = len(stays)
    centimetres = np.rint(np.clip(rng.normal(170, 10, count), 120, 215))
    inches = np.rint(centimetres / 2.54)
    centimetres = np.where(rng.random(count) < 0.003, 0, centimetres)
    kilograms = np.round(np.clip(rng.normal(83, 19, count), 30, 240), 1)
    early = rng.random(count) < 0.95
    time = stays.start // MINUTE * MINUTE + np.where(early, 0, 30) * MINUTE
    time = np.where(rng.random(count) < 0.1, time - rng.integers(2, 30, count) * HOUR, time)
    tall, metric = rng.random(count) < 0.6, rng.random(count) < 0.95
    weighed, pounds = rng.random(count) < 0.93, rng.random(count) < 0.4
    weighed_at = stays.start // MINUTE * MINUTE + rng.integers(1, 60, count) * MINUTE
    return [
        _single(stays, HEIGHT, centimetres, time, tall & metric),
        _single(stays, HEIGHT_INCHES, inches, time, tall),
        _single(stays, WEIGHT, kilograms, weighed_at, weighed),
        _single(stays, WEIGHT_POUNDS, np.round(kilograms / 0.45359237, 1), weighed_at, weighed & pounds),
    ]


def _single(
    stays: Stays, item: tuple[int, str, str | None], value: NDArray[Any], time: Integers, chosen: Booleans
) -> pl.DataFrame:
    number = pl.Series(value[chosen])
    return pl.DataFrame(
        {
            "stay": np.arange(len(stays))[chosen],
            "time": time[chosen],
            "itemid": np.full(chosen.sum(), item[0]),
            "value": number.cast(pl.String).str.strip_suffix(".0"),
            "valuenum": number,
            "valueuom": pl.Series([item[2]], dtype=pl.String).new_from_index(0, int(chosen.sum())),
        }
    )


def _finished(rng: np.random.Generator, chunk: Chunk, frame: pl.DataFrame) -> pl.DataFrame:
    """The columns of the version in their order."""
    stay, time = frame["stay"].to_numpy(), frame["time"].to_numpy()
    caregiver = rng.integers(1, 99_999, len(chunk.stays))[stay]
    stored = time + rng.integers(1, 90, len(chunk.stays))[stay] * MINUTE
    columns = {
        **{name: pl.Series(values) for name, values in chunk.keys(stay).items()},
        **({} if chunk.version == "1.0" else {"caregiver_id": pl.Series(caregiver)}),
        "charttime": moments(time),
        "storetime": moments(stored),
        **{name: frame[name] for name in ("itemid", "value")},
        "valuenum": frame["valuenum"].cast(pl.String).str.strip_suffix(".0"),
        "valueuom": frame["valueuom"],
        "warning": pl.Series((rng.random(len(stay)) < 0.01).astype(np.int8)),
    }
    return pl.DataFrame(columns)
