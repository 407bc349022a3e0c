"""Published splits: lists of patients that say who trains, validates and tests (`--split-lists FILE...`).

A list is a csv file of two columns, the patient and either the name of a part (`train`, `validation`, `test`) or a flag
as in MedFuse's `testset_iv.csv` and `valset_iv.csv`: 1 = of the part that the file's name speaks of, 0 = not of it.
"""

import csv
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from ovo_clinic import splitting
from ovo_clinic.errors import UserError

UNLISTED = "unlisted"
"""The part of units whose patient stands on no list: neither trained on nor evaluated."""

_PARTS = {"train": "train", "training": "train", "val": "validation", "validation": "validation", "test": "test"}
_FLAGS = {"0": False, "1": True}


@dataclass(frozen=True)
class SplitList:
    """One list.

    Attributes:
        file: its name.
        sha256: of its content.
        parts: patient -> `train`, `validation`, `test`, or `` = on the list, and only known not to be of its part.
    """

    file: str
    sha256: str
    parts: dict[str, str]


def read(paths: Sequence[Path]) -> list[SplitList]:
    """Reads lists.

    Raises:
        UserError: a file that cannot be read, a row that is none of a list, a patient put into two parts, or two files
            of one name.
    """
    names = [path.name for path in paths]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"--split-lists: two lists are called {twice}, by which they are told apart; rename one")
    return [_read(path) for path in paths]


def split_by_lists(
    cohort: pl.DataFrame, lists: Sequence[SplitList], identifiers: Sequence[str] = ()
) -> npt.NDArray[np.str_]:
    """(N,) the part of every unit: the one that a list names; `train` where lists only say what a patient is not.

    Raises:
        UserError: two lists put a patient into different parts, a part is left without a unit, or units that share a
            value of an identifier column come into different parts.
    """
    part_of = _combined(lists)
    patients = cohort["patient_id"].cast(pl.String).to_list()
    split = np.array([part_of.get(patient, UNLISTED) for patient in patients], dtype="<U10")
    for part in ("train", "validation", "test"):
        if not (split == part).any():
            names = ", ".join(found.file for found in lists)
            raise UserError(
                f"--split-lists: {names}: no unit of the cohort is of the part '{part}'; give every list of the split, "
                "and check that they are of this data set"
            )
    for column in identifiers:
        if count := splitting.crossing(cohort, split, column):
            raise UserError(
                f"--split-lists: {count} value(s) of {column} belong to patients of different parts, which leaks; put "
                "these patients into one part, or correct the column"
            )
    return split


def found_notes(cohort: pl.DataFrame, lists: Sequence[SplitList]) -> dict[str, str]:
    """How many patients of each list are in the cohort."""
    patients = set(cohort["patient_id"].cast(pl.String))
    return {
        f"patients of split list {found.file}": f"{len(patients & found.parts.keys())} of {len(found.parts)} in cohort"
        for found in lists
    }


def _combined(lists: Sequence[SplitList]) -> dict[str, str]:
    part_of: dict[str, str] = {}
    for found in lists:
        for patient, part in found.parts.items():
            before = part_of.get(patient, "")
            if before and part and before != part:
                where = f"--split-lists: {found.file}"
                raise UserError(f"{where}: a patient is of '{part}' and, on another list, '{before}'")
            part_of[patient] = before or part
    return {patient: part or "train" for patient, part in part_of.items()}


def _read(path: Path) -> SplitList:
    try:
        content = path.read_bytes()
        rows = list(csv.reader(content.decode("utf-8-sig").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"--split-lists: {path} cannot be read ({error}); give csv files: patient, part") from None
    part_of_flag = next((part for word, part in _PARTS.items() if word in path.stem.lower()), None)
    parts: dict[str, str] = {}
    for number, row in enumerate(rows, start=1):
        if not row or (number == 1 and _is_header(row)):
            continue
        patient, part = _entry(path, number, row, part_of_flag)
        if parts.setdefault(patient, part) != part:
            raise UserError(f"--split-lists: {path}, line {number}: its patient stands in the list with another part")
    if not parts:
        raise UserError(f"--split-lists: {path}: holds no row; give csv files: patient, part")
    return SplitList(path.name, hashlib.sha256(content).hexdigest(), parts)


def _is_header(row: list[str]) -> bool:
    return len(row) == 2 and _value(row) not in _PARTS and _value(row) not in _FLAGS and not _value(row).isdigit()


def _value(row: list[str]) -> str:
    return row[1].strip().lower()


def _entry(path: Path, number: int, row: list[str], part_of_flag: str | None) -> tuple[str, str]:
    """(patient, part) of a row."""
    where = f"--split-lists: {path}, line {number}"
    if len(row) != 2 or not row[0].strip():
        raise UserError(f"{where}: should hold a patient and a part, such as 10000032,test")
    value = _value(row)
    if value in _PARTS:
        return row[0].strip(), _PARTS[value]
    if value not in _FLAGS:
        raise UserError(f"{where}: its second cell is no part; valid: train, validation, test, or 0 and 1")
    if part_of_flag is None:
        raise UserError(f"{where}: a 0 or 1 needs a file name that says of which part, such as testset.csv")
    return row[0].strip(), part_of_flag if _FLAGS[value] else ""
