"""What `--additional-config '{"xshare": {...}}'` may say: an object of the settings that all serving engines take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xshare.engines.serving.settings import Settings, SettingsError, read_settings
from xshare.errors import short_repr


def is_configured(additional_config: Any) -> bool:
    """Whether an engine has the `xshare` key. Its additional_config may be an object of another plugin's."""
    return isinstance(additional_config, Mapping) and "xshare" in additional_config


def names_score(additional_config: Mapping[str, Any]) -> bool:
    """Whether the `xshare` key says what is summed, itself or by a profile."""
    given = additional_config["xshare"]
    return "score" in given or "profile" in given or "score=" in str(given.get("policy", ""))


def settings_of(additional_config: Any) -> Settings | None:
    """The settings in an engine's additional_config; None where it has no `xshare` key."""
    if not is_configured(additional_config):
        return None
    given = additional_config["xshare"]
    if not isinstance(given, Mapping):
        raise SettingsError(f"xshare in additional_config must be an object of settings, not {short_repr(given)}")
    return read_settings(given)
