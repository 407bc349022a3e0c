"""Chart and laboratory rows of MIMIC-IV made into clean events: units, ranges, ties, coma scales, body size.

Rows belong to a stay by its number and the window (charts), or by the patient and the window (laboratory results, whose
admission is often blank). Seconds count from admission to the unit.
"""

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl
from polars import col

from ovo_clinic import binning, events, provenance
from ovo_clinic.raw import RawFolder
from ovo_clinic.resources import load_pipeline
from ovo_clinic.staging import PART, Stage, stage

if TYPE_CHECKING:
    from pipelines import mimic_channels
else:
    mimic_channels = load_pipeline("mimic_channels")

DAY = 86_400
CARRIED = ("Height", "Weight")
"""Channels whose latest value of the day before admission to the unit is taken over."""
COLUMNS = ("unit", "itemid", "seconds", "text", "number")
_SECONDS_BITS, _RANK_BITS = 28, 2  # eight years, and three ranks


@dataclass(frozen=True)
class Events:
    """(E,) events sorted by unit, channel and time; those of a derived channel may stand at the end."""

    unit: npt.NDArray[np.int64]
    channel: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.int64]
    value: npt.NDArray[np.float64]

    def at(self, which: npt.NDArray[np.bool_]) -> "Events":
        """Some of them."""
        return Events(self.unit[which], self.channel[which], self.seconds[which], self.value[which])

    def __add__(self, other: "Events") -> "Events":
        parts = zip(vars(self).values(), vars(other).values(), strict=True)
        return Events(*(np.concatenate(pair) for pair in parts))


def seconds_since(time: pl.Expr, start: pl.Expr) -> pl.Expr:
    """Whole seconds from `start` (Datetime) to a time written `2180-07-23 12:36:00`; null where it cannot be read.

    Null too where they are 68 years apart or more, as no two moments of a stay are.
    """
    read = time.str.slice(0, 19).str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="ms", strict=False)
    return (read - start).dt.total_seconds().cast(pl.Int32, strict=False)


def stage_clean(
    raw: RawFolder, table: str, windows: pl.DataFrame, channels: "mimic_channels.Channels", *, end_open: bool
) -> Stage:
    """The rows of a table that may matter to the corrected form, by part of the cohort.

    Args:
        raw: the raw files.
        table: `chartevents` or `labevents`.
        windows: unit, part, subject_id, stay_id, start (Datetime) and last (seconds, included) of each stay.
        channels: with the items to read.
        end_open: a prediction is made right after `last`: rows charted before it but stored later do not count, and
            `known` tells the seconds at which a row was charted and stored.
    """
    key = "stay_id" if table == "chartevents" else "subject_id"
    owners = windows.select("unit", PART, key, "start", "last").lazy()
    texts, carried = channels.items_of(*channels.scored), channels.items_of(*CARRIED)
    charted = seconds_since(col("charttime"), col("start"))
    # Without a time of storing a row was known when it was charted.
    stored = {"known": pl.max_horizontal(charted, seconds_since(col("storetime"), col("start")))} if end_open else {}

    def query(scan: pl.LazyFrame) -> pl.LazyFrame:
        return scan.join(owners, on=key, how="inner").select(
            "unit",
            PART,
            col("itemid").cast(pl.Int32),
            charted.alias("seconds"),
            pl.when(col("itemid").is_in(texts)).then(col("value")).alias("text"),
            pl.when(~col("itemid").is_in(texts)).then(col("valuenum")).alias("number"),
            first=pl.when(col("itemid").is_in(carried)).then(-DAY).otherwise(0),
            last="last",
            **stored,
        )

    drops = {
        "without a time": col("seconds").is_null(),
        "before the window": col("seconds") < col("first"),
        "after the window": col("seconds") > col("last"),
        "without a value": col("text").is_null() & col("number").is_null(),
    }
    if end_open:
        drops["charted, but not stored before the prediction"] = col("known") > col("last")
    wanted = col("itemid").is_in(channels.itemids(table))
    name = f"{table}-{parts_name(windows)}"
    return stage(raw, table, wanted, query, drops, name, (*COLUMNS, *stored))


def parts_name(windows: pl.DataFrame) -> str:
    """How many parts there are, and a digest of who is in which: with other --memory a killed run cuts them anew."""
    return f"{windows[PART].n_unique()}-{provenance.digest_of(windows[PART].to_list())[:8]}"


def clean(
    rows: pl.DataFrame, channels: "mimic_channels.Channels", *, intubated_is_missing: bool
) -> tuple[Events, npt.NDArray[np.int64], Counter[str]]:
    """Events of staged rows in the corrected form.

    Args:
        rows: unit, itemid, seconds, text, number, in any order.
        channels: of which.
        intubated_is_missing: `No Response-ETT` is no verbal score, instead of the lowest.

    Returns:
        The events, the units with an event charted inside the window, and counts worth telling.
    """
    names = pl.Enum([str(item.itemid) for item in channels.items])
    item = channels.item_positions(rows["itemid"].to_numpy())
    scores, counts = _scores(rows, channels, intubated_is_missing)
    given = rows["number"].fill_null(scores)
    conversions = {str(itemid): pieces for itemid, pieces in channels.conversions.items()}
    converted = events.in_range(given, pl.Series(item.astype(np.uint8)).cat.to(names), conversions)
    channel = np.array([channels.position(found.channel) for found in channels.items])[item]
    value, plausible, clipped = _in_bounds(converted.to_numpy(), channel, channels)
    counts["values outside the plausible range (missing)"] = given.len() - given.null_count() - int(plausible.sum())
    counts["values moved to the edge of the valid range"] = int(clipped.sum())
    rank = np.array([found.rank for found in channels.items])[item]
    found = Events(_integers(rows["unit"]), channel, _integers(rows["seconds"]), value)
    resolved = _resolve_ties(found.at(plausible), rank[plausible], channels)
    observed = np.unique(resolved.unit[resolved.seconds >= 0])
    carried = _carry_in(resolved)
    return carried + _coma_totals(carried, channels), observed, counts


