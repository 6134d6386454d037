"""Calls in worker processes, each with something of its own that takes long to make: an engine.

A small model leaves a processor, and a GPU even more, idle while Python thinks; several processes fill it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any

from xshare.progress import Advance, quiet

Call = tuple[Any, Callable[..., Any], tuple[Any, ...]]  # a name to know it by, a function of the worker's own, more
OWN: Any = None  # of this process


def _begin(make: Callable[[Advance], Any], answered: Any, stopped: Any) -> None:
    def advance(done: float) -> None:
        with answered.get_lock():
            answered.value += done

    def end_with_the_parent() -> None:  # however that ends
        parent = parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    def end_when_told() -> None:
        stopped.wait()
        os._exit(1)

    for end in (end_with_the_parent, end_when_told):
        Thread(target=end, daemon=True).start()
    global OWN
    try:
        OWN = make(advance)
    except Exception as error:  # raised here it would only break the pool: whoever calls is to be told
        OWN = error


def _call(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    if isinstance(OWN, Exception):
        raise OWN
    return function(OWN, *args)


class Workers:
    """`make(advance)` makes what is a worker's own, which tells `advance` how many more are done.

    With one job it is made in this process, when it is first used.
    """

    def __init__(self, make: Callable[[Advance], Any], jobs: int) -> None:
        self.make, self.jobs = make, jobs
        self.advance: Advance = quiet
        self.pool: ProcessPoolExecutor | None = None
        self.own: Any = None  # of the only job
        if jobs > 1:
            context = get_context("spawn")
            self.answered, self.told = context.Value("d", 0.0), 0.0
            self.stopped = context.Event()
            self.pool = ProcessPoolExecutor(jobs, context, _begin, (make, self.answered, self.stopped))

    def tell(self, advance: Advance) -> None:
        """From now on, how many more are done."""
        self.advance = advance

    def run(self, calls: Iterator[Call]) -> Iterator[tuple[Any, Any]]:
        """-> (name, result) as they come. A call is taken from the iterator when a worker is free for it."""
        if self.pool is None:
            self.own = self.own or self.make(lambda done: self.advance(done))
            yield from ((name, function(self.own, *args)) for name, function, args in calls)
            return
        try:
            yield from self._in_processes(self.pool, calls)
        except KeyboardInterrupt:
            self.stopped.set()  # what they are at is not waited for
            self.close()
            raise

    def _in_processes(self, pool: ProcessPoolExecutor, calls: Iterator[Call]) -> Iterator[tuple[Any, Any]]:
        running: dict[Future[Any], Any] = {}
        while True:
            while len(running) < self.jobs and (call := next(calls, None)) is not None:
                # Ctrl-C is for this process: a worker, which may begin here, inherits what is blocked.
                blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
                running[pool.submit(_call, *call[1:])] = call[0]
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            if not running:
                return
            done, _ = wait(running, timeout=1, return_when=FIRST_COMPLETED)
            before, self.told = self.told, self.answered.value
            self.advance(self.told - before)
            for future in done:
                yield running.pop(future), future.result()

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)
