"""Whether an engine's functions have the parameters that XShare relies on."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from xshare.engines.serving.settings import SettingsError

Signatures = Mapping[tuple[str, str], Sequence[str]]  # parameters, by module and function


def check_signatures(signatures: Signatures, engine: str, way_out: str) -> None:
    """Refuse an engine that lacks one. `engine`: its name and version. `way_out`: what a user can do about it."""
    for (module, name), parameters in signatures.items():
        try:
            function: Any = import_module(module)
            for part in name.split("."):
                function = getattr(function, part)
            present = inspect.signature(function).parameters
            missing = [parameter for parameter in parameters if parameter not in present]
        except (ImportError, AttributeError):
            missing = ["the function itself"]
        if missing:
            raise SettingsError(
                f"{module}.{name} of {engine} lacks {', '.join(missing)}, which xshare relies on: report this version, "
                f"{way_out}"
            )
