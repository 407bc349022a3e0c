"""Where the runs of a study are computed: what a scheduler is, and the one that uses processes of this machine."""

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ovo_clinic import processes
from ovo_clinic.errors import UserError
from ovo_clinic.experiment import Experiment

LOSSES = 3
"""So many times in a row may workers be lost without any run being finished in between."""
KEPT = "Finished runs are kept: the same command goes on from there"


class Job(Protocol):
    """One run for a worker: plain values, so that it travels to another process or machine."""

    @property
    def experiment(self) -> Experiment:
        """Settings, with the seed."""
        ...

    @property
    def data(self) -> Path:
        """Folder of the prepared data set."""
        ...

    @property
    def folder(self) -> Path:
        """Where its result goes; two jobs with the same folder are the same run."""
        ...

    def run(self) -> None:
        """Computes what is not finished yet, from where a lost worker left it."""
        ...


Done = Callable[[Job], Iterable[Job]]
"""Called in the parent process after each run; returns the runs that may follow it."""


class Scheduler(Protocol):
    """Computes runs in parallel."""

    def run(self, jobs: Sequence[Job], on_done: Done) -> None:
        """Computes all jobs and those that follow them; raises the first error of a job at once.

        A lost worker costs no run but its own what it had computed since its last checkpoint.

        Raises:
            UserError: workers are lost again and again.
        """
        ...


@dataclass(frozen=True)
class LocalProcesses:
    """Worker processes of this machine.

    Attributes:
        workers: how many, each with `training.threads` threads.
    """

    workers: int

    def run(self, jobs: Sequence[Job], on_done: Done) -> None:
        """As in `Scheduler`."""
        left = {job.folder: job for job in jobs}
        losses = 0
        while left:
            finished = self._run_until_loss(left, on_done)
            losses = 0 if finished else losses + 1
            if losses == LOSSES:
                raise UserError(
                    f"worker processes were killed {LOSSES} times in a row, most likely for want of memory; "
                    f"use fewer than {self.workers} --workers. {KEPT}"
                )

    def _run_until_loss(self, left: dict[Path, Job], on_done: Done) -> int:
        """Runs jobs, taking them out of `left`, until none is left or a worker was lost; how many were finished.

        The loss of a worker ends the pool: the other runs go on in the next one, from their last checkpoints.
        """
        # Forked from a server that has the heavy imports: a fresh interpreter would spend 7-11 s on them every time.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["ovo_clinic.training", "torch._dynamo"])
        finished = 0
        with processes.pool(self.workers, context, KEPT) as executor:

            def submitted(jobs: Iterable[Job]) -> dict[Future[None], Job]:
                jobs = list(jobs)
                return dict(zip(processes.submit(executor, _run, jobs), jobs, strict=True))

            try:
                running = submitted(left.values())
                while running:
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        future.result()
                        job = running.pop(future)
                        del left[job.folder]
                        finished += 1
                        following = {job.folder: job for job in on_done(job)}
                        left |= following
                        running |= submitted(following.values())
            except BrokenProcessPool:
                pass
        return finished


def _run(job: Job) -> None:
    job.run()
