"""The seventeen channels of the MIMIC time series and the items that feed them, from the lists of the data spec."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ovo_clinic.events import Range
from ovo_clinic.registry import Options, check
from ovo_clinic.spec import DatasetSpec

EYE, MOTOR, VERBAL, TOTAL = (
    f"Glascow coma scale {part}" for part in ("eye opening", "motor response", "verbal response", "total")
)
CAPILLARY = "Capillary refill rate"


class Channel(Options):
    """One channel.

    Attributes:
        channel: its name.
        kind: `number`, or `score` for one that is charted as a text.
        normal: what stands before the first observation.
        outlier_low, outlier_high: values outside are missing; both ends are allowed.
        valid_low, valid_high: values outside are moved to the nearer one.
        zero_is_missing: whether 0 means that nothing was measured.
        ties: which of several values at one time counts.
    """

    channel: str
    kind: str
    normal: float
    outlier_low: float
    valid_low: float
    valid_high: float
    outlier_high: float
    zero_is_missing: bool
    ties: str


class Category(Options):
    """One text of a score channel; in the list, a channel's categories stand in the order of its one-hot columns.

    Attributes:
        channel: of which.
        category: the text.
        score: what it counts.
        written: whether its column is the one that a score is written in.
        medfuse_normal: whether MedFuse's code takes it for what stands before the first observation.
    """

    channel: str
    category: str
    score: float
    written: bool
    medfuse_normal: bool


class Item(Options):
    """One item of chartevents or labevents.

    Attributes:
        channel: that it feeds.
        table: where it stands.
        itemid: its number.
        label, category: MIMIC's name and kind of it.
        rank: of several items at one time those of the lowest rank count.
        clean, medfuse: whether the corrected form and MedFuse's code read it.
    """

    channel: str
    table: str
    itemid: int
    label: str
    category: str
    rank: int
    clean: bool
    medfuse: bool


@dataclass(frozen=True)
class Channels:
    """The channels with their categories and items.

    Attributes:
        channels: in the order of the columns.
        categories: of all score channels.
        items: sorted by itemid.
        conversions: by itemid, see `settings.conversions` of the spec.
    """

    channels: list[Channel]
    categories: list[Category]
    items: list[Item]
    conversions: dict[int, list[Range]]

    @classmethod
    def of(cls, spec: DatasetSpec, *, medfuse: bool) -> "Channels":
        """The channels with the items that MedFuse's code reads, or those of the corrected form.

        Raises:
            UserError: a mistake in the lists.
        """
        items = [check(Item, row, "lists.items") for row in spec.lists["items"]]
        read = [item for item in items if (item.medfuse if medfuse else item.clean)]
        return cls(
            channels=[check(Channel, row, "lists.channels") for row in spec.lists["channels"]],
            categories=[check(Category, row, "lists.categories") for row in spec.lists["categories"]],
            items=sorted(read, key=lambda item: item.itemid),
            conversions={
                int(item): [check(Range, piece, f"settings.conversions.{item}") for piece in pieces]
                for item, pieces in spec.settings["conversions"].items()
            },
        )

    @cached_property
    def names(self) -> list[str]:
        """Of the channels, in order."""
        return [channel.channel for channel in self.channels]

    def position(self, name: str) -> int:
        """The place of a channel."""
        return self.names.index(name)

    def of_channel(self, name: str) -> list[Category]:
        """The categories of a channel, in order."""
        return [category for category in self.categories if category.channel == name]

    def itemids(self, table: str) -> list[int]:
        """The items that are read of a table."""
        return [item.itemid for item in self.items if item.table == table]

    def items_of(self, *names: str) -> list[int]:
        """The items that feed some channels."""
        return [item.itemid for item in self.items if item.channel in names]

    @cached_property
    def scored(self) -> list[str]:
        """Names of the channels that are charted as texts."""
        return [channel.channel for channel in self.channels if channel.kind == "score"]

    def item_positions(self, itemids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """(E,) place of each itemid in `items`."""
        return np.searchsorted(np.array([item.itemid for item in self.items]), itemids)
