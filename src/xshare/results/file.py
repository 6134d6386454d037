"""The file itself: written whole, and not over measurements that a command would go on from."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from xshare.errors import XShareError
from xshare.files import check_writable, whole_file

Row = dict[str, Any]


def write_result(path: Path, rows: list[Row], stamp: dict[str, Any], **more: list[Row]) -> None:
    """`more`: other lists of flat records, such as the samples that the rows were made from."""
    with whole_file(path) as temporary:
        found = {"provenance": stamp, "rows": rows, **more}
        temporary.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_replaced(path: Path) -> None:
    """Refuse to write over what cannot be, or over measurements that a command would go on from."""
    check_writable(path)
    if not path.exists():
        return
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return
    if isinstance(found, dict) and "fingerprint" in (found.get("provenance") or {}):
        by = " ".join(found["provenance"].get("argv", [])[:2])
        raise XShareError(f"{str(path)!r} holds what `{by}` has measured and would go on from: name another file")
