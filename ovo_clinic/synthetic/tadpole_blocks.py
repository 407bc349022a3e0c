"""The joined blocks of the synthetic TADPOLE file: FreeSurfer, FDG, AV45, AV1451, DTI and CSF columns."""

import csv
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from ovo_clinic import resources
from ovo_clinic.synthetic.tadpole_cells import BLOCK_BLANK, choose, dates, draw_text, numbers, spoiled, where
from ovo_clinic.synthetic.tadpole_merge import HEADER
from ovo_clinic.synthetic.tadpole_people import PHASES, Dates, Visits
from ovo_clinic.synthetic.tadpole_signal import Booleans, Floats, Integers, Latents

SUFFIXES = {
    "longitudinal": "_UCSFFSL_02_01_16_UCSFFSL51ALL_08_01_16",
    "sectional": "_UCSFFSX_11_02_15_UCSFFSX51_08_01_16",
    "fdg": "_BAIPETNMRC_09_12_16",
    "av45": "_UCBERKELEYAV45_10_17_16",
    "tau": "_UCBERKELEYAV1451_10_17_16",
    "dti": "_DTIROI_04_30_14",
    "csf": "_UPENNBIOMK9_04_19_17",
}
UNUSED = {"tau": 244, "dti": 239}
"""Number of columns of the blocks that no task uses; their names are made up."""
NEVER_MEASURED = 5
"""Every 17th regional column is measured in one visit of this many, and so are most of the FDG columns."""
FDG_MEASURED = 8
NOISE = 0.4
# centre, unit, decimals by what a FreeSurfer column measures: volumes, area, thickness and its deviation.
FREESURFER = {
    "SV": (3000, 400, 0),
    "CV": (2200, 300, 0),
    "SA": (1300, 150, 0),
    "TA": (2.5, 0.2, 3),
    "TS": (0.6, 0.05, 3),
}
COMMENTS = {BLOCK_BLANK: 0.9, "sample thawed twice": 0.05, "low volume": 0.05}


@dataclass(frozen=True)
class Chunk:
    """Some visits of the file: what their blocks hold and what drives it; r visits.

    Attributes:
        rows: (r,) positions among all visits.
        date, phase: (r,).
        has: by block, (r,) bool.
        drivers: by `mri` and `av45_pet`, (r,4): severity, cosine, sine, nothing; by `fdg_pet` and `csf`, (r,).
    """

    rows: Integers
    date: Dates
    phase: Integers
    has: Mapping[str, Booleans]
    drivers: Mapping[str, Floats]

    def __len__(self) -> int:
        return len(self.rows)


def header() -> list[str]:
    """The names of all 1,907 columns in the order of the file."""
    return [*HEADER, *(name for block in SUFFIXES for name in block_names(block))]


def block_names(block: str) -> list[str]:
    """Full names of a block's columns; those of the blocks that no task uses are made up."""
    suffix = SUFFIXES[block]
    if block in UNUSED:
        regions = [f"REGION{number:03d}" for number in range(1, UNUSED[block] - 1)]
        return [f"{name}{suffix}" for name in ("EXAMDATE", *regions, "update_stamp")]
    with (resources.folder("data_specs") / "tadpole_columns.csv").open(encoding="utf-8", newline="") as file:
        return [row["column"] for row in csv.DictReader(file) if row["column"].endswith(suffix)]


def presence(rng: np.random.Generator, visits: Visits) -> dict[str, Booleans]:
    """By block, (R,) bool: which visits have rows of it. A modality that is present has its main block but for FDG."""
    mri = visits.present["mri"]

    def drawn(share: float) -> Booleans:
        return rng.random(len(visits)) < share

    return {
        "longitudinal": mri & drawn(0.72),
        "sectional": mri,
        "fdg": visits.present["fdg_pet"] & drawn(0.97),
        "av45": visits.present["av45_pet"],
        "tau": (visits.phase == 2) & mri & drawn(0.02),
        "dti": (visits.phase > 0) & mri & drawn(0.25),
        "csf": visits.present["csf"],
        "csf_failed": mri & ~visits.present["csf"] & drawn(0.002),
    }


def chunk_of(rows: Integers, visits: Visits, latents: Latents, has: Mapping[str, Booleans]) -> Chunk:
    """The chosen visits."""
    nothing = np.zeros(len(rows))
    drivers = {name: latents.severity[name][rows] for name in ("fdg_pet", "csf")}
    for name, angle in latents.angle.items():
        turned = np.sqrt(2) * np.cos(angle[rows]), np.sqrt(2) * np.sin(angle[rows])
        drivers[name] = np.stack([latents.severity[name][rows], *turned, nothing], axis=1)
    own = {block: flags[rows] for block, flags in has.items()}
    return Chunk(rows, visits.date[rows], visits.phase[rows], own, drivers)


def blocks_table(rng: np.random.Generator, chunk: Chunk) -> pl.DataFrame:
    """Every column after the merged table's, every cell as text."""
    columns: dict[str, pl.Series] = {}
    for block, suffix in SUFFIXES.items():
        for position, name in enumerate(block_names(block)):
            columns[name] = _column(rng, chunk, block, name.removesuffix(suffix), position)
    return pl.DataFrame(columns)


