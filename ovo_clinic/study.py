"""Many runs: trains fusion heads over the same seeds and splits in parallel worker processes."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

from ovo_clinic import provenance, resources, runs
from ovo_clinic.errors import UserError
from ovo_clinic.experiment import Experiment
from ovo_clinic.prepare import Prepared
from ovo_clinic.registry import FUSION, Choice, suggest
from ovo_clinic.runs import Result


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

    Options set on `model.fusion` (`model.fusion.tokens=8`) hold for every head that has an option of that name. Every
    head is built once, so that a mistake shows before anything is trained.

    Raises:
        UserError: a head named twice, not known, or unsafe and not allowed; an unknown option; a combination that a
            head excludes.
    """
    modalities = prepared.chosen(experiment.modalities)
    check_options(experiment, fusion)
    rows = []
    if unimodal:
        alone = _with_head(experiment, Choice(name="concat"))
        rows += [Arm(name, "modality", alone.model_copy(update={"modalities": [name]})) for name in modalities]
    rows += [Arm(choice.label, "head", _with_head(experiment, choice)) for choice in fusion]
    labels = [row.label for row in rows]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise UserError(f"compare: {', '.join(twice)} stands twice; name every head once")
    _check_heads(rows, prepared)
    return rows


def _with_head(experiment: Experiment, choice: Choice) -> Experiment:
    known = FUSION.schema(choice.name).model_fields
    shared = {name: value for name, value in experiment.model.fusion.options.items() if name in known}
    head = Choice(name=choice.name, **{**shared, **choice.options})
    return experiment.model_copy(update={"model": experiment.model.model_copy(update={"fusion": head})})


def check_options(experiment: Experiment, fusion: Sequence[Choice]) -> None:
    """Checks the names of heads and options: those of `model.fusion` must be of the head there or of a compared one.

    Raises:
        UserError: an unknown head or option, with the valid ones.
    """
    named = experiment.model.fusion
    FUSION.get(named.name, "model.fusion")
    for choice in fusion:
        FUSION.options(choice.name, choice.options, "compare.fusion")
    schemas = [FUSION.schema(choice.name) for choice in (named, *fusion)]
    known = sorted({name for schema in schemas for name in schema.model_fields})
    for name in named.options:
        if name not in known:
            raise UserError(f"model.fusion.{name}: no such setting{suggest(name, known)}")


def _check_heads(rows: Sequence[Arm], prepared: Prepared) -> None:
    from ovo_clinic.model import check_fusion
    from ovo_clinic.types import Modality

    entries = prepared.manifest["modalities"]
    for row in rows:
        names = prepared.chosen(row.experiment.modalities)
        modalities = [Modality(name, entries[name]["kind"], len(entries[name]["columns"])) for name in names]
        try:
            check_fusion(row.experiment.model, modalities)
        except UserError as error:
            raise UserError(f"compare.fusion: {row.label}: {error}") from None


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
    _run_all([job for _, job in jobs], workers, on_progress)
    results: dict[str, list[Result]] = {arm.label: [] for arm in rows}
    folders: dict[str, list[Path]] = {arm.label: [] for arm in rows}
    for label, job in jobs:
        results[label].append(runs.read_result(job.folder))
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
    return Job(experiment, prepared.folder, runs.run_folder(experiment, prepared))


def run(job: Job) -> None:
    """Trains one run where it is not finished yet."""
    from ovo_clinic import training

    training.train(job.experiment, Prepared.open(job.data), job.folder)


def _run_all(jobs: Sequence[Job], workers: int, on_progress: Callable[[int, int], None]) -> None:
    """Trains what is not finished; rows that come to the same run share it."""
    every = {job.folder: job for job in jobs}
    waiting = [job for job in every.values() if not runs.is_finished(job.folder)]
    kept = len(every) - len(waiting)
    on_progress(kept, len(every))
    if waiting:
        _run_in_parallel(waiting, workers, lambda done: on_progress(kept + done, len(every)))


def _run_in_parallel(jobs: Sequence[Job], workers: int, on_progress: Callable[[int], None]) -> None:
    # Forked from a server that has the heavy imports: a fresh interpreter would spend 7-11 s on them for every worker.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ovo_clinic.training", "torch._dynamo"])
    pool = ProcessPoolExecutor(min(workers, len(jobs)), mp_context=context, initializer=_start_worker)
    try:
        with _main_module_hidden():
            futures = [pool.submit(run, job) for job in jobs]
        _wait(futures, on_progress)
    except BrokenProcessPool:
        raise UserError(
            f"a worker process was killed, most likely for want of memory; use fewer than {workers} --workers. "
            "Finished runs are kept: the same command goes on from there"
        ) from None
    finally:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _main_module_hidden() -> Iterator[None]:
    """Workers import the module that Python was started with: they would run a user's script again, for nothing."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _wait(futures: Sequence[Future[None]], on_progress: Callable[[int], None]) -> None:
    """Waits for all; raises the first error at once."""
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=1.0, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
        on_progress(len(futures) - len(pending))


def _start_worker() -> None:
    """Ctrl-C reaches every process of the terminal, and only the parent acts on it; a worker ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def default_workers() -> int:
    """One per core."""
    return len(os.sched_getaffinity(0))
