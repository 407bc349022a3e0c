"""Events of the MIMIC channels: every item's conversion in both forms, ranges, ties, coma scales, body size."""

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

from ovo_clinic import spec
from ovo_clinic.resources import load_pipeline

ABSENT = None
# itemid -> raw (value, valuenum), the clean value, and MedFuse's: a number, or the category's text for a coma scale.
FAHRENHEIT = (98.6 - 32) * 5 / 9
CONVERSIONS: dict[int, list[tuple[str, float | None, float | None, float | str | None]]] = {
    50817: [("0.97", 0.97, 97, 97), ("97", 97, 97, 97), ("___", 95, 95, ABSENT)],
    220227: [("0.97", 0.97, 97, 97), ("98", 98, 98, 98)],
    220277: [("1", 1, 100, 100), ("140", 140, 100, 140), ("151", 151, ABSENT, 151)],
    223835: [("40", 40, 0.4, 0.4), ("0.4", 0.4, 0.4, 0.004), ("10", 10, ABSENT, 0.1), ("20", 20, 0.21, 0.2)],
    223761: [("98.6", 98.6, FAHRENHEIT, FAHRENHEIT), ("70", 70, 26, 70)],
    223762: [("37", 37, 37, 37), ("98.6", 98.6, FAHRENHEIT, FAHRENHEIT), ("60", 60, ABSENT, 60)],
    226707: [("60", 60, 152.4, 60), ("0", 0, ABSENT, 0)],
    226730: [("152", 152, 152, 152), ("825070", 825070, ABSENT, 825070)],
    226531: [("200", 200, 90.718474, 90.7184), ("0", 0, ABSENT, 0)],
    226512: [("81", 81, 81, 81), ("251", 251, ABSENT, 251)],
    224639: [("81", 81, 81, 81)],
    220045: [
        ("101", 101, 101, 101),
        ("370", 370, 350, 370),
        ("10000000", 10_000_000, ABSENT, 10_000_000),
        ("0", 0, 0, 0),
    ],
    220739: [("None", 1, 1, "None"), ("To Pain", 2, 2, "To Pain"), ("3", 3, 3, ABSENT), ("asleep", 1, ABSENT, ABSENT)],
    223901: [
        ("Obeys Commands", 6, 6, "Obeys Commands"),
        ("No response", 1, 1, "No response"),
        ("7", 7, ABSENT, ABSENT),
    ],
    223900: [("No Response-ETT", 0, 1, "No Response-ETT"), ("Oriented", 5, 5, "Oriented"), ("1", 1, 1, ABSENT)],
    223951: [
        ("Normal <3 Seconds", None, 0, ABSENT),
        ("Abnormal >3 Seconds", None, 1, ABSENT),
        ("Brisk", None, ABSENT, ABSENT),
    ],
    224308: [("Normal <3 Seconds", None, 0, ABSENT), ("Abnormal >3 Seconds", None, 1, ABSENT)],
    50931: [("___", 180, 180, ABSENT), ("2100", 2100, 2000, 2100), ("20", 20, 33, 20)],
    50809: [("120", 120, 120, 120)],
    225664: [("120", 120, 120, 120)],
    220621: [("120", 120, 120, 120)],
    226537: [("120.5", 120.5, 120.5, 120.5)],
    51478: [("1000", 1000, ABSENT, 1000)],
    51491: [("5", 5, ABSENT, 5)],
    51094: [("5", 5, ABSENT, 5)],
    50831: [("7", 7, ABSENT, 7)],
    50820: [("7.31", 7.31, 7.31, 7.31), ("6.2", 6.2, ABSENT, 6.2), ("9", 9, 8.4, 9), ("-1", -1, ABSENT, ABSENT)],
    223830: [("7.4", 7.4, 7.4, 7.4)],
    220274: [("7.4", 7.4, 7.4, 7.4)],
    227242: [("75", 75, 75, ABSENT)],
    220179: [("120", 120, 120, 120), ("120/80", 120, 120, 120)],
    220180: [("80", 80, 80, 80), ("120/80", 80, 80, 80), ("376", 376, ABSENT, 376)],
}
PLAIN = """220051 225310 224643 220052 225312 224322 220181 220210 224689 224422 224690 220050 225309 224167 227243"""
CONVERSIONS |= {int(item): [("66", 66, 66, 66)] for item in PLAIN.split()}

