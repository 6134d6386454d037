"""The result file while it grows: samples of whole repeats, from which the same command goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from xshare.errors import XShareError
from xshare.files import check_writable
from xshare.results import Row


def samples_kept(path: Path | None, fingerprint: Row, name: str = "samples", *, whole: bool = True) -> list[Row]:
    """Those of an earlier run with the same settings, or its list `name`. Any other file is left alone, and refused.

    Not `whole`: settings that the fingerprint does not name may be any.
    """
    if path is None or not path.exists():
        return []
    try:
        found = json.loads(path.read_text())
        earlier, samples = dict(found["provenance"]["fingerprint"]), found[name]
    except OSError as error:
        raise XShareError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise XShareError(f"{str(path)!r} holds no results that could be gone on with: name another file") from None
    if not whole:
        earlier = {each: earlier[each] for each in earlier if each in fingerprint}
    differing = differences(earlier, json.loads(json.dumps(fingerprint)))
    if differing:
        raise XShareError(
            f"{str(path)!r} was measured with other settings, {differing}: name another file, or remove that one"
        )
    kept: list[Row] = samples
    return kept


def check_kept(path: Path | None, known: Row) -> None:
    """Refuse a file that cannot be written or continued, as far as is known before an engine is up, a minute later."""
    if path is not None:
        check_writable(path)
        samples_kept(path, known, whole=False)


def lasting(options: dict[str, Any]) -> dict[str, Any]:
    """Of an engine's arguments those that results depend on: how long to wait for a server is none of them."""
    return {name: value for name, value in options.items() if name != "timeout"}


def differences(earlier: dict[str, Any], now: dict[str, Any]) -> str:
    """`tokens 32 instead of 64`, of every setting that is another."""
    return ", ".join(
        f"{name} {_spelled(earlier.get(name))} instead of {_spelled(now.get(name))}"
        for name in sorted({*earlier, *now})
        if earlier.get(name) != now.get(name)
    )


def _spelled(value: Any) -> str:
    return value if isinstance(value, str) else "none" if value is None else json.dumps(value)
