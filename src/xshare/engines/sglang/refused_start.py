"""Refuses a start so that SGLang cannot just log it and continue."""

from __future__ import annotations

from typing import NoReturn

from xshare.errors import XShareError


class StartRefused(SystemExit):
    """Not an Exception: SGLang catches those in plugins."""


def refuse(error: XShareError | str) -> NoReturn:
    raise StartRefused(f"xshare: {error}")
