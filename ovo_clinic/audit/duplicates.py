"""Checks for the same or nearly the same content under different ids in two parts: rows, notes, images.

Each compares in time and memory that grow with the number of units, not with the number of pairs.
"""

import numpy as np
import numpy.typing as npt
import polars as pl

from ovo_clinic.arrays import ModalityArray
from ovo_clinic.audit.finding import Finding, Remarks
from ovo_clinic.audit.subject import Floats, Rows, Subject, columns

Pairs = tuple[Rows, Rows]

SURE_BITS = 20
"""Information beyond that by which one in all pairs of units would be equal by chance."""
SHINGLE_WORDS = 5
SKETCH = 128
"""Shingles kept of a note: those of the smallest hashes, which near-duplicates have in common."""
RARE, RARE_SHARE = (3, 10), 0.03
"""A shingle that more notes have, of so large a share within these bounds, is part of a template."""
SHARED = 0.5
"""Share of a note's sketch that is rare and shared with the other one."""
LEAST_SHARED = 8
THUMBNAIL = 32
ALIKE = 0.99
"""Correlation of two thumbnails from which on they may be one picture, encoded or lit otherwise."""
DETAIL = 0.7
"""Correlation of what is left of two images without their coarse shape, from which on they are one.

Of 800 X-rays of NIH ChestX-ray14 at 64 pixels, 99 in 100 keep 0.70 or more as a JPG of quality 30, and no two patients'
reach both bounds.
"""
_NEIGHBOURHOOD = 5
_COMPONENTS = 24
_PRIME = np.uint64(0x100000001B3)  # of the hash FNV-1a
_CHUNK = 2048


def rows_under_two_ids(subject: Subject) -> Remarks:
    """Units in two parts whose measured values of a modality are all equal, and too many to be so by chance."""
    for name, array in subject.unit_features():
        if count := subject.twins(*equal_rows(array, subject.split)):
            yield _finding(subject, name, count, "has exactly the values of a unit in another part, under another id")


def equal_rows(array: ModalityArray, split: npt.NDArray[np.str_]) -> Pairs:
    """Pairs of units in different parts with equal values of so much information that chance does not explain it."""
    units = np.flatnonzero(array.present)
    bits, keys = np.zeros(units.size), np.zeros(units.size, dtype=np.uint64)
    groups = set()
    for column, values in columns(array, units):
        if column.role == "binary":
            continue
        keys = (keys ^ pl.Series(values).hash().to_numpy()) * _PRIME
        # Columns of one group (the statistics of a test) repeat each other: one of them counts.
        if column.group not in groups:
            groups.add(column.group)
            bits += _information(values)
    sure = bits >= 2 * np.log2(max(1, units.size)) + SURE_BITS
    return _across(keys[sure], units[sure], split[units[sure]])


