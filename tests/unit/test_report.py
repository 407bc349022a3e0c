"""The table of a comparison, recomputed from the runs' own files with scipy, statsmodels and scikit-learn."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.stats
import sklearn.metrics
import yaml
from statsmodels.stats.multitest import multipletests

from ovo_clinic import experiment as experiments
from ovo_clinic import figures, report
from ovo_clinic import study as study_of_runs
from ovo_clinic.prepare import prepare_task
from ovo_clinic.report import ComparisonTable
from ovo_clinic.scheduling import LocalProcesses
from ovo_clinic.study import Comparison
from tests.small_data import KINDS, QUICK, SIMULATION, flat_files

SEEDS = 3
RESAMPLES = 60
HEADS = ["concat", "self_attention", "ovo"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVO_CLINIC_HOME", str(tmp_path_factory.mktemp("report") / "home"))
        patch.setattr(report, "RESAMPLES", RESAMPLES)
        yield patch


@dataclass(frozen=True)
class Study:
    comparison: Comparison
    table: ComparisonTable


def compare(task: str, settings: Sequence[str], raw: Path | None = None, workers: int = 1) -> Study:
    experiment = experiments.load(task, settings)
    chosen = experiment.compare
    comparison = study_of_runs.compare(
        experiment,
        prepare_task(experiment, raw),
        chosen.fusion,
        chosen.seeds,
        unimodal=chosen.unimodal,
        scheduler=LocalProcesses(workers),
    )
    table = report.comparison_table(comparison)
    report.save(comparison, table)
    return Study(comparison, table)


@pytest.fixture(scope="module")
def study(environment: pytest.MonkeyPatch) -> Study:
    heads = f"compare.fusion=[{','.join(HEADS)}]"
    return compare("simulation", [*SIMULATION, heads, f"compare.seeds={SEEDS}", "compare.unimodal=true"], workers=2)


def results(study: Study, label: str) -> list[dict]:
    return [json.loads((folder / "result.json").read_text()) for folder in study.comparison.run_folders[label]]


def scores(study: Study, label: str, metric: str) -> list[float]:
    return [result["metrics"]["test"][metric] for result in results(study, label)]


def test_predictions(study: Study, label: str) -> pd.DataFrame:
    """One column a seed, indexed by unit, with the label that the cohort holds."""
    seeds = []
    for folder in study.comparison.run_folders[label]:
        frame = pl.read_parquet(folder / "predictions.parquet").to_pandas()
        seeds.append(frame[frame["split"] == "test"].set_index("unit_id")["probability_0"])
    return pd.concat(seeds, axis=1, keys=range(SEEDS))


test_predictions.__test__ = False


def truth(study: Study) -> pd.Series:
    return study.comparison.prepared.cohort.to_pandas().set_index("unit_id")["class_2"]


def row(study: Study, label: str) -> pd.Series:
    return study.table.rows.set_index("model").loc[label]


ARMS = ["modality_01", "modality_02", "modality_03", *HEADS]


def test_rows_are_modalities_then_heads(study: Study) -> None:
    assert study.table.rows["model"].tolist() == ARMS
    assert study.table.rows["kind"].tolist() == ["modality"] * 3 + ["head"] * 3
    assert (study.table.rows["present"] == 1).all()


@pytest.mark.parametrize("label", ARMS)
def test_means_and_sds_are_over_seeds(study: Study, label: str) -> None:
    predictions, y = test_predictions(study, label), truth(study)
    y = y[predictions.index]
    areas = [sklearn.metrics.roc_auc_score(y, predictions[seed]) for seed in range(SEEDS)]
    precisions = [sklearn.metrics.average_precision_score(y, predictions[seed]) for seed in range(SEEDS)]
    negative = [sklearn.metrics.average_precision_score(1 - y, 1 - predictions[seed]) for seed in range(SEEDS)]
    for metric, values in {"auroc": areas, "auprc": precisions, "auprc_negative": negative}.items():
        assert row(study, label)[f"{metric}_mean"] == pytest.approx(sum(values) / SEEDS, abs=1e-9)
        assert row(study, label)[f"{metric}_sd"] == pytest.approx(pd.Series(values).std(), abs=1e-9)
    assert study.table.prevalence == pytest.approx(y.mean())


def resampled(study: Study, label: str, metric: str) -> np.ndarray:
    """(R,) mean over seeds of a metric on patients drawn with replacement; a person of the simulation is one unit."""
    predictions = test_predictions(study, label).sort_index()
    y = truth(study)[predictions.index].to_numpy()
    area = {"auroc": sklearn.metrics.roc_auc_score, "auprc": sklearn.metrics.average_precision_score}[metric]
    drawn = np.random.default_rng(0).multinomial(len(y), [1 / len(y)] * len(y), size=RESAMPLES)
    samples = []
    for counts in drawn:
        units = np.repeat(np.arange(len(y)), counts)
        samples.append(np.mean([area(y[units], predictions[seed].to_numpy()[units]) for seed in range(SEEDS)]))
    return np.array(samples)


@pytest.mark.parametrize("metric", ["auroc", "auprc"])
def test_intervals_are_those_of_a_bootstrap_over_patients(study: Study, metric: str) -> None:
    ovo, concat = resampled(study, "ovo", metric), resampled(study, "concat", metric)
    found = row(study, "ovo")
    assert [found[f"{metric}_low"], found[f"{metric}_high"]] == pytest.approx(
        np.quantile(ovo, [0.025, 0.975]), abs=1e-9
    )
    tests = study.table.p_values.query("metric == @metric and model == 'concat'").iloc[0]
    difference = concat - resampled(study, tests["against"], metric)
    expected = np.quantile(difference, [0.025, 0.975])
    assert [tests["difference_low"], tests["difference_high"]] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("metric", ["auroc", "auprc"])
def test_p_values_are_against_the_best_other_head(study: Study, metric: str) -> None:
    values = {label: scores(study, label, metric) for label in HEADS}
    tests = study.table.p_values.query("metric == @metric").set_index("model")
    assert tests.index.tolist() == HEADS
    welch, paired = [], []
    for label in HEADS:
        best = max((other for other in HEADS if other != label), key=lambda other: np.mean(values[other]))
        assert tests.loc[label, "against"] == best
        assert tests.loc[label, "difference"] == pytest.approx(np.mean(values[label]) - np.mean(values[best]))
        welch.append(scipy.stats.ttest_ind(values[label], values[best], equal_var=False).pvalue)
        paired.append(scipy.stats.ttest_rel(values[label], values[best]).pvalue)
    np.testing.assert_allclose(tests["welch_p"], welch, rtol=1e-6)
    np.testing.assert_allclose(tests["paired_p"], paired, rtol=1e-6)
    # The best two heads are tested against each other: one test in two rows, corrected as one.
    pairs = [tuple(sorted((label, tests.loc[label, "against"]))) for label in tests.index]
    first = [pairs.index(pair) for pair in dict.fromkeys(pairs)]
    assert len(first) == len(pairs) - 1
    for name, raw in (("welch", welch), ("paired", paired)):
        corrected = multipletests([raw[index] for index in first], method="holm")[1]
        of_pair = {pairs[index]: p for index, p in zip(first, corrected, strict=True)}
        np.testing.assert_allclose(tests[f"{name}_p_holm"], [of_pair[pair] for pair in pairs], rtol=1e-6)
    uncorrected = [tests["wilcoxon_p"].iloc[index] for index in first]
    of_pair = dict(zip([pairs[i] for i in first], multipletests(uncorrected, method="fdr_bh")[1], strict=True))
    np.testing.assert_allclose(tests["wilcoxon_p_bh"], [of_pair[pair] for pair in pairs], rtol=1e-9)


def test_p_values_over_patients(study: Study) -> None:
    tests = study.table.p_values.query("metric == 'auroc'").set_index("model")
    y = truth(study)[test_predictions(study, "ovo").index].to_numpy() == 1
    for label in HEADS:
        best = tests.loc[label, "against"]
        difference = resampled(study, label, "auroc") - resampled(study, best, "auroc")
        share = min(np.sum(difference <= 1e-12), np.sum(difference >= -1e-12))
        assert tests.loc[label, "bootstrap_p"] == pytest.approx(min(1, 2 * (share + 1) / (RESAMPLES + 1)))
        kernels = []
        for model in (label, best):
            seeds = test_predictions(study, model).to_numpy().T
            pairs = seeds[:, y][:, :, None], seeds[:, ~y][:, None, :]
            kernels.append(((pairs[0] > pairs[1]) + (pairs[0] == pairs[1]) / 2).mean(axis=0))
        k = kernels[0] - kernels[1]
        variance = np.var(k.mean(1), ddof=1) / k.shape[0] + np.var(k.mean(0), ddof=1) / k.shape[1]
        expected = 2 * scipy.stats.norm.sf(abs(k.mean()) / np.sqrt(variance))
        assert tests.loc[label, "delong_p"] == pytest.approx(expected, rel=1e-6)
    assert study.table.p_values.query("metric == 'auprc'")["delong_p"].isna().all()


def test_every_metric_has_an_interval(study: Study) -> None:
    found = study.table.intervals.set_index(["model", "metric"])
    metrics = {"auroc", "auprc", "auprc_negative", "brier", "log_loss"}
    assert set(found.index) == {(label, metric) for label in ARMS for metric in metrics}
    for (label, metric), line in found.iterrows():
        assert line["mean"] == pytest.approx(np.mean(scores(study, label, metric)), abs=1e-6)
        assert line["low"] < line["high"] and line["resamples"] == RESAMPLES
    samples = resampled(study, "ovo", "auroc")
    assert found.loc[("ovo", "auroc"), "low"] == pytest.approx(np.quantile(samples, 0.025), abs=1e-9)


def test_costs_are_those_of_the_runs_less_those_of_concat(study: Study) -> None:
    macs = {label: results(study, label)[0]["costs"]["macs_total"] for label in ARMS}
    for label in HEADS:
        assert row(study, label)["macs"] == macs[label]
        assert row(study, label)["delta_macs"] == macs[label] - macs["concat"]
        assert row(study, label)["parameters"] == results(study, label)[0]["costs"]["parameters"]
    assert row(study, "ovo")["delta_macs"] > 0
    assert study.table.rows["delta_macs"].isna().sum() == 3


def test_csv_files_hold_the_numbers(study: Study) -> None:
    folder = study.comparison.folder
    pd.testing.assert_frame_equal(pd.read_csv(folder / "table.csv"), study.table.rows, check_dtype=False)
    pd.testing.assert_frame_equal(pd.read_csv(folder / "p_values.csv"), study.table.p_values, check_dtype=False)
    pd.testing.assert_frame_equal(pd.read_csv(folder / "intervals.csv"), study.table.intervals, check_dtype=False)


def latex_cells(folder: Path) -> list[list[str]]:
    body = re.search(r"\\toprule\n(.*)\\bottomrule", (folder / "table.tex").read_text(), re.DOTALL)
    assert body
    lines = [line for line in body[1].splitlines() if line.endswith(r"\\")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)&", line.removesuffix(r"\\"))] for line in lines]


def test_latex_holds_the_printed_table(study: Study) -> None:
    header, *lines = latex_cells(study.comparison.folder)
    assert header[:6] == ["model", "MACs - concat", "parameters", "AUROC", "AUPRC uniform", "AUPRC sums to 1"]
    assert len(lines) == len(ARMS) and {len(line) for line in lines} == {len(header)} == {8}
    cells = dict(zip(header, lines[ARMS.index("ovo")], strict=True))
    found = row(study, "ovo")
    assert cells["MACs - concat"] == f"{int(found['delta_macs']):,}"
    mean, sd, low, high = (100 * found[f"auroc_{part}"] for part in ("mean", "sd", "low", "high"))
    assert cells["AUROC"] == rf"{mean:.1f} $\pm$ {sd:.1f} [{low:.1f}, {high:.1f}]"
    tests = study.table.p_values.query("metric == 'auroc' and model == 'ovo'").iloc[0]
    against = tests["against"].replace("_", r"\_")
    corrected = " / ".join(f"{tests[f'{name}_p_holm']:.3g}" for name in ("welch", "paired", "bootstrap"))
    assert cells["p AUROC"] == f"{corrected} vs {against}"
    assert lines[0][0] == r"modality\_01 (alone, 100 \%)" and lines[0][6:] == ["", ""]


def test_a_single_seed_has_no_sd_and_no_p_value(environment: pytest.MonkeyPatch) -> None:
    found = compare("simulation", [*SIMULATION, "compare.fusion=[concat, ovo]", "compare.seeds=1"])
    assert found.table.rows["auroc_sd"].isna().all() and found.table.rows["auroc_low"].notna().all()
    assert found.table.p_values[["welch_p", "paired_p", "welch_p_holm", "paired_p_holm"]].isna().all(axis=None)
    text = report.printable(found.table, found.comparison.prepared.manifest["classes"])
    assert not [column for column in text.columns if column.startswith("p ")]
    assert not text.map(lambda cell: "nan" in cell or "±" in cell).any(axis=None)
    assert "one seed" in report.caption(found.comparison, found.table)


def test_a_single_head_has_nothing_to_be_tested_against(environment: pytest.MonkeyPatch) -> None:
    found = compare("simulation", [*SIMULATION, "compare.fusion=[ovo]", "compare.seeds=2"])
    assert found.table.p_values.empty and found.table.rows["delta_macs"].isna().all()
    assert pd.read_csv(found.comparison.folder / "p_values.csv").empty
    assert "p: " not in report.caption(found.comparison, found.table)


HEADLINES = {"multiclass": ["mAUC", "BCA", "accuracy"], "multilabel": ["AUROC macro", "AUPRC macro"]}


@pytest.mark.parametrize("kind", HEADLINES)
def test_other_kinds_of_task_are_compared(environment: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    config = flat_files(tmp_path, kind)
    heads = ["compare.fusion=[concat, ovo]", "compare.seeds=2", "compare.unimodal=true"]
    found = compare(str(config), [*QUICK, "split.train=0.6", "split.test=0.3", *heads], tmp_path / "raw")
    text = report.printable(found.table, KINDS[kind]["classes"])
    assert text["model"].tolist()[:2] == ["demographics (alone, 100 %)", text["model"][1]]
    assert set(HEADLINES[kind]) <= set(text.columns)
    assert found.table.prevalence is None
    assert set(figures.draw_comparison(found.comparison, found.table)) == {"training"}
    prepared = found.comparison.prepared
    present = prepared.cohort.to_pandas()["unit_id"][prepared.rows("test")].isin(
        pd.read_csv(tmp_path / "raw" / "labs.csv")["stay_id"]
    )
    assert found.table.rows.set_index("model").loc["labs", "present"] == pytest.approx(present.mean())
    frame = pl.read_parquet(found.comparison.run_folders["ovo"][1] / "predictions.parquet").filter(split="test")
    probabilities = frame.select(pl.col("^probability_.*$")).to_numpy()
    y = prepared.target[frame["row"].to_numpy()]
    if kind == "multiclass":
        expected = sklearn.metrics.roc_auc_score(
            y, probabilities / probabilities.sum(1, keepdims=True), multi_class="ovo"
        )
    else:
        expected = sklearn.metrics.roc_auc_score(y, probabilities)
    metric = report.HEADLINE[kind][0]
    assert found.comparison.results["ovo"][1]["metrics"]["test"][metric] == pytest.approx(expected, abs=1e-6)
    if kind == "multiclass":
        row = found.table.rows.set_index("model").loc["ovo"]
        assert all(
            row[f"{name}_low"] <= row[f"{name}_mean"] <= row[f"{name}_high"] for name in ("mauc", "bca", "accuracy")
        )
        assert row["mauc_low"] < row["mauc_high"]
        assert {"difference_low", "difference_high"} <= set(found.table.p_values)
    latex = (found.comparison.folder / "table.tex").read_text()
    assert rf"Made-up {kind} outcome\_of 100 \% [made-up] stays" in latex
    assert len(latex_cells(found.comparison.folder)) == 5


def test_a_warning_of_every_arm_stands_once(environment: pytest.MonkeyPatch) -> None:
    settings = [
        *SIMULATION,
        "training.imbalance=pos_weight",
        "compare.fusion=[concat, {name: ovo_reference, heads: 1}]",
    ]
    notes = compare("simulation", [*settings, "compare.seeds=1"]).table.notes
    assert [note for note in notes if "calibration" in note] == [notes[0]] and notes[0].startswith("training.imbalance")
    assert notes[1].startswith("ovo_reference(heads=1): ") and "identity" in notes[1] and len(notes) == 2


def test_labels_groups_and_patterns_stand_in_tables_of_their_own(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = flat_files(tmp_path, "multilabel")
    file = tmp_path / "ward.spec.yaml"
    specification = yaml.safe_load(file.read_text())
    specification["tasks"]["ward"]["groups"] = {"acute": ["fever"]}
    file.write_text(yaml.safe_dump(specification))
    heads = ["compare.fusion=[concat, ovo]", "compare.seeds=2", "compare.unimodal=true"]
    found = compare(str(config), [*QUICK, "split.train=0.5", "split.test=0.4", *heads], tmp_path / "raw")
    folder, prepared = found.comparison.folder, found.comparison.prepared

    rows = prepared.rows("test")
    y, units = prepared.target[rows], prepared.cohort["unit_id"].to_numpy()[rows]
    frames = [pl.read_parquet(run / "predictions.parquet") for run in found.comparison.run_folders["ovo"]]
    runs = [frame.filter(split="test").select(pl.col("^probability_.*$")).to_numpy() for frame in frames]

    labels = pd.read_csv(folder / "labels.csv").set_index(["model", "name"])
    for name, column in {"pain": 0, "fever": 1, "acute": 1}.items():
        expected = [sklearn.metrics.roc_auc_score(y[:, column], p[:, column]) for p in runs]
        assert labels.loc[("ovo", name), "auroc"] == pytest.approx(np.mean(expected))
    assert labels.loc[("ovo", "pain"), "positives"] == y[:, 0].sum()
    assert set(labels.index.get_level_values("model")) == {"demographics", "labs", "concat", "ovo"}
    tested = found.comparison.results["ovo"][0]["metrics"]["test"]
    assert tested["auroc_macro_acute"] == pytest.approx(sklearn.metrics.roc_auc_score(y[:, 1], runs[0][:, 1]))

    patterns = pd.read_csv(folder / "patterns.csv").set_index(["pattern", "model", "metric"])
    measured = np.isin(units, pd.read_csv(tmp_path / "raw" / "labs.csv")["stay_id"])
    for name, own in {"demographics + labs": measured, "demographics": ~measured}.items():
        line = patterns.loc[(name, "ovo", "auroc_macro")]
        expected = [sklearn.metrics.roc_auc_score(y[own], p[own]) for p in runs]
        assert line["mean"] == pytest.approx(np.mean(expected)) and line["units"] == own.sum()
        assert line["low"] < line["mean"] < line["high"]
    assert set(patterns.index.get_level_values("model")) == {"concat", "ovo"}
    assert not pd.read_csv(folder / "intervals.csv")["metric"].str.contains(":").any()
