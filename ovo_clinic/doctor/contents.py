"""A raw file read from start to end: its rows and its checksum."""

import gzip
import hashlib
import io
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import polars as pl

from ovo_clinic.errors import UserError
from ovo_clinic.raw_files import AGAIN, is_parquet

_GZIP_MAGIC = b"\x1f\x8b"
_PIECE = 1 << 22


@dataclass(frozen=True)
class Contents:
    """What a file holds.

    Attributes:
        rows: records after the header.
        sha256: of the file as it lies there.
    """

    rows: int
    sha256: str


class _Hashed(io.RawIOBase):
    """A file that hashes what is read of it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        piece = self._file.read(len(buffer))
        buffer[: len(piece)] = piece
        self.digest.update(piece)
        return len(piece)


def read_through(path: Path) -> Contents:
    """Reads a csv, csv.gz or parquet file whole, in pieces.

    Raises:
        UserError: it is cut off or damaged.
    """
    try:
        if is_parquet(path):
            with path.open("rb") as file:
                return Contents(_rows_of_parquet(path), hashlib.file_digest(file, "sha256").hexdigest())
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP_MAGIC
            file.seek(0)
            hashed = _Hashed(file)
            stream = io.BufferedReader(hashed, _PIECE)
            rows = _rows(cast(BinaryIO, gzip.GzipFile(fileobj=stream)) if packed else stream)
            return Contents(rows, hashed.digest.hexdigest())
    except (EOFError, zlib.error, gzip.BadGzipFile, pl.exceptions.PolarsError):
        raise UserError(f"{path}: is cut off or damaged (its checksum fails); {AGAIN}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None


def _rows_of_parquet(path: Path) -> int:
    return int(pl.scan_parquet(path).select(pl.len()).collect().item())


def _rows(stream: BinaryIO) -> int:
    """Records after the header; a line feed inside quotes ends none."""
    ends, quoted, last = 0, False, b"\n"
    while piece := stream.read(_PIECE):
        parts = piece.split(b'"')
        ends += sum(part.count(b"\n") for part in parts[quoted::2])
        quoted ^= len(parts) % 2 == 0
        last = piece[-1:]
    return max(0, ends + (last != b"\n") - 1)