def score_of(text: str, categories: "list[mimic_channels.Category]", intubated_is_missing: bool) -> float | None:
    """The score that a charted text stands for (a lone digit of the scale: itself); None for any other text."""
    text = text.strip()
    if categories[0].channel == mimic_channels.CAPILLARY:
        return {"Normal": 0.0, "Abnormal": 1.0}.get(text.split(" ")[0])
    if intubated_is_missing and text == "No Response-ETT":
        return None
    scores = {category.category: category.score for category in categories}
    scores |= {f"{category.score:g}": category.score for category in categories}
    return scores.get(text)


def _scores(
    rows: pl.DataFrame, channels: "mimic_channels.Channels", intubated_is_missing: bool
) -> tuple[pl.Series, Counter[str]]:
    """(E,) the score of each row's text, null where it has none, and how many texts are unknown."""
    categories = {item.itemid: channels.of_channel(item.channel) for item in channels.items}
    distinct = rows.lazy().filter(col("text").is_not_null()).group_by("itemid", "text").len().collect()
    scores = [
        score_of(text, categories[itemid], intubated_is_missing)
        for itemid, text in distinct.select("itemid", "text").iter_rows()
    ]
    meaning = distinct.with_columns(score=pl.Series(scores, dtype=pl.Float64))
    found = rows.select("itemid", "text").join(meaning, on=["itemid", "text"], how="left", maintain_order="left")
    unknown = int(meaning.filter(col("score").is_null())["len"].sum())
    return found["score"], Counter({"texts that are no score (missing)": unknown})


def _in_bounds(
    values: npt.NDArray[np.float64], channel: npt.NDArray[np.int64], channels: "mimic_channels.Channels"
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """(E,) values moved into the valid range, which are plausible at all, and which of these were moved."""

    def of(name: str) -> npt.NDArray[np.float64]:
        return np.array([getattr(found, name) for found in channels.channels], dtype=np.float64)[channel]

    plausible = (values >= of("outlier_low")) & (values <= of("outlier_high"))
    plausible &= (values != 0) | (of("zero_is_missing") == 0)
    moved = np.clip(values, of("valid_low"), of("valid_high"))
    return moved, plausible, plausible & (moved != values)


def _resolve_ties(found: Events, rank: npt.NDArray[np.int64], channels: "mimic_channels.Channels") -> Events:
    """One event for each unit, channel and time: of the rows of the best rank the mean, the least or the largest."""
    moment = (found.unit * len(channels.channels) + found.channel << _SECONDS_BITS) + found.seconds + DAY
    ranked = (moment << _RANK_BITS) + rank
    # Sorted by value within that, so that equal data give equal means whatever the order of the rows.
    order = np.argsort(found.value)
    order = order[np.argsort(ranked[order], kind="stable")]
    moment, value = moment[order], found.value[order]
    starts = _run_starts(ranked[order])
    ends = np.append(starts, len(value))[1:]
    best = np.isin(starts, _run_starts(moment), assume_unique=True)
    mean = np.add.reduceat(value, starts)[best] / (ends - starts)[best] if len(starts) else value
    kept = order[starts[best]]
    ties = np.array([found.ties for found in channels.channels])[found.channel[kept]]
    least, largest = value[starts[best]], value[ends[best] - 1]
    chosen = np.where(ties == "min", least, np.where(ties == "max", largest, mean))
    return Events(found.unit[kept], found.channel[kept], found.seconds[kept], chosen)


def _run_starts(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where each run of equal values begins."""
    return np.flatnonzero(np.append(True, values[1:] != values[:-1])[: len(values)])


def _integers(series: pl.Series) -> npt.NDArray[np.int64]:
    return series.to_numpy().astype(np.int64)


def _carry_in(found: Events) -> Events:
    """The latest event before the window placed at its start, unless one stands there; earlier ones left out."""
    same = np.append((found.unit[1:] == found.unit[:-1]) & (found.channel[1:] == found.channel[:-1]), False)
    following = np.append(found.seconds[1:], 0)
    superseded = same[: len(found.unit)] & (following[: len(found.unit)] <= 0)
    kept = found.at((found.seconds >= 0) | ~superseded)
    return Events(kept.unit, kept.channel, np.maximum(kept.seconds, 0), kept.value)


def _coma_totals(found: Events, channels: "mimic_channels.Channels") -> Events:
    """The sum of the last eye, motor and verbal score, whenever one is charted and all three have been."""
    parts = [channels.position(name) for name in (mimic_channels.EYE, mimic_channels.MOTOR, mimic_channels.VERBAL)]
    scored = found.at(np.isin(found.channel, parts))
    moments, row = np.unique((scored.unit << _SECONDS_BITS) + scored.seconds, return_inverse=True)
    grid = np.full((len(moments), len(parts)), np.nan)
    grid[row, np.searchsorted(parts, scored.channel)] = scored.value
    unit = moments >> _SECONDS_BITS
    total = binning.carry_forward(grid, np.unique(unit, return_index=True)[1]).sum(axis=1)
    known = ~np.isnan(total)
    channel = np.full(len(moments), channels.position(mimic_channels.TOTAL))
    return Events(unit, channel, moments & (1 << _SECONDS_BITS) - 1, total).at(known)
