"""Jobs for tests of schedulers: no model is trained."""

import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ovo_clinic.experiment import Experiment
from ovo_clinic.scheduling import Job


@dataclass(frozen=True)
class Note:
    """Writes how often it was run, and kills its worker the first few times."""

    experiment: Experiment
    data: Path
    folder: Path
    kills: int = 0

    def run(self) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / f"{len(list(self.folder.iterdir()))}.run").touch()
        if self.runs <= self.kills:
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def runs(self) -> int:
        return len(list(self.folder.glob("*.run")))


class InThisProcess:
    """A scheduler without workers."""

    def run(self, jobs: Sequence[Job], on_done: object) -> None:
        assert callable(on_done)
        waiting = list(jobs)
        while waiting:
            job = waiting.pop(0)
            job.run()
            waiting += on_done(job)


@dataclass(frozen=True)
class Timed:
    """Writes when it began, when it ended and which GPUs it was given."""

    experiment: Experiment
    data: Path
    folder: Path
    seconds: float = 1.5

    def run(self) -> None:
        began = time.monotonic()
        time.sleep(self.seconds)
        span = {"began": began, "ended": time.monotonic(), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}
        self.folder.mkdir()
        (self.folder / "span.json").write_text(json.dumps(span))

    def span(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "span.json").read_text()))
