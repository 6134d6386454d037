"""A result file that grows: what is measured is there at once, and the same command goes on from it another time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xshare.errors import XShareError
from xshare.files import check_writable, quoted_path
from xshare.results.file import Row, as_text, with_current_policies, write_result
from xshare.results.stamp import provenance

STAMP = "stamp"  # of a record in the file: the number of the run that made it


class Results:
    """`rows`, and by name `lists` of what they were made from; `write` puts all of it into the file.

    In the file every record says which run made it: one with `stamp` n is of the n-th of the file's `stamps`, one
    without is of the first run, whose stamp is the `provenance`. Stamps of earlier runs stay as they are, and a run
    that adds nothing leaves none. A stamp that says what it `corrects` was put in by hand, and is kept like any other.
    In here records are without their stamps.
    """

    def __init__(
        self, path: Path | None, fingerprint: Row | None, about: Row, lists: Sequence[str] = ("samples",)
    ) -> None:
        """path         None: nothing is written
        fingerprint  the settings that must agree for a file to be gone on from; any other file is left alone, and
                     refused. None: a file that is there is replaced
        about        what this run says of itself, beside code, time and machine
        lists        beside `rows`; a file that lacks the first of them is none to go on from
        """
        self.path = path
        found = {} if fingerprint is None else read_earlier(path, fingerprint, *lists[:1])
        known = {} if fingerprint is None else {"fingerprint": fingerprint}
        self._stamp = provenance(**about)
        self.provenance: Row = found.get("provenance") or self._stamp | known
        self._stamps: list[Row] = found.get("stamps", [])
        self._run = len(self._stamps) + 1 if found else None  # this one's number
        self._made: dict[tuple[str, str], int | None] = {}  # by list and record: the run that made it
        self.rows: list[Row] = self._unstamped("rows", found)
        self.lists: dict[str, list[Row]] = {name: self._unstamped(name, found) for name in lists}

    @property
    def samples(self) -> list[Row]:
        return self.lists["samples"]

    def put(self, records: Sequence[Row], by: Sequence[str], into: str = "rows") -> None:
        """In place of those that have the same values in the columns `by`."""
        there = self.rows if into == "rows" else self.lists[into]
        new = [[record[name] for name in by] for record in records]
        there[:] = [old for old in there if [old[name] for name in by] not in new]
        there += records

    def write(self, **facts: Any) -> None:
        """Whole: a run that is killed leaves the file of before. `facts` are of all of it, and join its provenance."""
        self.provenance |= facts
        if self.path is None:
            return
        rows, *others = (self._stamped(name, each) for name, each in {"rows": self.rows, **self.lists}.items())
        stamps = {"stamps": self._stamps} if self._stamps else {}
        write_result(self.path, rows, self.provenance, **stamps, **dict(zip(self.lists, others, strict=True)))

    def _unstamped(self, name: str, found: Row) -> list[Row]:
        records: list[Row] = found.get(name, [])
        for record in records:
            number = record.pop(STAMP, None)
            self._made.setdefault((name, _text(record)), number)
        return records

    def _stamped(self, name: str, records: Sequence[Row]) -> list[Row]:
        runs = [self._made.get((name, _text(record)), self._run) for record in records]
        if self._run in runs and self._run is not None and len(self._stamps) < self._run:
            self._stamps.append(self._stamp)
        return [record if run is None else record | {STAMP: run} for record, run in zip(records, runs, strict=True)]


def _text(record: Row) -> str:
    return json.dumps(record, sort_keys=True)


def read_earlier(path: Path | None, fingerprint: Row, *needed: str, whole: bool = True) -> Row:
    """The content of a file of an earlier run with the same settings, {} where none is. Any other file is refused, as
    is one without the lists that are `needed`.

    Not `whole`: settings that the fingerprint does not name may be any.
    """
    if path is None:
        return {}
    try:
        if not path.exists():
            return {}
        found: Row = with_current_policies(json.loads(path.read_text()))
        earlier = dict(found["provenance"]["fingerprint"])
        for name in needed:
            found[name]
        as_text(found)  # or it could not be written again: JSON has no Infinity
        for name, records in found.items():
            if name not in ("format", "provenance") and not _are_records(records):
                raise ValueError(name)
    except OSError as error:
        raise XShareError(f"{quoted_path(path)} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise XShareError(f"{str(path)!r} holds no results that could be gone on with: name another file") from None
    if not whole:
        earlier = {each: earlier[each] for each in earlier if each in fingerprint}
    differing = _differences(earlier, json.loads(json.dumps(fingerprint)))
    if differing:
        raise XShareError(
            f"{str(path)!r} was measured with other settings, {differing}: name another file, or remove that one"
        )
    return found


def _are_records(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def check_resumable(path: Path | None, known: Row) -> None:
    """Refuse a file that cannot be written or continued, as far as is known before an engine is up, a minute later."""
    if path is not None:
        check_writable(path)
        read_earlier(path, known, "samples", whole=False)


def _differences(earlier: Row, now: Row) -> str:
    """`tokens 32 instead of 64`, of every setting that is another."""
    return ", ".join(
        f"{name} {_spelled(earlier.get(name))} instead of {_spelled(now.get(name))}"
        for name in sorted({*earlier, *now})
        if earlier.get(name) != now.get(name)
    )


def _spelled(value: Any) -> str:
    return value if isinstance(value, str) else "none" if value is None else json.dumps(value)
