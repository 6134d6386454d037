"""How a start is refused, which SGLang must not log and forget."""

from __future__ import annotations

from typing import NoReturn

from xshare.errors import XShareError


class StartRefused(SystemExit):
    """No Exception: SGLang catches those of plugins."""


def refuse(error: XShareError | str) -> NoReturn:
    raise StartRefused(f"xshare: {error}")
