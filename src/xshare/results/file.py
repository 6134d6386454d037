"""The file itself: written whole, and not over measurements that a command would go on from."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from xshare.errors import XShareError
from xshare.files import check_writable, whole_file
from xshare.policy_text import current_policy_text

Row = dict[str, Any]
FORMAT = 2  # of what is written: since 2, a policy without a score votes with a row's own weights
POLICIES = ("policy", "scan", "timed", "point")  # columns that hold one


def write_result(path: Path, rows: list[Row], stamp: dict[str, Any], **more: list[Row]) -> None:
    """`more`: other lists of flat records, such as the samples that the rows were made from."""
    with whole_file(path) as temporary:
        temporary.write_text(as_text({"format": FORMAT, "provenance": stamp, "rows": rows, **more}))


def as_text(content: Row) -> str:
    """JSON with a record a line: what a run adds is what a diff shows."""

    def lines(value: Any) -> str:
        if not isinstance(value, list):
            return json.dumps(value, allow_nan=False)
        return "[\n" + ",\n".join(json.dumps(record, allow_nan=False) for record in value) + "\n]"

    return "{\n" + ",\n".join(f"{json.dumps(name)}: {lines(value)}" for name, value in content.items()) + "\n}\n"


def with_current_policies(found: Row) -> Row:
    """The content of a file with its policies spelled as today, whenever it was written."""
    if "format" in found:
        return found
    for name, records in found.items():
        if isinstance(records, list):
            found[name] = [_as_meant(record) if isinstance(record, dict) else record for record in records]
    return found


def _as_meant(record: Row) -> Row:
    return {
        name: current_policy_text(value) if name in POLICIES and isinstance(value, str) else value
        for name, value in record.items()
    }


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_replaceable(path: Path) -> None:
    """Refuse to write over what cannot be, or over measurements that a command would go on from."""
    check_writable(path)
    if not path.exists():
        return
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return
    stamp = found.get("provenance") if isinstance(found, dict) else None
    if isinstance(stamp, dict) and "fingerprint" in stamp:
        argv = stamp.get("argv")
        by = " ".join(map(str, argv[:2])) if isinstance(argv, list) else "a command"
        raise XShareError(f"{str(path)!r} holds what `{by}` has measured and would go on from: name another file")
