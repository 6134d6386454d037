"""Each worker writes its figures to a small file. The process that serves /metrics reads it when it is scraped."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xshare.engines.serving.metrics import log_line
from xshare.engines.vllm.private_folder import NotOurs, own_folder, read_own, write_own

log = logging.getLogger("vllm.xshare")
QUIET = 60.0  # seconds between two warnings that the file cannot be written
_warnings: set[str] = set()


def warn_once(sentence: str) -> None:
    """Warn once per process."""
    if sentence not in _warnings:
        _warnings.add(sentence)
        log.warning("xshare: no figures in /metrics: %s", sentence)


def report_path(instance: str, stage: int = 0, rank: int = 0) -> Path:
    """A path that a worker and the server of its engine both know, in a folder that only this user can write to. Each
    pipeline stage of each data-parallel rank has a file."""
    instance = instance.removesuffix(f"_dp{rank}")  # which some of vLLM's processes append
    name = re.sub(r"[^\w-]", "_", instance) + (f"-rank{rank}" if rank else "") + (f"-stage{stage}" if stage else "")
    return Path(tempfile.gettempdir(), f"xshare-{os.getuid()}", f"{name}.json")


def read_report(path: Path) -> dict[str, Any] | None:
    """The figures in a file of ours. None where there are none or, with a warning, where it may not be ours."""
    try:
        with own_folder(path.parent) as folder:
            report = json.loads(read_own(folder, path.name))
        return report if isinstance(report, dict) else None
    except FileNotFoundError:
        return None
    except NotOurs as error:
        warn_once(str(error))
    except (OSError, ValueError, RecursionError) as error:
        warn_once(f"{path} cannot be read: {type(error).__name__}")
    return None


def write_report(path: Path, text: str) -> None:
    with own_folder(path.parent, make=True) as folder:
        write_own(folder, path.name, text.encode())


def remove_report(path: Path) -> None:
    with contextlib.suppress(OSError, NotOurs), own_folder(path.parent) as folder:
        os.unlink(path.name, dir_fd=folder)


def remove_stale(path: Path) -> None:
    """Remove the files that killed workers left in a folder of ours."""
    with contextlib.suppress(OSError, NotOurs), own_folder(path) as folder:
        for name in os.listdir(folder):  # noqa: PTH208 (a descriptor)
            with contextlib.suppress(OSError, NotOurs, ValueError, KeyError, TypeError, RecursionError):
                _, _, process = name.rpartition(".")  # a temporary file ends in its writer's process id
                if not _runs(json.loads(read_own(folder, name))["pid"] if process == "json" else process):
                    os.unlink(name, dir_fd=folder)


def _runs(process: int | str) -> bool:
    return Path("/proc", str(int(process))).exists()


class Reporter(threading.Thread):
    """Writes the figures to a file, and at intervals to the log. It never touches the device.

    It ends with its engine, and does not keep the state alive, which holds the model: a process may start several
    engines one after another.
    """

    def __init__(self, snapshot: Callable[[], dict[str, Any]], path: Path, interval: float) -> None:
        """`snapshot` is a bound method; `interval` in seconds, between two lines in the log."""
        super().__init__(name="xshare-metrics", daemon=True)
        self._snapshot, self.path, self._every = weakref.WeakMethod(snapshot), path, interval
        self._done = threading.Event()
        self._last = ""
        self._warned: float | None = None  # time of the last warning that the file cannot be written
        self._written = True  # whether the last write need not be tried again

    def run(self) -> None:
        every, waited = self._every, 0.0
        while not self._done.wait(min(1.0, every)):
            waited += min(1.0, every)
            if (stats := self.snapshot()) is None:
                return self.stop()
            text = json.dumps(stats)
            changed, self._last = text != self._last, text
            if changed or not self._written:
                self._written = self.write(text)
            if changed and waited >= every:
                waited = 0.0
                log.info(log_line(stats))

    def write(self, text: str) -> bool:
        """Whether the write need not be tried again. A full disk or a foreign folder must not stop the engine."""
        try:
            write_report(self.path, text)
        except NotOurs as error:
            warn_once(str(error))
        except OSError as error:
            if self._warned is None or time.monotonic() - self._warned >= QUIET:
                self._warned = time.monotonic()
                log.warning("xshare: cannot write %s: %s", self.path, error.strerror)
            return False
        return True

    def snapshot(self) -> dict[str, Any] | None:
        """The figures now; None once the engine is closed."""
        snapshot = self._snapshot()
        return None if snapshot is None else snapshot()

    def stop(self) -> None:
        self._done.set()
        remove_report(self.path)
