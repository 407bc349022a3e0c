"""Many runs: trains fusion heads over the same seeds and splits in parallel worker processes."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ovo_clinic import provenance, resources
from ovo_clinic.errors import UserError
from ovo_clinic.experiment import Experiment
from ovo_clinic.prepare import Prepared
from ovo_clinic.registry import FUSION, Choice

Result = dict[str, Any]


@dataclass(frozen=True)
class Arm:
    """One row of the comparison: a fusion head, or a modality alone.

    Attributes:
        label: as it stands in the table.
        kind: `head` or `modality`.
        experiment: settings but for the seed.
    """

    label: str
    kind: Literal["head", "modality"]
    experiment: Experiment


@dataclass(frozen=True)
class Comparison:
    """The finished runs of a study.

    Attributes:
        name: of the study: the task and a hash of all its runs.
        folder: where its table and figures go.
        prepared: the data.
        arms: in the order of the table, modalities first.
        results: label -> result of every seed, in the order of the seeds.
        run_folders: label -> folder of every seed's run.
    """

    name: str
    folder: Path
    prepared: Prepared
    arms: list[Arm]
    results: Mapping[str, list[Result]]
    run_folders: Mapping[str, list[Path]]

    @property
    def heads(self) -> list[str]:
        """Labels of the fusion heads."""
        return [arm.label for arm in self.arms if arm.kind == "head"]


def arms(experiment: Experiment, prepared: Prepared, fusion: Sequence[Choice], unimodal: bool) -> list[Arm]:
    """The rows of a comparison; all differ in the head, or in the modalities, and in nothing else.

    Raises:
        UserError: a head named twice or not known.
    """
    rows = []
    if unimodal:
        for name in experiment.modalities or prepared.modalities:
            alone = experiment.model.model_copy(update={"fusion": Choice(name="concat")})
            rows.append(Arm(name, "modality", experiment.model_copy(update={"modalities": [name], "model": alone})))
    for choice in fusion:
        options = {**_shared_options(experiment, choice), **choice.options}
        model = experiment.model.model_copy(update={"fusion": Choice(name=choice.name, **options)})
        rows.append(Arm(choice.label, "head", experiment.model_copy(update={"model": model})))
    labels = [row.label for row in rows]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise UserError(f"compare: {', '.join(twice)} stands twice; name every head once")
    return rows


def _shared_options(experiment: Experiment, choice: Choice) -> dict[str, Any]:
    """Options set on `model.fusion` (`model.fusion.tokens=8`) hold for every head that has an option of that name."""
    known = FUSION.schema(choice.name).model_fields
    return {name: value for name, value in experiment.model.fusion.options.items() if name in known}


def compare(
    experiment: Experiment,
    prepared: Prepared,
    fusion: Sequence[Choice],
    seeds: int,
    *,
    unimodal: bool = False,
    workers: int = 1,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Comparison:
    """Trains every head, and with `unimodal` every modality alone, with seeds 0 ... seeds-1 on the same split.

    Finished runs are taken from the store; an interrupted study goes on where it was.

    Args:
        experiment: everything the heads have in common.
        prepared: the data.
        fusion: the heads.
        seeds: how many.
        unimodal: also every modality alone, through the same code and output network.
        workers: parallel processes, each with `training.threads` threads.
        on_progress: called with (runs done, runs in all).

    Raises:
        UserError: settings that do not fit; a worker that was killed.
    """
    rows = arms(experiment, prepared, fusion, unimodal)
    jobs = [
        (arm.label, _job(arm.experiment.model_copy(update={"seed": seed}), prepared))
        for arm in rows
        for seed in range(seeds)
    ]
    finished = _run_all([job for _, job in jobs], prepared, workers, on_progress)
    results: dict[str, list[Result]] = {arm.label: [] for arm in rows}
    folders: dict[str, list[Path]] = {arm.label: [] for arm in rows}
    for (label, job), result in zip(jobs, finished, strict=True):
        results[label].append(result)
        folders[label].append(job.folder)
    digest = provenance.digest_of([job.folder.name for _, job in jobs])[:8]
    name = f"{experiment.task}-{digest}"
    folder = resources.home() / "studies" / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Comparison(name, folder, prepared, rows, results, folders)


@dataclass(frozen=True)
class Job:
    """One run for a worker: plain values, so that it travels to another process.

    Attributes:
        experiment: settings, with the seed.
        data: folder of the prepared data set.
        folder: of the run.
    """

    experiment: Experiment
    data: Path
    folder: Path


def _job(experiment: Experiment, prepared: Prepared) -> Job:
    return Job(experiment, prepared.folder, run_folder(experiment, prepared))


def run_folder(experiment: Experiment, prepared: Prepared) -> Path:
    """Folder of a run, named after its settings, its data and the code, so that no finished run is repeated."""
    key = provenance.digest_of([experiment.digest(), prepared.manifest["key"], provenance.code_digest()])
    return resources.home() / "runs" / key[:32]


def run(job: Job) -> Result:
    """Trains one run where it is not finished yet."""
    from ovo_clinic import training

    return training.train(job.experiment, Prepared.open(job.data), job.folder)


def _run_all(
    jobs: Sequence[Job], prepared: Prepared, workers: int, on_progress: Callable[[int, int], None]
) -> list[Result]:
    # Forked from a server that has the heavy imports: a fresh interpreter would spend 7-11 s on them for every worker.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ovo_clinic.training", "torch._dynamo"])
    pool = ProcessPoolExecutor(min(workers, len(jobs)), mp_context=context, initializer=_ignore_interrupts)
    try:
        futures = [pool.submit(run, job) for job in jobs]
        _wait(futures, on_progress)
        return [future.result() for future in futures]
    except BrokenProcessPool:
        raise UserError(
            f"a worker process was killed, most likely for want of memory; use fewer than {workers} --workers. "
            "Finished runs are kept: the same command goes on from there"
        ) from None
    finally:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)


def _wait(futures: Sequence[Future[Result]], on_progress: Callable[[int, int], None]) -> None:
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=1.0, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
        on_progress(sum(future.done() for future in futures), len(futures))


def _ignore_interrupts() -> None:
    """Ctrl-C reaches every process of the terminal; only the parent acts on it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def default_workers() -> int:
    """One per core."""
    return len(os.sched_getaffinity(0))
