"""Calls in worker processes, each with a state of its own that is slow to create, such as an engine.

With a small model, Python's own work leaves a processor partly idle, and a GPU even more; several processes fill it.
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

Call = tuple[Any, Callable[..., Any], tuple[Any, ...]]  # the call's name; a function of the state; its other arguments
STATE: Any = None  # of this worker process, or the error that creating it raised


def _begin(make: Callable[[Advance], Any], finished: Any, stopped: Any) -> None:
    def advance(done: float) -> None:
        with finished.get_lock():
            finished.value += done

    def end_with_the_parent() -> None:  # even if the parent is killed
        parent = parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    def end_when_stopped() -> None:
        stopped.wait()
        os._exit(1)

    for end in (end_with_the_parent, end_when_stopped):
        Thread(target=end, daemon=True).start()
    global STATE
    try:
        STATE = make(advance)
    except Exception as error:  # raised here, it would only break the pool: the next call raises it to the caller
        STATE = error


def _call(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    if isinstance(STATE, Exception):
        raise STATE
    return function(STATE, *args)


class Workers:
    """`jobs` workers. `make(advance)` creates a worker's state, which reports finished items to `advance`.

    With one job the state is created in this process, at the first call.
    """

    def __init__(self, make: Callable[[Advance], Any], jobs: int) -> None:
        self.make, self.jobs = make, jobs
        self.advance: Advance = quiet
        self.pool: ProcessPoolExecutor | None = None
        self.state: Any = None  # of the only job
        if jobs > 1:
            context = get_context("spawn")
            self.finished, self.reported = context.Value("d", 0.0), 0.0
            self.stopped = context.Event()
            self.pool = ProcessPoolExecutor(jobs, context, _begin, (make, self.finished, self.stopped))

    def tell(self, advance: Advance) -> None:
        """Report progress to `advance` from now on."""
        self.advance = advance

    def run(self, calls: Iterator[Call]) -> Iterator[tuple[Any, Any]]:
        """Yields (name, result) as calls finish. A call is taken from the iterator when a worker is free for it."""
        if self.pool is None:
            self.state = self.state or self.make(lambda done: self.advance(done))
            yield from ((name, function(self.state, *args)) for name, function, args in calls)
            return
        try:
            yield from self._in_processes(self.pool, calls)
        except KeyboardInterrupt:
            self.stopped.set()  # workers end at once, in the middle of their calls
            self.close()
            raise

    def _in_processes(self, pool: ProcessPoolExecutor, calls: Iterator[Call]) -> Iterator[tuple[Any, Any]]:
        running: dict[Future[Any], Any] = {}
        while True:
            while len(running) < self.jobs and (call := next(calls, None)) is not None:
                # Only this process handles Ctrl-C: a worker, which may start here, inherits the blocked signal.
                blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
                running[pool.submit(_call, *call[1:])] = call[0]
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            if not running:
                return
            done, _ = wait(running, timeout=1, return_when=FIRST_COMPLETED)
            before, self.reported = self.reported, self.finished.value
            self.advance(self.reported - before)
            for future in done:
                yield running.pop(future), future.result()

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)
