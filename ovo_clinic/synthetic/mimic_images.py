"""The synthetic MIMIC-CXR folder: which images there are, their metadata, and drawn chest images.

AP images inside an ICU stay show its latents; all others (before or after it, other views, no view) show noise.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ovo_clinic.synthetic.mimic_image_files import ImageFile, write_dicom, write_jpg
from ovo_clinic.synthetic.mimic_signal import Booleans, Floats, Integers, Rows
from ovo_clinic.synthetic.mimic_stays import DAY, HOUR, Chunk, Stays, gather, moments

Format = Literal["jpg", "dicom", "none"]

AP, PA, LATERAL, LL, UNKNOWN = range(5)
VIEWS = ("AP", "PA", "LATERAL", "LL", None)
PROCEDURES = ("CHEST (PORTABLE AP)", "CHEST (PA AND LAT)", "CHEST (PA AND LAT)", "CHEST (PA AND LAT)", None)
VIEW_MEANINGS = ("antero-posterior", "postero-anterior", "lateral", "left lateral", None)
SHAPES = ((1.0, 0.82), (0.82, 1.0), (1.0, 1.0))
"""Height and width of images, in shares of the longer side."""
STRANGERS = 99_900_000
"""People from this number on have images and nothing else."""
BATCH = 64


@dataclass(frozen=True)
class Images(Rows):
    """I images, by stay; each attribute (I,).

    Attributes:
        stay: position in Stays.
        subject_id, study_id: images of one study share it.
        number: of the image, from which its identifier is made.
        view: position in VIEWS.
        time: seconds since 1970; all images of a study have one.
        tells: shows the latents of the stay.
        shape: position in SHAPES.
        absent: listed, but the file is not there.
        damaged: the file is cut off.
    """

    stay: Integers
    subject_id: Integers
    study_id: Integers
    number: Integers
    view: Integers
    time: Integers
    tells: Booleans
    shape: Integers
    absent: Booleans
    damaged: Booleans

    @classmethod
    def draw(cls, rng: np.random.Generator, chunk: Chunk, first: int, damage: bool) -> Self:
        """The images of people with ICU stays.

        Args:
            rng: source of randomness.
            chunk: the stays.
            first: number of images drawn before.
            damage: whether the last AP image of the first stay with one is to be cut off.
        """
        stay, time, view, study = _studies(rng, chunk.stays)
        count = len(stay)
        tells = (view == AP) & (time >= chunk.stays.start[stay]) & (time <= chunk.stays.end[stay])
        subject = chunk.keys(stay)["subject_id"]
        study_id = 60_000_000 + first + rng.permutation(count)[study]
        strange = ~tells & (rng.random(count) < 0.02)
        tied = tells & (np.bincount(study)[study] > 1)
        damaged = np.zeros(count, np.bool_)
        candidates = np.flatnonzero(tells & ~tied)
        if damage and len(candidates):
            own = candidates[stay[candidates] == stay[candidates[0]]]
            damaged[own[time[own].argmax()]] = True
        return cls(
            stay=stay,
            subject_id=np.where(strange, STRANGERS + study_id % 100_000, subject),
            study_id=study_id,
            number=first + np.arange(count),
            view=view,
            time=time,
            tells=tells,
            shape=rng.integers(0, len(SHAPES), count),
            absent=(rng.random(count) < 0.03) & ~damaged,
            damaged=damaged,
        )

    def names(self) -> list[str]:
        """Identifiers in the form of the real ones, which are hashes; these begin with zeros."""
        return [
            f"00000000-00000000-00000000-{study:08x}-{number:08x}"
            for study, number in zip(self.study_id.tolist(), self.number.tolist(), strict=True)
        ]

    def paths(self, suffix: str) -> list[str]:
        """Where the files lie."""
        return [
            f"files/p{subject // 1_000_000}/p{subject}/s{study}/{name}{suffix}"
            for subject, study, name in zip(self.subject_id.tolist(), self.study_id.tolist(), self.names(), strict=True)
        ]

    def size(self, pixels: int) -> Integers:
        """(I,2) height and width."""
        return np.asarray(np.rint(np.array(SHAPES)[self.shape] * pixels), dtype=np.int64)


def _studies(rng: np.random.Generator, stays: Stays) -> tuple[Integers, Integers, Integers, Integers]:
    """(stay, time, view, study) of images: AP studies inside the stays that have images, and noise around them."""
    length = stays.end - stays.start
    everyone = np.arange(len(stays))
    imaged = everyone[stays.imaged]
    soon = np.minimum(length, DAY)
    again = np.repeat(imaged, rng.integers(0, 3, len(imaged)))
    before, after = everyone[rng.random(len(stays)) < 0.25], everyone[rng.random(len(stays)) < 0.15]
    other = everyone[rng.random(len(stays)) < 0.2]
    parts = (
        (imaged, _within(rng, soon[imaged]), AP),
        (again, _within(rng, length[again]), AP),
        (before, -rng.integers(HOUR, 20 * DAY, len(before)), AP),
        (after, length[after] + rng.integers(HOUR, 5 * DAY, len(after)), AP),
        (other, _within(rng, length[other]), PA),
    )
    stay = np.concatenate([part[0] for part in parts])
    time = stays.start[stay] + np.concatenate([part[1] for part in parts])
    view = np.concatenate([np.full(len(part[0]), part[2]) for part in parts])
    unknown = (rng.random(len(stay)) < 0.04) & (np.arange(len(stay)) >= len(imaged))
    view = np.where(unknown, UNKNOWN, view)
    # A PA study has a lateral image as well; a few AP studies have two images with one time.
    second = np.flatnonzero((view == PA) | ((view == AP) & (rng.random(len(stay)) < 0.05)))
    side = np.where(rng.random(len(second)) < 0.7, LATERAL, LL)
    study = np.concatenate([np.arange(len(stay)), second])
    view = np.concatenate([view, np.where(view[second] == PA, side, AP)])
    order = np.lexsort((study, stay[study]))
    return stay[study][order], time[study][order], view[order], study[order]


def _within(rng: np.random.Generator, length: Integers) -> Integers:
    return np.floor(rng.random(len(length)) * length).astype(np.int64)


def metadata_table(rng: np.random.Generator, images: Images, pixels: int) -> pl.DataFrame:
    """Rows of mimic-cxr-2.0.0-metadata: StudyTime is a number, so that its leading zeros are lost."""
    when = moments(images.time)
    fraction = np.where(rng.random(len(images.time)) < 0.4, rng.integers(0, 1000, len(images.time)) / 1000, 0)
    clock = (
        when.dt.hour().cast(pl.Int64) * 10_000 + when.dt.minute().cast(pl.Int64) * 100 + when.dt.second()
    ).to_numpy()
    size = images.size(pixels)
    return pl.DataFrame(
        {
            "dicom_id": images.names(),
            "subject_id": images.subject_id,
            "study_id": images.study_id,
            "PerformedProcedureStepDescription": gather(list(PROCEDURES), images.view),
            "ViewPosition": gather(list(VIEWS), images.view),
            "Rows": size[:, 0],
            "Columns": size[:, 1],
            "StudyDate": when.dt.strftime("%Y%m%d").cast(pl.Int64),
            "StudyTime": np.round(clock + fraction, 3),
            "ProcedureCodeSequence_CodeMeaning": gather(list(PROCEDURES), images.view),
            "ViewCodeSequence_CodeMeaning": gather(list(VIEW_MEANINGS), images.view),
            "PatientOrientationCodeSequence_CodeMeaning": gather(["Erect", "Recumbent"], images.number % 2),
        }
    )


def record_table(images: Images) -> pl.DataFrame:
    """Rows of cxr-record-list, which the DICOM release has instead of metadata."""
    return pl.DataFrame(
        {
            "subject_id": images.subject_id,
            "study_id": images.study_id,
            "dicom_id": images.names(),
            "path": images.paths(".dcm"),
        }
    )


def write_images(
    rng: np.random.Generator, images: Images, stays: Stays, folder: Path, pixels: int, kind: Literal["jpg", "dicom"]
) -> None:
    """Draws and writes the image files that are not absent."""
    suffix, save = {"jpg": (".jpg", write_jpg), "dicom": (".dcm", write_dicom)}[kind]
    paths = images.paths(suffix)
    texts = moments(images.time).dt.strftime("%Y%m%d %H%M%S").to_list()
    for index, drawing in _drawings(rng, images, stays, pixels):
        if images.absent[index]:
            continue
        date, time = texts[index].split()
        file = ImageFile(
            subject_id=int(images.subject_id[index]),
            study_id=int(images.study_id[index]),
            number=int(images.number[index]),
            view=VIEWS[images.view[index]] or "",
            procedure=PROCEDURES[images.view[index]] or "",
            date=date,
            time=time,
        )
        path = folder / paths[index]
        path.parent.mkdir(parents=True, exist_ok=True)
        save(path, drawing, file)
        if images.damaged[index]:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _drawings(
    rng: np.random.Generator, images: Images, stays: Stays, pixels: int
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """(position, image (H,W) from 0 to 1) of all images, drawn by shape, some at a time."""
    count = len(images.stay)
    own, angle = stays.latents.image[images.stay], stays.latents.image_angle[images.stay]
    noise = np.clip(rng.standard_normal((count, own.shape[1])), -2.5, 2.5)
    own = np.where(images.tells[:, None], own, noise)
    angle = np.where(images.tells, angle, rng.uniform(0, 2 * np.pi, count))
    size = images.size(pixels)
    for shape in range(len(SHAPES)):
        rows = np.flatnonzero(images.shape == shape)
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH]
            yield from zip(batch.tolist(), draw(rng, own[batch], angle[batch], tuple(size[batch[0]])), strict=True)


def draw(rng: np.random.Generator, latents: Floats, angle: Floats, size: tuple[int, int]) -> NDArray[np.float32]:
    """Chest-like images: two dark lungs in a bright body, haze in their lower halves, a heart, a bright spot.

    Args:
        rng: source of randomness.
        latents: (n,2) haze and size of the heart.
        angle: (n,) direction of the spot from the centre, clockwise from the right.
        size: (H,W) in pixels.

    Returns:
        (n,H,W) from 0 (black) to 1.
    """
    y, x = (
        grid.astype(np.float32) for grid in np.meshgrid(*(np.linspace(-1, 1, side) for side in size), indexing="ij")
    )
    haze, heart, cosine, sine = (
        values.astype(np.float32)[:, None, None] for values in (*latents.T, np.cos(angle), np.sin(angle))
    )
    body = 0.75 * _disc(x, y, 0.0, 0.1, 0.95, 1.1)
    lungs = _disc(x, y, -0.42, -0.05, 0.3, 0.62) + _disc(x, y, 0.42, -0.05, 0.3, 0.62)
    image = body - lungs * (0.5 - 0.08 * haze * (y > 0))
    radius = 0.24 + 0.05 * heart
    image += 0.35 * np.exp(-(((x - 0.1) / radius) ** 2 + ((y - 0.3) / 0.25) ** 2))
    image += 0.4 * np.exp(-((x - 0.6 * cosine) ** 2 + (y - 0.6 * sine) ** 2) / 0.012)
    image += 0.03 * rng.standard_normal(image.shape, dtype=np.float32)
    return np.asarray(np.clip(image, 0, 1), dtype=np.float32)


def _disc(
    x: NDArray[np.float32], y: NDArray[np.float32], left: float, top: float, width: float, height: float
) -> NDArray[np.float32]:
    """1 inside an ellipse, 0 outside, with a soft edge."""
    distance = np.hypot((x - left) / width, (y - top) / height)
    return np.asarray(1 / (1 + np.exp(np.clip((distance - 1) * 12, -30, 30))), dtype=np.float32)
