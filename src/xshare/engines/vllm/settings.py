"""The settings in `--additional-config '{"xshare": {...}}'`: an object with the fields of serving/settings.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xshare.engines.serving.settings import Settings, SettingsError, read_settings
from xshare.errors import short_repr


def is_configured(additional_config: Any) -> bool:
    """Whether an engine has the `xshare` key. Its additional_config may also be another plugin's object."""
    return isinstance(additional_config, Mapping) and "xshare" in additional_config


def names_score(additional_config: Mapping[str, Any]) -> bool:
    """Whether the `xshare` key names the score that is summed, itself or in a profile."""
    fields = additional_config["xshare"]
    return "score" in fields or "profile" in fields or "score=" in str(fields.get("policy", ""))


def settings_of(additional_config: Any) -> Settings | None:
    """The settings in an engine's additional_config; None where it has no `xshare` key."""
    if not is_configured(additional_config):
        return None
    fields = additional_config["xshare"]
    if not isinstance(fields, Mapping):
        raise SettingsError(f"xshare in additional_config must be an object of settings, not {short_repr(fields)}")
    return read_settings(fields)
