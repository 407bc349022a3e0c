"""Checks for features that name the unit or the time at which it was seen, instead of describing it."""

import re
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import polars as pl

from ovo_clinic import flat_inspection, flat_parts
from ovo_clinic.audit.finding import Finding, Remarks, listed
from ovo_clinic.audit.subject import Floats, Subject, columns

LEAST = 20
"""Measured units below which a feature shows nothing."""
NEAR_UNIQUE = 0.9
"""Distinct values a measured unit from which on a feature may name the unit."""
MONOTONE = 0.95
"""Rank correlation with the order of ids or of time."""
LEVELS = 0.5
"""Levels of a category a training unit from which on they name the units."""
YEARS = (1900, 2300)
"""Dates are shifted into the future in some data sets."""
EPOCH = (3e8, 1e10)
"""Seconds since 1970 of these years, nearly."""
_MOST_UNITS = 50_000


def identifier_or_calendar_proxies(subject: Subject) -> Remarks:
    """Features that are near-unique and run with the ids or the calendar, and values that are dates or years."""
    rows = np.flatnonzero(subject.in_parts)
    if rows.size > _MOST_UNITS:
        rows = np.sort(np.random.default_rng(0).choice(rows, _MOST_UNITS, replace=False))
    orders = dict(_orders(subject))
    for name, array in subject.unit_features():
        places = rows[array.present[rows]]
        found: dict[tuple[str, str | None], list[str]] = defaultdict(list)
        for column, values in columns(array, places):
            if column.role != "binary" and column.group != "hours":
                measured = ~np.isnan(values)
                if reason := _reason(column.group, values[measured], orders, places[measured]):
                    found[reason, subject.declared(column.group)].append(column.group)
        for group, levels in _levels(subject, name).items():
            training = int((array.present & (subject.split == "train")).sum())
            if levels > max(LEAST, LEVELS * training):
                reason = "have nearly as many levels as there are training units"
                found[reason, subject.declared(group)].append(group)
        for (reason, declared), groups in found.items():
            distinct = list(dict.fromkeys(groups))
            yield Finding(
                what=f"{len(distinct)} feature column(s) {reason}: {listed(distinct)}",
                where=name,
                count=len(distinct),
                why="the model learns who or when a unit was, which holds nowhere else and may follow the outcome",
                mend="leave them out, or keep only what is meant by them: an age, a duration, a time of day; one "
                "that is a measurement all the same is declared, with the reason, in the task's `kept_on_purpose`",
                declared=declared,
            )


def _orders(subject: Subject) -> Iterator[tuple[str, Floats]]:
    """(N,) ranks of the ids, and of the columns of the cohort that hold dates."""
    cohort = subject.prepared.cohort
    for column in cohort.columns:
        dated = cohort[column].dtype in (pl.Date, pl.Datetime) or cohort.schema[column].base_type() is pl.Datetime
        if column in ("unit_id", "patient_id", *subject.task.identifiers) or dated:
            keys = _natural(cohort[column]) if cohort.schema[column] == pl.String else cohort[column]
            ranks = keys.rank("dense").cast(pl.Float64).fill_null(np.nan).to_numpy()
            if np.unique(ranks[~np.isnan(ranks)]).size > LEAST:
                yield column, ranks


def _natural(ids: pl.Series) -> pl.Series:
    """Texts that sort by the numbers in them: `P9` before `P10`."""
    padded = [None if text is None else re.sub(r"\d+", lambda found: found[0].zfill(20), text) for text in ids]
    return pl.Series(ids.name, padded, pl.String)


def _reason(column: str, values: Floats, orders: dict[str, Floats], rows: npt.NDArray[np.int64]) -> str | None:
    """What a column of measured values is, beside a measurement; None = nothing."""
    if values.size < LEAST:
        return None
    whole = bool(np.all(values == np.floor(values)))
    if whole and _is_calendar(values):
        return "hold years, dates or seconds since 1970"
    if np.unique(values).size < NEAR_UNIQUE * values.size:
        return None
    for name, order in orders.items():
        known = ~np.isnan(order[rows])
        if known.sum() >= LEAST:
            ranks = [np.argsort(np.argsort(numbers[known])) for numbers in (values, order[rows])]  # ties are few
            if abs(np.atleast_2d(np.corrcoef(ranks))[0, 1]) >= MONOTONE:
                return f"are near-unique and run with {name}"
    if whole and flat_parts.ID.search(flat_inspection.words(column)):
        return "are near-unique and called like an id"
    return None


def _is_calendar(values: Floats) -> bool:
    """Whether whole numbers are all years, YYYYMMDD, or seconds since 1970, and more than two different ones."""
    low, high = values.min(), values.max()
    if np.unique(values).size < 3:
        return False
    if YEARS[0] <= low and high <= YEARS[1]:
        return True
    years, days = values // 10_000, values % 100
    months = values // 100 % 100
    # float32 holds only every second whole number of this size: the first may read as 0, the 31st as 32.
    dates = (years >= YEARS[0]) & (years <= YEARS[1]) & (months >= 1) & (months <= 12) & (days <= 32)
    return bool(dates.all()) or bool(EPOCH[0] <= low and high <= EPOCH[1])


def _levels(subject: Subject, name: str) -> dict[str, int]:
    """How many levels each category of a modality has."""
    counts: dict[str, int] = defaultdict(int)
    for column in subject.prepared.array(name).columns:
        if column.role == "binary" and column.name.startswith(f"{column.group}="):
            counts[column.group] += 1
    return counts
