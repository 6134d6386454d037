"""The settings in the environment variable XSHARE: JSON, or the path of a profile.

XSHARE='{"policy": "k0=1,m=24"}'      the fields that vLLM's `xshare` key takes
XSHARE=profile.yaml                   a file of `xshare tune`
"""

from __future__ import annotations

import json
import os

from xshare.engines.serving.settings import Settings, SettingsError, read_settings
from xshare.errors import short_repr

VARIABLE = "XSHARE"


def settings_of_environment() -> Settings | None:
    """The settings in the variable; None where it is not set or empty."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return None
    if not text.startswith("{"):
        return read_settings({"profile": text})
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(
            f"{VARIABLE} must be a JSON object or a profile's path, not {short_repr(text)}: {error}"
        ) from None
    return read_settings(fields)
