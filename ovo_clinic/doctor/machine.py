"""Looks at the machine: space, memory, permissions, processors."""

import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from ovo_clinic import resources
from ovo_clinic.doctor.check import Check, checked, in_bytes
from ovo_clinic.errors import UserError
from ovo_clinic.locks import locked
from ovo_clinic.settings import TrainingConfig

_CGROUP = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)
DISK_PER_BYTE, DISK_AT_LEAST = 1.5, 100 << 20
"""Disk that `prepare` takes at its peak for each byte of packed tables, generously: 0.6 were measured."""
MEMORY_PER_BYTE, MEMORY_AT_LEAST = 2.0, 1 << 30
"""Memory that it takes; what goes with the tables is at most a third of the machine's by default."""


def home_checks() -> list[Check]:
    """The folder of all state: writable, with locks, closed to others."""
    return [checked("OVO_CLINIC_HOME", _home)]


def _home() -> str:
    home = resources.home()
    others = stat.S_IMODE(home.stat().st_mode) & 0o077
    if others:
        raise UserError(f"{home} is open to other users; run: chmod 700 {home}")
    probe = home / f".probe-{os.getpid()}"
    try:
        with locked(probe):
            pass
    finally:
        probe.unlink(missing_ok=True)
    return f"{home} can be written, has locks, and is closed to other users"


def space_checks(files: Sequence[Path]) -> list[Check]:
    """Free disk and memory beside what `prepare` needs for raw files."""
    size = sum(path.stat().st_size for path in files)
    disk = DISK_AT_LEAST + DISK_PER_BYTE * size
    memory = MEMORY_AT_LEAST + min(MEMORY_PER_BYTE * size, psutil.virtual_memory().total / 3)
    return [
        _enough("disk", shutil.disk_usage(resources.home()).free, disk, "set OVO_CLINIC_HOME to a larger disk"),
        _enough("memory", available_memory(), memory, "end other programs, or give prepare a smaller --memory"),
    ]


def _enough(subject: str, free: float, needed: float, advice: str) -> Check:
    told = f"{in_bytes(free)} free; prepare takes about {in_bytes(needed)}, images aside"
    return Check("ok", subject, told) if free >= needed else Check("wrong", subject, f"{told}; {advice}")


def available_memory() -> int:
    """Bytes that this process may still use, of the machine or of its control group."""
    available: int = psutil.virtual_memory().available
    for limit, used in _CGROUP:
        if limit.is_file() and (text := limit.read_text().strip()).isdecimal():
            available = min(available, max(0, int(text) - int(used.read_text())))
    return available


def processor_checks(settings: TrainingConfig) -> list[Check]:
    """CPU cores, GPU and bf16, beside what the config asks for."""
    import torch

    cores = len(os.sched_getaffinity(0))
    checks = [Check("ok", "CPU", f"{cores} cores, {settings.threads} of them for each run")]
    wants_gpu = settings.accelerator in ("gpu", "cuda")
    wants_bf16 = settings.precision.startswith("bf16")
    if not torch.cuda.is_available():
        told = "none that torch can use"
        advice = "; install the driver and a torch built for it, or set training.accelerator=cpu"
        checks.append(Check("wrong", "GPU", told + advice) if wants_gpu else Check("note", "GPU", f"{told}: CPU only"))
        if wants_bf16:
            checks.append(Check("note", "bf16", "is slow without a GPU; training.precision=32-true is faster"))
        return checks
    for number in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(number)
        checks.append(Check("ok", "GPU", f"{found.name}, {in_bytes(found.total_memory)}"))
    if torch.cuda.is_bf16_supported(including_emulation=False):
        checks.append(Check("ok", "bf16", "the GPU computes in it (training.precision=bf16-mixed)"))
    else:
        told = "the GPU does not compute in it"
        wrong = Check("wrong", "bf16", f"{told}; set training.precision=16-mixed or 32-true")
        checks.append(wrong if wants_bf16 else Check("note", "bf16", told))
    return checks
