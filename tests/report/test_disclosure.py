"""Small cells are hidden, and cannot be worked out from the totals."""

import shlex
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovo_clinic import cohort_tables, disclosure, outcomes, subgroups, terminal
from ovo_clinic.outcomes import Outcome


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([[20, 30], [40, 50]], [[0, 0], [0, 0]]),
        ([[0, 30], [40, 50]], [[0, 0], [0, 0]]),
        ([[10, 30], [40, 50]], [[1, 1], [1, 1]]),
        ([[5, 30, 20], [40, 50, 60], [12, 70, 80]], [[1, 0, 1], [0, 0, 0], [1, 0, 1]]),
        ([[4], [90], [15]], [[1], [0], [1]]),
        ([[4], [3], [15]], [[1], [1], [0]]),
        ([[4], [0], [15]], [[1], [0], [1]]),
        ([[4, 0]], [[1, 1]]),
        ([[4]], [[1]]),
    ],
)
def test_hidden_cells(counts: list[list[int]], expected: list[list[int]]) -> None:
    assert disclosure.hidden(counts).astype(int).tolist() == expected


@given(st.lists(st.lists(st.integers(0, 40), min_size=3, max_size=3), min_size=2, max_size=5))
def test_no_row_or_column_hides_a_single_cell(counts: list[list[int]]) -> None:
    hide = disclosure.hidden(counts)
    table = np.array(counts)
    assert hide[(table >= 1) & (table <= 10)].all()
    assert not (hide.sum(axis=0) == 1).any() and not (hide.sum(axis=1) == 1).any()


@pytest.mark.parametrize(
    ("counts", "most", "shown", "rest"),
    [
        ({"a": 50, "b": 11}, 8, ["a", "b"], []),
        ({"a": 50, "b": 30, "c": 6, "d": 5}, 8, ["a", "b"], ["c", "d"]),
        ({"a": 50, "b": 30, "c": 6}, 8, ["a"], ["b", "c"]),
        ({"a": 50, "b": 30, "c": 20, "d": 12}, 2, ["a", "b"], ["c", "d"]),
        ({"a": 4, "b": 5}, 8, [], ["b", "a"]),
    ],
)
def test_small_levels_are_put_together(counts: dict[str, int], most: int, shown: list[str], rest: list[str]) -> None:
    levels = [level for level, count in counts.items() for _ in range(count)]
    assert disclosure.pooled(levels, range(len(levels)), most) == (shown, rest)


def test_levels_of_few_people_are_put_together_however_many_units_they_have() -> None:
    # 40 units of 40 people, 30 of 3, 20 of 2 (all of them among the 3), 12 of 12.
    levels = ["a"] * 40 + ["b"] * 30 + ["c"] * 20 + ["d"] * 12
    patients = [*range(40), *(100 + i % 3 for i in range(30)), *(100 + i % 2 for i in range(20)), *range(200, 212)]
    assert disclosure.pooled(levels, patients, 8) == (["a"], ["d", "b", "c"])
    # "b" and "c" are 9 and 8 people, 17 in sum, but only 9 in all.
    shared = [*range(40), *(100 + i % 9 for i in range(30)), *(100 + i % 8 for i in range(20)), *range(200, 212)]
    assert disclosure.pooled(levels, shared, 8) == (["a"], ["d", "b", "c"])
    assert disclosure.pooled(["b"] * 30 + ["c"] * 30, [*range(30), *[0, 1, 2] * 10], 8) == ([], ["b", "c"])


def test_a_small_part_does_not_follow_from_the_total() -> None:
    assert disclosure.parts({"alive": 1995, "dead": 5}) == {"alive": "hidden", "dead": "<11"}
    assert disclosure.parts({"alive": 1995, "dead": 0}) == {"alive": "1,995", "dead": "0"}
    assert disclosure.parts({"CN": 40, "MCI": 3, "AD": 25}) == {"CN": "40", "MCI": "<11", "AD": "hidden"}


def made_up(**columns: list[object]) -> Any:
    """Prepared data of a binary task without modalities."""
    cohort = pl.DataFrame(columns).with_row_index("unit_id")
    manifest = {"kind": "binary", "target": ["died"], "classes": ["alive", "dead"]}
    target = cohort["died"].to_numpy().astype(np.float32)
    return SimpleNamespace(cohort=cohort, manifest=manifest, target=target, modalities=[])


def test_the_size_of_a_small_class_does_not_follow_from_table_one() -> None:
    prepared = made_up(patient_id=list(range(300)), died=[1] * 4 + [0] * 296)
    table = cohort_tables.table_one(prepared).set_index("characteristic")
    assert table.loc["Units"].tolist() == table.loc["Patients"].tolist() == ["300", "hidden", "<11"]


def test_a_subgroup_is_of_as_many_people_as_are_shown() -> None:
    ward = ["north"] * 200 + ["south"] * 100 + ["annex"] * 30
    patients = [*range(300), *(1000 + i % 4 for i in range(30))]  # 30 stays of 4 people
    prepared = made_up(patient_id=patients, died=[0, 1] * 165, ward=ward)
    (found,) = subgroups.groupings(prepared, np.arange(330))
    sizes = {level: mask.sum() for level, mask in found.levels.items()}
    assert sizes == {"north": 200, subgroups.OTHERS: 130}


def test_the_last_class_does_not_follow_from_the_others() -> None:
    label = np.repeat([0, 1, 2], [60, 35, 5])
    p = np.random.default_rng(0).dirichlet(np.ones(3), size=(1, label.size))
    found = [
        Outcome(
            name,
            {"test": (label == number).astype(float)},
            {"test": np.arange(label.size)},
            {"test": {"concat": p[..., number]}},
        )
        for number, name in enumerate(["CN", "MCI", "AD"])
    ]
    table = outcomes.table(found).query("metric == 'auroc'").set_index("outcome")
    assert table.loc["CN", "prevalence"] == 0.6
    assert table.loc[["MCI", "AD"], "prevalence"].isna().all() and table["units"].eq(100).all()
    assert table.loc[["CN", "MCI"], "mean"].notna().all() and np.isnan(table.loc["AD", "mean"])


def test_quartiles_are_of_enough_people_however_many_units_they_have() -> None:
    units = 30
    prepared: Any = SimpleNamespace(
        cohort=pl.DataFrame({"patient_id": [0] * 15 + list(range(1, 16)), "age": [float(u) for u in range(units)]})
    )
    few, many = np.arange(units) < 15 + 5, np.arange(units) >= 15
    line = cohort_tables._median_line(prepared, "age", {"few": few, "many": many})
    assert line["few"] == "–" and line["many"] == "22 [18.5, 25.5]"


def test_the_command_that_opens_the_store_can_be_copied(capsys: pytest.CaptureFixture[str]) -> None:
    uri = "sqlite:////wards/home of ward 2/mlflow.db"
    terminal.print_mlflow(uri)
    told = capsys.readouterr().out
    assert shlex.split(told)[-1] == uri and told.startswith("MLflow: MLFLOW_DISABLE_TELEMETRY=true ")
