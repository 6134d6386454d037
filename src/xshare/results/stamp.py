"""The stamp of a run: which code made a result, where and when."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from xshare.version import __version__

SECRET = ("--api-key",)  # options whose values are never shown or stored


def provenance(**more: Any) -> dict[str, Any]:
    """What it takes to repeat this run: command, versions, commit, machine; and `more`, such as seeds."""
    packages = ("torch", "numpy", "safetensors")
    versions = {"python": platform.python_version(), "xshare": __version__}
    return {
        "argv": [Path(sys.argv[0]).name, *without_secrets(sys.argv[1:])],
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions | {name: metadata.version(name) for name in packages},
        "machine": f"{platform.system()} {platform.machine()}",
        "git": commit(Path(__file__)),
        **more,
    }


def without_secrets(words: Sequence[str]) -> list[str]:
    """A command line that may be shown and stored: `***` in place of a key."""
    safe: list[str] = []
    for word in words:
        name, equals, _ = word.partition("=")
        if safe and safe[-1] in SECRET:
            word = "***"
        elif equals and name in SECRET:
            word = f"{name}=***"
        safe.append(word)
    return safe


def commit(file: Path) -> str | None:
    """The commit of the checkout that holds `file`, with `+changes` if its code differs; None if nothing is known.

    XSHARE_COMMIT names the commit of a copy whose own repository is stale or missing. The code is compared with that
    commit, or with HEAD if the repository does not know it. Without a checkout, XSHARE_COMMIT is returned as it is.
    """
    claimed = os.environ.get("XSHARE_COMMIT") or None

    def git(*words: str, check: bool = True) -> str:
        command = ["git", "-C", str(file.parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=check).stdout.strip()

    try:
        if not git("ls-files", file.name):
            return claimed  # an installed package inside some other repository
        code = (":/src", ":/benchmarks")  # only these make results; the results themselves may change
        head = git("rev-parse", "HEAD")
        known = git("rev-parse", "--verify", "--quiet", f"{claimed}^{{commit}}", check=False) if claimed else head
        changed = git("diff", "--name-only", known or head, "--", *code)
        return (claimed or head) + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return claimed
