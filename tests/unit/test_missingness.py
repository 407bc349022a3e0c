"""Hidden modalities: what is hidden, that heads see the same, and the numbers against single predictions."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from ovo_clinic import experiment as experiments
from ovo_clinic import importance, missingness, modality_figures, study
from ovo_clinic.cli import app
from ovo_clinic.commands.values import shares
from ovo_clinic.errors import UserError
from ovo_clinic.missingness import Pattern
from ovo_clinic.prepare import find
from ovo_clinic.registry import Choice
from ovo_clinic.study import Comparison
from ovo_clinic.trained import Trained
from ovo_clinic.verbs.study import _left_out as left_out

NAMES = ["a", "b", "c"]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVO_CLINIC_HOME", str(tmp_path_factory.mktemp("home")))
        quick = ["data.modalities=3", "data.samples=400", "training.epochs=3", "model.dim=16"]
        experiment = experiments.load("simulation", quick)
        prepared = find(experiment.data_request())
        heads = [Choice(name="concat"), Choice(name="self_attention")]
        return study.compare(experiment, prepared, heads, 2)


def _present(units: int = 4000, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((units, 3)) < 0.8


def _parse(text: str) -> Pattern:
    return Pattern.parse(text, NAMES)


@pytest.mark.parametrize("name", ["random", "natural", "modality:b"])
def test_the_more_the_higher_the_rate_and_never_everything(name: str) -> None:
    present = _present()
    left = [
        missingness.remaining(present, rate, _parse(name), NAMES, pool=_present(seed=1)) for rate in (0, 0.3, 0.7, 1)
    ]
    assert np.array_equal(left[0], present)
    for more, less in zip(left, left[1:], strict=False):
        assert not (less & ~more).any() and less.sum() < more.sum()
    assert np.array_equal(left[-1].any(axis=1), present.any(axis=1))
    again = missingness.remaining(present, 0.3, _parse(name), NAMES, pool=_present(seed=1))
    assert np.array_equal(again, left[1])


def test_shares() -> None:
    full = np.ones((20_000, 3), dtype=bool)
    random = missingness.remaining(full, 0.5, _parse("random"), NAMES, pool=full)
    # A unit that would lose all three (1 in 8) keeps one: (1.5 + 0.125) of 3 are left.
    assert random.mean() == pytest.approx((1.5 + 0.125) / 3, abs=0.01)
    one = missingness.remaining(full, 0.25, _parse("modality:b"), NAMES, pool=full)
    assert one.mean(axis=0) == pytest.approx([1, 0.75, 1], abs=0.01)
    pool = np.array([[True, False, True], [True, True, True]])
    natural = missingness.remaining(full, 0.5, _parse("natural"), NAMES, pool=pool)
    assert natural.mean(axis=0) == pytest.approx([1, 0.75, 1], abs=0.01)


def test_mistakes() -> None:
    with pytest.raises(UserError, match="--pattern: 'modality' should be random, natural or modality:NAME"):
        _parse("modality")
    with pytest.raises(UserError, match="--pattern: no modality 'd'"):
        _parse("modality:d")
    with pytest.raises(UserError, match="only modality"):
        Pattern.parse("modality:a", ["a"])
    with pytest.raises(UserError, match="--missing: '0.5,1.5' should be shares from 0 to 1"):
        shares("0.5,1.5")
    with pytest.raises(UserError, match="--missing: 'half' should be shares"):
        shares("half")
    assert missingness.with_zero([0.5, 0.25]) == [0, 0.25, 0.5]


def test_rate_zero_is_the_study_and_the_rest_is_less(comparison: Comparison) -> None:
    rates = [0.0, 0.5, 1.0]
    names = comparison.prepared.modalities
    table = missingness.sweep(comparison, rates, Pattern.parse("random", names))
    assert len(table) == 2 * 3 * table["metric"].nunique()
    for head in comparison.heads:
        for metric in set(table["metric"]):
            rows = table[(table["model"] == head) & (table["metric"] == metric)].set_index("rate")
            seeds = [result["metrics"]["test"][metric] for result in comparison.results[head]]
            assert rows["mean"][0.0] == pytest.approx(np.mean(seeds), abs=1e-6)
            assert (rows["loss"] - (rows["mean"][0.0] - rows["mean"])).abs().max() < 1e-12
            assert rows["hidden"].is_monotonic_increasing and rows["hidden"][0.0] == 0
    first = table[table["model"] == comparison.heads[0]]
    assert (first[["minus_first", "minus_first_low", "minus_first_high"]] == 0).all(axis=None)
    metric = str(table["metric"].iloc[0])
    axes = modality_figures.sweep_figure(table, metric).axes[0]
    assert axes.get_legend_handles_labels()[1] == comparison.heads
    assert axes.get_xlabel() == "missing at test time, %\n(each modality of each unit by itself)"


def test_hidden_equals_a_data_set_without_it(comparison: Comparison) -> None:
    """A modality hidden everywhere gives what the model says of units that never had it."""
    prepared, rows = comparison.prepared, comparison.prepared.rows("test")
    names = prepared.modalities
    there = missingness.presence(prepared, names)
    kept = there.copy()
    kept[:, 0] = False
    trained = Trained(comparison.run_folders["concat"][0], prepared)
    altered = trained.probabilities(rows, lambda batch: missingness.hide(batch, kept, names))
    trained.data.dataset.sources[0].array.present[:] = False
    assert np.allclose(altered, trained.probabilities(rows), atol=1e-6)


def test_importance_against_predictions_taken_apart(comparison: Comparison) -> None:
    prepared = comparison.prepared
    names = prepared.modalities
    experiment = comparison.arms[0].experiment
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVO_CLINIC_HOME", str(comparison.folder.parents[1]))
        rest = experiment.model_copy(update={"modalities": names[1:]})
        heads = [Choice(name="concat"), Choice(name="self_attention")]
        left_out = {names[0]: study.compare(rest, prepared, heads, 2)}
    table = importance.table(comparison, left_out)
    counts = table.groupby("measure")["modality"].nunique().to_dict()
    assert counts == {"left_out": 1, "hidden": 3, "shuffled": 3}
    row = table[(table["model"] == "concat") & (table["measure"] == "left_out")].iloc[0]
    metric = str(row["metric"])
    assert metric == "mauc" or metric == "auroc"
    whole, without = (
        np.mean([result["metrics"]["test"][metric] for result in found.results["concat"]])
        for found in (comparison, left_out[names[0]])
    )
    assert row["loss"] == pytest.approx(whole - without, abs=1e-6) and row["low"] <= row["loss"] <= row["high"]
    assert len(modality_figures.importance_figure(table, metric).axes) == 3


def test_shuffled_units_get_the_modality_of_their_partner(comparison: Comparison) -> None:
    prepared, rows = comparison.prepared, comparison.prepared.rows("test")
    dataset = Trained(comparison.run_folders["concat"][0], prepared).data.dataset
    partner = dict(zip(rows.tolist(), np.roll(rows, 1).tolist(), strict=True))
    batch = dataset[rows]
    changed = importance._exchange(dataset, prepared.modalities[1], partner)(batch)
    for name in prepared.modalities:
        expected = dataset[np.roll(rows, 1)] if name == prepared.modalities[1] else batch
        assert np.array_equal(changed.inputs[name], expected.inputs[name])
        assert np.array_equal(changed.masks[name], expected.masks[name])
    assert np.array_equal(changed.target, batch.target)


def test_what_was_hidden_together_is_said() -> None:
    said = {
        name: modality_figures.hidden_together(pd.DataFrame({"pattern": [name]}))
        for name in ("natural", "modality:labs")
    }
    assert said == {"natural": "whatever a training unit drawn at random lacks", "modality:labs": "labs alone"}
    assert modality_figures.hidden_together(pd.DataFrame({"rate": [0.5]})) == "pattern not recorded"


def test_the_modality_whose_encoders_are_compared_is_never_left_out() -> None:
    plain = experiments.load("simulation")
    encoders = plain.with_compare({"encoders": {"a": ["mlp", "lstm"]}})
    assert left_out(plain, NAMES) == {"a": ["b", "c"], "b": ["a", "c"], "c": ["a", "b"]}
    assert left_out(encoders, NAMES) == {"b": ["a", "c"], "c": ["a", "b"]}
    assert left_out(plain, NAMES[:2]) == {}


def test_compare_writes_tables_and_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVO_CLINIC_HOME", str(tmp_path))
    quick = ["data.modalities=3", "data.samples=300", "training.epochs=1", "model.dim=16"]
    command = ["compare", "simulation", *quick, "--fusion", "concat", "--seeds", "1", "--workers", "1"]
    done = CliRunner().invoke(app, [*command, "--missing", "0.5", "--pattern", "modality:modality_02", "--importance"])
    assert done.exit_code == 0, done.output
    assert (
        "with modalities of the test units hidden (modality_02 alone)" in done.output and "modality_03" in done.output
    )
    (folder,) = (path.parent for path in tmp_path.glob("studies/*/missingness.csv"))
    assert set(pd.read_csv(folder / "missingness.csv")["rate"]) == {0, 0.5}
    assert set(pd.read_csv(folder / "importance.csv")["measure"]) == {"left_out", "hidden", "shuffled"}
    assert (folder / "missingness.png").is_file() and (folder / "importance.png").is_file()
    logged = [path.name for path in (tmp_path / "mlflow_artifacts").rglob("*")]
    assert {"missingness.csv", "importance.csv", "missingness.png", "importance.png"} <= set(logged)
    wrong = CliRunner().invoke(app, [*command, "--missing", "0.5", "--pattern", "modality:none"])
    assert isinstance(wrong.exception, UserError) and "--pattern: no modality 'none'" in str(wrong.exception)
