"""Metrics by label and by pattern of present modalities, against scikit-learn and a bootstrap written out here."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from ovo_clinic import breakdown, statistics, terminal, verbs
from tests.small_data import QUICK, flat_files

SEEDS, UNITS, LABELS = 2, 240, ["flu", "gout", "rash", "burn"]
GROUPS = {"acute": ["flu", "burn"], "chronic": ["gout"]}
REFERENCE = {"auroc": roc_auc_score, "auprc": average_precision_score}


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    """Two heads, (S,N,K); the last label has few positives, and one label of a few units is not known."""
    rng = np.random.default_rng(4)
    y = (rng.random((UNITS, 4)) < [0.3, 0.5, 0.4, 0.0]).astype(float)
    y[:6, 3] = 1
    y[:30, 1] = np.nan
    heads = {f"head {i}": rng.random((SEEDS, UNITS, 4)) + 0.1 * i + 0.3 * np.nan_to_num(y) for i in (1, 2)}
    return {"p": heads, "y": y, "patients": rng.integers(0, 150, UNITS)}


def table(data: dict[str, Any], resamples: int = 200) -> Any:
    names = [*statistics.METRICS["multilabel"], *statistics.label_metrics(4)]
    bootstrap = statistics.bootstrap_by_patient(
        data["p"], data["y"], data["patients"], names, resamples=resamples, jackknife_groups=0
    )
    return breakdown.by_label(bootstrap, data["y"], LABELS, GROUPS).set_index(["model", "scope", "name"])


def test_means_by_label_and_group_are_those_of_scikit_learn(data: dict[str, Any]) -> None:
    found, y = table(data, resamples=20), data["y"]
    known = [~np.isnan(y[:, k]) for k in range(4)]
    for head, p in data["p"].items():
        for metric, reference in REFERENCE.items():
            each = [np.mean([reference(y[known[k], k], s[known[k], k]) for s in p]) for k in range(4)]
            for k, label in enumerate(LABELS):
                assert found.loc[(head, "label", label), metric] == pytest.approx(each[k], abs=1e-12)
            assert found.loc[(head, "macro", "all labels"), metric] == pytest.approx(np.mean(each), abs=1e-12)
            acute = found.loc[(head, "group", "acute")]
            assert acute[metric] == pytest.approx((each[0] + each[3]) / 2, abs=1e-12) and acute["labels"] == 2
            pooled = np.stack(known, axis=1)
            micro = np.mean([reference(y[pooled], s[pooled]) for s in p])
            assert found.loc[(head, "micro", "all labels"), metric] == pytest.approx(micro, abs=1e-12)


def in_order(scores: Any, y: Any) -> float:
    """Share of pairs, one positive and one negative, that the scores put in order: the AUROC without ties."""
    return float(np.mean(scores[y == 1][:, None] > scores[y == 0]))


def test_intervals_are_those_of_a_bootstrap_of_whole_patients(data: dict[str, Any]) -> None:
    found, y, patients = table(data, resamples=1000), data["y"], data["patients"]
    rng = np.random.default_rng(9)
    units = {who: np.flatnonzero(patients == who) for who in np.unique(patients)}
    scores = []
    for _ in range(600):
        drawn = np.concatenate([units[who] for who in rng.choice(list(units), len(units))])
        if y[drawn, 3].any():
            scores.append(np.mean([[in_order(s[drawn, k], y[drawn, k]) for k in (0, 3)] for s in data["p"]["head 1"]]))
    row = found.loc[("head 1", "group", "acute")]
    assert [row["auroc_low"], row["auroc_high"]] == pytest.approx(np.quantile(scores, [0.025, 0.975]), abs=0.02)


def test_small_counts_are_not_shown(data: dict[str, Any]) -> None:
    found = table(data, resamples=20).sort_index().loc[("head 1", "label")]
    assert found.loc["flu", "positives"] == np.nansum(data["y"][:, 0])
    assert found.loc["gout", "units"] == UNITS - 30
    assert 0 < np.nansum(data["y"][:, 3]) < 11 and np.isnan(found.loc["burn", "positives"])


@pytest.mark.parametrize("kind", ["binary", "multilabel"])
def test_patterns_have_their_own_metrics_and_small_ones_stand_together(data: dict[str, Any], kind: str) -> None:
    pattern = np.array(["labs + notes"] * 150 + ["labs"] * 80 + ["notes"] * 10)
    patients = np.arange(UNITS) // 2 if kind == "binary" else np.arange(UNITS)
    y = data["y"][:, 0] if kind == "binary" else data["y"]
    p = {head: values[..., 0] if kind == "binary" else values for head, values in data["p"].items()}
    metric = "auroc" if kind == "binary" else "auroc_macro"
    found = breakdown.by_pattern(p, y, patients, pattern, [metric], resamples=50)
    # Alone, the 80 units of labs would tell with the whole how few have notes only.
    assert found["pattern"].drop_duplicates().tolist() == ["labs + notes", "other patterns"]
    rest = found[(found["pattern"] == "other patterns") & (found["model"] == "head 2")].iloc[0]
    rows = slice(150, 240)
    columns = [0] if kind == "binary" else [0, 1, 2]  # the last label has one class only among them
    assert kind == "binary" or np.nanstd(data["y"][rows, 3]) == 0
    expected = np.mean([[roc_auc_score(data["y"][rows, k], s[rows, k]) for k in columns] for s in data["p"]["head 2"]])
    assert rest["mean"] == pytest.approx(expected, abs=1e-12)
    assert rest["low"] < expected < rest["high"]
    assert (rest["units"], rest["patients"]) == (90, 45 if kind == "binary" else 90)


def test_metrics_that_would_tell_of_a_small_class_are_withheld(data: dict[str, Any]) -> None:
    """Of 80 units ten are positive: an AUROC of tenths of 1/700 says so."""
    pattern, y = np.array(["labs"] * 160 + ["notes"] * 80), np.zeros(UNITS)
    y[:11] = y[160:170] = 1
    p = {head: values[..., 0] for head, values in data["p"].items()}
    found = breakdown.by_pattern(p, y, np.arange(UNITS), pattern, ["auroc", "auprc"], resamples=20)
    hidden = found["pattern"] == "notes"
    assert found.loc[hidden, ["mean", "low", "high"]].isna().all(axis=None) and (found.loc[hidden, "units"] == 80).all()
    shown = found[~hidden & (found["metric"] == "auroc")].set_index("model")["mean"]
    for head, values in p.items():
        assert shown[head] == pytest.approx(np.mean([roc_auc_score(y[:160], seed[:160]) for seed in values]))


def test_one_pattern_is_no_breakdown(data: dict[str, Any]) -> None:
    same = np.full(UNITS, "labs")
    found = breakdown.by_pattern(data["p"], data["y"], data["patients"], same, ["auroc_macro"], resamples=5)
    assert found.empty and "pattern" in found


def test_patterns_of_units() -> None:
    there = {"labs": np.array([True, True, False, False]), "notes": np.array([True, False, True, False])}
    prepared: Any = SimpleNamespace(present=there.__getitem__)
    found = breakdown.patterns_of(prepared, ["labs", "notes"], np.array([3, 0, 2, 0, 1]))
    assert found.tolist() == ["none", "labs + notes", "notes", "labs + notes", "labs"]


@pytest.mark.parametrize("kind", ["binary", "multilabel"])
def test_a_single_run_has_its_tables_beside_its_weights(
    tmp_path: Path, home: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = flat_files(tmp_path, kind)
    run = verbs.train(str(config), [*QUICK, "split.train=0.5", "split.test=0.4"], raw=tmp_path / "raw")
    assert set(run.tables) == {"labels", "patterns"} - ({"labels"} if kind == "binary" else set())
    written = {path.stem: pd.read_csv(path) for path in run.folder.glob("*.csv")}
    metric = "auroc" if kind == "binary" else "auroc_macro"
    patterns = written["patterns"].set_index(["pattern", "metric"])
    assert {"demographics + labs", "demographics"} == set(written["patterns"]["pattern"])
    frame = pl.read_parquet(run.folder / "predictions.parquet").filter(split="test")
    measured = frame["unit_id"].is_in(pd.read_csv(tmp_path / "raw" / "labs.csv")["stay_id"].tolist()).to_numpy()
    stays = pd.read_csv(tmp_path / "raw" / "stays.csv").set_index("stay_id").loc[frame["unit_id"].to_numpy()]
    y = stays[{"binary": ["died"], "multilabel": ["pain", "fever"]}[kind]].to_numpy()
    p = frame.select(pl.col("^probability_.*$")).to_numpy()
    found = patterns.loc[("demographics + labs", metric)]
    assert found["mean"] == pytest.approx(roc_auc_score(y[measured], p[measured])) and found["units"] == measured.sum()
    if kind == "multilabel":
        labels = written["labels"].set_index(["scope", "name"])
        assert labels.loc[("label", "fever"), "auprc"] == pytest.approx(average_precision_score(y[:, 1], p[:, 1]))
        assert labels.loc[("micro", "all labels"), "auroc"] == pytest.approx(roc_auc_score(y, p, average="micro"))
    terminal.print_run(replace(run, tables={"patterns": run.tables["patterns"].assign(mean=np.nan)}))
    printed, history = capsys.readouterr().out, [epoch[f"validation_{metric}"] for epoch in run.result["history"]]
    assert f"best epoch {1 + int(np.argmax(history))} of 2;" in printed  # the first epoch is 1, as in the figures
    assert "–" in printed and "nan" not in printed
