"""The report's tables in the study's folder, computed again with pandas, scikit-learn and statsmodels."""

import numpy as np
import pandas as pd
import pytest
import sklearn.isotonic
import sklearn.metrics
import statsmodels.api as sm
from scipy.special import expit, logit

from tests.report.conftest import Reported

HEADS = ["concat", "ovo"]


def probabilities(binary: Reported, head: str, split: str) -> list[pd.Series]:
    return [frame["probability_0"].astype(float).sort_index() for frame in binary.predictions(head, split)]


def recalibrated(binary: Reported, head: str, method: str) -> list[pd.Series]:
    """The test units' probabilities by seed, recalibrated on the validation units by other means."""
    truth = binary.study.comparison.prepared.cohort.to_pandas().set_index("unit_id")["died"]
    seeds = []
    for fit, own in zip(probabilities(binary, head, "validation"), probabilities(binary, head, "test"), strict=True):
        y = truth[fit.index]
        if method == "temperature":
            # One coefficient on the logit and no constant: its inverse is the temperature.
            scale = sm.GLM(y.to_numpy(), logit(fit).to_numpy()[:, None], sm.families.Binomial()).fit().params[0]
            own = pd.Series(expit(logit(own) * scale), index=own.index)
        elif method == "isotonic":
            fitted = sklearn.isotonic.IsotonicRegression(out_of_bounds="clip").fit(fit, y)
            own = pd.Series(fitted.predict(own), index=own.index)
        seeds.append(own)
    return seeds


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("method", ["none", "temperature", "isotonic"])
def test_calibration(binary: Reported, head: str, method: str) -> None:
    table = pd.read_csv(binary.folder / "calibration.csv")
    rows = table.query("model == @head and recalibration == @method").set_index("metric")
    y = binary.test_units["died"].sort_index()
    expected = {"brier": [], "slope": [], "intercept": []}
    for p in recalibrated(binary, head, method):
        expected["brier"].append(sklearn.metrics.brier_score_loss(y, p))
        x = logit(np.clip(p.to_numpy(), 1e-7, 1 - 1e-7))
        expected["slope"].append(sm.GLM(y.to_numpy(), sm.add_constant(x), sm.families.Binomial()).fit().params[1])
        large = sm.GLM(y.to_numpy(), np.ones((len(y), 1)), sm.families.Binomial(), offset=x).fit()
        expected["intercept"].append(large.params[0])
    for metric, values in expected.items():
        assert rows.loc[metric, "mean"] == pytest.approx(np.mean(values), rel=1e-3, abs=1e-4), metric
        assert rows.loc[metric, "low"] < rows.loc[metric, "mean"] < rows.loc[metric, "high"]
    assert set(table["outcome"]) == {"dead"} and len(table) == 2 * 3 * 5


