"""Chart and laboratory rows of MIMIC-IV made into events as MedFuse's code does it, its faults included.

Source: nyuad-cai/MedFuse, `mimic4extract`: only rows with an admission count; the text column is read, never the
number; units are mistaken; of several values at one time the largest counts, for some channels the last of the texts.
"""

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from polars import col

from ovo_clinic.raw import RawFolder
from ovo_clinic.resources import load_pipeline
from ovo_clinic.staging import PART, Stage, stage

if TYPE_CHECKING:
    from pipelines import mimic_channels, mimic_events
else:
    mimic_channels, mimic_events = load_pipeline("mimic_channels"), load_pipeline("mimic_events")

COLUMNS = ("unit", "itemid", "seconds", "text")
_TEXT_ORDER = ("Heart Rate", "Respiratory rate", "Mean blood pressure")
_PLAIN = r"^(\d+(\.\d*)?|\.\d+)$"
_POUNDS, _KILOGRAM = 226531, 0.453592
_FAHRENHEIT_FROM = 79


def stage_replica(raw: RawFolder, table: str, windows: pl.DataFrame, channels: "mimic_channels.Channels") -> Stage:
    """The rows of a table that count, by part of the cohort; arguments as `mimic_events.stage_clean`, with hadm_id."""
    owners = windows.select("hadm_id", owner="stay_id").lazy()
    stays = windows.select("unit", PART, "subject_id", "start", "last").lazy()

    def query(scan: pl.LazyFrame) -> pl.LazyFrame:
        ours = scan.join(owners, on="hadm_id", how="inner")
        if table == "chartevents":
            ours = ours.filter(col("stay_id").is_null() | (col("stay_id") == col("owner")))
        return ours.join(stays, on="subject_id", how="inner").select(
            "unit",
            PART,
            "last",
            col("itemid").cast(pl.Int32),
            mimic_events.seconds_since(col("charttime"), col("start")).alias("seconds"),
            text=col("value"),
        )

    drops = {
        "without a time": col("seconds").is_null(),
        # A row is looked at for every stay of its patient.
        "outside a stay of the patient": (col("seconds") < 0) | (col("seconds") > col("last")),
        "without a value": col("text").is_null(),
    }
    wanted = col("itemid").is_in(channels.itemids(table))
    return stage(raw, table, wanted, query, drops, f"{table}-replica-{mimic_events.parts_name(windows)}", COLUMNS)


def replica(rows: pl.DataFrame, channels: "mimic_channels.Channels") -> tuple["mimic_events.Events", Counter[str]]:
    """Events of staged rows: unit, itemid, seconds, text; a score channel's value is the place of its category."""
    items = pl.DataFrame(
        {
            "itemid": pl.Series([item.itemid for item in channels.items], dtype=pl.Int32),
            "name": [item.channel for item in channels.items],
            "channel": [channels.position(item.channel) for item in channels.items],
        }
    )
    named = rows.join(items, on="itemid").with_columns(_number().alias("number"))
    in_text_order = col("name").is_in([*_TEXT_ORDER, *channels.scored])
    moment = ["unit", "channel", "seconds"]
    numbers = named.filter(~in_text_order & col("number").is_not_null()).group_by(moment).agg(col("number").max())
    texts = named.filter(in_text_order).group_by(*moment, "name").agg(col("text").max())
    places = pl.DataFrame(
        [
            (channel, category.category, float(place))
            for channel in channels.scored
            for place, category in enumerate(channels.of_channel(channel))
        ],
        schema={"name": pl.String, "text": pl.String, "place": pl.Float64},
        orient="row",
    )
    read = texts.join(places, on=["name", "text"], how="left").with_columns(
        number=pl.when(col("name").is_in(channels.scored))
        .then(col("place"))
        .otherwise(col("text").cast(pl.Float64, strict=False))
    )
    unknown = read.filter(col("number").is_null()).height
    kept = pl.concat([numbers, read.drop_nulls("number").select(*moment, "number")]).sort(moment)
    unit, channel, seconds = (kept[name].to_numpy().astype(np.int64) for name in moment)
    found = mimic_events.Events(unit, channel, seconds, kept["number"].to_numpy())
    return found, Counter({"texts that are no value (missing)": unknown})


def _number() -> pl.Expr:
    """MedFuse's reading of a row; null where it drops the row."""
    text, name = col("text"), col("name")
    value = text.cast(pl.Float64, strict=False)
    plain = pl.when(text.str.contains(_PLAIN)).then(value)
    parts = text.str.split("/").list
    celsius = pl.when(value >= _FAHRENHEIT_FROM).then((value - 32) * 5 / 9).otherwise(value)
    return (
        pl.when(name == "Systolic blood pressure")
        .then(parts.get(0).cast(pl.Float64, strict=False))
        .when(name == "Diastolic blood pressure")
        .then(parts.get(-1).cast(pl.Float64, strict=False))
        .when(name == "Fraction inspired oxygen")
        .then(value / 100)
        .when(name == "Oxygen saturation")
        .then(pl.when(plain <= 1).then(plain * 100).otherwise(plain))
        .when(name.is_in(["Glucose", "pH"]))
        .then(plain)
        .when(name == "Temperature")
        .then(celsius)
        .when(col("itemid") == _POUNDS)
        .then(value * _KILOGRAM)
        .otherwise(value)
    )
