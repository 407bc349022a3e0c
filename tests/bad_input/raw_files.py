"""Copies of raw folders with one thing wrong: an original is never changed, and a copy costs almost nothing."""

import csv
import gzip
import io
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

Rows = list[list[str]]
Change = Callable[[Path], None]

CANARY = "Quetzalcoatlus"
"""A cell that no message may show."""


def cases(names: Iterable[str], quick: Iterable[str]) -> list[Any]:
    """Parameters of a test, all but the quick ones marked as slow."""
    names, quick = list(names), set(quick)
    assert quick <= set(names), quick - set(names)
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]


def linked(source: Path, out: Path) -> Path:
    """A copy of a folder made of hard links; writing to a file of it in place would write to the original."""
    for path in sorted(source.rglob("*")):
        target = out / path.relative_to(source)
        if path.is_dir():
            target.mkdir(parents=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, target)
    return out


def content(path: Path) -> bytes:
    """What a file holds, unpacked."""
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def replaced(path: Path, data: bytes, packed: bool | None = None) -> None:
    """Puts another file in its place, packed as its name says unless told otherwise."""
    path.unlink()
    packed = path.suffix == ".gz" if packed is None else packed
    path.write_bytes(gzip.compress(data, 1, mtime=0) if packed else data)


def unpacked(file: str, change: Callable[[bytes], bytes]) -> Change:
    """Changes the text of a file."""

    def apply(folder: Path) -> None:
        path = folder / file
        replaced(path, change(content(path)))

    return apply


def packed(file: str, change: Callable[[bytes], bytes]) -> Change:
    """Changes the bytes of a file as it lies there."""

    def apply(folder: Path) -> None:
        path = folder / file
        replaced(path, change(path.read_bytes()), packed=False)

    return apply


def rows(file: str, change: Callable[[Rows], Rows]) -> Change:
    """Changes the records of a file, the header first among them."""

    def apply(folder: Path) -> None:
        path = folder / file
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows(change(list(csv.reader(io.StringIO(content(path).decode(), newline="")))))
        replaced(path, text.getvalue().encode())

    return apply


def cells(file: str, column: str, change: Callable[[str], str], which: slice = slice(None)) -> Change:
    """Changes the cells of a column, in some of the records."""

    def apply(table: Rows) -> Rows:
        place = table[0].index(column)
        for record in table[1:][which]:
            record[place] = change(record[place])
        return table

    return rows(file, apply)


def every(*changes: Change) -> Change:
    """One change after the other."""

    def apply(folder: Path) -> None:
        for change in changes:
            change(folder)

    return apply


def in_place_of(file: str, make: Callable[[Path], None]) -> Change:
    """Removes a file and makes something of its name."""

    def apply(folder: Path) -> None:
        (folder / file).unlink()
        make(folder / file)

    return apply


def state(folder: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of everything in a folder."""
    found: Iterator[Path] = folder.rglob("*")
    return sorted((str(path), path.lstat().st_size, path.lstat().st_mtime_ns) for path in found)
