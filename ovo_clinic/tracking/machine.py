"""The machine's load while a study is computed."""

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mlflow.entities import Metric

_SAMPLING_SECONDS = 10.0


@contextmanager
def machine_load(seconds: float = _SAMPLING_SECONDS) -> Iterator[list[Metric]]:
    """Samples the machine in the background: processor, memory, disk, network and GPUs, as MLflow names them.

    Args:
        seconds: between samples; there is one at the end too.

    Yields:
        The list that fills; complete once the block is left.
    """
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

    monitors: list[Any] = []
    for make in (CPUMonitor, DiskMonitor, NetworkMonitor, GPUMonitor):
        try:
            monitors.append(make())
        except Exception:  # of NVIDIA's library, where there is no card or no driver
            pass
    samples: list[Metric] = []
    over = threading.Event()

    def watch() -> None:
        for step in itertools.count():
            last = over.wait(seconds)
            now = int(time.time() * 1000)
            for monitor in monitors:
                monitor.collect_metrics()
                values = monitor.aggregate_metrics()
                samples.extend(Metric(f"system/{name}", value, now, step) for name, value in values.items())
                monitor.clear_metrics()
            if last:
                return

    thread = threading.Thread(target=watch, daemon=True, name="machine_load")
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()