def _information(values: Floats) -> Floats:
    """(N,) bits by which each value tells its unit from others; 0 for a missing one."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    bits: Floats = -np.log2(counts[place] / values.size)
    return np.where(np.isnan(values), 0.0, bits)


def _across(keys: npt.NDArray[np.generic], units: Rows, parts: npt.NDArray[np.str_]) -> Pairs:
    """Each unit paired with the first one of the same key in every other part."""
    table = pl.DataFrame({"key": keys, "unit": units, "part": parts})
    firsts = table.unique(["key", "part"], keep="first", maintain_order=True)
    pairs = table.join(firsts, on="key").filter(pl.col("part") != pl.col("part_right"))
    return pairs["unit"].to_numpy(), pairs["unit_right"].to_numpy()


def notes_in_two_parts(subject: Subject) -> Remarks:
    """Texts in two parts that are, but for some words, the same."""
    for name in subject.of_kind("text"):
        texts = subject.prepared.texts(name)
        units = np.flatnonzero(texts.is_not_null().to_numpy())
        if count := subject.twins(*similar_texts(texts.gather(units), units, subject.split)):
            yield _finding(subject, name, count, "has a text that is nearly the one of a unit in another part")


def similar_texts(texts: pl.Series, units: Rows, split: npt.NDArray[np.str_]) -> Pairs:
    """Pairs of units in different parts whose texts share at least half of what is rare in one of them.

    Of each text the SKETCH shingles of SHINGLE_WORDS words with the smallest hashes are kept (bottom-k sketches, Broder
    1997). Shingles that are not rare are a form's or a template's, and count as not shared.
    """
    sketches = _sketches(texts, units)
    spread = sketches.with_columns(part=pl.Series(split[sketches["unit"].to_numpy()]))
    spread = spread.with_columns(texts=pl.len().over("shingle"), size=pl.len().over("unit"))
    rare = spread.filter(pl.col("texts").is_between(2, np.clip(RARE_SHARE * units.size, *RARE)))
    pairs = rare.join(rare, on="shingle").filter(pl.col("part") != pl.col("part_right"))
    counted = pairs.group_by("unit", "unit_right").agg(
        pl.len().alias("shared"), pl.min_horizontal("size", "size_right").first().alias("size")
    )
    alike = counted.filter((pl.col("shared") >= LEAST_SHARED) & (pl.col("shared") >= SHARED * pl.col("size")))
    return alike["unit"].to_numpy(), alike["unit_right"].to_numpy()


def _sketches(texts: pl.Series, units: Rows) -> pl.DataFrame:
    """unit, shingle (hash): at most SKETCH rows a text."""
    from sklearn.feature_extraction.text import HashingVectorizer

    vectorizer = HashingVectorizer(
        n_features=2**31 - 1,
        ngram_range=(SHINGLE_WORDS, SHINGLE_WORDS),
        token_pattern=r"\w+",
        binary=True,
        norm=None,
        alternate_sign=False,
        dtype=np.float32,
    )
    schema = pl.Schema({"unit": pl.Int64, "shingle": pl.Int64})
    parts = [pl.DataFrame(schema=schema)]
    for start in range(0, units.size, _CHUNK):
        hashed = vectorizer.transform(texts.slice(start, _CHUNK))
        owner = np.repeat(units[start : start + _CHUNK], np.diff(hashed.indptr)).astype(np.int64)
        shingles = pl.DataFrame({"unit": owner, "shingle": hashed.indices.astype(np.int64)})
        parts.append(shingles.filter(pl.col("shingle").rank("ordinal").over("unit") <= SKETCH))
    return pl.concat(parts)


def images_alike_in_two_parts(subject: Subject) -> Remarks:
    """Images in two parts that show the same, in whatever file, brightness or compression."""
    for name in subject.of_kind("image"):
        array = subject.prepared.array(name)
        if count := subject.twins(*similar_images(array, subject.split)):
            yield _finding(subject, name, count, "has an image that looks like the one of a unit in another part")


def similar_images(array: ModalityArray, split: npt.NDArray[np.str_]) -> Pairs:
    """Pairs of units in different parts whose thumbnails correlate by at least ALIKE, and whose details by DETAIL.

    Thumbnails are made of mean 0 and length 1, so that brightness and contrast count for nothing. Neighbours are found
    in the few directions in which they differ most, where no distance is larger than the true one.
    """
    from scipy.spatial import KDTree

    assert array.index is not None
    units = np.flatnonzero(array.present)
    prints = _thumbnails(array, array.index[units])
    kept = np.linalg.norm(prints, axis=1) > 0
    units, prints = units[kept], prints[kept]
    radius = np.sqrt(2 * (1 - ALIKE))
    _, _, directions = np.linalg.svd(prints[:: max(1, units.size // _CHUNK)], full_matrices=False)
    reduced = prints @ directions[:_COMPONENTS].T
    near = KDTree(reduced).query_pairs(radius, output_type="ndarray") if units.size > 1 else np.empty((0, 2), np.int64)
    apart = near[split[units[near[:, 0]]] != split[units[near[:, 1]]]]
    alike = apart[np.einsum("ij,ij->i", prints[apart[:, 0]], prints[apart[:, 1]]) >= ALIKE]
    first, second = units[alike[:, 0]], units[alike[:, 1]]
    images = (
        (array.values[array.index[one], 0], array.values[array.index[other], 0])
        for one, other in zip(first, second, strict=True)
    )
    same = np.array([float(_detail(one) @ _detail(other)) >= DETAIL for one, other in images], dtype=np.bool_)
    return first[same], second[same]


def _detail(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """(H·W,) an image without the mean of each pixel's neighbourhood, of mean 0 and length 1."""
    from scipy.ndimage import uniform_filter

    values = image.astype(np.float32)
    left: npt.NDArray[np.float32] = values - uniform_filter(values, _NEIGHBOURHOOD, mode="nearest")
    return _standardised(left.reshape(1, -1)).ravel()


def _thumbnails(array: ModalityArray, images: Rows) -> npt.NDArray[np.float32]:
    """(n, THUMBNAIL²) grey thumbnails of mean 0 and length 1; 0 where an image has no contrast."""
    from PIL import Image

    prints = np.empty((images.size, THUMBNAIL**2), dtype=np.float32)
    for place, image in enumerate(images):
        small = Image.fromarray(array.values[image, 0]).resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)
        prints[place] = np.asarray(small, dtype=np.float32).ravel()
    return _standardised(prints)


def _standardised(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Rows of mean 0 and length 1; 0 where all values are one."""
    centred = rows - rows.mean(axis=1, keepdims=True)
    length = np.linalg.norm(centred, axis=1, keepdims=True)
    result: npt.NDArray[np.float32] = centred / np.where(length > 0, length, 1)
    return result


def _finding(subject: Subject, name: str, count: int, told: str) -> Finding:
    return Finding(
        what=f"{count} units of validation or test: each {told}",
        where=name,
        count=count,
        why="the model has learned the answer to such a unit by heart",
        mend="find out whether two ids stand for one person or stay; keep them together by a column among the task's "
        "`identifiers`, or drop the copies",
        declared=subject.cut_apart,
    )
