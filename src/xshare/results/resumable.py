"""A result file that grows: results are saved as they are measured, and the same command resumes from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xshare.errors import XShareError
from xshare.files import check_writable, quoted_path
from xshare.results.file import Row, as_text, with_current_policies, write_result
from xshare.results.stamp import provenance

STAMP = "stamp"  # column of a record in the file: the number of the run that made it


class Results:
    """`rows`, and `lists` by name of what the rows were made from; `write` saves all of it.

    In the file every record says which run made it. A record with `stamp` n belongs to the n-th of the file's `stamps`;
    a record without one belongs to the first run, whose stamp is the `provenance`. Stamps of earlier runs stay as they
    are, and a run that adds nothing leaves no stamp. A stamp that says what it `corrects` was added by hand, and is
    kept like any other. In memory, records have no stamps.
    """

    def __init__(
        self, path: Path | None, fingerprint: Row | None, about: Row, lists: Sequence[str] = ("samples",)
    ) -> None:
        """path         None: nothing is written
        fingerprint  the settings that a file must agree with to be resumed; any other file is refused, and stays as it
                     is. None: an existing file is replaced
        about        what the stamp says of this run, besides code, time and machine
        lists        names of lists besides `rows`; a file without the first of them cannot be resumed
        """
        self.path = path
        earlier = {} if fingerprint is None else read_earlier(path, fingerprint, *lists[:1])
        settings = {} if fingerprint is None else {"fingerprint": fingerprint}
        self._stamp = provenance(**about)
        self.provenance: Row = earlier.get("provenance") or self._stamp | settings
        self._stamps: list[Row] = earlier.get("stamps", [])
        self._run = len(self._stamps) + 1 if earlier else None  # the number of this run; None for the first
        self._run_of: dict[tuple[str, str], int | None] = {}  # (list, record) -> the run that made it
        self.rows: list[Row] = self._unstamped("rows", earlier)
        self.lists: dict[str, list[Row]] = {name: self._unstamped(name, earlier) for name in lists}

    @property
    def samples(self) -> list[Row]:
        return self.lists["samples"]

    def put(self, records: Sequence[Row], by: Sequence[str], into: str = "rows") -> None:
        """Add records, in place of those with the same values in the columns `by`."""
        target = self.rows if into == "rows" else self.lists[into]
        new_keys = [[record[name] for name in by] for record in records]
        target[:] = [old for old in target if [old[name] for name in by] not in new_keys]
        target += records

    def add_to_stamp(self, facts: Row, same: Sequence[str] = ()) -> None:
        """Add what this run has learnt of itself, such as its device, to its own stamp. A run that differs from the
        file's latest in a fact of `same` is refused, and the file stays as it is."""
        earlier: Row = {}
        for stamp in (self.provenance, *self._stamps):
            earlier |= {name: stamp[name] for name in same if stamp.get(name) is not None}
        now = {name: facts[name] for name in earlier if facts.get(name) is not None}
        _check_same(self.path, {name: earlier[name] for name in now}, now)
        own_stamp = self.provenance if self._run is None else self._stamp
        own_stamp |= facts

    def write(self, **conclusions: Any) -> None:
        """Write the file whole: if the run is killed, the previous file stays. `conclusions` are drawn from all
        records, whichever run made them, and stand in the provenance."""
        self.provenance |= conclusions
        if self.path is None:
            return
        lists = {"rows": self.rows, **self.lists}
        rows, *others = (self._stamped(name, records) for name, records in lists.items())
        stamps = {"stamps": self._stamps} if self._stamps else {}
        write_result(self.path, rows, self.provenance, **stamps, **dict(zip(self.lists, others, strict=True)))

    def _unstamped(self, name: str, earlier: Row) -> list[Row]:
        records: list[Row] = earlier.get(name, [])
        for record in records:
            number = record.pop(STAMP, None)
            self._run_of.setdefault((name, _text(record)), number)
        return records

    def _stamped(self, name: str, records: Sequence[Row]) -> list[Row]:
        runs = [self._run_of.get((name, _text(record)), self._run) for record in records]
        if self._run in runs and self._run is not None and len(self._stamps) < self._run:
            self._stamps.append(self._stamp)
        return [record if run is None else record | {STAMP: run} for record, run in zip(records, runs, strict=True)]


def _text(record: Row) -> str:
    return json.dumps(record, sort_keys=True)


def read_earlier(path: Path | None, fingerprint: Row, *needed: str, whole: bool = True) -> Row:
    """The content of an earlier run's file with the same settings; {} if there is no file. A file with other settings,
    or without one of the `needed` lists, is refused.

    With whole=False, only the settings that the fingerprint names are compared.
    """
    if path is None:
        return {}
    try:
        if not path.exists():
            return {}
        content: Row = with_current_policies(json.loads(path.read_text()))
        earlier = dict(content["provenance"]["fingerprint"])
        for name in needed:
            content[name]
        as_text(content)  # raises if it could not be written again: JSON has no Infinity
        for name, records in content.items():
            if name not in ("format", "provenance") and not _are_records(records):
                raise ValueError(name)
    except OSError as error:
        raise XShareError(f"{quoted_path(path)} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise XShareError(f"{str(path)!r} holds no results that could be gone on with: name another file") from None
    if not whole:
        earlier = {name: value for name, value in earlier.items() if name in fingerprint}
    _check_same(path, earlier, json.loads(json.dumps(fingerprint)))
    return content


def _are_records(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(record, dict) for record in value)


def check_resumable(path: Path | None, settings: Row) -> None:
    """Refuse a file that cannot be written or resumed, before an engine starts, which takes a minute. `settings`: those
    that are already known."""
    if path is not None:
        check_writable(path)
        read_earlier(path, settings, "samples", whole=False)


def _check_same(path: Path | None, earlier: Row, now: Row) -> None:
    if differing := _differences(earlier, now):
        raise XShareError(
            f"{str(path)!r} was measured with other settings, {differing}: name another file, or remove that one"
        )


def _differences(earlier: Row, now: Row) -> str:
    """The settings that differ, as text: `tokens 32 instead of 64`."""
    return ", ".join(
        f"{name} {_setting_text(earlier.get(name))} instead of {_setting_text(now.get(name))}"
        for name in sorted({*earlier, *now})
        if earlier.get(name) != now.get(name)
    )


def _setting_text(value: Any) -> str:
    return value if isinstance(value, str) else "none" if value is None else json.dumps(value)
