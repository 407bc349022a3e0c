"""Worker processes that end with their parent, leave Ctrl-C to it, and do not run its script again."""

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from types import ModuleType
from typing import TypeVar

from ovo_clinic.errors import UserError

A = TypeVar("A")
R = TypeVar("R")


def default_workers() -> int:
    """One per core that this process may use."""
    return len(os.sched_getaffinity(0))


@contextmanager
def pool(workers: int, context: BaseContext, advice: str) -> Iterator[ProcessPoolExecutor]:
    """Worker processes, ended at the end of the block however that ends.

    Args:
        workers: how many.
        context: how they are started.
        advice: what to do when one was killed, for the message.

    Raises:
        UserError: a worker was killed.
    """
    executor = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker)
    try:
        yield executor
    except BrokenProcessPool:
        raise UserError(f"a worker process was killed, most likely for want of memory; {advice}") from None
    finally:
        for process in list((executor._processes or {}).values()):
            process.kill()  # Lightning would not end on a mild signal, and every file is written in one step
        executor.shutdown(wait=True, cancel_futures=True)


def submit(executor: ProcessPoolExecutor, function: Callable[[A], R], items: Iterable[A]) -> list[Future[R]]:
    """Hands items over to the workers."""
    with _main_module_hidden():
        return [executor.submit(function, item) for item in items]


def in_order(function: Callable[[A], R], items: Sequence[A], workers: int | None, advice: str) -> Iterator[R]:
    """What a function makes of items, in their order, computed by several processes that import its module alone.

    Args:
        function: of a module's top level.
        items: what it is given.
        workers: how many processes; None = one a core. With one worker or one item it runs in this process.
        advice: as in `pool`.

    Raises:
        UserError: a worker was killed.
    """
    workers = min(workers or default_workers(), len(items))
    if workers < 2:
        yield from map(function, items)
        return
    with pool(workers, multiprocessing.get_context("spawn"), advice) as executor:
        futures = deque(submit(executor, function, items))
        while futures:
            yield futures.popleft().result()  # dropped here, so that results do not pile up


@contextmanager
def _main_module_hidden() -> Iterator[None]:
    """Workers import the module that Python was started with: they would run a user's script again, for nothing."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _start_worker() -> None:
    """Ctrl-C reaches every process of the terminal, and only the parent acts on it; a worker ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
