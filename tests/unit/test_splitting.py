"""Nobody stands on two sides, and the sizes are the published ones."""

from collections import defaultdict
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovo_clinic.errors import UserError
from ovo_clinic.spec import SplitSpec
from ovo_clinic.splitting import assert_disjoint, split_units

SPLITS = {"train", "validation", "test"}


@st.composite
def cohorts(draw: st.DrawFn) -> pl.DataFrame:
    """Units of few patients, admissions (some unknown) and hospitals, so that groups chain through each other."""
    height = draw(st.integers(3, 60))
    people = draw(st.integers(3, 40))
    rows = {
        "unit_id": draw(st.permutations(range(100, 100 + height))),
        "patient_id": [f"p{draw(st.integers(0, people))}" for _ in range(height)],
        "admission": [draw(st.one_of(st.none(), st.integers(0, 2 * people))) for _ in range(height)],
        "hospital": [draw(st.integers(0, 8)) for _ in range(height)],
        "label": [draw(st.sampled_from([0, 0, 1, None])) for _ in range(height)],
    }
    return pl.DataFrame(rows, schema_overrides={"admission": pl.Int64, "label": pl.Int64})


def crossing(cohort: pl.DataFrame, names: Any, column: str) -> list[Any]:
    """Values of a column that stand in two splits."""
    seen = defaultdict(set)
    for value, name in zip(cohort[column].to_list(), names, strict=True):
        seen[value].add(name)
    return [value for value, found in seen.items() if value is not None and len(found) > 1]


@settings(max_examples=60, deadline=None)
@given(cohort=cohorts(), by=st.sampled_from(["patient_id", "hospital"]), seed=st.integers(0, 9), data=st.data())
def test_nobody_crosses(cohort: pl.DataFrame, by: str, seed: int, data: st.DataObject) -> None:
    identifiers = data.draw(st.sampled_from([[], ["admission"]]))
    split = SplitSpec(seed=seed, by=by)
    try:
        names = split_units(cohort, split, ["label"], identifiers)
    except UserError as error:
        assert "separate group" in str(error)
        return
    assert set(names) == SPLITS
    for column in ["patient_id", by, *identifiers]:
        assert crossing(cohort, names, column) == []
    order = data.draw(st.permutations(range(cohort.height)))
    assert split_units(cohort[list(order)], split, ["label"], identifiers).tolist() == names[list(order)].tolist()


@pytest.mark.parametrize(("patients", "sizes"), [(84_182, (58_926, 8_419, 16_837)), (75_845, (53_091, 7_585, 15_169))])
@pytest.mark.parametrize("stratify", [True, False])
def test_sizes_of_the_papers(patients: int, sizes: tuple[int, int, int], stratify: bool) -> None:
    label = np.random.default_rng(0).random(patients) < 0.08
    numbers = np.arange(patients)
    cohort = pl.DataFrame({"unit_id": numbers, "patient_id": numbers, "label": label.astype(int)})
    names = split_units(cohort, SplitSpec(stratify=stratify), ["label"], [])
    assert tuple(int((names == name).sum()) for name in ("train", "validation", "test")) == sizes
    rates = [label[names == name].mean() for name in ("train", "validation", "test")]
    if stratify:
        np.testing.assert_allclose(rates, label.mean(), atol=1 / sizes[1])
    assert bool(max(rates) - min(rates) < 1e-3) == stratify


def test_strata_are_patients_with_any_positive_unit() -> None:
    random = np.random.default_rng(1)
    cohort = pl.DataFrame(
        {
            "unit_id": np.arange(3000),
            "patient_id": np.arange(3000) // 3,
            "label": (random.random(3000) < 0.05).astype(int),
        }
    )
    names = split_units(cohort, SplitSpec(), ["label"], [])
    any_positive = cohort["label"].to_numpy().reshape(-1, 3).max(axis=1)
    of_patient = names.reshape(-1, 3)[:, 0]
    rates = [any_positive[of_patient == name].mean() for name in sorted(SPLITS)]
    np.testing.assert_allclose(rates, any_positive.mean(), atol=1 / 100)


def test_seeds_differ_and_repeat() -> None:
    cohort = pl.DataFrame({"unit_id": np.arange(100), "patient_id": np.arange(100), "label": np.arange(100) % 2})
    first, again, other = (split_units(cohort, SplitSpec(seed=seed), ["label"], []) for seed in (1, 1, 2))
    assert first.tolist() == again.tolist() != other.tolist()


def test_a_single_positive_patient_can_still_be_split() -> None:
    cohort = pl.DataFrame({"unit_id": [1, 2, 3, 4], "patient_id": [1, 2, 3, 4], "label": [0, 0, 0, 1]})
    assert set(split_units(cohort, SplitSpec(), ["label"], [])) == SPLITS


def test_mistakes_are_one_line() -> None:
    cohort = pl.DataFrame({"unit_id": [1, 2, 3], "patient_id": [1, 1, 2], "label": [0, 1, 0]})
    with pytest.raises(UserError, match="2 separate group"):
        split_units(cohort, SplitSpec(), ["label"], [])
    with pytest.raises(UserError, match="split.by: the cohort has no column 'ward'; valid: unit_id, patient_id, label"):
        split_units(cohort, SplitSpec(by="ward"), ["label"], [])


def test_a_column_of_parts_keeps_what_is_split_by_whole() -> None:
    cohort = pl.DataFrame(
        {
            "unit_id": [1, 2, 3, 4],
            "patient_id": [1, 2, 3, 4],
            "label": [0, 1, 0, 1],
            "ward": ["a", "a", "b", "c"],
            "part": ["train", "train", "validation", "test"],
        }
    )
    names = split_units(cohort, SplitSpec(by="ward", column="part"), ["label"], [])
    assert names.tolist() == cohort["part"].to_list()
    shared = cohort.with_columns(ward=pl.Series(["a", "a", "b", "a"]))
    with pytest.raises(UserError, match=r"split.column: 'part' puts 1 value\(s\) of ward into two parts, which leaks"):
        split_units(shared, SplitSpec(by="ward", column="part"), ["label"], [])
    with pytest.raises(UserError, match="split.by: the cohort has no column 'site'"):
        split_units(cohort, SplitSpec(by="site", column="part"), ["label"], [])


def test_disjointness_is_proved() -> None:
    cohort = pl.DataFrame({"patient_id": ["a", "a", "b", None]})
    assert_disjoint(cohort, np.array(["train", "train", "test", "test"]), ["patient_id"])
    with pytest.raises(AssertionError, match="1 values of patient_id"):
        assert_disjoint(cohort, np.array(["train", "test", "test", "test"]), ["patient_id"])
