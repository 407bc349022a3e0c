"""Cross-validation: folds by patient that cover everybody once, and the corrected test over them."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests

from ovo_clinic import experiment as experiments
from ovo_clinic import folds, study, verbs
from ovo_clinic.errors import UserError
from ovo_clinic.experiment import Experiment
from ovo_clinic.prepare import prepare_task
from ovo_clinic.prepared import Prepared
from ovo_clinic.registry import Choice
from ovo_clinic.spec import SplitSpec
from ovo_clinic.splitting import split_units
from ovo_clinic.study import Comparison
from tests.small_data import QUICK, SIMULATION, flat_files
from tests.small_notes import notes_config
from tests.tiny_models import tiny_bert

HEADS = [Choice(name="concat"), Choice(name="ovo")]


@settings(max_examples=30, deadline=None)
@given(people=st.integers(10, 60), count=st.integers(2, 6), seed=st.integers(0, 9), stratify=st.booleans())
def test_every_patient_is_tested_on_in_one_fold(people: int, count: int, seed: int, stratify: bool) -> None:
    random = np.random.default_rng(seed)
    patients = np.concatenate([np.arange(people), random.integers(0, people, people)])
    cohort = pl.DataFrame({"unit_id": np.arange(2 * people), "patient_id": patients})
    cohort = cohort.with_columns(label=pl.Series(random.integers(0, 2, people)[patients]))
    tested = []
    for fold in range(count):
        names = split_units(cohort, SplitSpec(folds=count, fold=fold, seed=seed, stratify=stratify), ["label"], [])
        of_part = {part: set(patients[names == part]) for part in ("train", "validation", "test")}
        assert sum(map(len, of_part.values())) == people and all(of_part.values())
        tested.append(of_part["test"])
    assert sorted(patient for fold in tested for patient in fold) == list(range(people))
    sizes = [len(fold) for fold in tested]
    assert max(sizes) - min(sizes) <= 1
    if stratify:
        positive = set(patients[cohort["label"].to_numpy() == 1])
        shares = [len(fold & positive) for fold in tested]
        assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"folds": 3, "fold": 3}, "fold: 3 is not one of folds 0 to 2"),
        ({"fold": 1}, "fold: 1 is not one of"),
        ({"folds": 3, "whole_patients": False, "stratify": False}, "folds: are cut by patient"),
    ],
)
def test_folds_that_are_none_are_refused(split: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SplitSpec(**split)  # type: ignore[arg-type]


def test_more_folds_than_patients_are_refused() -> None:
    cohort = pl.DataFrame({"unit_id": range(4), "patient_id": range(4), "label": [0, 1, 0, 1]})
    with pytest.raises(UserError, match="at least 5 are needed for 5 folds"):
        split_units(cohort, SplitSpec(folds=5), ["label"], [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"split_lists": [Path("a.csv")]}, "--split-lists"),
        ({"tuned": Path("t.yaml")}, "--tuned were chosen on patients"),
    ],
)
def test_published_splits_and_tuned_settings_do_not_go_with_folds(change: dict[str, object], message: str) -> None:
    given = experiments.load("simulation")
    given = given.with_compare(change) if "tuned" in change else given.model_copy(update=change)
    with pytest.raises(UserError, match=message):
        folds.experiments(given, 3)


def test_a_checkpoint_that_read_test_patients_of_a_fold_is_refused_before_any_training(
    home: Path, tmp_path: Path
) -> None:
    config, bert = notes_config(tmp_path / "notes"), tiny_bert(tmp_path / "bert")
    encoder = json.dumps({"name": "text", "checkpoint": str(bert)})
    given = [*QUICK, f"model.encoders.note={encoder}"]
    prepared = prepare_task(experiments.load(config, given), None)

    def record(**texts: str) -> None:
        (bert / "pretraining.json").write_text(json.dumps({"texts": {"task": "notes", **texts}}))

    own = prepared.manifest["digests"]["split"]
    record(dataset="notes", split=own)
    with pytest.raises(
        UserError, match=r"^--folds: fold 0 of 2, [^\n]* was pretrained on training units of task 'notes'"
    ):
        verbs.compare(config, given, fusion=["concat"], seeds=1, folds=2, workers=1)
    assert not list(home.glob("runs/*/result.json"))
    for texts, refused in [
        ({"dataset": "notes", "split": own}, False),
        ({"dataset": "notes", "split": "0" * 64}, True),
        ({"dataset": "wards", "split": "0" * 64}, False),
        ({"split": "0" * 64}, True),  # of a version that told no data set
    ]:
        record(**texts)
        settings = experiments.load(config, given)
        if refused:
            with pytest.raises(UserError, match="among whom may be this one's test patients"):
                study.arms(settings, prepared, HEADS, unimodal=False)
        else:
            assert len(study.arms(settings, prepared, HEADS, unimodal=False)) == 2


def test_folds_that_cannot_be_prepared_show_before_any_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data of the study and of one fold are there, those of the other fold are not."""
    monkeypatch.setenv("OVO_CLINIC_HOME", str(tmp_path / "home"))
    config = flat_files(tmp_path / "files", "binary", 60)
    for split in ([], ["split.folds=2", "split.fold=0"]):
        prepare_task(experiments.load(str(config), split), config.parent / "raw")
    with pytest.raises(UserError, match="--folds: fold 1 of 2, prepared by itself: .*; give --raw DIR"):
        verbs.compare(str(config), folds=2)
    assert not (tmp_path / "home" / "runs").exists()


