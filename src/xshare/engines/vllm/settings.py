"""The settings in `--additional-config '{"xshare": {...}}'`: an object with the fields of serving/settings.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xshare.engines.serving.settings import Settings, SettingsError, read_settings
from xshare.errors import short_repr
from xshare.policy import Policy


def is_configured(additional_config: Any) -> bool:
    """Whether an engine has the `xshare` key. Its additional_config may also be another plugin's object."""
    return isinstance(additional_config, Mapping) and "xshare" in additional_config


def has_changed_meaning(policy: Policy, additional_config: Mapping[str, Any]) -> bool:
    """Whether version 0.1 served this `xshare` key by another score: it knew no guarantees, prices and powers, and took
    the full score where none was named, in the key or in a profile."""
    fields = additional_config["xshare"]
    if "score" in fields or "profile" in fields or "score=" in str(fields.get("policy", "")):
        return False
    known = policy.coverage is None and policy.price is None and policy.power == 1
    return policy.method == "xshare" and known


def settings_of(additional_config: Any) -> Settings | None:
    """The settings in an engine's additional_config; None where it has no `xshare` key."""
    if not is_configured(additional_config):
        return None
    fields = additional_config["xshare"]
    if not isinstance(fields, Mapping):
        raise SettingsError(f"xshare in additional_config must be an object of settings, not {short_repr(fields)}")
    return read_settings(fields)
