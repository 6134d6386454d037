"""A result file that grows cell by cell, and native's answers beside it for as long as there is more to measure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from answers import Setting

from xshare.files import check_writable
from xshare.results import Results, Row
from xshare.version import __version__


class Kept(Results):
    """Cells known by a key, whether they are all there, and native's answers."""

    def __init__(self, path: Path, about: Row, setting: Row, key: Sequence[str], lists: Sequence[str] = ()) -> None:
        """`about` the model and `setting`: a file of any other is refused. `key`: what samples are known by."""
        check_writable(path)
        fingerprint = about | setting | {"xshare": __version__}
        here = about | {"gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None}
        super().__init__(path, fingerprint, here, ("samples", *lists))
        self.key = tuple(key)
        self.provenance.setdefault("complete", False)
        self.beside = path.with_suffix(".native.json")  # too large to stay
        self._natives = Results(None if self.complete else self.beside, fingerprint, here)

    @property
    def complete(self) -> bool:
        return bool(self.provenance["complete"])

    @property
    def done(self) -> set[tuple[Any, ...]]:
        return {tuple(sample[name] for name in self.key) for sample in self.samples}

    def add_native(self, native: Row) -> None:
        self._natives.samples.append(native)
        self._natives.write()

    def has_native(self, setting: Setting) -> bool:
        return any(Setting.of(native) == setting for native in self._natives.samples)

    def native(self, setting: Setting) -> Row:
        return next(native for native in self._natives.samples if Setting.of(native) == setting)

    def finish(self) -> None:
        """Nothing is left to measure."""
        self.write(complete=True)
        self.beside.unlink(missing_ok=True)