@pytest.fixture(scope="module")
def crossed(tmp_path_factory: pytest.TempPathFactory) -> folds.FoldTables:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVO_CLINIC_HOME", str(tmp_path_factory.mktemp("folds") / "home"))

        def compare(fold: Experiment, prepared: Prepared) -> Comparison:
            return study.compare(fold, prepared, HEADS, 1, unimodal=True)

        given = experiments.load("simulation", [*SIMULATION, "data.modalities=2", "training.epochs=1"])
        prepared = folds.prepared(given, 3, lambda fold: prepare_task(fold, None))
        return folds.tables([compare(*fold) for fold in prepared])


def test_the_tests_are_nadeau_and_bengios(crossed: folds.FoldTables) -> None:
    """t = mean / sqrt((1/k + n_test/n_train) var), k - 1 degrees of freedom; Holm over two heads."""
    scores = crossed.scores[crossed.scores["kind"] == "head"]
    for _, row in crossed.tests.iterrows():
        a, b = (
            scores[scores["model"] == row[name]].sort_values("fold")[row["metric"]].to_numpy()
            for name in ("model", "against")
        )
        sizes = scores[scores["model"] == row["model"]]
        share = (sizes["test"] / sizes["train"]).mean()
        difference = a - b
        t = difference.mean() / math.sqrt((1 / 3 + share) * difference.var(ddof=1))
        p = 2 * stats.t.sf(abs(t), 2)
        assert row["statistic"] == pytest.approx(t) and row["p"] == pytest.approx(p)
        assert row["p_holm"] == pytest.approx(p)  # two heads, each the other's best: one test in two rows
    assert list(crossed.tests["model"]) == ["concat", "ovo"] * 2


def test_the_summary_is_over_folds(crossed: folds.FoldTables) -> None:
    summary = crossed.summary().set_index("model")
    assert list(summary.index) == ["modality_01", "modality_02", "concat", "ovo"]
    for model, row in summary.iterrows():
        values = crossed.scores[crossed.scores["model"] == model]["auroc"].to_numpy()
        assert len(values) == 3
        assert row["auroc_mean"] == pytest.approx(values.mean())
        assert row["auroc_sd"] == pytest.approx(values.std(ddof=1))


def test_the_printed_table_is_in_percent(crossed: folds.FoldTables) -> None:
    printed = crossed.printable(["no", "yes"]).set_index("model")
    auroc = crossed.scores[crossed.scores["model"] == "ovo"]["auroc"] * 100
    assert printed.loc["ovo", "AUROC"] == f"{auroc.mean():.1f} ± {auroc.std(ddof=1):.1f}"
    test = crossed.tests[(crossed.tests["model"] == "ovo") & (crossed.tests["metric"] == "auroc")].iloc[0]
    assert printed.loc["ovo", "p AUROC"] == f"{test['p_holm']:.3g} vs concat"
    alone = crossed.scores.loc[crossed.scores["kind"] == "modality", "model"].unique()
    assert len(alone) == 2 and (printed.loc[alone, "p AUROC"] == "").all()
    assert "over 3 folds" in crossed.title


def test_tables_are_saved(crossed: folds.FoldTables, tmp_path: Path) -> None:
    replace(crossed).save(tmp_path)
    lines = (tmp_path / "folds.csv").read_text().splitlines()
    assert lines[0].startswith("model,kind,fold,train,test,auroc") and len(lines) == 1 + 4 * 3
    assert len((tmp_path / "folds_p_values.csv").read_text().splitlines()) == 1 + 4


def test_one_test_in_two_rows_counts_once() -> None:
    rng = np.random.default_rng(3)
    models = {"concat": 0.70, "self_attention": 0.74, "ovo": 0.72}
    rows = [
        {"model": model, "kind": "head", "fold": fold, "train": 80, "test": 20, "auroc": mean + 0.02 * rng.normal()}
        for model, mean in models.items()
        for fold in range(5)
    ]
    found = folds._tests(pd.DataFrame(rows), "auroc").set_index("model")
    assert found["against"].to_dict() == {"concat": "self_attention", "self_attention": "ovo", "ovo": "self_attention"}
    two = multipletests([found.loc["concat", "p"], found.loc["ovo", "p"]], method="holm")[1]
    assert found["p_holm"].to_dict() == pytest.approx({"concat": two[0], "self_attention": two[1], "ovo": two[1]})
