"""Runs of a study on a Ray cluster: several machines, or several GPUs, or several runs on one GPU."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ovo_clinic import provenance
from ovo_clinic.errors import UserError
from ovo_clinic.scheduling import KEPT, LOSSES, Done, Job


@dataclass(frozen=True)
class RayCluster:
    """A running Ray cluster; every node has this version of ovo_clinic and sees OVO_CLINIC_HOME at the same path.

    Attributes:
        address: of its head (`host:6379`, `ray://host:10001`), or `auto` for the one that this machine belongs to.
        gpus: of each run; 0.25 = four runs share a GPU, 0 = runs see no GPU.
    """

    address: str
    gpus: float = 0.0

    def run(self, jobs: Sequence[Job], on_done: Done) -> None:
        """As in `scheduling.Scheduler`; a run whose node is lost goes on elsewhere.

        Raises:
            UserError: no cluster there, one that cannot hold a run, nodes that differ from this one, or a run whose
                nodes are lost again and again.
        """
        ray = _ray()
        self._connect(ray)
        try:
            self._check_room(ray, jobs)
            self._run(ray, jobs, on_done)
        finally:
            ray.shutdown()  # ends what still runs of ours

    def _connect(self, ray: ModuleType) -> None:
        try:
            ray.init(address=self.address, logging_level=logging.ERROR, log_to_driver=False)
        except Exception as error:  # of Ray, of gRPC, of authentication
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(
                f"--cluster: no Ray cluster answers at '{self.address}' ({reason[:200]}); start one: `ray start --head`"
            ) from None

    def _check_room(self, ray: ModuleType, jobs: Sequence[Job]) -> None:
        """Ray would wait for ever for a node that is large enough.

        Raises:
            UserError: a run fits on no node, or asks for a part of several GPUs.
        """
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise UserError(f"--gpus: {self.gpus:g}: a run takes a part of one GPU, or whole ones")
        threads = max(job.experiment.training.threads for job in jobs)
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(node.get("GPU", 0) >= self.gpus and node.get("CPU", 0) >= threads for node in nodes):
            gpus, cores = (max((node.get(kind, 0) for node in nodes), default=0) for kind in ("GPU", "CPU"))
            raise UserError(
                f"--cluster: a run asks for {self.gpus:g} GPUs and {threads} cores of one node, and the nodes have at "
                f"most {gpus:g} and {cores:g}; ask for less by --gpus and training.threads"
            )

    def _run(self, ray: ModuleType, jobs: Sequence[Job], on_done: Done) -> None:
        remote = ray.remote(_run)
        code = provenance.code_digest()

        def submitted(jobs: Iterable[Job]) -> dict[Any, Job]:
            found = {}
            for job in jobs:
                threads = job.experiment.training.threads
                placed = remote.options(num_cpus=threads, num_gpus=self.gpus, max_retries=LOSSES)
                found[placed.remote(job, code)] = job
            return found

        running = submitted(jobs)
        while running:
            done, _ = ray.wait(list(running), num_returns=1)
            for reference in done:
                job = running.pop(reference)
                try:
                    ray.get(reference)
                except UserError as error:
                    raise UserError(str(error.args[0])) from None
                except (
                    ray.exceptions.WorkerCrashedError,
                    ray.exceptions.NodeDiedError,
                    ray.exceptions.OutOfMemoryError,
                ):
                    raise UserError(
                        f"--cluster: the workers of one run were lost {LOSSES + 1} times, most likely for want of "
                        f"memory; give each run more room. {KEPT}"
                    ) from None
                running |= submitted(on_done(job))


def _run(job: Job, code: str) -> None:
    """On a node of the cluster."""
    if provenance.code_digest() != code:
        raise UserError("--cluster: a node has another version of ovo_clinic; install the same one on all of them")
    if not Path(job.data).is_dir():
        raise UserError(
            f"--cluster: a node does not see {job.data}; put OVO_CLINIC_HOME on a file system that all nodes share"
        )
    job.run()


def _ray() -> ModuleType:
    try:
        import ray
    except ImportError:
        raise UserError("--cluster: needs Ray; install it with: pip install 'ovo-clinic[cluster]'") from None
    module: ModuleType = ray
    return module
