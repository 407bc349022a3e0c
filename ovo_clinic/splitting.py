"""Splits units by whole patients, and proves that nobody stands on two sides."""

import math
import random as python_random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ovo_clinic.errors import UserError
from ovo_clinic.spec import SplitSpec

SPLITS = ("train", "validation", "test")
_NAMED = {"train": "train", "training": "train", "test": "test", "testing": "test"} | dict.fromkeys(
    ("validation", "validate", "valid", "val"), "validation"
)


def split_units(
    cohort: pl.DataFrame, split: SplitSpec, target: Sequence[str], identifiers: Sequence[str]
) -> npt.NDArray[np.str_]:
    """Names the split of every unit.

    Units that share a patient, a value of `split.by` or an identifier form one group and stay together. Groups are
    shuffled in the order of their least patient id, so the order of the cohort's rows decides nothing.

    Args:
        cohort: one row a unit, with patient_id, the target and the identifier columns.
        split: shares, seed, stratification.
        target: label columns; groups are stratified by the largest label of their units where there is one column.
        identifiers: further columns whose values may not cross splits.

    Returns:
        (N,) `train`, `validation` or `test`.

    Raises:
        UserError: fewer than three groups, no column of the name in `split.by`, or a `split.column` that puts a
            patient, or a value of `split.by` or of an identifier, into two parts, leaves one empty or names another.
    """
    if split.by not in cohort.columns:
        raise UserError(f"split.by: the cohort has no column '{split.by}'; valid: {', '.join(cohort.columns)}")
    keys = list(dict.fromkeys(["patient_id", split.by, *identifiers]))
    if split.column is not None:
        return _split_by_column(cohort, split.column, keys)
    if not split.whole_patients:
        return _split_single_units(cohort["unit_id"], split)
    group = _groups(cohort, keys)
    table = cohort.select("patient_id", label=pl.col(target[0])).with_columns(group=group)
    groups = table.group_by("group").agg(pl.col("patient_id").min(), pl.col("label").max()).sort("patient_id")
    least = max(3, split.folds or 0)
    if groups.height < least:
        raise UserError(
            f"split: the cohort has {groups.height} separate group(s) of patients; at least {least} are needed for "
            + (f"{split.folds} folds" if split.folds else "training, validation and test")
        )
    strata = groups["label"].fill_null(0).to_numpy() if split.stratify and len(target) == 1 else None
    random = np.random.default_rng(split.seed)
    everyone = np.arange(groups.height)
    if split.folds:
        rest, test = _cut_out(everyone, split.folds, split.fold, random, strata)
    else:
        rest, test = _divide(everyone, Fraction(str(split.test)), random, strata)
    share = Fraction(str(split.validation)) / (Fraction(str(split.validation)) + Fraction(str(split.train)))
    train, validation = _divide(rest, share, random, strata)
    names = np.empty(groups.height, dtype="<U10")
    for name, members in zip(SPLITS, (train, validation, test), strict=True):
        names[members] = name
    of_group = dict(zip(groups["group"].to_list(), names, strict=True))
    result = np.array([of_group[number] for number in group], dtype="<U10")
    assert_disjoint(cohort, result, keys)
    return result


def _split_by_column(cohort: pl.DataFrame, column: str, keys: Sequence[str]) -> npt.NDArray[np.str_]:
    """The parts that a column names, checked to share no value of the keys."""
    if column not in cohort.columns:
        raise UserError(f"split.column: the cohort has no column '{column}'; valid: {', '.join(cohort.columns)}")
    text = pl.col(column).cast(pl.String).str.strip_chars().str.to_lowercase()
    part = cohort.select(text.replace_strict(_NAMED, default=None, return_dtype=pl.String)).to_series()
    if part.null_count():
        raise UserError(
            f"split.column: {part.null_count()} unit(s) have another value in '{column}' than {', '.join(_NAMED)}"
        )
    if empty := [name for name in SPLITS if name not in part]:
        raise UserError(f"split.column: '{column}' puts no unit into {', '.join(empty)}")
    split = part.to_numpy().astype("<U10")
    for key in keys:
        if count := crossing(cohort, split, key):
            raise UserError(
                f"split.column: '{column}' puts {count} value(s) of {key} into two parts, which leaks; mend it, or "
                "leave it out to have whole patients drawn"
            )
    return split


