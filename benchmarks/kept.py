"""A result file that grows cell by cell, and native's answers beside it for as long as there is more to measure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from answers import Setting

from xshare import __version__
from xshare.bench.kept import samples_kept
from xshare.files import check_writable
from xshare.results import Row, provenance, write_result


class Kept:
    """`rows`, the samples they were made from, and further lists by name; written whole after every change."""

    def __init__(self, path: Path, about: Row, setting: Row, key: Sequence[str], lists: Sequence[str] = ()) -> None:
        """`about` the model and `setting`: a file of any other is refused. `key`: what samples are known by."""
        check_writable(path)
        self.path, self.key, self.about = path, tuple(key), about
        self.fingerprint = about | setting | {"xshare": __version__}
        self.samples = samples_kept(path, self.fingerprint)
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        self.rows: list[Row] = found.get("rows", [])
        self.lists: dict[str, list[Row]] = {name: found.get(name, []) for name in lists}
        self.complete = bool(found.get("provenance", {}).get("complete"))
        self.beside = path.with_suffix(".native.json")  # too large to stay
        self._natives = [] if self.complete else samples_kept(self.beside, self.fingerprint)

    @property
    def done(self) -> set[tuple[Any, ...]]:
        return {tuple(sample[name] for name in self.key) for sample in self.samples}

    def write(self, **lists: list[Row]) -> None:
        self.lists |= lists
        write_result(self.path, self.rows, self._stamp(), samples=self.samples, **self.lists)

    def _stamp(self) -> dict[str, Any]:
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
        return provenance(**self.about, gpu=gpu, fingerprint=self.fingerprint, complete=self.complete)

    # Native's answers

    def add_native(self, native: Row) -> None:
        self._natives.append(native)
        write_result(self.beside, [], self._stamp(), samples=self._natives)

    def has_native(self, setting: Setting) -> bool:
        return any(Setting.of(native) == setting for native in self._natives)

    def native(self, setting: Setting) -> Row:
        return next(native for native in self._natives if Setting.of(native) == setting)

    def finish(self) -> None:
        """Nothing is left to measure."""
        self.complete = True
        self.write()
        self.beside.unlink(missing_ok=True)
