"""Events of the MIMIC channels in equal time steps, in the compact or in MedFuse's 76-column layout."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl
from polars import col

from ovo_clinic import binning
from ovo_clinic.errors import UserError
from ovo_clinic.raw import RawFolder
from ovo_clinic.resources import load_pipeline
from ovo_clinic.staging import PART, Stage
from ovo_clinic.tables import StepsTable

if TYPE_CHECKING:
    from pipelines import mimic_channels, mimic_events, mimic_replica
else:
    mimic_channels, mimic_events = load_pipeline("mimic_channels"), load_pipeline("mimic_events")
    mimic_replica = load_pipeline("mimic_replica")

TABLES = ("chartevents", "labevents")
Layout = Literal["compact", "medfuse"]
Grid = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Steps:
    """The time steps of some stays.

    Attributes:
        unit: (S,) the stay of each step.
        hours: (S,) when it starts.
        values: (S,F) the last value of each channel so far, the normal one before the first.
        observed: (S,F) whether the channel was charted in the step.
    """

    unit: npt.NDArray[np.int64]
    hours: npt.NDArray[np.float64]
    values: Grid
    observed: npt.NDArray[np.bool_]


def steps(
    found: "mimic_events.Events",
    units: npt.NDArray[np.int64],
    stay_hours: npt.NDArray[np.float64],
    step_hours: float,
    normal: list[float],
) -> Steps:
    """Bins events and carries values forward.

    Args:
        found: events, of these units only.
        units: (N,) the stays, ascending.
        stay_hours: (N,) how long each is.
        step_hours: length of a time step.
        normal: by channel, what stands before the first observation.
    """
    counts = binning.bin_counts(stay_hours, step_hours)
    starts = np.cumsum(counts) - counts
    place = np.searchsorted(units, found.unit)
    # `los` is rounded, so that the last moment of a stay may lie beyond its last step by a hair.
    step = np.minimum(binning.bin_of(found.seconds / 3600, step_hours), counts[place] - 1)
    shape = (int(counts.sum()), len(normal))
    grid = binning.last_in_bin(starts[place] + step, found.channel, found.value, shape)
    carried = binning.carry_forward(grid, starts)
    within = np.arange(shape[0]) - np.repeat(starts, counts)
    return Steps(
        unit=np.repeat(units, counts),
        hours=within.astype(np.float64) * step_hours,
        values=np.where(np.isnan(carried), np.array(normal, dtype=np.float32), carried),
        observed=~np.isnan(grid),
    )


class Form(Protocol):
    """How raw rows become features: `Clean` or `Replica`.

    Attributes:
        channels: with the items that are read.
        normal: by channel, what stands before the first observation.
        known: column of staged rows with the seconds at which each became known.
    """

    @property
    def known(self) -> str:
        """See above."""
        ...

    @property
    def channels(self) -> "mimic_channels.Channels":
        """See above."""
        ...

    @property
    def normal(self) -> list[float]:
        """See above."""
        ...

    def stage(self, raw: RawFolder, table: str, windows: pl.DataFrame) -> Stage:
        """The rows of a table that may matter."""
        ...

    def read(self, rows: pl.DataFrame) -> tuple["mimic_events.Events", npt.NDArray[np.int64], Counter[str]]:
        """Events of staged rows, the units with an event charted inside the window, and counts worth telling."""
        ...

    def frame(self, found: Steps) -> pl.DataFrame:
        """unit, hours and the features."""
        ...


@dataclass(frozen=True)
class Clean:
    """The corrected form; see `mimic_events`."""

    channels: "mimic_channels.Channels"
    layout: Layout = "compact"
    intubated_is_missing: bool = False
    end_open: bool = False

    @property
    def known(self) -> str:
        """See `Form`."""
        return "known" if self.end_open else "seconds"

    @property
    def normal(self) -> list[float]:
        """Of every channel."""
        return [channel.normal for channel in self.channels.channels]

    def stage(self, raw: RawFolder, table: str, windows: pl.DataFrame) -> Stage:
        """See `Form`."""
        return mimic_events.stage_clean(raw, table, windows, self.channels, end_open=self.end_open)

    def read(self, rows: pl.DataFrame) -> tuple["mimic_events.Events", npt.NDArray[np.int64], Counter[str]]:
        """See `Form`."""
        return mimic_events.clean(rows, self.channels, intubated_is_missing=self.intubated_is_missing)

    def frame(self, found: Steps) -> pl.DataFrame:
        """See `Form`; in MedFuse's layout a score stands in the column of MIMIC-IV's spelling, others stay empty."""
        if self.layout == "compact":
            return _frame(found, dict(_compact(found, self.channels)), self.channels)
        stands_for = {
            name: [found.score if found.written else np.nan for found in self.channels.of_channel(name)]
            for name in self.channels.scored
        }
        return _frame(found, dict(_medfuse(found, self.channels, stands_for)), self.channels)


@dataclass(frozen=True)
class Replica:
    """MedFuse's form, in which every spelling of a score is a category of its own; see `mimic_replica`."""

    channels: "mimic_channels.Channels"
    known: str = "seconds"

    @property
    def normal(self) -> list[float]:
        """Of every channel; of a score the place of its normal category."""
        return [
            float([found.medfuse_normal for found in self.channels.of_channel(channel.channel)].index(True))
            if channel.kind == "score"
            else channel.normal
            for channel in self.channels.channels
        ]

    def stage(self, raw: RawFolder, table: str, windows: pl.DataFrame) -> Stage:
        """See `Form`."""
        return mimic_replica.stage_replica(raw, table, windows, self.channels)

    def read(self, rows: pl.DataFrame) -> tuple["mimic_events.Events", npt.NDArray[np.int64], Counter[str]]:
        """See `Form`."""
        found, counts = mimic_replica.replica(rows, self.channels)
        return found, np.unique(found.unit), counts

    def frame(self, found: Steps) -> pl.DataFrame:
        """See `Form`."""
        stands_for = {
            name: [float(place) for place in range(len(self.channels.of_channel(name)))]
            for name in self.channels.scored
        }
        return _frame(found, dict(_medfuse(found, self.channels, stands_for)), self.channels)


