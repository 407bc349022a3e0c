"""Numbers as the text that stands in TADPOLE files, with every code that the real ones have for a missing value."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ovo_clinic.synthetic.tadpole_signal import Booleans, Integers

BLOCK_BLANK = " "
"""A cell of a joined block without a value."""
CODES = ("-4", "-4.0", "NA", "nan", BLOCK_BLANK, "  ")
CODE_SHARES = (0.006, 0.002, 0.0005, 0.0005, 0.003, 0.001)
PADDED_SHARE = 0.001


def numbers(values: NDArray[Any], decimals: int = 0, present: Booleans | None = None, blank: str = "") -> pl.Series:
    """Text of rounded numbers; `blank` where absent. Without decimals there is no point."""
    rounded = np.round(values, decimals)
    text = pl.Series(rounded if decimals else rounded.astype(np.int64)).cast(pl.String)
    return text if present is None else where(present, text, blank)


def dates(values: NDArray[np.datetime64], present: Booleans | None = None, blank: str = "") -> pl.Series:
    """Dates as YYYY-MM-DD; `blank` where absent."""
    text = pl.Series(np.datetime_as_string(values, unit="D"))
    return text if present is None else where(present, text, blank)


def where(present: Booleans, text: pl.Series, blank: str) -> pl.Series:
    """The text where present."""
    return text.zip_with(pl.Series(present), pl.Series([blank], dtype=pl.String).new_from_index(0, len(text)))


def choose(options: Sequence[str], which: Integers) -> pl.Series:
    """options[which]."""
    return pl.Series(options, dtype=pl.String).gather(which)


def draw_text(rng: np.random.Generator, shares: dict[str, float], count: int) -> pl.Series:
    """(count,) texts drawn with the given shares."""
    weights = np.array(list(shares.values()))
    return choose(list(shares), rng.choice(len(shares), count, p=weights / weights.sum()))


def spoiled(rng: np.random.Generator, text: pl.Series, among: Booleans) -> pl.Series:
    """The text (R,) with codes for missing values, and a few values in padding blanks, in rows of `among` (R,)."""
    edges = np.cumsum([*CODE_SHARES, PADDED_SHARE])
    drawn = np.searchsorted(edges, rng.random(len(text)), side="right")
    rows = np.flatnonzero((drawn < len(edges)) & among)
    if not rows.size:
        return text
    cells = [f" {text[int(row)]} " if drawn[row] == len(CODES) else CODES[drawn[row]] for row in rows]
    return text.clone().scatter(rows, pl.Series(cells))
