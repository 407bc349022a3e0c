"""What counts as other data: units, names, categories; and what does not."""

from dataclasses import dataclass

import numpy as np
import polars as pl
import pytest

from ovo_clinic import arrays, drift
from ovo_clinic.arrays import Column, ModalityArray
from ovo_clinic.errors import UserError
from ovo_clinic.new_data import aligned
from ovo_clinic.tables import CodesTable, StepsTable, VectorTable, Vocabulary

N = 400


@dataclass(frozen=True)
class OneModality:
    """As much of `Prepared` as a profile needs."""

    values: ModalityArray

    @property
    def manifest(self) -> dict[str, dict[str, dict[str, str]]]:
        return {"modalities": {"m": {"kind": self.values.kind}}}

    def array(self, name: str) -> ModalityArray:
        return self.values


def profile(array: ModalityArray, rows: int = N) -> drift.Profile:
    return drift.profiles(OneModality(array), ["m"], np.arange(rows))["m"]  # type: ignore[arg-type]


def vector(**columns: object) -> ModalityArray:
    units = pl.Series(np.arange(N))
    return arrays.build(VectorTable(pl.DataFrame({"unit_id": units, **columns})), units, np.ones(N, np.bool_))


def numbers(mean: float, spread: float) -> np.ndarray:
    return np.random.default_rng(3).normal(mean, spread, N)


def test_the_inner_values_are_quantiles_of_the_training_rows_that_are_measured() -> None:
    values = numbers(100, 10)
    values[::4] = np.nan
    found = profile(vector(x=pl.Series(values).fill_nan(None)), rows=200)
    measured = values[:200][~np.isnan(values[:200])]
    assert found.share == [0.75]
    assert found.low[0] == pytest.approx(np.quantile(measured, 0.05), rel=1e-5)
    assert found.high[0] == pytest.approx(np.quantile(measured, 0.95), rel=1e-5)


def test_values_of_few_units_are_kept_out_of_the_profile() -> None:
    few, enough = ([40.0 + unit if unit < count else None for unit in range(N)] for count in (10, 11))
    found = profile(vector(few=pl.Series(few), enough=pl.Series(enough)))
    assert found.share == [10 / N, 11 / N]
    assert (found.low, found.high) == ([None, pytest.approx(40.5)], [None, pytest.approx(49.5)])


def test_a_series_of_many_steps_is_one_unit() -> None:
    steps = [
        (unit, hour, 7.0 if unit < 10 else None, 7.0 if unit < 11 else None) for unit in range(40) for hour in range(9)
    ]
    frame = pl.DataFrame(steps, ["unit_id", "hours", "few", "enough"], orient="row")
    array = arrays.build(StepsTable(frame), pl.Series(np.arange(N)), np.ones(N, np.bool_))
    found = profile(array)
    low = dict(zip((column.name for column in found.columns), found.low, strict=True))
    assert low["few"] is None and low["enough"] == pytest.approx(7)
    assert found.share[[column.name for column in found.columns].index("few")] == pytest.approx(10 / 40)


@pytest.mark.parametrize(("factor", "offset"), [(18.0, 0.0), (1 / 18, 0.0), (1.8, 32.0), (2.2, 0.0)])
def test_another_unit_is_told(factor: float, offset: float) -> None:
    trained = profile(vector(x=numbers(37, 1)))
    (told,) = drift.differences("m", trained, vector(x=numbers(37, 1) * factor + offset))
    assert told.startswith("m: half of the x values are ")


def test_sicker_patients_and_few_values_are_no_drift() -> None:
    trained = profile(vector(x=numbers(100, 10)))
    assert drift.differences("m", trained, vector(x=numbers(110, 10))) == []
    few = pl.Series([*[900.0] * (drift.LEAST_VALUES - 1), *[None] * (N - drift.LEAST_VALUES + 1)], dtype=pl.Float64)
    assert drift.differences("m", trained, vector(x=few)) == []


def test_categories_that_training_did_not_know_are_told_when_they_are_many() -> None:
    trained = vector(sex=pl.Series(["F", "M"] * (N // 2)))
    for unknown, expected in ((N // 20, 0), (N // 5, 1)):
        new = vector(sex=pl.Series(["x"] * unknown + ["M", "F"] * ((N - unknown) // 2)))
        found = drift.differences("m", profile(trained), aligned("m", new, trained.columns))
        assert len(found) == expected and all("20 % of 400 new rows" in told for told in found)


def test_aligned_takes_the_trained_columns_in_their_order() -> None:
    trained = [Column("sex=F", "binary", "sex"), Column("sex=M", "binary", "sex"), Column("x", "numeric", "x")]
    found = aligned("m", vector(x=numbers(0, 1), sex=pl.Series(["M"] * N)), trained)
    np.testing.assert_array_equal(found.values[:, :2], [[0, 1]] * N)
    np.testing.assert_allclose(found.values[:, 2], numbers(0, 1), rtol=1e-6)
    with pytest.raises(UserError, match="m has no column x"):
        aligned("m", vector(sex=pl.Series(["M"] * N)), trained)


def codes(table: list[tuple[int, str]], fixed: tuple[str, ...]) -> ModalityArray:
    frame = pl.DataFrame(table, schema={"unit_id": pl.Int64, "code": pl.String}, orient="row")
    vocabulary = Vocabulary(0, fixed=fixed)
    return arrays.build(CodesTable(frame, vocabulary), pl.Series(np.arange(N)), np.ones(N, np.bool_))


def test_a_fixed_vocabulary_keeps_its_codes_whatever_is_counted() -> None:
    found = codes([(0, "new"), (1, "b")], ("b", "a"))
    assert [column.name for column in found.columns] == ["b", "a"]
    np.testing.assert_array_equal(found.values[:3], [[0, 0], [1, 0], [0, 0]])
    np.testing.assert_array_equal(found.present[:3], [True, True, False])


def test_codes_under_other_names_are_told_and_one_out_of_use_is_not() -> None:
    names = tuple(f"code{number}" for number in range(20))
    trained = profile(codes([(unit, name) for unit in range(N) for name in names], names))
    without_one = codes([(unit, name) for unit in range(N) for name in names[1:]], names)
    assert drift.differences("m", trained, without_one) == []
    (told,) = drift.differences("m", trained, codes([(unit, "other") for unit in range(N)], names))
    assert "none of 400 new rows has code0, code1, code2 and 17 more" in told
