"""Whether an engine's functions have the parameters that are relied on."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from xshare.engines.serving.settings import SettingsError

Signatures = Mapping[tuple[str, str], Sequence[str]]  # by module and name


def check_signatures(signatures: Signatures, engine: str, way_out: str) -> None:
    """`engine`: with its version. `way_out`: what a user can do about it."""
    for (module, name), wanted in signatures.items():
        try:
            found: Any = import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
            missing = [each for each in wanted if each not in inspect.signature(found).parameters]
        except (ImportError, AttributeError):
            missing = ["the function itself"]
        if missing:
            raise SettingsError(
                f"{module}.{name} of {engine} lacks {', '.join(missing)}, which xshare relies on: report this version, "
                f"{way_out}"
            )
