"""The simulation against the definition in the paper."""

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.metrics import roc_auc_score

from ovo_clinic import experiment, spec
from ovo_clinic.errors import UserError
from ovo_clinic.prepare import prepare
from ovo_clinic.raw import RawFolder
from ovo_clinic.tables import Tables, VectorTable


def simulate(**options: int) -> Tables:
    dataset, path = spec.load("simulation")
    function = spec.pipeline_function(dataset, "simulation", path)
    result = function(RawFolder({}, {}), dataset, **options)
    assert isinstance(result, Tables)
    return result


def numbers(tables: Tables) -> npt.NDArray[np.float64]:
    """(N,M,20) in the order of the units."""
    parts = []
    for table in tables.modalities.values():
        assert isinstance(table, VectorTable)
        assert table.frame["unit_id"].to_list() == tables.cohort["unit_id"].to_list()
        parts.append(table.frame.drop("unit_id").to_numpy())
    return np.stack(parts, axis=1)


def class_2(tables: Tables) -> npt.NDArray[np.bool_]:
    return tables.cohort["class_2"].to_numpy() == 1


def test_sizes() -> None:
    tables = simulate()
    assert numbers(tables).shape == (2000, 20, 20)
    assert class_2(tables).sum() == 1000
    assert tables.cohort["patient_id"].n_unique() == tables.cohort["unit_id"].n_unique() == 2000


def test_class_1_sums_to_one_and_class_2_does_not() -> None:
    """The mean of 20 numbers, uniform within sd of a value, is the value within sd / sqrt(3 * 20); 20 such add up."""
    tables = simulate()
    means = numbers(tables).mean(axis=2)
    error = means.std(axis=1) * np.sqrt(20 / 60)
    one = ~class_2(tables)
    standardised = (means.sum(axis=1) - 1)[one] / error[one]
    assert abs(standardised.mean()) < 5 / np.sqrt(one.sum())
    assert 0.9 < standardised.std() < 1.1
    assert means.sum(axis=1)[~one].mean() == pytest.approx(20 * 0.075, abs=5 * np.sqrt(20 / 12) * 0.15 / np.sqrt(1000))


def test_values_follow_their_distributions() -> None:
    """Dirichlet(1,...,1) has the variance (1/20)(19/20)/21; the uniform one 0.15^2/12; numbers add a third of sd^2."""
    tables = simulate(samples=20000)
    found = numbers(tables)
    sets = {False: 0.05 * 0.95 / 21, True: 0.15**2 / 12}
    for positive, variance in sets.items():
        rows = found[class_2(tables) == positive]
        # Population variance of 20 values: for class 1 their mean is exactly 1/20, for class 2 it is estimated.
        inside = variance if not positive else variance * 19 / 20
        assert rows.var() == pytest.approx(variance + inside / 3, rel=0.02)


def test_numbers_lie_within_one_deviation_of_their_value() -> None:
    tables = simulate(samples=500)
    found = numbers(tables)
    middle = (found.max(axis=2) + found.min(axis=2)) / 2
    half_range = (found.max(axis=2) - found.min(axis=2)) / 2
    # 20 uniform draws reach 19/21 of the interval on average; the deviation is the same in all modalities of a sample.
    deviation = half_range.mean(axis=1) * 21 / 19
    assert np.median(deviation / middle.std(axis=1)) == pytest.approx(1, abs=0.03)
    values_2 = middle[class_2(tables)]
    slack = deviation[class_2(tables)][:, None] * 0.5
    assert np.all(values_2 > -slack) and np.all(values_2 < 0.15 + slack)
    assert (middle[~class_2(tables)] > 0.16).any()


def test_no_single_modality_tells_the_classes_apart_as_the_sum_does() -> None:
    tables = simulate()
    means = numbers(tables).mean(axis=2)
    alone = [roc_auc_score(class_2(tables), means[:, modality]) for modality in range(20)]
    assert min(alone) > 0.6 and max(alone) < 0.8
    assert roc_auc_score(class_2(tables), means.sum(axis=1)) > 0.97


def test_seed_decides_everything() -> None:
    assert np.array_equal(numbers(simulate(seed=3)), numbers(simulate(seed=3)))
    assert not np.array_equal(numbers(simulate(seed=3)), numbers(simulate(seed=4)))


def test_fewer_modalities_are_the_first_ones() -> None:
    assert np.array_equal(numbers(simulate(modalities=5)), numbers(simulate())[:, :5])
    assert list(simulate(modalities=2).modalities) == ["modality_01", "modality_02"]


@pytest.mark.usefixtures("home")
def test_prepared_split_is_80_10_10() -> None:
    prepared = prepare(experiment.load("simulation", ["data.modalities=3"]).data_request(), {})
    assert prepared.manifest["units"] == {"train": 1600, "validation": 200, "test": 200}
    assert prepared.modalities == ["modality_01", "modality_02", "modality_03"]
    expected = numbers(simulate(modalities=3)).astype(np.float32)
    assert np.array_equal(np.stack([prepared.array(name).values for name in prepared.modalities], axis=1), expected)


@pytest.mark.parametrize("count", [1, 21])
def test_other_numbers_of_modalities_are_refused(count: int) -> None:
    with pytest.raises(UserError, match="^data.modalities: "):
        experiment.load("simulation", [f"data.modalities={count}"]).data_request()
