"""What a run says of itself: which code made a result, where and when."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from xshare.version import __version__


def provenance(**more: Any) -> dict[str, Any]:
    """What it takes to run this again: command, versions, commit, machine; seeds and the like come in as `more`."""
    packages = ("torch", "numpy", "safetensors")
    versions = {"python": platform.python_version(), "xshare": __version__}
    return {
        "argv": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions | {name: metadata.version(name) for name in packages},
        "machine": f"{platform.system()} {platform.machine()}",
        "git": commit(Path(__file__)),
        **more,
    }


def commit(file: Path) -> str | None:
    """The commit of the checkout that `file` is of, with a mark if its code has changes.

    XSHARE_COMMIT names the commit of a copy whose own repository is stale or missing. Only where there is no checkout
    is it taken without a look at changes. None where nothing is known.
    """
    named = os.environ.get("XSHARE_COMMIT") or None

    def git(*words: str) -> str:
        command = ["git", "-C", str(file.parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if not git("ls-files", file.name):
            return named  # some other repository surrounds an installed package
        code = (":/src", ":/benchmarks")  # a result is made by these; the results themselves may change
        changed = git("status", "--porcelain", "--untracked-files=no", "--", *code)
        return (named or git("rev-parse", "HEAD")) + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return named
