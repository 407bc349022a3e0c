"""Values of the command line that need more than a type: folders by source, files in a row, sizes of memory."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ovo_clinic.errors import UserError
from ovo_clinic.resources import absolute, expanded

_NAMED = re.compile(r"([A-Za-z]\w*)=(.+)", re.DOTALL)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", re.IGNORECASE)


@dataclass(frozen=True)
class Words:
    """What a command was told.

    Attributes:
        overrides: `key=value` settings.
        raw: folder of the raw files, or the folder of each source; None where none is given.
    """

    overrides: list[str]
    raw: Path | dict[str, Path] | None


def words(overrides: Sequence[str] | None, raw: Sequence[str] | None, lists: Sequence[Path] | None = None) -> Words:
    """Sorts the words of a command, of which an option with several values leaves all but the first to the overrides.

    `--raw iv=A cxr=B` names two folders, as does `--raw iv=A --raw cxr=B`; `--split-lists a.csv b.csv` two files.

    Raises:
        UserError: several folders without a source, or a source named twice.
    """
    from ovo_clinic.experiment import Experiment

    given = [part for value in raw or () for part in re.split(r"\s+(?=[A-Za-z]\w*=)", value)]
    files, rest = list(lists or ()), []
    for word in overrides or ():
        named = _NAMED.fullmatch(word)
        if files and "=" not in word:
            files.append(Path(word))
        elif named and named[1] not in Experiment.model_fields and any(map(_NAMED.fullmatch, given)):
            given.append(word)
        else:
            rest.append(word)
    if files:
        rest.append(f"split_lists={json.dumps([str(absolute(file, '--split-lists')) for file in files])}")
    return Words(rest, _folders(given))


def _folders(given: Sequence[str]) -> Path | dict[str, Path] | None:
    if len(given) <= 1 and not (given and _NAMED.fullmatch(given[0])):
        return expanded(given[0], "--raw") if given else None
    folders: dict[str, Path] = {}
    for value in given:
        named = _NAMED.fullmatch(value)
        if named is None:
            raise UserError(f"--raw: {value}: of several folders each needs its source, such as --raw iv=DIR cxr=DIR")
        if named[1] in folders:
            raise UserError(f"--raw: source '{named[1]}' is given twice")
        folders[named[1]] = expanded(named[2], "--raw")
    return folders


def size(text: str | None) -> int | None:
    """Bytes of a size such as `4GB` or `500M` (powers of 1024).

    Raises:
        UserError: it is none.
    """
    if text is None:
        return None
    found = _SIZE.fullmatch(text.strip())
    size = float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " ") if found else 0.0
    if not 1 <= size < 2**63:
        raise UserError(f"--memory: '{text[:20]}' should be a size such as 4GB or 500MB")
    return int(size)


def names(text: str | None) -> list[str] | None:
    """Names separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()] if text is not None else None


def shares(text: str | None) -> list[float] | None:
    """Numbers from 0 to 1, separated by commas.

    Raises:
        UserError: one is none.
    """
    values = names(text)
    if values is None:
        return None
    try:
        found = [float(value) for value in values]
    except ValueError:
        raise UserError(f"--missing: '{text}' should be shares such as 0,0.25,0.5,0.75") from None
    if not found or not all(0 <= value <= 1 for value in found):
        raise UserError(f"--missing: '{text}' should be shares from 0 to 1, such as 0,0.25,0.5,0.75")
    return found


def named_files(values: Sequence[str] | None, option: str) -> dict[str, Path]:
    """`NAME=FILE`, given once or more.

    Raises:
        UserError: another form, or a name that stands twice.
    """
    found: dict[str, Path] = {}
    for value in values or ():
        name, separator, file = value.partition("=")
        if not separator or not name or not file or name in found:
            raise UserError(f"{option}: '{value}': give each name once, as {option} NAME=FILE")
        found[name] = expanded(Path(file), option)
    return found