def _compact(found: Steps, channels: "mimic_channels.Channels") -> Iterator[tuple[str, npt.NDArray[np.generic]]]:
    """Scores as numbers."""
    for place, name in enumerate(channels.names):
        values = found.values[:, place]
        yield name, values > 0 if name == mimic_channels.CAPILLARY else values


def _medfuse(
    found: Steps, channels: "mimic_channels.Channels", stands_for: dict[str, list[float]]
) -> Iterator[tuple[str, npt.NDArray[np.generic]]]:
    """59 value columns; `stands_for` says which value each category of a score channel stands for."""
    for place, channel in enumerate(channels.channels):
        values = found.values[:, place]
        if channel.kind == "number":
            yield channel.channel, values
            continue
        for category, value in zip(channels.of_channel(channel.channel), stands_for[channel.channel], strict=True):
            yield f"{channel.channel}->{category.category}", values == value


def _frame(
    found: Steps, columns: dict[str, npt.NDArray[np.generic]], channels: "mimic_channels.Channels"
) -> pl.DataFrame:
    masks = {f"mask->{name}": found.observed[:, place] for place, name in enumerate(channels.names)}
    return pl.DataFrame({"unit": found.unit.astype(np.uint32), "hours": found.hours, **columns, **masks})


@dataclass(frozen=True)
class Series:
    """The time series of a cohort.

    Attributes:
        table: steps of the stays with an event charted inside the window; the others have none.
        counts: rows read and dropped, and values that were not taken as they are.
    """

    table: StepsTable
    counts: Counter[str]


def series(raw: RawFolder, windows: pl.DataFrame, form: Form, step_hours: float) -> Series:
    """Streams the tables once and builds the steps part by part of the cohort.

    Args:
        raw: the raw files.
        windows: unit (0 ... N-1), part, subject_id, hadm_id, stay_id, start (Datetime), last (seconds, included) and
            hours (length of the series) of each stay.
        form: how rows become features.
        step_hours: length of a time step.
    """
    stages = {table: form.stage(raw, table, windows) for table in TABLES}
    counts = Counter({f"{table} rows {why}": n for table, found in stages.items() for why, n in found.counts.items()})
    frames, last = [], []
    for part in windows[PART].unique().sort():
        found = [rows for table in TABLES if (rows := stages[table].read(part)) is not None]
        if found:
            staged = pl.concat(found)
            events, units, more = form.read(staged)
            last.append(staged.group_by("unit").agg(hours=col(form.known).max() / 3600))
            hours = windows["hours"].gather(units).to_numpy()
            frames.append(
                form.frame(steps(events.at(np.isin(events.unit, units)), units, hours, step_hours, form.normal))
            )
            counts.update(more)
    if not frames:
        where = raw.path(TABLES[0])
        raise UserError(
            f"{where}: holds no usable event of any stay of the cohort; give the folder of the whole download"
        )
    frame = pl.concat(frames)
    named = windows["stay_id"].gather(frame["unit"]).alias("unit_id")
    latest = pl.concat(last).join(frame.select("unit").unique(), on="unit", how="semi")
    latest = latest.select(windows["stay_id"].gather(latest["unit"]).alias("unit_id"), "hours")
    return Series(StepsTable(frame.select(named, pl.exclude("unit")), latest=latest), counts)
