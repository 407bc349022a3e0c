"""Where the runs of a verb are computed, and who hears how far it is."""

from collections.abc import Callable

from ovo_clinic import processes, scheduling
from ovo_clinic.errors import UserError

Progress = Callable[[int, int], None]


def no_progress(done: int, total: int) -> None:
    """Shows nothing."""


def local_or_cluster(workers: int | None, cluster: str | None, gpus: float | None) -> scheduling.Scheduler:
    """Where the runs are computed.

    Raises:
        UserError: options that exclude each other.
    """
    if cluster is None:
        if gpus is not None:
            raise UserError("--gpus: shares out the GPUs of a cluster; add --cluster auto, after `ray start --head`")
        return scheduling.LocalProcesses(workers or processes.default_workers())
    if workers is not None:
        raise UserError("--workers: a cluster runs as many as it has room for; leave it out with --cluster")
    from ovo_clinic.cluster import RayCluster

    return RayCluster(cluster, gpus or 0.0)
