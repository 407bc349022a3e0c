"""Decodes X-ray files of many sizes and formats into one array of small grey images, in parallel and resumable."""

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from ovo_clinic import dicom
from ovo_clinic.dicom import NotAnImage
from ovo_clinic.errors import UserError
from ovo_clinic.processes import in_order
from ovo_clinic.registry import suggest

FORMATS = ("JPEG", "PNG", "TIFF", "BMP", "JPEG2000")
"""What is read beside DICOM."""
_CHUNK = 32
_MARGIN = 3
"""A JPG is decoded at a half, a quarter or an eighth of its size, quickly, if it stays so much larger than needed."""
T = TypeVar("T")


def squash(image: Image.Image, size: int) -> Image.Image:
    """The whole image, drawn out to a square (the OvO paper's code)."""
    return image.resize((size, size), Image.Resampling.BILINEAR)


def crop(image: Image.Image, size: int) -> Image.Image:
    """The middle: the shorter side scaled to 256/224 of `size`, then a square cut out (MedFuse's evaluation)."""
    shorter = round(size * 256 / 224)
    width, height = (shorter * side // min(image.size) for side in image.size)
    left, top = round((width - size) / 2), round((height - size) / 2)
    scaled = image.resize((width, height), Image.Resampling.BILINEAR)
    return scaled.crop((left, top, left + size, top + size))


RECIPES: dict[str, Callable[[Image.Image, int], Image.Image]] = {"squash": squash, "crop": crop}
"""How an image becomes a square, by name; both smooth what they shrink (a triangle filter)."""


@dataclass(frozen=True)
class Job:
    """Some files that one worker decodes."""

    paths: tuple[Path, ...]
    size: int
    recipe: str


def decode_images(paths: Sequence[Path], size: int, recipe: str, out: Path, workers: int | None) -> list[str | None]:
    """Decodes files into `out`, a .npy file (n,1,size,size) uint8 whose row i belongs to paths[i].

    DICOM files are made grey as in MIMIC-CXR-JPG (`dicom.grey`); others of more than 8 bits are stretched to 8. What a
    killed call had finished is kept beside `out`, and the same call goes on from there.

    Args:
        paths: JPG, PNG or DICOM files; the content tells which, not the name.
        size: side of the square in pixels.
        recipe: a name of `RECIPES`.
        out: the file to write.
        workers: processes; None = one per core.

    Returns:
        For each file None, or why it was skipped, in one line; its row is zero then.

    Raises:
        UserError: an unknown recipe, or a worker was killed.
    """
    if recipe not in RECIPES:
        raise UserError(f"image recipe '{recipe}' is not known{suggest(recipe, list(RECIPES))}")
    log = _Log.resume(out, (len(paths), 1, size, size), _identity(paths, size, recipe))
    images = np.lib.format.open_memmap(out, mode="r+")
    rest = paths[len(log.reasons) :]
    jobs = [Job(tuple(rest[start : start + _CHUNK]), size, recipe) for start in range(0, len(rest), _CHUNK)]
    advice = "run again to go on from there, with more memory or on fewer cores"
    for decoded, reasons in _shown(in_order(decode, jobs, workers, advice), len(jobs), out.stem):
        start = len(log.reasons)
        images[start : start + len(reasons), 0] = decoded
        images.flush()
        log.add(reasons)
    return log.reasons


def decode(job: Job) -> tuple[npt.NDArray[np.uint8], list[str | None]]:
    """Images (k,size,size) of some files, zero where one was skipped, and why it was."""
    images = np.zeros((len(job.paths), job.size, job.size), dtype=np.uint8)
    reasons: list[str | None] = []
    for row, path in enumerate(job.paths):
        try:
            images[row] = square(path, job.size, job.recipe)
            reasons.append(None)
        except NotAnImage as error:
            reasons.append(str(error))
        except Exception as error:  # decoders raise anything on damaged files, and one file must not stop the others
            text = " ".join(str(error).replace(str(path), "the file").split())
            reasons.append(f"cannot be decoded: {type(error).__name__}: {text[:200]}")
    return images, reasons


def square(file: Path | BinaryIO, size: int, recipe: str) -> npt.NDArray[np.uint8]:
    """One file, open or not, as an image (size,size).

    Raises:
        NotAnImage: a file that holds no single image.
        Exception: whatever decoders raise on damaged files.
    """
    return np.asarray(RECIPES[recipe](_grey(file, _MARGIN * size), size))


def _grey(path: Path | BinaryIO, least: int) -> Image.Image:
    """The file as an 8-bit grey image; a JPG may come scaled down, with sides of no less than `least` pixels."""
    if dicom.is_dicom(path):
        return Image.fromarray(dicom.grey(path))
    image = Image.open(path, formats=FORMATS)
    frames = getattr(image, "n_frames", 1)
    if frames != 1:
        raise NotAnImage(f"has {frames} frames; one is expected")
    if image.mode == "F":
        raise NotAnImage("has pixels that are no whole numbers")
    if image.mode.startswith("I"):  # more than 8 bits
        return Image.fromarray(dicom.stretched(np.asarray(image)))
    image.draft("L", (least, least))
    grey = image.convert("L")
    low, high = grey.getextrema()
    if low == high:
        raise NotAnImage("all pixels have one value")
    return grey


@dataclass(frozen=True)
class _Log:
    """Which files are decoded already: a line that says of what the array is made, then one line a file.

    Attributes:
        path: of the log.
        reasons: for each file that was looked at, in order, why it was skipped.
    """

    path: Path
    reasons: list[str | None]

    @classmethod
    def resume(cls, out: Path, shape: tuple[int, ...], identity: str) -> "_Log":
        """The log of an interrupted call with the same identity, or a new one beside an array of zeros."""
        path = out.with_name(f"{out.name}.log")
        text = path.read_text(encoding="utf-8") if path.is_file() and out.is_file() else ""
        known, *lines = text[: text.rfind("\n") + 1].splitlines() or [""]  # the last line may have been cut off
        if known != identity:
            path.unlink(missing_ok=True)
            np.lib.format.open_memmap(out, mode="w+", dtype=np.uint8, shape=shape)
            lines = []
        path.write_text("".join(f"{line}\n" for line in (identity, *lines)), encoding="utf-8")
        return cls(path, [json.loads(line) for line in lines])

    def add(self, reasons: Sequence[str | None]) -> None:
        """Notes that some more files are done."""
        with self.path.open("a", encoding="utf-8") as stream:
            stream.writelines(f"{json.dumps(reason)}\n" for reason in reasons)
        self.reasons.extend(reasons)


def _identity(paths: Sequence[Path], size: int, recipe: str) -> str:
    """Digest of what is decoded, and how."""
    files = [(str(path), stat.st_size, stat.st_mtime_ns) for path in paths for stat in [path.stat()]]
    return hashlib.sha256(json.dumps([files, size, recipe]).encode()).hexdigest()


def _shown(results: Iterable[T], total: int, what: str) -> Iterable[T]:
    """The results, with a progress bar on a terminal."""
    if not sys.stderr.isatty():
        return results
    from rich.console import Console
    from rich.progress import track

    return track(results, what, total, console=Console(stderr=True), transient=True)