def _column(rng: np.random.Generator, chunk: Chunk, block: str, name: str, position: int) -> pl.Series:
    has = chunk.has[block]
    if name in ADMINISTRATIVE:
        if block == "csf":
            has = has | chunk.has["csf_failed"]
        return where(has, ADMINISTRATIVE[name](rng, chunk, position), BLOCK_BLANK)
    if name.endswith("QC"):
        return where(has, draw_text(rng, {"Pass": 0.86, "Partial": 0.1, "Fail": 0.04}, len(chunk)), BLOCK_BLANK)
    if block == "csf":
        return _csf(rng, chunk, name)
    if position % 17 == 16 or (block == "fdg" and position >= 5 + FDG_MEASURED):
        has = has & (rng.random(len(chunk)) < 1 / NEVER_MEASURED)
    value, decimals = _region(rng, chunk, block, name, position)
    return spoiled(rng, numbers(value, decimals, has, BLOCK_BLANK), has)


def _region(rng: np.random.Generator, chunk: Chunk, block: str, name: str, position: int) -> tuple[Floats, int]:
    """Values of a regional column, and their decimals."""
    noise = rng.normal(0, NOISE, len(chunk))
    spread = 1 + (37 * position % 50) / 50  # regions differ in size
    if block in ("longitudinal", "sectional"):
        centre, unit, decimals = FREESURFER[name[-2:]]
        return spread * (centre - unit * (chunk.drivers["mri"][:, _place(name) % 4] + noise)), decimals
    if block == "fdg":
        return 1.2 - 0.12 * (chunk.drivers["fdg_pet"] + noise), 4
    if block != "av45":
        return 1 + 0.2 * noise, 4
    if name.endswith("_SIZE"):
        return np.round(spread * (3000 + 600 * noise)), 0
    summary = name.startswith("SUMMARY")
    driver = chunk.drivers["av45_pet"][:, 0 if summary else position % 4]
    value = 1.2 + 0.13 * (driver + noise)
    if name.endswith("CUTOFF"):
        return (value > float(re.findall(r"_([\d.]+)CUTOFF", name)[0])).astype(np.float64), 0
    return (1 if summary else spread) * value, 5


def _place(name: str) -> int:
    """Number of a FreeSurfer region (`ST103CV`)."""
    return int(name[2:-2])


def _csf(rng: np.random.Generator, chunk: Chunk, name: str) -> pl.Series:
    """Biomarkers, text with limits, and their comment. A failed sample holds -4."""
    has, failed = chunk.has["csf"], chunk.has["csf_failed"]
    recalculated = has & (chunk.drivers["csf"] < -2.4)
    beyond = np.round(1700 - 80 * chunk.drivers["csf"])
    if name == "COMMENT":
        told = where(recalculated, "recalculated ABETA is " + numbers(beyond), "")
        return where(has, told.zip_with(told != "", draw_text(rng, COMMENTS, len(chunk))), BLOCK_BLANK)
    driver = chunk.drivers["csf"] + rng.normal(0, NOISE, len(chunk))
    value, low, high = {
        "ABETA": (900 - 260 * driver, 200, 1700),
        "TAU": (np.exp(5.5 + 0.55 * driver), 80, 1300),
        "PTAU": (np.exp(3.2 + 0.6 * driver), 8, 120),
    }[name]
    if name == "ABETA":  # what was above the limit has been replaced by the value in the comment
        text = where(value >= low, numbers(np.where(recalculated, beyond, np.clip(value, low, high))), f"<{low}")
    else:
        text = where(value >= low, numbers(np.clip(value, low, high), 2), f"<{low}")
        text = where(value <= high, text, f">{high}")
    return where(~failed, spoiled(rng, where(has, text, BLOCK_BLANK), has), "-4")


def _after(rng: np.random.Generator, chunk: Chunk, days: int) -> pl.Series:
    text = dates(chunk.date + rng.integers(0, days, len(chunk)))
    return where(rng.random(len(chunk)) > 0.001, text, "0000-00-00")


def _number(low: int, high: int) -> Callable[[np.random.Generator, Chunk, int], pl.Series]:
    return lambda rng, chunk, position: numbers(rng.integers(low, high, len(chunk)))


def _one_of(*options: str) -> Callable[[np.random.Generator, Chunk, int], pl.Series]:
    return lambda rng, chunk, position: choose(options, rng.integers(0, len(options), len(chunk)))


def _base_time_point(rng: np.random.Generator, chunk: Chunk, position: int) -> pl.Series:
    """BASETP1 to BASETP8: the later, the rarer."""
    has = rng.random(len(chunk)) < 1.0 - 0.12 * (position - 8)
    return where(has, dates(chunk.date - rng.integers(0, 700, len(chunk))), BLOCK_BLANK)


ADMINISTRATIVE: Mapping[str, Callable[[np.random.Generator, Chunk, int], pl.Series]] = {
    "EXAMDATE": lambda rng, chunk, position: _after(rng, chunk, 45),
    "RUNDATE": lambda rng, chunk, position: _after(rng, chunk, 400),
    "VERSION": lambda rng, chunk, position: _after(rng, chunk, 600),
    "FLDSTRENG": lambda rng, chunk, position: choose(("1.5", "3"), np.minimum(chunk.phase, 1)),
    "LONISID": _number(1_000, 60_000),
    "LONIUID": _number(10_000, 900_000),
    "IMAGEUID": _number(10_000, 900_000),
    "STATUS": _one_of("complete", "complete", "complete", "partial"),
    "PHASE": lambda rng, chunk, position: choose(PHASES, chunk.phase),
    "BATCH": _one_of("UPENNBIOMK", "UPENNBIOMK5", "UPENNBIOMK7", "UPENNBIOMK8"),
    "KIT": _one_of("175567", "181409", "226157"),
    "STDS": _one_of("P06-MP02-MP01", "P07-MP02-MP01"),
    "update_stamp": _one_of("2016-08-01 10:00:00.0", "2016-10-17 12:00:00.0"),
    **{f"BASETP{number}": _base_time_point for number in range(1, 9)},
}
