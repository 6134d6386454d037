"""The figures in a small file of the worker's own; the process that serves /metrics reads it when it is scraped."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xshare.engines.vllm.settings import SettingsError
from xshare.errors import XShareError
from xshare.files import whole_file

log = logging.getLogger("vllm.xshare")


def report_path(instance: str) -> Path:
    """A file that the worker and the server of one engine both know, in a folder that only this user can write to."""
    folder = Path(tempfile.gettempdir(), f"xshare-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise SettingsError(f"{folder} belongs to another user: remove it, or set metrics in xshare to false")
    return folder / f"{instance}.json"


def remove_stale(folder: Path) -> None:
    """Remove the files of workers that were killed and could not do so themselves."""
    for path in folder.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            if not Path("/proc", str(json.loads(path.read_text())["pid"])).exists():
                path.unlink()


class Reporter(threading.Thread):
    """Writes the figures to a file, and now and then to the log. It never touches the device.

    It ends with its engine: a process may start one after another, and the state holds the model.
    """

    def __init__(self, snapshot: Callable[[], dict[str, Any]], path: Path, interval: float) -> None:
        """`snapshot` is a bound method; `interval` in seconds, between two lines in the log."""
        super().__init__(name="xshare-metrics", daemon=True)
        self._snapshot, self.path, self._every = weakref.WeakMethod(snapshot), path, interval
        self._done = threading.Event()
        self._last = ""

    def run(self) -> None:
        every, waited = self._every, 0.0
        while not self._done.wait(min(1.0, every)):
            waited += min(1.0, every)
            if (found := self.snapshot()) is None:
                return self.stop()
            if (spelled := json.dumps(found)) == self._last:
                continue
            self._last = spelled
            try:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with whole_file(self.path) as temporary:
                    temporary.write_text(spelled)
            except (OSError, XShareError) as error:  # a full disk, a folder that was cleaned: not the engine's trouble
                log.warning("xshare: cannot write %s: %s", self.path, error)
            if waited >= every:
                waited = 0.0
                log.info(line(found))

    def snapshot(self) -> dict[str, Any] | None:
        """The figures now; None once the engine has gone."""
        snapshot = self._snapshot()
        return None if snapshot is None else snapshot()

    def stop(self) -> None:
        self._done.set()
        self.path.unlink(missing_ok=True)


def line(found: dict[str, Any]) -> str:
    """One line for the log."""
    bypassed = ", ".join(f"{reason} {count}" for reason, count in found["steps_bypassed"].items()) or "none"
    policy = found["policy"] + (" by cost" if found["cost"] else "") + ("" if found["on"] else " (off)")
    text = f"xshare {policy}: {found['steps_pruned']} steps pruned, bypassed: {bypassed}"
    if found.get("samples"):
        native, active, mass = (
            sum(found[name]) / len(found[name]) for name in ("experts_native", "experts_active", "mass_kept")
        )
        text += f"; experts {active:.1f} of {native:.1f} a layer, gating mass {mass:.3f}"
    return text
