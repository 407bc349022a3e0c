"""Guesses what features a private data set's flat file holds, and says of every other column why it is left out."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ovo_clinic.flat_inspection import ColumnFacts, FlatFile
from ovo_clinic.flat_parts import ID, Parts

_TIME = re.compile(r"hour|time|offset|minute")
_VARIABLE = re.compile(r"variable|name|test|item|label|parameter|measurement")
_VALUE = re.compile(r"value|result|number|reading")
_CODE = re.compile(r"code|icd|drug|diagnos|procedure|medication|treatment")
_SPLIT = re.compile(r"(^|_)(split|fold|partition)$")
_MOST_LEVELS = 50


@dataclass(frozen=True)
class Guess:
    """What a file is good for.

    Attributes:
        options: of its modality; None where no feature is seen.
        left_out: column -> why it is no feature.
    """

    options: dict[str, Any] | None
    left_out: dict[str, str]

    def columns(self) -> list[str]:
        """The columns that the modality's options name."""
        return [name for _, name in self._named()]

    def is_spelt(self, name: str) -> bool:
        """Whether a column is read as it is spelt: the names of codes or variables."""
        return name in [column for option, column in self._named() if option in ("code", "variable")]

    def numbers(self) -> list[str]:
        """Those that are read as numbers."""
        return [name for option, name in self._named() if option in ("time", "value", "numeric")]

    @property
    def uncut(self) -> bool:
        """Whether the file holds records without a time by which they could be cut."""
        return self.options is not None and self.options["kind"] != "vector" and "time" not in self.options

    def by_reason(self) -> dict[str, list[str]]:
        """Why -> the columns that are left out for it."""
        reasons = dict.fromkeys(self.left_out.values())
        return {reason: [name for name, why in self.left_out.items() if why == reason] for reason in reasons}

    def _named(self) -> Iterator[tuple[str, str]]:
        for option, value in (self.options or {}).items():
            if option not in ("kind", "table", "statistics"):
                for name in value if isinstance(value, list) else [value]:
                    yield option, name


def guess(file: FlatFile, parts: Parts) -> Guess:
    """The modality that a file could be: a vector where the unit has one row, else summaries or codes."""
    left_out = dict.fromkeys(file.unnamed, "row numbers")
    candidates = {}
    for name, column in file.columns.items():
        if name in parts.banned:
            left_out[name] = "states or follows the outcome (banned)"
        elif name not in (parts.unit, parts.patient, parts.label):
            if column.filled == 0:
                left_out[name] = "empty"
            elif _SPLIT.search(column.words):
                left_out[name] = "a split of the data"
            elif column.consecutive:
                left_out[name] = "row numbers"
            else:
                candidates[name] = column
    found = (_vector if file.unique(parts.unit) else _records)(file.table, candidates)
    return Guess(found.options, left_out | found.left_out)


def _records(table: str, candidates: dict[str, ColumnFacts]) -> Guess:
    texts = [name for name, column in candidates.items() if column.type != "number" and not column.dates]
    numbers = [name for name, column in candidates.items() if column.numeric]
    time = next((name for name in numbers if _TIME.search(name)), None)
    variable = next((name for name in texts if _VARIABLE.search(name) and name != time), None)
    value = next((name for name in numbers if _VALUE.search(name) and name not in (time, variable)), None)
    code = next((name for name in texts if _CODE.search(name) and name != time), None)
    options: dict[str, Any]
    if variable and value:
        statistics = [*(["last"] if time else []), "min", "max", "mean", "count"]
        options = {"kind": "summaries", "table": table, "variable": variable, "value": value, "statistics": statistics}
    elif code:
        options = {"kind": "codes", "table": table, "code": code}
    else:
        return Guess(None, dict.fromkeys(candidates, "use unknown, and no column of codes, or of variables and values"))
    options |= {"time": time} if time else {}
    others = {name: column for name, column in candidates.items() if name not in options.values()}
    return Guess(options, {name: "dates" if column.dates else "use unknown" for name, column in others.items()})


def _vector(table: str, candidates: dict[str, ColumnFacts]) -> Guess:
    roles: dict[str, list[str]] = {"numeric": [], "binary": [], "categorical": []}
    left_out = {}
    for name, column in candidates.items():
        if ID.search(column.words) and column.type != "number" and not column.zero_one:
            left_out[name] = "an id"
        elif column.dates:
            left_out[name] = "dates"
        elif column.numeric and not (column.mixed and _CODE.search(name)):
            roles["binary" if column.zero_one and column.filled == column.rows else "numeric"].append(name)
        elif column.distinct > _MOST_LEVELS:
            left_out[name] = f"free text or codes, more than {_MOST_LEVELS} different"
        else:
            roles["categorical"].append(name)
    filled = {role: names for role, names in roles.items() if names}
    return Guess({"kind": "vector", "table": table, **filled} if filled else None, left_out)