events, replica, channels = (load_pipeline(f"mimic_{name}") for name in ("events", "replica", "channels"))
CLEAN, MEDFUSE = (channels.Channels.of(spec.load("mimic")[0], medfuse=medfuse) for medfuse in (False, True))


def rows(*entries: tuple[int, float, str | None, float | None]) -> pl.DataFrame:
    """Staged rows of unit 0: itemid, seconds, text, number."""
    frame = pl.DataFrame(entries, schema=["itemid", "seconds", "text", "number"], orient="row", strict=False)
    types = {"itemid": pl.Int32, "seconds": pl.Int32, "text": pl.String, "number": pl.Float64}
    return frame.cast(types).select(pl.lit(0, pl.UInt32).alias("unit"), pl.all())


def cleaned(*entries: tuple[int, float, str | float], missing: bool = False) -> dict[str, list[tuple[int, float]]]:
    """channel -> [(seconds, value)] of rows given as itemid, seconds and what is charted."""
    staged = [
        (item, time, value, None) if isinstance(value, str) else (item, time, None, value)
        for item, time, value in entries
    ]
    found, _, _ = events.clean(rows(*staged), CLEAN, intubated_is_missing=missing)
    by_channel: dict[str, list[tuple[int, float]]] = {}
    for channel, time, value in zip(found.channel, found.seconds, found.value, strict=True):
        by_channel.setdefault(CLEAN.names[channel], []).append((int(time), float(value)))
    return by_channel


def test_the_item_map_is_that_of_the_facts(shared: Path) -> None:
    facts = pd.read_csv(shared / "facts" / "mimic" / "variable_itemids.csv")
    facts = facts[(facts["exists_in_mimic_iv"] == 1) & facts["itemid"].str.isdigit()].astype({"itemid": int})
    in_medfuse = facts[facts["in_medfuse_map"] == 1].set_index("itemid")["variable"]
    assert {item.itemid: item.channel for item in MEDFUSE.items} == in_medfuse.to_dict() and len(in_medfuse) == 44
    wanted = facts[~facts["itemid"].isin([51478, 51491, 51094, 50831])].set_index("itemid")["variable"]
    assert {item.itemid: item.channel for item in CLEAN.items} == wanted.to_dict()
    assert set(facts["itemid"]) == set(CONVERSIONS)


@pytest.mark.parametrize("item", sorted(CONVERSIONS))
def test_conversions(item: int) -> None:
    for text, number, clean, medfuse in CONVERSIONS[item]:
        if item in [found.itemid for found in CLEAN.items]:
            scored = item in CLEAN.items_of(*CLEAN.scored)
            staged = rows((item, 60, text if scored else None, None if scored else number))
            found, _, _ = events.clean(staged, CLEAN, intubated_is_missing=False)
            np.testing.assert_allclose(found.value, [] if clean is None else [clean], rtol=1e-5, err_msg=text)
        else:
            assert clean is None
        if item in [found.itemid for found in MEDFUSE.items]:
            found, _ = replica.replica(rows((item, 60, text, None)), MEDFUSE)
            name = next(known.channel for known in MEDFUSE.items if known.itemid == item)
            categories = [category.category for category in MEDFUSE.of_channel(name)]
            wanted = [categories.index(medfuse)] if isinstance(medfuse, str) else [] if medfuse is None else [medfuse]
            np.testing.assert_allclose(found.value, wanted, rtol=1e-5, err_msg=text)
        else:
            assert medfuse is None