@pytest.mark.parametrize("head", HEADS)
def test_reliability_pools_the_seeds(binary: Reported, head: str) -> None:
    rows = pd.read_csv(binary.folder / "reliability.csv").query("model == @head and recalibration == 'none'")
    y = binary.test_units["died"].sort_index()
    seeds = probabilities(binary, head, "test")
    pooled = pd.DataFrame({"p": pd.concat(seeds).to_numpy(), "y": np.tile(y.to_numpy(), len(seeds))})
    bins = min(10, len(y) // 22)
    expected = pooled.groupby(pd.qcut(pooled["p"], bins, duplicates="drop"), observed=True).agg(["mean", "size"])
    np.testing.assert_allclose(rows["predicted"], expected["p", "mean"], atol=1e-9)
    np.testing.assert_allclose(rows["observed"], expected["y", "mean"], atol=1e-9)
    np.testing.assert_allclose(rows["units"], expected["y", "size"] / len(seeds))
    assert ((rows["low"] <= rows["observed"]) & (rows["observed"] <= rows["high"])).all() and (
        rows["units"] >= 11
    ).all()


def test_decision_curves(binary: Reported) -> None:
    table = pd.read_csv(binary.folder / "decision_curves.csv")
    y = binary.test_units["died"].sort_index().to_numpy()
    seeds = [p.to_numpy() for p in probabilities(binary, "ovo", "test")]
    for row in table.query("model == 'ovo'").iloc[::9].itertuples():
        gains = []
        for p in seeds:
            treated = p >= row.threshold
            true, false = np.sum(treated & (y == 1)), np.sum(treated & (y == 0))
            gains.append(true / y.size - false / y.size * row.threshold / (1 - row.threshold))
        assert row.net_benefit == pytest.approx(np.mean(gains))
        assert row.low <= row.net_benefit <= row.high
    row = table.query("model == 'treat everyone'").iloc[7]
    odds = row["threshold"] / (1 - row["threshold"])
    assert row["net_benefit"] == pytest.approx(y.mean() - (1 - y.mean()) * odds)


def test_table_one_counts_people_by_outcome(binary: Reported) -> None:
    table = pd.read_csv(binary.folder / "table_one.csv").set_index("characteristic")
    cohort = binary.study.comparison.prepared.cohort.to_pandas()
    assert table.columns.tolist() == ["all", "alive", "dead"]
    assert table.loc["Units"].tolist() == [f"{n:,}" for n in (len(cohort), *cohort["died"].value_counts()[[0, 1]])]
    assert table.loc["Patients", "all"] == str(cohort["patient_id"].nunique())
    women = cohort[cohort["sex"] == "F"]
    dead = cohort["died"] == 1
    share = 100 * (women["died"] == 1).sum() / dead.sum()
    assert table.loc["Sex: F", "dead"] == f"{(women['died'] == 1).sum()} ({share:.1f} %)"
    low, middle, high = cohort.loc[dead, "age_years"].quantile([0.25, 0.5, 0.75])
    assert table.loc["Age years, median [quartiles]", "dead"] == f"{middle:.3g} [{low:.3g}, {high:.3g}]"
    assert not table.index.str.contains("canary").any() and not table.index.str.startswith("Name").any()


def test_no_small_count_is_in_table_one(binary: Reported) -> None:
    table = pd.read_csv(binary.folder / "table_one.csv").set_index("characteristic")
    counts = table.drop(index=[line for line in table.index if "median" in line])
    numbers = counts.stack().str.extract(r"^([\d,]+)")[0].dropna().str.replace(",", "").astype(int)
    assert not numbers.between(1, 10).any() and len(numbers) > 20


def test_patterns_of_missing_modalities(binary: Reported) -> None:
    table = pd.read_csv(binary.folder / "missing_patterns.csv")
    prepared = binary.study.comparison.prepared
    labs = prepared.cohort.to_pandas()["unit_id"].isin(
        pd.read_csv(binary.folder.parents[2] / "files" / "raw" / "labs.csv")["stay_id"]
    )
    assert table["demographics"].all() and table["labs"].tolist() == [True, False]
    assert table["units"].tolist() == [labs.sum(), (~labs).sum()]
    np.testing.assert_allclose(table["share"], [labs.mean(), 1 - labs.mean()])


def test_costs_are_those_of_the_runs(binary: Reported) -> None:
    table = pd.read_csv(binary.folder / "costs.csv").set_index("model")
    for head in HEADS:
        costs = binary.study.comparison.results[head][0]["costs"]
        assert table.loc[head, "macs"] == costs["macs_total"]
        assert table.loc[head, "parameters"] == costs["parameters"] and table.loc[head, "milliseconds"] > 0


@pytest.mark.slow
def test_every_class_has_its_metrics_against_the_rest(several: Reported) -> None:
    calibration = pd.read_csv(several.folder / "calibration.csv", keep_default_na=False, na_values=[""])
    names = {"multiclass": ["none", "mild", "severe"], "multilabel": ["pain", "fever"]}[several.kind]
    assert list(dict.fromkeys(calibration["outcome"])) == names and calibration["mean"].notna().any()
    if several.kind == "multilabel":
        assert not (several.folder / "classes.csv").exists()
        return
    table = pd.read_csv(several.folder / "classes.csv", keep_default_na=False, na_values=[""])
    assert list(dict.fromkeys(table["outcome"])) == names
    units = several.test_units
    frame = several.predictions("ovo")[0].loc[units.index].to_numpy(dtype=float)
    for index, name in enumerate(names):
        y = (units["stage"] == index).astype(int)
        rows = table[(table["outcome"] == name) & (table["model"] == "ovo")].set_index("metric")
        assert rows.loc["auroc", "mean"] == pytest.approx(sklearn.metrics.roc_auc_score(y, frame[:, index]), abs=1e-9)
        assert rows["prevalence"].iloc[0] == pytest.approx(y.mean())
