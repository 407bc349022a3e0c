"""Subgroups of the test units, computed again with pandas and scikit-learn."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn.metrics
import statsmodels.stats.weightstats
from statsmodels.stats.multitest import multipletests

from ovo_clinic import statistics, subgroups
from tests.report.conftest import NAME, Reported

BANDS = {"18 to 44": (18, 45), "45 to 64": (45, 65), "65 to 79": (65, 80), "80 or older": (80, 200)}


def members(units: pd.DataFrame, variable: str, level: str) -> pd.Series:
    """Which test units belong to a level, from the columns alone; `all others` are those of no other level."""
    if level == "not recorded":
        return units[variable].isna()
    if variable == "age_years":
        low, high = BANDS[level]
        return units[variable].between(low, high, inclusive="left")
    return units[variable] == level


def groups(binary: Reported, table: pd.DataFrame) -> dict[tuple[str, str], pd.Series]:
    units = binary.test_units
    named = {}
    for variable, level in table[["variable", "level"]].drop_duplicates().itertuples(index=False):
        if level != subgroups.OTHERS:
            named[variable, level] = members(units, variable, level)
    for variable in dict.fromkeys(table["variable"]):
        if ((table["variable"] == variable) & (table["level"] == subgroups.OTHERS)).any():
            own = [mask for (other, _), mask in named.items() if other == variable]
            named[variable, subgroups.OTHERS] = ~pd.concat(own, axis=1).any(axis=1)
    return named


@pytest.fixture(scope="session")
def table(binary: Reported) -> pd.DataFrame:
    return pd.read_csv(binary.folder / "subgroups.csv")


def test_groupings_are_those_columns_that_say_what_kind_of_person(binary: Reported, table: pd.DataFrame) -> None:
    levels = table.groupby("variable", sort=False)["level"].unique()
    assert list(levels.index) == ["sex", "site", "age_years"]
    assert set(levels["sex"]) == {"F", "M"}
    assert set(levels["age_years"]) == {*BANDS, "not recorded"}
    annex = (binary.test_units["site"] == "Annex").sum()
    assert 0 < annex < 11 and "Annex" not in set(levels["site"])
    assert set(levels["site"]) == {"North", "South", subgroups.OTHERS}
    assert NAME not in (binary.folder / "subgroups.csv").read_text()


def test_sizes(binary: Reported, table: pd.DataFrame) -> None:
    units = binary.test_units
    for (variable, level), mask in groups(binary, table).items():
        row = table[(table["variable"] == variable) & (table["level"] == level)].iloc[0]
        own = units[mask]
        assert row["units"] == len(own) >= 11
        assert row["patients"] == own["patient_id"].nunique()
        if min(own["died"].sum(), (own["died"] == 0).sum()) < 11:
            assert np.isnan(row["positives"])
        else:
            assert row["positives"] == own["died"].sum() or np.isnan(row["positives"])
    assert table["positives"].notna().any()


def scored(y: pd.Series, p: pd.Series) -> dict[str, float]:
    return {
        "auroc": sklearn.metrics.roc_auc_score(y, p),
        "auprc": sklearn.metrics.average_precision_score(y, p),
        "brier": sklearn.metrics.brier_score_loss(y, p),
        "excess": y.mean() - p.mean(),
    }


@pytest.mark.parametrize("head", ["concat", "ovo"])
def test_metrics_and_differences(binary: Reported, table: pd.DataFrame, head: str) -> None:
    units = binary.test_units
    seeds = [frame["probability_0"].astype(float).reindex(units.index) for frame in binary.predictions(head)]
    checked = 0
    for (variable, level), mask in groups(binary, table).items():
        own = (table["variable"] == variable) & (table["level"] == level) & (table["model"] == head)
        rows = table[own].set_index("metric")
        y = units["died"]
        if min(y[mask].sum(), (1 - y[mask]).sum()) < 11:
            assert rows[["mean", "low", "high", "difference", "p", "p_holm"]].isna().all(axis=None)
            continue
        own = pd.DataFrame([scored(y[mask], p[mask]) for p in seeds]).mean()
        rest = pd.DataFrame([scored(y[~mask], p[~mask]) for p in seeds]).mean()
        for metric in own.index:
            assert rows.loc[metric, "mean"] == pytest.approx(own[metric], abs=1e-5)
            assert rows.loc[metric, "difference"] == pytest.approx(own[metric] - rest[metric], abs=1e-5)
            assert rows.loc[metric, "low"] < own[metric] < rows.loc[metric, "high"]
            checked += 1
    assert checked >= 20


def test_p_values_are_corrected_over_the_groups_of_a_head_and_metric(table: pd.DataFrame) -> None:
    for _, rows in table.groupby(["model", "metric"]):
        tests = rows[~((rows["variable"] == "sex") & (rows["level"] != rows["level"].iloc[0]))].dropna(subset=["p"])
        expected = multipletests(tests["p"], method="holm")[1]
        np.testing.assert_allclose(tests["p_holm"], expected, rtol=1e-9)
        sex = rows[rows["variable"] == "sex"]
        assert sex["p"].nunique() == 1 and sex["p_holm"].nunique() == 1
        assert sex["difference"].sum() == pytest.approx(0, abs=1e-9)


def test_a_difference_of_means_over_labels_is_over_the_same_labels_on_both_sides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An easy and a hard label; hardly anyone of the group has the hard one, of which scores tell nothing anywhere."""
    random = np.random.default_rng(2)
    n = 600
    group = np.arange(n) < 150
    y = np.column_stack([random.random(n) < 0.5, (random.random(n) < 0.5) & ~group]).astype(float)
    y[:5, 1] = 1
    p = np.column_stack([0.3 * y[:, 0] + 0.7 * random.random(n), random.random(n)])[None]
    prepared = SimpleNamespace(
        manifest={"kind": "multilabel", "target": ["easy", "hard"]},
        cohort=pl.DataFrame({"unit_id": range(n), "patient_id": range(n), "group": np.where(group, "in", "out")}),
        rows=lambda part: np.arange(n),
        target=y,
    )
    comparison: Any = SimpleNamespace(prepared=prepared, contenders=["head"])
    monkeypatch.setattr(subgroups.report, "predictions", lambda comparison, head: (p, np.arange(n)))
    found = subgroups.table(comparison).set_index(["level", "metric"])
    areas = {
        name: [sklearn.metrics.roc_auc_score(y[mask, label], p[0, mask, label]) for label in range(2)]
        for name, mask in {"in": group, "out": ~group}.items()
    }
    assert found.loc[("in", "auroc_macro"), "mean"] == pytest.approx(
        areas["in"][0], abs=1e-6
    )  # of the easy label alone
    assert found.loc[("out", "auroc_macro"), "mean"] == pytest.approx(np.mean(areas["out"]), abs=1e-6)
    expected = areas["in"][0] - areas["out"][0]
    assert found.loc[("in", "auroc_macro"), "difference"] == pytest.approx(expected, abs=1e-6)
    assert found.loc[("out", "auroc_macro"), "difference"] == pytest.approx(-expected, abs=1e-6)


