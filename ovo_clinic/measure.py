"""What a call takes on this machine: latency and the peak memory of its tensors."""

import contextlib
import statistics
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

Call = Callable[[], object]


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One CPU thread for torch inside, as many as before after it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def latencies(calls: Sequence[Call], *, repeats: int = 5, seconds: float = 5.0) -> list[float]:
    """Median seconds of each call, on one CPU thread, after one call to warm up.

    The calls take turns, so that what else the machine does falls on all of them alike.

    Args:
        calls: each waits for its own result, where a device runs ahead.
        repeats: turns.
        seconds: after which no further turn is begun.
    """
    with one_thread():
        for call in calls:
            call()
        times: list[list[float]] = [[] for _ in calls]
        began = time.perf_counter()
        for turn in range(repeats):
            if turn and time.perf_counter() - began > seconds:
                break
            for call, own in zip(calls, times, strict=True):
                start = time.perf_counter()
                call()
                own.append(time.perf_counter() - start)
    return [statistics.median(own) for own in times]


def peak_memory(call: Call, device: torch.device | str = "cpu") -> int:
    """Most bytes that a call's tensors hold at one time, beyond those that were there before.

    On the CPU it is the sum over the storages that operators make, what backward keeps included and a kernel's own
    scratch space not; on CUDA it is the allocator's figure.
    """
    if torch.device(device).type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        return int(torch.cuda.max_memory_allocated(device) - before)
    live = _LiveBytes()
    with live:
        call()
    return live.peak


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the storages that operators make until they are freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = self._now = 0
        self._known = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Views and in-place results share a storage with an argument, which may stand outside the call.
        given = {tensor.untyped_storage()._cdata for tensor in tree_leaves((args, kwargs)) if _is_tensor(tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in filter(_is_tensor, tree_leaves(out)):
            storage = tensor.untyped_storage()
            if storage._cdata not in given and storage not in self._known:
                self._known[storage] = True
                self._now += storage.nbytes()
                weakref.finalize(storage, self._freed, storage.nbytes())
        self.peak = max(self.peak, self._now)
        return out

    def _freed(self, size: int) -> None:
        self._now -= size

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; torch would import its compiler, for seconds, to say so."""
        return False


def _is_tensor(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor)
