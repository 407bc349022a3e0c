"""Cut and damaged gzip files are told from whole ones by three samples, however they were packed."""

import gzip
import zlib
from pathlib import Path

import numpy as np
import pytest

from ovo_clinic.doctor import gzip_samples
from ovo_clinic.doctor.gzip_samples import sampled_state


def pieces(text: bytes, size: int) -> list[bytes]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def of_one_stream(text: bytes) -> bytes:
    return gzip.compress(text, 1)


def of_many_members(text: bytes) -> bytes:
    """As bgzip and a concatenation of files have it."""
    return b"".join(gzip.compress(piece, 6) for piece in pieces(text, 65_280))


def with_flushes(text: bytes) -> bytes:
    """As pigz has it: an empty stored block after every 128 KiB."""
    packer = zlib.compressobj(6, wbits=31)
    packed = [packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH) for piece in pieces(text, 1 << 17)]
    return b"".join([*packed, packer.flush()])


@pytest.fixture(autouse=True)
def smaller_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of what is looked at, for files of a quarter of the size."""
    for name in ("_SAMPLE", "_WHOLE", "_SEARCHED"):
        monkeypatch.setattr(gzip_samples, name, getattr(gzip_samples, name) // 4)


@pytest.fixture(scope="module")
def text() -> bytes:
    """5 MB like those of a table: ids that repeat, numbers that do not."""
    random = np.random.default_rng(0)
    values = random.integers(0, 10**9, 180_000)
    return b"".join(b"%d,sodium,%d,2150-01-01\n" % (i // 50, value) for i, value in enumerate(values.tolist()))


@pytest.fixture(scope="module", params=[of_one_stream, of_many_members, with_flushes])
def packed(request: pytest.FixtureRequest, text: bytes) -> bytes:
    content: bytes = request.param(text)
    assert len(content) > 9 << 17
    return content


def state(folder: Path, content: bytes) -> str:
    file = folder / "table.csv.gz"
    file.write_bytes(content)
    return sampled_state(file)


def test_whole_cut_and_damaged_files_are_told_apart(packed: bytes, tmp_path: Path) -> None:
    middle = len(packed) // 2
    assert state(tmp_path, packed) == "whole"
    assert state(tmp_path, packed + bytes(512)) == "whole"  # a tape's padding, which gzip passes over
    for lost in (1, 8, 9, 5_000, 200_000):
        assert state(tmp_path, packed[:-lost]) == "cut off", lost
    hole = packed[:middle] + bytes(1 << 18) + packed[middle + (1 << 18) :]
    assert state(tmp_path, hole) == "damaged"
    page = (b"<html><body>Please log in to go on. " * (1 << 13))[: 1 << 18]
    assert state(tmp_path, packed[:middle] + page + packed[middle + len(page) :]) == "damaged"
    assert state(tmp_path, packed[: -(1 << 18)] + page) == "damaged"
    assert state(tmp_path, packed[:10] + packed[400:]) == "damaged"


def test_small_files_are_read_whole(tmp_path: Path) -> None:
    content = gzip.compress(b"a,b\n1,2\n" * 1000)
    assert state(tmp_path, content) == "whole"
    assert state(tmp_path, content[:-5]) == "cut off"
    assert state(tmp_path, content[:20] + b"\xff" + content[21:]) == "damaged"
    assert state(tmp_path, content[:-8] + bytes(8)) == "damaged"  # the checksum
    assert state(tmp_path, b"") == "cut off"


def test_one_place_in_a_large_file_costs_no_reading(tmp_path: Path, packed: bytes) -> None:
    """Most of the file is a hole between good samples: it is not read, so nothing is said of it."""
    file = tmp_path / "large.csv.gz"
    size = 10 << 30
    with file.open("wb") as stream:
        stream.write(packed[: 2 << 18])
        stream.seek(size // 2)
        stream.write(packed[1 << 18 : 3 << 18])
        stream.seek(size - (2 << 18))
        stream.write(packed[-(2 << 18) :])
    assert file.stat().st_size == size
    assert sampled_state(file) == "whole"