def patients_apart(cohort: pl.DataFrame, split: npt.NDArray[np.str_]) -> int:
    """How many patients of the test part also stand in another; 0 wherever whole patients are split."""
    table = cohort.select("patient_id").with_columns(test=pl.Series(split == "test"))
    both = table.group_by("patient_id").agg(pl.col("test").any() & ~pl.col("test").all())
    return int(both["test"].sum())


def _split_single_units(units: pl.Series, split: SplitSpec) -> npt.NDArray[np.str_]:
    """As the OvO notebooks cut TADPOLE: ids sorted as text, Python's shuffle, shares rounded down; the rest is test.

    Source: rsinghlab/OvO, tadpole/create_torch_datasets.ipynb.

    Raises:
        UserError: fewer than three units, or a part without one.
    """
    order = np.argsort(units.cast(pl.String).to_numpy(), kind="stable").tolist()
    python_random.Random(split.seed).shuffle(order)
    train, validation = int(split.train * len(order)), int(split.validation * len(order))
    if not (train and validation and len(order) > train + validation):
        raise UserError(f"split: {len(order)} units are too few for training, validation and test")
    names = np.empty(len(order), dtype="<U10")
    names[order[:train]], names[order[train:]] = "train", "test"
    names[order[train : train + validation]] = "validation"
    return names


def assert_disjoint(cohort: pl.DataFrame, split: npt.NDArray[np.str_], columns: Sequence[str]) -> None:
    """Fails if a value of one of the columns stands in two splits."""
    for column in columns:
        count = crossing(cohort, split, column)
        assert count == 0, f"{count} values of {column} stand in two splits"


def crossing(cohort: pl.DataFrame, split: npt.NDArray[np.str_], column: str) -> int:
    """How many values of a column stand in two of SPLITS; null is no value, and other parts are nobody's."""
    seen = (
        cohort.select(key=column)
        .with_columns(split=pl.Series(split))
        .drop_nulls()
        .filter(pl.col("split").is_in(SPLITS))
    )
    return seen.group_by("key").agg(pl.col("split").n_unique()).filter(pl.col("split") > 1).height


def _groups(cohort: pl.DataFrame, columns: Sequence[str]) -> pl.Series:
    """Connected components of units that share a value in any of the columns; null shares with nobody."""
    table = cohort.select(columns).with_columns(group=pl.int_range(pl.len()))
    while True:
        smallest = table["group"]
        for column in columns:
            shared = pl.when(pl.col(column).is_null()).then("group").otherwise(pl.col("group").min().over(column))
            table = table.with_columns(group=shared)
        if table["group"].equals(smallest):
            return smallest


def _cut_out(
    members: npt.NDArray[np.int64],
    folds: int,
    fold: int,
    random: np.random.Generator,
    strata: npt.NDArray[Any] | None,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(the others, one of several folds); folds share no member, and sizes in all and in each stratum to within one."""
    shuffled = random.permutation(members)
    ordered = shuffled if strata is None else shuffled[np.argsort(strata[shuffled], kind="stable")]
    chosen = np.arange(ordered.size) % folds == fold
    return ordered[~chosen], ordered[chosen]


def _divide(
    members: npt.NDArray[np.int64], share: Fraction, random: np.random.Generator, strata: npt.NDArray[Any] | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(the larger part, ceil(share) of the members), the second with its share of every stratum to within one.

    Systematic sampling: the members are shuffled, ordered by stratum, and taken at even distances.
    """
    shuffled = random.permutation(members)
    ordered = shuffled if strata is None else shuffled[np.argsort(strata[shuffled], kind="stable")]
    size = min(math.ceil(share * members.size), members.size - 1)
    chosen = np.zeros(members.size, dtype=np.bool_)
    chosen[(2 * np.arange(size) + 1) * members.size // (2 * size)] = True
    return ordered[~chosen], ordered[chosen]
