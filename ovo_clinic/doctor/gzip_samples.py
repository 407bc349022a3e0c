"""Whether a gzip file is whole, told from its start, its middle and its end: a file of 10 GB takes a second.

A gzip file can only be read from its start. But its compressed data are a row of blocks, each with a header that few
other bits look like, so that reading may begin at any block if what came before it does not matter. Here it does not:
only whether the blocks follow each other, and whether the last one ends where the file does.
"""

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint8]
State = Literal["whole", "cut off", "damaged"]

_SAMPLE = 1 << 20
_WHOLE = 4 * _SAMPLE  # a file up to this size is read in full
_SEARCHED = _SAMPLE * 3 // 4  # of a sample; a block is shorter than the rest, so that the next one begins in it
_TRUSTED = 1 << 15  # bytes of text that no chance sequence of bits decodes to
_QUICK_BITS = 8 * 512
_ANY_WINDOW = b" " * 32_768  # text that blocks may point back to
_TRAILER = 8
_HEADER_BITS = 17 + 3 * 19
_EMPTY_BLOCK = [0, 1, 0] + 7 * [0]  # 10 bits: type 1 and the end
_BLOCK_OF_ONE = [0, 1, 0] + [1, 1, 0, 0, 1, 0, 0, 0, 0] + 7 * [0]  # 19 bits: type 1, the byte 144 and the end
_LEADING = [
    np.array(bits, dtype=np.uint8)
    for bits in (
        [],
        _BLOCK_OF_ONE + 3 * _EMPTY_BLOCK,
        _EMPTY_BLOCK,
        _BLOCK_OF_ONE,
        2 * _EMPTY_BLOCK,
        _BLOCK_OF_ONE + _EMPTY_BLOCK,
        3 * _EMPTY_BLOCK,
        _BLOCK_OF_ONE + 2 * _EMPTY_BLOCK,
    )
]
"""Blocks of n modulo 8 bits, by n: put before a block that begins inside a byte, they leave all bytes as they are."""


@dataclass(frozen=True)
class _Decoded:
    """What a piece of compressed data gives.

    Attributes:
        produced: bytes of text.
        ended: whether the last block ended in it.
        rest: bytes after the last block.
    """

    produced: int
    ended: bool
    rest: bytes


def sampled_state(path: Path) -> State:
    """Whether a gzip file is whole, as far as three samples of a mebibyte, or a small file as a whole, can tell.

    `cut off` = its end is missing; `damaged` = a sample holds something else than compressed text.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= _WHOLE:
            return _whole_state(file.read())
        if _ended_members(file.read(_SAMPLE)) is None:
            return "damaged"
        file.seek(size // 2)
        if _from_any_block(file.read(_SAMPLE)) is None:
            return "damaged"
        file.seek(size - _SAMPLE)
        end = _from_any_block(file.read())
    if end is None:
        return "damaged"
    return "whole" if end.ended and _is_end(end.rest) else "cut off"


def _whole_state(content: bytes) -> State:
    ended = _ended_members(content)
    if ended is None:
        return "damaged"
    return "whole" if ended else "cut off"


def _ended_members(content: bytes) -> bool | None:
    """Whether the content ends with the end of a gzip member; None where it is no gzip."""
    while True:
        reader = zlib.decompressobj(wbits=31)
        try:
            reader.decompress(content)
        except zlib.error:
            return None
        content = reader.unused_data.lstrip(b"\0")
        if not reader.eof or not content:
            return reader.eof


def _is_end(rest: bytes) -> bool:
    """Whether bytes after a last block are its checksum and length, and what may follow them."""
    following = rest[_TRAILER:].lstrip(b"\0")
    return len(rest) >= _TRAILER and (not following or _ended_members(following) is True)


def _from_any_block(content: bytes) -> _Decoded | None:
    """Decodes compressed data from the first place where a block seems to begin; None where none does."""
    bits = np.unpackbits(np.frombuffer(content, dtype=np.uint8), bitorder="little")
    searched = min(8 * _SEARCHED, len(bits) - _HEADER_BITS)
    step = 1 << 19
    for start in range(0, searched, step):
        for place in _possible_blocks(bits[: searched + _HEADER_BITS], start, min(start + step, searched)):
            if _decoded(bits[: place + _QUICK_BITS], place) is None:
                continue
            found = _decoded(bits, place)
            if found is not None and (found.produced >= _TRUSTED or (found.ended and _is_end(found.rest))):
                return found
    return None


def _decoded(bits: Bits, place: int) -> _Decoded | None:
    """What the compressed data from a place on give; None where they are none."""
    reader = zlib.decompressobj(wbits=-15, zdict=_ANY_WINDOW)
    aligned = np.concatenate([_LEADING[place % 8], bits[place:]])
    try:
        text = reader.decompress(np.packbits(aligned, bitorder="little").tobytes())
    except zlib.error:
        return None
    return _Decoded(len(text), reader.eof, reader.unused_data)


def _possible_blocks(bits: Bits, start: int, stop: int) -> list[int]:
    """Places from `start` to before `stop` whose bits may be the header of a block with a code of its own.

    RFC 1951, 3.2.7: type 2, numbers of codes in range, and lengths of the code for code lengths that use it up.
    """
    places = np.arange(start, stop)
    places = places[(bits[places + 1] == 0) & (bits[places + 2] == 1)]
    for offset in (3, 8):  # HLIT and HDIST: 30 and 31 do not occur
        places = places[_number(bits, places + offset, 5) < 30]
    counts = _number(bits, places + 13, 4) + 4
    space = np.zeros(len(places), dtype=np.int64)
    for index in range(19):
        lengths = _number(bits, places + 17 + 3 * index, 3)
        space += np.where((lengths > 0) & (index < counts), 128 >> lengths, 0)
    found: list[int] = places[space == 128].tolist()
    return found


def _number(bits: Bits, places: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.int64]:
    value = np.zeros(len(places), dtype=np.int64)
    for index in range(width):
        value |= bits[places + index].astype(np.int64) << index
    return value
