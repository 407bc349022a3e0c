"""What pipelines do with records: cohort rules, windows with counted drops, plausible ranges, codes and summaries.

Nothing here depends on the order of the raw rows.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
from polars import col
from pydantic import ConfigDict

from ovo_clinic.raw import RawFolder
from ovo_clinic.registry import Options
from ovo_clinic.tables import Step


class Range(Options):
    """One piece of a variable's plausible values: a result from low to high becomes result * scale + offset."""

    model_config = ConfigDict(allow_inf_nan=True)  # ends may be open

    low: float
    high: float
    scale: float = 1
    offset: float = 0


_EVERYTHING = Range(low=-math.inf, high=math.inf)
_NOTHING = Range(low=math.inf, high=-math.inf)


@dataclass(frozen=True)
class Window:
    """Records with start <= time < end, in the unit of the time column."""

    start: float
    end: float

    def outside(self, time: str) -> dict[str, pl.Expr]:
        """Reasons to drop a record, by the column of its time."""
        return {
            "without a time": col(time).is_null(),
            "before the window": col(time) < self.start,
            "at or after the end of the window": col(time) >= self.end,
        }


def select(
    units: pl.DataFrame,
    rules: Iterable[tuple[str, pl.Expr]],
    person: str,
    positive: pl.Expr | None = None,
    classes: Mapping[str, pl.Expr] | None = None,
) -> tuple[pl.DataFrame, list[Step]]:
    """The units that pass all rules, and the attrition.

    Args:
        units: one row a unit.
        rules: what is kept, in words, and as a condition on the units left by the rules before it; null = not kept.
        person: the column that names the patient.
        positive: which units count as positive; null = not. None = not counted.
        classes: by name, which units are of the class; null = not. None = not counted.
    """
    steps = []
    for rule, condition in rules:
        units = units.filter(condition)
        positives = None if positive is None else units.filter(positive).height
        negatives = None if positive is None else units.filter(~positive).height
        counts = None if classes is None else {name: units.filter(of).height for name, of in classes.items()}
        steps.append(Step(rule, units.height, units[person].n_unique(), positives, counts, negatives))
    return units, steps


def keep(
    raw: RawFolder, table: str, units: pl.DataFrame, drops: Mapping[str, pl.Expr], columns: Sequence[pl.Expr]
) -> tuple[pl.DataFrame, dict[str, int]]:
    """Reads a table streaming; only records that stay are held.

    Args:
        raw: the raw files.
        table: which one.
        units: one column, the ids of the cohort, named as in the table; other units' records are not looked at.
        drops: reason -> condition; a record is dropped for the first that is true.
        columns: what is kept of a record.

    Returns:
        The records that no reason drops, in any order, and `dropped: reason` -> number.

    Raises:
        UserError: the file is cut off, damaged or holds text in a numeric column.
    """
    reason = pl.coalesce(pl.when(drop).then(pl.lit(index, pl.UInt8)) for index, drop in enumerate(drops.values()))
    query = raw.scan(table).join(units.lazy(), on=units.columns, how="semi").with_columns(reason.alias("_reason"))
    kept = [pl.DataFrame(schema=query.select(columns).collect_schema())]
    counts = np.zeros(len(drops), dtype=np.int64)
    for batch in raw.batches(query, table):
        counts += np.bincount(batch["_reason"].drop_nulls(), minlength=len(drops))
        kept.append(batch.filter(col("_reason").is_null()).select(columns))
    return pl.concat(kept), dict(zip((f"dropped: {name}" for name in drops), counts.tolist(), strict=True))


def latest(records: pl.DataFrame, *times: str, per_hour: float) -> pl.DataFrame:
    """unit_id, hours: when the last record of each unit became known, for a table's `latest`.

    Args:
        records: unit_id and the columns of times; null = no such time.
        times: the columns; a record is known once all of them have passed.
        per_hour: of their unit.
    """
    last = pl.max_horizontal(*times).max().cast(pl.Float64) / per_hour
    return records.group_by("unit_id").agg(hours=last)


def codes(texts: pl.DataFrame, codes_of: Callable[[str], list[str]]) -> pl.DataFrame:
    """Each text made into codes: unit_id, text (Categorical) -> unit_id, code, one row a pair."""
    pairs = texts.unique().with_columns(col("text").cast(pl.String))
    distinct = pairs["text"].unique().sort()
    meaning = pl.DataFrame(
        {"text": distinct, "code": [codes_of(text) for text in distinct]},
        schema={"text": pl.String, "code": pl.List(pl.String)},
    )
    return pairs.join(meaning.explode("code", empty_as_null=False), on="text").select("unit_id", "code").unique()


def in_range(values: pl.Series, variables: pl.Series, ranges: Mapping[str, Sequence[Range]]) -> pl.Series:
    """Values brought to common units; null where no range of their variable holds them.

    Args:
        values: (N,) Float64.
        variables: (N,) Enum.
        ranges: by variable; the first that holds a value counts. Other variables' values stay as they are.
    """
    assert isinstance(variables.dtype, pl.Enum), variables.dtype
    pieces = [ranges.get(name, [_EVERYTHING]) for name in variables.dtype.categories]
    codes, given = variables.to_physical().to_numpy(), values.to_numpy()
    result: npt.NDArray[np.float64] = np.full(given.shape, np.nan)
    for depth in reversed(range(max(map(len, pieces), default=0))):
        chosen = [piece[depth] if depth < len(piece) else _NOTHING for piece in pieces]
        low, high, scale, offset = np.ascontiguousarray(
            np.array([(p.low, p.high, p.scale, p.offset) for p in chosen]).T
        )
        held = (given >= low[codes]) & (given <= high[codes])
        result[held] = given[held] * scale[codes[held]] + offset[codes[held]]
    return pl.Series(values.name, result).fill_nan(None)


def summarise(measured: pl.DataFrame) -> pl.DataFrame:
    """last, min, max, mean and count of each variable of each unit.

    Args:
        measured: unit_id, variable, value, sorted by unit, variable and time without ties. That order is also the order
            of summation, so that equal data give equal means to the last bit. A null value is a record whose value is
            missing: it counts for nothing, but its unit and variable get a row.
    """
    unknown = measured.filter(col("value").is_null()).select("unit_id", col("variable").cast(pl.String)).unique()
    measured = measured.drop_nulls("value")
    first = pl.any_horizontal(col(name).ne_missing(col(name).shift()) for name in ("unit_id", "variable"))
    starts = measured.select(first.arg_true()).to_series().to_numpy()
    values = measured["value"].to_numpy()
    ends = np.append(starts, len(values))[1:].astype(np.int64)
    groups = measured[starts].select("unit_id", col("variable").cast(pl.String))
    summary = groups.with_columns(
        last=values[ends - 1],
        min=np.minimum.reduceat(values, starts),
        max=np.maximum.reduceat(values, starts),
        mean=np.add.reduceat(values, starts) / (ends - starts),
        count=ends - starts,
    )
    never = unknown.join(summary, on=["unit_id", "variable"], how="anti").with_columns(count=pl.lit(0, pl.Int64))
    return pl.concat([summary, never], how="diagonal")
