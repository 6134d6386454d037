"""The settings of a serving engine: the policy's own fields, and how the engine applies the policy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from xshare.engines.gates import Gates
from xshare.errors import XShareError, short_repr
from xshare.kernels.limits import MAX_ROWS
from xshare.policy import MOST, Policy
from xshare.profile import read_profile

CONTROLS = ("random",)  # methods for experiments, refused in serving unless asked for


class SettingsError(XShareError):
    """A configuration that cannot be read, or an engine in which selection would be wrong."""


class KernelGates(Gates):
    """Gates with `max_rows` limited to what a kernel can take."""

    max_rows: int = Field(MAX_ROWS, ge=1, le=MAX_ROWS, description="act on steps of at most so many rows")


class Metrics(BaseModel):
    """What is counted and reported. `true` or `false` in its place sets `on` alone."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", strict=True)

    on: bool = Field(default=True, description="whether figures are counted, logged and in /metrics")
    every: int = Field(32, ge=1, le=MOST, description="count experts in one step of so many")
    interval: float = Field(10.0, gt=0, le=MOST, description="log a line every so many seconds")


class Settings(BaseModel):
    """The `xshare` key. Descriptions are what docs/reference/settings.md shows."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", strict=True)

    policy: Policy = Field(description="a preset's name or a policy's string; or its fields, each a key of its own")
    gates: KernelGates = Field(default=KernelGates.model_validate({}), description="on which steps selection acts")
    metrics: Metrics = Field(
        default=Metrics.model_validate({}), description="what is counted and told; or true, or false"
    )
    strict: bool = Field(default=False, description="refuse to start where a single layer cannot be served")
    one_launch: bool = Field(default=True, description="do all of routing in the selection's launch, where that can be")
    layers: list[Annotated[int, Field(ge=0, le=MOST)]] | None = Field(
        default=None, min_length=1, description="MoE layers to act on, counted from 0; all where it is left out"
    )
    profile: str | None = Field(
        default=None,
        description="a file of `xshare tune` in place of the policy: refused for another model, acts on steps of at "
        "most as many requests and rows as it was measured at, and brings the staircase that it was tuned with",
    )
    live: Literal["budgets", "any"] = Field(
        default="budgets",
        description="what can be changed while serving: with `any`, selection is captured at every size, with all "
        "thresholds and, with drafts, request budgets, so that any policy can be set",
    )
    experiment: bool = Field(
        default=False,
        description="serve what nobody should serve unknowingly: `random`, a control that draws experts by lot; data "
        "parallelism on GPUs, which was not tried on several; other rivals are served without it, on a CPU",
    )
    protect: bool = Field(
        default=True, description="requests may be protected; the kernels are compiled with the code for it"
    )
    default: Literal["shared", "exact"] = Field(
        default="shared", description="what a request is that does not say so itself: `exact` protects every one"
    )
    cost: str | None = Field(
        default=None,
        description="a file of `xshare doctor --stairs`, by which sizes of sets are weighed on this machine",
    )

    @property
    def at_every_size(self) -> bool:
        """Whether selection is captured for batches of every size, also for those within the budget."""
        return self.live == "any" or not self.gates.bypass


def read_settings(fields: Mapping[str, Any]) -> Settings:
    """The settings in a JSON object's fields. An error names the field that is wrong."""
    options = {name: fields[name] for name in fields if name in Settings.model_fields and name != "policy"}
    policy_fields = {name: fields[name] for name in fields if name not in options}
    if isinstance(options.get("metrics"), bool):
        options["metrics"] = {"on": options["metrics"]}
    if unknown := [name for name in policy_fields if name not in Policy.model_fields and name != "policy"]:
        known = ["policy", *Policy.model_fields, *(name for name in Settings.model_fields if name != "policy")]
        raise SettingsError(f"{unknown[0]!r} is no key of xshare: it takes {', '.join(known)}")
    if "profile" in options:
        if policy_fields:
            raise SettingsError("profile in xshare says the policy itself: leave the other policy fields out")
        if not isinstance(options["profile"], str):
            raise SettingsError(f"profile in xshare must be the path of a file, not {options['profile']!r}")
        profile = read_profile(Path(options["profile"]))
        policy_fields = {"policy": profile.policy}
        if (stairs := profile.staircase_path(Path(options["profile"]))) is not None:
            if "cost" in options:
                raise SettingsError("profile in xshare names the staircase itself: leave cost out")
            options["cost"] = str(stairs)
        # The same budget prunes a larger batch harder, and that was not measured.
        gates = options.get("gates", {})
        if profile.batch is not None and isinstance(gates, Mapping) and "max_rows" not in gates:
            rows = min(profile.batch * (1 + profile.drafts), MAX_ROWS)
            options["gates"] = {"max_rows": rows, "max_requests": profile.batch, **gates}
    if "policy" in policy_fields:  # the string form, or a preset's name
        if not isinstance(policy_fields["policy"], str) or len(policy_fields) > 1:
            raise SettingsError(
                "policy in xshare must be a string such as 'rho=0.7', or a preset's name, without other policy fields"
            )
        policy = Policy.parse(policy_fields["policy"])
    else:
        policy = Policy(**policy_fields)
    try:
        settings = Settings(policy=policy, **options)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise SettingsError(
            f"{name} in xshare: {first['msg'].lower().removeprefix('value error, ')}, not {short_repr(first['input'])}"
        ) from None
    if settings.layers is not None and sorted(set(settings.layers)) != settings.layers:
        raise SettingsError(f"layers in xshare must be in rising order, each once, not {settings.layers}")
    if policy.method in CONTROLS and not settings.experiment:
        raise SettingsError(
            f"method {policy.method!r} in xshare draws experts by lot, as a control for others: to serve it all the "
            f"same, set experiment to true"
        )
    if settings.default == "exact" and not settings.protect:
        raise SettingsError("default in xshare cannot be 'exact' where protect is false: nobody would be pruned")
    if settings.cost is not None and policy.method != "xshare":
        raise SettingsError(f"cost in xshare is weighed by XShare's own policies, not by {policy}: leave it out")
    return settings
