"""Result files: `{"provenance": {...}, "rows": [flat records]}`, the one form every table and plot is made from."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from xshare.errors import XShareError
from xshare.files import check_writable, whole_file
from xshare.version import __version__

Row = dict[str, Any]


def provenance(**more: Any) -> dict[str, Any]:
    """What it takes to run this again: command, versions, commit, machine; seeds and the like come in as `more`."""
    packages = ("torch", "numpy", "safetensors")
    versions = {"python": platform.python_version(), "xshare": __version__}
    return {
        "argv": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions | {name: metadata.version(name) for name in packages},
        "machine": f"{platform.system()} {platform.machine()}",
        "git": _git(),
        **more,
    }


def write_result(path: Path, rows: list[Row], stamp: dict[str, Any], **more: list[Row]) -> None:
    """`more`: other lists of flat records, such as the samples that the rows were made from."""
    with whole_file(path) as temporary:
        found = {"provenance": stamp, "rows": rows, **more}
        temporary.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _git() -> str | None:
    """The commit of the checkout this package runs from, with a mark if it has changes.

    XSHARE_COMMIT names it for a copy without its repository, or with a stale one; None when neither is there.
    """
    if named := os.environ.get("XSHARE_COMMIT"):
        return named

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if not git("ls-files", Path(__file__).name):
            return None  # some other repository surrounds an installed package
        code = (":/src", ":/benchmarks")  # a result is made by these; the results themselves may change
        changed = git("status", "--porcelain", "--untracked-files=no", "--", *code)
        return git("rev-parse", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


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
