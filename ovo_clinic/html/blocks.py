"""The parts that a page is made of; the template knows how each is drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pandas as pd
from markupsafe import Markup

from ovo_clinic.html import svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Text:
    """A paragraph; a warning stands out."""

    text: str
    warning: bool = False
    kind: str = field(default="text", init=False)


@dataclass(frozen=True)
class Table:
    """A table of text cells; the first column heads its row."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    kind: str = field(default="table", init=False)

    @classmethod
    def of(cls, caption: str, frame: pd.DataFrame) -> "Table":
        """The table of a frame of texts; missing cells are empty."""
        rows = [["" if pd.isna(cell) else str(cell) for cell in row] for row in frame.itertuples(index=False)]
        return cls(caption, [str(column) for column in frame.columns], rows)


@dataclass(frozen=True)
class Drawing:
    """A figure as inline SVG with its caption."""

    name: str
    svg: Markup
    caption: str
    kind: str = field(default="drawing", init=False)

    @classmethod
    def of(cls, name: str, figure: "Figure", caption: str) -> "Drawing":
        """The drawing of a figure; its name is unique on the page."""
        return cls(name, svg.inline(figure, f"figure-{name}", caption), caption)


@dataclass(frozen=True)
class Flow:
    """A flow diagram: boxes one below the other; beside each arrow what was excluded."""

    steps: Sequence[Mapping[str, str]]
    parts: Sequence[Mapping[str, str]]
    kind: str = field(default="flow", init=False)


@dataclass(frozen=True)
class Checklist:
    """Reporting items: number, topic, what is asked, what is here (with its section), what the authors must add."""

    items: Sequence[Mapping[str, str]]
    kind: str = field(default="checklist", init=False)


Block = Text | Table | Drawing | Flow | Checklist


@dataclass(frozen=True)
class Section:
    """A part of the report with a heading that links lead to."""

    anchor: str
    title: str
    blocks: Sequence[Block]
