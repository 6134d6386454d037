"""Writing a result file: whole or not at all, and never over results that a command could resume."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from xshare.errors import XShareError
from xshare.files import check_writable, whole_file
from xshare.policy_text import current_policy_text

Row = dict[str, Any]
FORMAT = 2  # since format 2, a policy without a score means score=topk
POLICIES = ("policy", "scan", "timed", "point")  # columns that hold a policy


def write_result(path: Path, rows: list[Row], stamp: dict[str, Any], **more: list[Row]) -> None:
    """`more`: other lists of flat records, such as the samples that the rows were made from."""
    with whole_file(path) as temporary:
        temporary.write_text(as_text({"format": FORMAT, "provenance": stamp, "rows": rows, **more}))


def as_text(content: Row) -> str:
    """JSON with one record per line, so that a diff shows what a run added."""

    def lines(value: Any) -> str:
        if not isinstance(value, list):
            return json.dumps(value, allow_nan=False)
        return "[\n" + ",\n".join(json.dumps(record, allow_nan=False) for record in value) + "\n]"

    return "{\n" + ",\n".join(f"{json.dumps(name)}: {lines(value)}" for name, value in content.items()) + "\n}\n"


def with_current_policies(content: Row) -> Row:
    """The content of a result file, with policies of older formats in today's form."""
    if "format" in content:
        return content
    for name, records in content.items():
        if isinstance(records, list):
            content[name] = [_current_record(record) if isinstance(record, dict) else record for record in records]
    return content


def _current_record(record: Row) -> Row:
    return {
        name: current_policy_text(value) if name in POLICIES and isinstance(value, str) else value
        for name, value in record.items()
    }


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_replaceable(path: Path) -> None:
    """Refuse an output path that cannot be written, or that holds results a command could resume."""
    check_writable(path)
    if not path.exists():
        return
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return
    stamp = content.get("provenance") if isinstance(content, dict) else None
    if isinstance(stamp, dict) and "fingerprint" in stamp:
        argv = stamp.get("argv")
        command = " ".join(map(str, argv[:2])) if isinstance(argv, list) else "a command"
        raise XShareError(f"{str(path)!r} holds what `{command}` has measured and would go on from: name another file")