def test_a_p_value_of_a_normal_law_is_that_of_a_z_test() -> None:
    random = np.random.default_rng(3)
    first, second = random.normal(0.4, 1, 500), random.normal(0, 1, 700)
    draws = [random.choice(sample, (4000, sample.size)).mean(axis=1) for sample in (first, second)]
    found = statistics.Estimate(first.mean() - second.mean(), draws[0] - draws[1], np.empty(0)).normal_p_value()
    z, p = statsmodels.stats.weightstats.ztest(first, second, usevar="unequal")
    assert np.log(found) == pytest.approx(np.log(p), rel=0.1) and p < 1e-6  # beyond what 4,000 resamples can count


def test_intervals_of_subsets_are_those_of_a_bootstrap_over_patients() -> None:
    random = np.random.default_rng(1)
    n, resamples = 160, 40
    p, y = random.random((2, n)), (random.random(n) < 0.4).astype(float)
    patients = random.integers(0, 70, n)
    inside = random.random(n) < 0.5
    found = statistics.bootstrap_subsets(
        p, y, patients, {"in": inside, "out": ~inside}, ("auroc", "brier"), resamples=resamples, seed=4
    )
    people = np.unique(patients)
    drawn = np.random.default_rng(4).multinomial(people.size, np.full(people.size, 1 / people.size), size=resamples)
    for r, counts in enumerate(drawn):
        units = np.repeat(np.arange(n), counts[np.searchsorted(people, patients)])
        for name, mask in {"in": inside, "out": ~inside}.items():
            chosen = units[mask[units]]
            area = np.mean([sklearn.metrics.roc_auc_score(y[chosen], seed[chosen]) for seed in p])
            assert found[name]["auroc"].samples[r] == pytest.approx(area)
            error = np.mean([(seed[chosen] - y[chosen]) ** 2 for seed in p])
            assert found[name]["brier"].samples[r] == pytest.approx(error)
    difference = found["in"]["auroc"] - found["out"]["auroc"]
    expected = found["in"]["auroc"].samples - found["out"]["auroc"].samples
    assert [difference.percentile().low, difference.percentile().high] == pytest.approx(
        np.quantile(expected, [0.025, 0.975])
    )


@pytest.mark.slow
def test_other_kinds_of_task_have_subgroups(several: Reported) -> None:
    table = pd.read_csv(several.folder / "subgroups.csv")
    assert set(table["metric"]) == set(subgroups.METRICS[several.kind]) and "positives" not in table
    units = several.test_units
    mask = (units["sex"] == "F").to_numpy()
    p = several.predictions("ovo")[0].loc[units.index].to_numpy(dtype=float)[mask]
    row = table.query("variable == 'sex' and level == 'F' and model == 'ovo'").set_index("metric")
    if several.kind == "multiclass":
        p = p / p.sum(axis=1, keepdims=True)
        y, metric = units["stage"][mask], "mauc"
        expected = sklearn.metrics.roc_auc_score(y, p, multi_class="ovo")
    else:
        y, metric = units[["pain", "fever"]][mask], "auroc_macro"
        expected = sklearn.metrics.roc_auc_score(y, p)
    assert row.loc[metric, "mean"] == pytest.approx(expected, abs=1e-6)
    assert row.loc[metric, "low"] < expected < row.loc[metric, "high"]
