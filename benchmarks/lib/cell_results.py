"""A result file that grows cell by cell, with native's answers in a file beside it until all cells are measured."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lib.answer_bench import Setting
from xshare import models
from xshare.files import check_writable
from xshare.results import Results, Row
from xshare.version import __version__


class CellResults(Results):
    """Rows of cells (a policy in a setting), known by a key; whether all are measured; native's answers."""

    def __init__(
        self,
        path: Path,
        about: Row,
        setting: Row,
        key: Sequence[str],
        lists: Sequence[str] = (),
        part: Row | None = None,
    ) -> None:
        """about, setting  describe the model and the questions; a file of another model or other questions is refused,
                        unless it consists of parts
        key             columns that a cell is known by
        part            in a file of several models or sets of questions: the columns that mark this one's cells
        """
        check_writable(path)
        identity, code = about | setting, {"xshare": __version__}
        stamp = about | {"gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None}
        super().__init__(path, code | (identity if part is None else {"parts": list(part)}), stamp, ("samples", *lists))
        self.key, self.part = tuple(key), part or {}
        if part is None:
            self.provenance.setdefault("complete", False)
        mark = "".join(f".{part[name]}" for name in ("model", "set")) if part else ""
        self.native_path = path.with_suffix(f"{mark}.native.json")  # too large to keep in the end
        self._natives = Results(None if self.complete else self.native_path, identity | code, stamp)

    @property
    def complete(self) -> bool:
        return bool(self.provenance.get("complete"))

    @property
    def done(self) -> set[tuple[Any, ...]]:
        return {tuple(sample[name] for name in self.key) for sample in self.samples if self.is_of_part(sample)}

    def is_of_part(self, record: Row) -> bool:
        return self.part.items() <= record.items()

    def add(self, row: Row, right: Sequence[bool]) -> None:
        """Add a cell: its row, and per question whether it was answered rightly."""
        self.rows.append(self.part | row)
        marks = "".join(str(int(answered)) for answered in right)
        self.samples.append(self.part | {name: row[name] for name in self.key} | {"right": marks})

    def add_native(self, native: Row) -> None:
        self._natives.samples.append(native)
        self._natives.write()

    def has_native(self, setting: Setting) -> bool:
        return any(Setting.of(native) == setting for native in self._natives.samples)

    def native(self, setting: Setting) -> Row:
        return next(native for native in self._natives.samples if Setting.of(native) == setting)

    def finish(self) -> None:
        """Mark the file as complete, and remove native's answers beside it."""
        self.write(**({} if self.part else {"complete": True}))
        self.native_path.unlink(missing_ok=True)


def weights_hash(model: str) -> str:
    """A hash of a model's weight files: it tells a model from the same one trained anew, wherever it was copied."""
    sums = hashlib.sha256()
    for file in sorted((models.folder(model) if model in models.NAMES else Path(model)).glob("*.safetensors")):
        with file.open("rb") as opened:
            sums.update(hashlib.file_digest(opened, "sha256").digest())
    return sums.hexdigest()[:16]
