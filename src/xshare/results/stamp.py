"""What a run says of itself: which code made a result, where and when."""

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

SECRET = ("--api-key",)  # options whose value nobody is shown


def provenance(**more: Any) -> dict[str, Any]:
    """What it takes to run this again: command, versions, commit, machine; seeds and the like come in as `more`."""
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
    """A command line as it may be shown and kept: `***` in place of a key."""
    found: list[str] = []
    for word in words:
        name, equals, _ = word.partition("=")
        if found and found[-1] in SECRET:
            word = "***"
        elif equals and name in SECRET:
            word = f"{name}=***"
        found.append(word)
    return found


def commit(file: Path) -> str | None:
    """The commit of the checkout that `file` is of, with a mark if its code has changes.

    XSHARE_COMMIT names the commit of a copy whose own repository is stale or missing. Changes are looked for against
    it, or against HEAD where the repository does not know it; only where there is no checkout it is taken as it is.
    None where nothing is known.
    """
    named = os.environ.get("XSHARE_COMMIT") or None

    def git(*words: str, check: bool = True) -> str:
        command = ["git", "-C", str(file.parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=check).stdout.strip()

    try:
        if not git("ls-files", file.name):
            return named  # some other repository surrounds an installed package
        code = (":/src", ":/benchmarks")  # a result is made by these; the results themselves may change
        head = git("rev-parse", "HEAD")
        known = git("rev-parse", "--verify", "--quiet", f"{named}^{{commit}}", check=False) if named else head
        changed = git("diff", "--name-only", known or head, "--", *code)
        return (named or head) + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return named
