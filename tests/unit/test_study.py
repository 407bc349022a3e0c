"""Comparisons of small runs: what is shared, what is checked first, what happens twice or not at all."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pandas.testing import assert_frame_equal
from torch import nn

from ovo_clinic import experiment as experiments
from ovo_clinic import report, study, training, verbs
from ovo_clinic.errors import UserError
from ovo_clinic.experiment import Experiment
from ovo_clinic.fusion.concat import Concat
from ovo_clinic.prepare import Prepared, prepare_task
from ovo_clinic.registry import Choice
from ovo_clinic.scheduling import LocalProcesses
from ovo_clinic.study import Arm, Comparison
from tests.small_data import SIMULATION

HEADS = [Choice(name="concat"), Choice(name="ovo")]


def experiment(*overrides: str) -> Experiment:
    return experiments.load("simulation", [*SIMULATION, *overrides])


def test_a_seed_that_would_mean_nothing_is_refused(home: Path) -> None:
    with pytest.raises(UserError, match="^seed: compare trains with the seeds 0, 1, 2, [^\n]* by --seeds$"):
        verbs.compare("simulation", [*SIMULATION, "seed=7"])


def compare(home: Path, workers: int) -> Comparison:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVO_CLINIC_HOME", str(home))
        prepared = prepare_task(experiment(), None)
        return study.compare(experiment(), prepared, HEADS, 2, unimodal=True, scheduler=LocalProcesses(workers))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return compare(tmp_path_factory.mktemp("a") / "home", workers=2)


@pytest.fixture
def prepared(home: Path) -> Prepared:
    return prepare_task(experiment(), None)


def test_another_home_and_number_of_workers_give_the_same_bits(finished: Comparison, tmp_path: Path) -> None:
    again = compare(tmp_path / "home", workers=1)
    for label, results in finished.results.items():
        for first, second in zip(results, again.results[label], strict=True):
            assert first["history"] == second["history"] and first["metrics"] == second["metrics"], label
    first, second = report.comparison_table(finished), report.comparison_table(again)
    assert_frame_equal(first.rows, second.rows, check_exact=True)
    assert_frame_equal(first.p_values, second.p_values, check_exact=True)


def test_a_second_comparison_trains_nothing(finished: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalProcesses, "run", lambda *arguments: pytest.fail("trained again"))
    again = compare(finished.folder.parent.parent, workers=1)
    assert again.results == finished.results and again.folder == finished.folder


def test_arms_stand_in_order_with_every_seed(finished: Comparison) -> None:
    assert list(finished.results) == ["modality_01", "modality_02", "modality_03", "concat", "ovo"]
    assert finished.heads == ["concat", "ovo"]
    assert all([result["seed"] for result in results] == [0, 1] for results in finished.results.values())


def test_every_arm_is_evaluated_on_the_same_rows(finished: Comparison) -> None:
    folders = [folder for label in finished.results for folder in finished.run_folders[label]]
    frames = [pl.read_parquet(folder / "predictions.parquet").select("row", "unit_id", "split") for folder in folders]
    assert len(set(folders)) == 10
    assert all(frame.equals(frames[0]) for frame in frames)
    units = finished.prepared.cohort.select("unit_id").with_columns(split=pl.Series(finished.prepared.split))
    held_out = (
        units.with_row_index("row").filter(pl.col("split") != "train").sort("split", "row", descending=[True, False])
    )
    assert frames[0]["unit_id"].to_list() == held_out["unit_id"].to_list()
    assert len({(r["digests"]["data"], r["digests"]["split"]) for all_ in finished.results.values() for r in all_}) == 1


def test_a_modality_alone_has_the_encoder_and_output_network_of_the_heads(finished: Comparison) -> None:
    models = {label: training.load_model(folders[0]) for label, folders in finished.run_folders.items()}
    alone, fused = models["modality_02"], models["concat"]
    assert isinstance(alone.fusion, Concat) and alone.names == ["modality_02"]
    assert str(alone.encoders[0]) == str(fused.encoders[1])
    for label, width in {"modality_02": 8, "concat": 24}.items():
        output = models[label].output
        assert isinstance(output, nn.Sequential)
        assert [type(layer) for layer in output] == [nn.LayerNorm, nn.Linear, nn.GELU, nn.Dropout, nn.Linear]
        linear = [(layer.in_features, layer.out_features) for layer in output if isinstance(layer, nn.Linear)]
        assert linear == [(width, 8), (8, 1)]


def arms(prepared: Prepared, *overrides: str, unimodal: bool = False) -> dict[str, Arm]:
    settings = experiment(*overrides)
    return {arm.label: arm for arm in study.arms(settings, prepared, settings.compare.fusion, unimodal)}


def options(arm: Arm) -> dict[str, Any]:
    return arm.experiment.model.fusion.options


def test_options_of_model_fusion_hold_for_every_head_that_has_them(prepared: Prepared) -> None:
    found = arms(prepared, "model.fusion.tokens=8", "model.fusion.heads=2", unimodal=True)
    assert {label: options(arm).get("tokens") for label, arm in found.items()} == dict.fromkeys(found, 8)
    assert options(found["ovo"])["heads"] == options(found["self_attention"])["heads"] == 2
    assert options(found["concat"]) == options(found["modality_01"]) == {"tokens": 8}
    others = {arm.experiment.model.model_copy(update={"fusion": HEADS[0]}).model_dump_json() for arm in found.values()}
    assert len(others) == 1 and len(found) == 7


def test_options_by_head_win_and_stand_in_the_label(prepared: Prepared) -> None:
    chosen = "compare.fusion=[concat, ovo, {name: ovo, heads: 8}]"
    found = arms(prepared, chosen, "model.fusion.heads=2")
    assert list(found) == ["concat", "ovo", "ovo(heads=8)"]
    assert options(found["ovo"])["heads"] == 2 and options(found["ovo(heads=8)"])["heads"] == 8


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["compare.fusion=[concat, ovoo]"], "compare.fusion: fusion head 'ovoo' is not known; did you mean 'ovo'"),
        (
            ["compare.fusion=[concat]", "model.fusion.tokns=8"],
            "model.fusion.tokns: no such setting; did you mean 'tokens'",
        ),
        (["compare.fusion=[concat]", "model.fusion=nothing"], "model.fusion: fusion head 'nothing' is not known"),
        (["compare.fusion=[{name: ovo, head: 2}]"], "compare.fusion.head: no such setting; did you mean 'heads'"),
        (["compare.fusion=[{name: ovo, heads: many}]"], "compare.fusion.heads: 'many': "),
        (
            ["compare.fusion=[concat, ovo]", "model.fusion.heads=3"],
            "compare.fusion: ovo: heads: 3 does not divide dim 8",
        ),
        (
            ["compare.fusion=[{name: ovo, attention: window}]"],
            "ovo(attention=window): attention: 'window' works on the grid",
        ),
        (["compare.fusion=[self_attention_reference]"], "model.allow_unsafe=true"),
        (["compare.fusion=[concat, concat]"], "compare: concat stands twice"),
        (["compare.fusion=[]"], "compare.fusion: "),
        (["modalities=[modality_01, nothing]"], "modalities: nothing: not in the data set"),
        (["modalities=[modality_01]"], "relates modalities to each other and got 1"),
        (
            ["compare.encoders={modality_01: [mlp, mpl]}"],
            "compare.encoders.modality_01: mpl: encoder 'mpl' is not known; did you mean 'mlp'",
        ),
        (["compare.encoders={modality_01: [{name: mlp, layer: 1}]}"], "mlp(layer=1).layer: no such setting"),
        (["compare.encoders={modality_01: [mlp, vit]}"], "vit: encoder: vit takes images, and modality_01 is a vector"),
        (["compare.encoders={modality_99: [mlp]}"], "compare.encoders: there is no modality 'modality_99'; did you"),
        (["compare.encoders={modality_01: [mlp, mlp]}"], "compare: mlp stands twice"),
        (["compare.encoders={modality_01: [mlp]}", "compare.fusion=[ovo]"], "compares encoders under one head"),
        (["compare.encoders={modality_01: [mlp]}", "model.fusion.heads=3"], "common head: heads: 3 does not divide"),
        (["compare.encoders={modality_01: [mlp], modality_02: [mlp]}"], "compare.encoders: "),
    ],
)
def test_mistakes_show_before_any_training(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch, overrides: list[str], message: str
) -> None:
    monkeypatch.setattr(LocalProcesses, "run", lambda *arguments: pytest.fail("a worker was started"))
    with pytest.raises(UserError, match="^[^\n]*$") as caught:
        settings = experiment(*overrides)
        study.compare(settings, prepared, settings.compare.fusion, 1)
    assert message in str(caught.value)


ENCODERS = (
    "compare.encoders={modality_01: [mlp, {name: mlp, layers: 1}, {label: narrow, encoder: {name: mlp, width: 24}}]}"
)


def test_encoders_are_compared_under_one_head(prepared: Prepared) -> None:
    shared = ("model.fusion=concat", "model.encoders.modality_01={name: mlp, layers: 3}")
    found = arms(prepared, ENCODERS, *shared)
    assert {label: arm.kind for label, arm in found.items()} == dict.fromkeys(
        ("mlp", "mlp(layers=1)", "narrow"), "encoder"
    )
    own = {label: arm.experiment.model.encoders["modality_01"].options for label, arm in found.items()}
    assert own == {"mlp": {"layers": 3}, "mlp(layers=1)": {"layers": 1}, "narrow": {"layers": 3, "width": 24}}
    common = {"model.encoders.modality_01": {"name": "mlp", "layers": 2, "width": 8}}
    assert len({arm.experiment.with_settings(common).model_dump_json() for arm in found.values()}) == 1


def test_an_unsafe_head_is_compared_when_asked(prepared: Prepared) -> None:
    assert list(arms(prepared, "compare.fusion=[self_attention_reference]", "model.allow_unsafe=true"))


def test_rows_that_come_to_the_same_run_share_it(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Path] = []
    monkeypatch.setattr(LocalProcesses, "run", lambda scheduler, jobs, done: started.extend(job.folder for job in jobs))
    settings = experiment("modalities=[modality_01]")
    with pytest.raises(FileNotFoundError):  # as nothing was trained
        study.compare(settings, prepared, [HEADS[0], Choice(name="concat", tokens=4)], 2, unimodal=True)
    assert len(started) == len(set(started)) == 2


WATCHED = """
import multiprocessing, os, time
from concurrent.futures import ProcessPoolExecutor
from ovo_clinic.processes import _start_worker

if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    pool = ProcessPoolExecutor(1, mp_context=context, initializer=_start_worker)
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(time.sleep, 300).result()
"""


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    script = tmp_path / "watched.py"
    script.write_text(WATCHED)
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def test_a_worker_ends_with_its_parent_however_that_ends(parent: subprocess.Popen[str]) -> None:
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    os.kill(worker, 0)
    parent.kill()
    deadline = time.monotonic() + 20
    while _runs(worker) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _runs(worker)


def _runs(process: int) -> bool:
    """A process that is over, but not waited for by whoever adopted it, does not run."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