def test_ties() -> None:
    assert cleaned((220179, 0, 90.0), (220050, 0, 120.0), (225309, 0, 124.0)) == {
        "Systolic blood pressure": [(0, 122.0)]
    }
    assert cleaned((220179, 0, 90.0), (220050, 0, 400.0)) == {"Systolic blood pressure": [(0, 90.0)]}  # not plausible
    respiration = [(224689, 0, 10.0), (224690, 0, 16.0), (224422, 0, 12.0)]
    assert cleaned(*respiration, (220210, 0, 18.0)) == {"Respiratory rate": [(0, 18.0)]}
    assert cleaned(*respiration) == {"Respiratory rate": [(0, 16.0)]}
    assert cleaned(respiration[0], respiration[2]) == {"Respiratory rate": [(0, 11.0)]}
    assert cleaned((226707, 0, 60.0), (226730, 0, 150.0)) == {"Height": [(0, 150.0)]}
    assert cleaned((50931, 0, 100.0), (220621, 0, 140.0), (225664, 0, 120.0)) == {"Glucose": [(0, 120.0)]}
    assert cleaned((223951, 0, "Normal <3 Seconds"), (224308, 0, "Abnormal >3 Seconds")) == {
        "Capillary refill rate": [(0, 1.0)]
    }
    assert cleaned((220739, 0, "Spontaneously"), (220739, 0, "To Pain"))["Glascow coma scale eye opening"] == [(0, 2.0)]


def test_ties_of_medfuse() -> None:
    found, _ = replica.replica(rows((220045, 0, "99", None), (220045, 0, "101", None)), MEDFUSE)
    assert found.value.tolist() == [99]  # "99" comes after "101"
    found, _ = replica.replica(rows((220050, 0, "99", None), (220179, 0, "101", None)), MEDFUSE)
    assert found.value.tolist() == [101]
    found, _ = replica.replica(rows((226707, 0, "60", None), (226730, 0, "152", None)), MEDFUSE)
    assert found.value.tolist() == [152]


def test_the_coma_total_needs_all_three_and_takes_the_last_of_each() -> None:
    charted = [(220739, 0, "Spontaneously"), (223901, 60, "Obeys Commands"), (223900, 120, "Oriented")]
    total = cleaned(*charted, (220739, 180, "None"), (223900, 180, "No Response-ETT"))["Glascow coma scale total"]
    assert total == [(120, 15.0), (180, 8.0)]
    assert "Glascow coma scale total" not in cleaned(*charted[:2])
    kept = cleaned(*charted, (223900, 180, "No Response-ETT"), (220739, 240, "To Pain"), missing=True)
    assert kept["Glascow coma scale total"] == [(120, 15.0), (240, 13.0)]


def test_the_latest_height_and_weight_before_the_window_stand_at_its_start() -> None:
    early = [(226730, -7200, 150.0), (226730, -45, 152.0), (226512, -60, 80.0)]
    assert cleaned(*early) == {"Height": [(0, 152.0)], "Weight": [(0, 80.0)]}
    assert cleaned(*early, (226730, 0, 160.0), (226512, 60, 81.0)) == {
        "Height": [(0, 160.0)],
        "Weight": [(0, 80.0), (60, 81.0)],
    }
    assert cleaned((226730, -45, 0.0), (226730, -90, 151.0)) == {"Height": [(0, 151.0)]}
    _, observed, _ = events.clean(rows((226730, -45, None, 150.0)), CLEAN, intubated_is_missing=False)
    assert not len(observed)  # nothing was charted during the stay


def test_what_is_not_taken_as_it_is_is_counted() -> None:
    staged = rows(
        (220739, 0, "asleep", None), (220045, 0, None, 370.0), (220045, 60, None, 1e7), (220045, 90, None, 80.0)
    )
    assert dict(events.clean(staged, CLEAN, intubated_is_missing=False)[2]) == {
        "texts that are no score (missing)": 1,
        "values outside the plausible range (missing)": 1,
        "values moved to the edge of the valid range": 1,
    }


def test_the_order_of_rows_makes_no_difference() -> None:
    random = np.random.default_rng(0)
    items = [item.itemid for item in CLEAN.items if item.channel not in CLEAN.scored]
    entries = [
        (int(random.choice(items)), int(random.integers(0, 40)) * 60, None, float(random.normal(100, 30)))
        for _ in range(3000)
    ]
    first, second = (
        events.clean(rows(*order), CLEAN, intubated_is_missing=False)[0] for order in (entries, entries[::-1])
    )
    for name in ("unit", "channel", "seconds", "value"):
        assert getattr(first, name).tobytes() == getattr(second, name).tobytes()
