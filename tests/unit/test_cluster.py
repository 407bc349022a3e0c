"""Runs on a Ray cluster: the same bits as here, whatever happens to a node."""

import importlib.util
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ovo_clinic import experiment as experiments
from ovo_clinic import study
from ovo_clinic.cluster import RayCluster
from ovo_clinic.errors import UserError
from ovo_clinic.prepare import prepare_task
from ovo_clinic.registry import Choice
from ovo_clinic.scheduling import LocalProcesses, Scheduler
from ovo_clinic.study import Comparison
from tests.conftest import unavailable
from tests.small_data import SIMULATION
from tests.small_jobs import Note, Timed

HEADS = [Choice(name=name) for name in ("concat", "self_attention", "cross_attention", "ovo")]
SEEDS = 5
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}


def compare(home: Path, scheduler: Scheduler, on_progress: Any = lambda done, total: None) -> Comparison:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVO_CLINIC_HOME", str(home))
        given = experiments.load("simulation", SIMULATION)
        prepared = prepare_task(given, None)
        return study.compare(given, prepared, HEADS, SEEDS, scheduler=scheduler, on_progress=on_progress)


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Two nodes of one core each, two ray processes on this machine."""
    if importlib.util.find_spec("ray") is None:
        unavailable("ray is not installed: pip install '.[cluster]'")
    from ray.cluster_utils import Cluster

    logging.getLogger("ray").setLevel(logging.ERROR)
    found = Cluster(initialize_head=True, head_node_args=NODE)
    yield found
    found.shutdown()


def test_without_a_cluster_there_is_one_clear_error(tmp_path: Path) -> None:
    if importlib.util.find_spec("ray") is None:
        unavailable("ray is not installed: pip install '.[cluster]'")
    job = Note(experiments.load("simulation"), tmp_path, tmp_path / "a")
    with pytest.raises(UserError, match="^--cluster: no Ray cluster answers at 'auto'[^\n]*ray start --head"):
        RayCluster("auto").run([job], lambda job: ())
    assert not job.runs


@pytest.mark.slow
def test_a_killed_node_costs_its_run_only_and_all_bits_are_those_of_local_processes(
    cluster: Any, tmp_path: Path
) -> None:
    second = [cluster.add_node(**{name: value for name, value in NODE.items() if name != "include_dashboard"})]
    counts = []

    def kill(done: int, total: int) -> None:
        counts.append((done, total))
        if done == 6 and second:
            cluster.remove_node(second.pop(), allow_graceful=False)

    there = compare(tmp_path / "there", RayCluster(cluster.address), kill)
    assert not second
    assert counts == [(done, 20) for done in range(21)]
    here = compare(tmp_path / "here", LocalProcesses(2))
    for label, results in here.results.items():
        for mine, theirs, folders in zip(
            results,
            there.results[label],
            zip(here.run_folders[label], there.run_folders[label], strict=True),
            strict=True,
        ):
            assert mine["history"] == theirs["history"] and mine["metrics"] == theirs["metrics"], label
            files = ("model.safetensors", "predictions.parquet", "preprocessing.json")
            assert all((folders[0] / name).read_bytes() == (folders[1] / name).read_bytes() for name in files)


@pytest.mark.slow
def test_mistakes_on_a_cluster_are_one_line(cluster: Any, tmp_path: Path) -> None:
    given = experiments.load("simulation")
    with pytest.raises(UserError, match="^--cluster: a run asks for 0.5 GPUs and 1 cores of one node, [^\n]* 0 and "):
        RayCluster(cluster.address, 0.5).run([Note(given, tmp_path, tmp_path / "a")], lambda job: ())
    with pytest.raises(UserError, match="^--gpus: 1.5: a run takes a part of one GPU, or whole ones$"):
        RayCluster(cluster.address, 1.5).run([Note(given, tmp_path, tmp_path / "a")], lambda job: ())
    wide = experiments.load("simulation", ["training.threads=999"])
    with pytest.raises(UserError, match="^--cluster: a run asks for 0 GPUs and 999 cores of one node, [^\n]*$"):
        RayCluster(cluster.address).run([Note(wide, tmp_path, tmp_path / "a")], lambda job: ())
    with pytest.raises(UserError, match="^--cluster: a node does not see /nowhere; put OVO_CLINIC_HOME on[^\n]*$"):
        RayCluster(cluster.address).run([Note(given, Path("/nowhere"), tmp_path / "b")], lambda job: ())
    deadly = Note(given, tmp_path, tmp_path / "c", kills=99)
    with pytest.raises(UserError, match="^--cluster: the workers of one run were lost 4 times[^\n]*$"):
        RayCluster(cluster.address).run([deadly], lambda job: ())
    assert deadly.runs == 4


@pytest.mark.slow
def test_runs_share_a_gpu_by_the_fraction_that_each_is_given(cluster: Any, tmp_path: Path) -> None:
    # Ray counts GPUs as they are declared; no run here uses one.
    cluster.add_node(num_cpus=8, num_gpus=1, object_store_memory=80_000_000)
    given = experiments.load("simulation")
    for share, together in ((0.25, 4), (0.5, 2)):
        jobs = [Timed(given, tmp_path, tmp_path / f"{share} {number}") for number in range(8)]
        RayCluster(cluster.address, share).run(jobs, lambda job: ())
        spans = [job.span() for job in jobs]
        assert {span["gpus"] for span in spans} == {"0"}
        at_once = [sum(one["began"] <= span["began"] < one["ended"] for one in spans) for span in spans]
        assert max(at_once) == together
