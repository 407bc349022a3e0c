"""DICOM X-rays: their grey values as MIMIC-CXR-JPG makes them, and what their headers say of when and how."""

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

_TAGS = ["StudyDate", "StudyTime", "ViewPosition"]
_MOST = 65_535


class NotAnImage(ValueError):
    """A file that holds no single X-ray; the message says why."""


@dataclass(frozen=True)
class Header:
    """What a file says beside its pixels; None = not said.

    Attributes:
        date: of the study, YYYYMMDD.
        time: of the study, HHMMSS.fff as one number.
        view: `AP`, `PA`, `LATERAL`, ...
    """

    date: int | None
    time: float | None
    view: str | None


def is_dicom(file: Path | BinaryIO) -> bool:
    """Whether a file begins as DICOM files do, whatever its name; an open one is at its beginning then."""
    if isinstance(file, Path):
        with file.open("rb") as stream:
            return is_dicom(stream)
    file.seek(0)
    start = file.read(132)
    file.seek(0)
    return start[128:] == b"DICM"


def grey(path: Path | BinaryIO) -> npt.NDArray[np.uint8]:
    """The image (H,W) as the JPG release has it, before compression.

    The smallest value becomes 0 and the largest 255, MONOCHROME1 (0 = white) is inverted, the histogram is equalised.
    Colours become grey first.

    Source:
        Johnson et al. 2019, MIMIC-CXR-JPG (arXiv 1901.07042).

    Raises:
        NotAnImage: no pixels, several frames, colours from a palette, or nothing to be seen.
        Exception: whatever pydicom raises for a damaged file.
    """
    from pydicom import dcmread

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of values that break the standard; what cannot be read raises
        file = dcmread(path)
        _refuse(file)
        pixels = np.asarray(file.pixel_array)
    if pixels.ndim == 3:
        pixels = _luminance(pixels)
    eight_bits = stretched(pixels)
    if file.PhotometricInterpretation == "MONOCHROME1":
        eight_bits = 255 - eight_bits
    return equalised(eight_bits)


def _refuse(file: Any) -> None:
    frames = int(file.get("NumberOfFrames") or 1)
    if "PixelData" not in file:
        raise NotAnImage("has no pixels")
    if frames != 1:
        raise NotAnImage(f"has {frames} frames; one is expected")
    if file.get("PhotometricInterpretation") == "PALETTE COLOR":
        raise NotAnImage("has colours from a palette; grey values are expected")


def _luminance(pixels: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """(H,W,3) red, green, blue -> (H,W), weighted as by ITU-R BT.601."""
    grey: npt.NDArray[np.float64] = pixels @ np.array([0.299, 0.587, 0.114])
    return np.rint(grey).astype(np.int32)


def stretched(pixels: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Whole numbers of up to 16 bits -> 0 to 255, smallest to largest; fractions are cut off.

    Raises:
        NotAnImage: all pixels have one value, so that nothing can be seen, or they span more than 16 bits.
    """
    low, high = int(pixels.min()), int(pixels.max())
    if low == high:
        raise NotAnImage("all pixels have one value")
    if high - low > _MOST:
        raise NotAnImage(f"has pixels from {low} to {high}; a span of up to {_MOST} is read")
    levels = (np.arange(high - low + 1) * 255 // (high - low)).astype(np.uint8)
    stretched: npt.NDArray[np.uint8] = levels[pixels.astype(np.int64) - low]
    return stretched


def equalised(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Histogram equalisation of 0 to 255 as OpenCV's equalizeHist does it: the darkest value there is becomes 0."""
    counts = np.bincount(image.ravel(), minlength=256)
    darkest = np.flatnonzero(counts)[0]
    above = counts.cumsum() - counts[darkest]
    levels = np.rint(np.clip(above, 0, None) * (255 / max(1, above[-1]))).astype(np.uint8)
    equal: npt.NDArray[np.uint8] = levels[image]
    return equal


def read_headers(paths: Sequence[Path]) -> list[Header | None]:
    """What some files' headers say, without reading pixels; None where a file cannot be read as DICOM."""
    return [_read_header(path) for path in paths]


def _read_header(path: Path) -> Header | None:
    from pydicom import dcmread

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            file = dcmread(path, stop_before_pixels=True, specific_tags=list(_TAGS))
            date, time, view = (str(file.get(tag) or "").strip() for tag in _TAGS)
    except Exception:  # pydicom names no base class of what a damaged file may raise
        return None
    # The standard allows a time to end after the hours or the minutes, and once allowed separators.
    clock = re.fullmatch(r"(\d{2})(\d{2})?(\d{2})?(\.\d+)?", time.replace(":", ""))
    digits = re.sub(r"\D", "", date)
    return Header(
        date=int(digits) if len(digits) == 8 else None,
        time=float("".join(part or "00" for part in clock.groups()[:3]) + (clock[4] or "")) if clock else None,
        view=view or None,
    )
