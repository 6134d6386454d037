"""The profile: a tuned policy in a file, with the model it was tuned for and the measurements. Engines load it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from xshare.errors import PolicyError, XShareError, short_repr
from xshare.files import is_file, quoted_path, read_whole, whole_file
from xshare.policy import MOST, Policy
from xshare.policy_text import current_policy_text
from xshare.results import sha256

# The configuration values that identify a model, by the names that architectures give them.
FACTS: dict[str, tuple[str, ...]] = {
    "type": ("model_type",),
    "layers": ("num_hidden_layers",),
    "hidden": ("hidden_size",),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "top_k": ("num_experts_per_tok",),
    "width": ("moe_intermediate_size", "intermediate_size"),
    "vocabulary": ("vocab_size",),
}

MOST_BYTES = 1 << 20
MOST_REQUESTS = 65536  # per step: more than any engine decodes


class ProfileError(XShareError):
    """A profile that cannot be read, or is for another model."""


class StaircaseFile(BaseModel):
    """The staircase file that gave the cost of each set size."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    file: str = Field(description="the staircase's path, relative to the profile or absolute")
    sha256: str = Field(description="of its content")


class Profile(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = Field(default=1, description="of the form of the file")
    format: Literal[2] | None = Field(
        default=None,
        description="missing in earlier profiles, whose policy, where it names no score, means `score=full`",
    )
    model: str = Field(description="the model's name")
    config: str = Field(description="a hash of the model's configuration: another model is refused")
    policy: str = Field(description="the policy that was found, as a string")
    budgets: Annotated[list[Annotated[int, Field(ge=0, le=MOST, strict=True)]], Field(min_length=1)] | None = Field(
        default=None, description="in earlier profiles, an m for each MoE layer that it acts on, in their order"
    )
    cost: StaircaseFile | None = Field(default=None, description="the staircase that sets were weighed by")
    measured: dict[str, Any] = Field(description="what was measured: engine, batch, experts, speed, bounds")
    versions: dict[str, Any] = Field(description="of Python and the packages")

    @property
    def batch(self) -> int | None:
        """Requests in the largest measured step, if the profile says so."""
        batch = self.measured.get("batch")
        return batch if isinstance(batch, int) else None

    @property
    def drafts(self) -> int:
        """Draft tokens per request in the measured steps."""
        drafts = self.measured.get("drafts")
        return drafts if isinstance(drafts, int) else 0

    def policy_on(self, layers: Sequence[int]) -> Policy:
        """The policy, for a model whose MoE layers have these numbers."""
        policy = Policy.parse(self.policy)
        if self.budgets is None:
            return policy
        if len(self.budgets) != len(layers):
            raise PolicyError(
                f"the profile's budgets must be {len(layers)} whole numbers, one for each layer to act on, "
                f"not {short_repr(self.budgets)}"
            )
        return policy.with_layer_budgets(dict(zip(layers, self.budgets, strict=True)))

    def check_model(self, config: Any) -> None:
        """Refuse a model that the profile was not tuned for."""
        if model_hash(config) != self.config:
            raise ProfileError(
                f"the profile was made for {self.model} (configuration {self.config[:12]}), and this model's "
                f"configuration is {model_hash(config)[:12]}: tune this model"
            )

    def staircase_path(self, path: Path) -> Path | None:
        """The path of the staircase file for a profile at `path`, None without one. A file with another checksum is
        refused."""
        if self.cost is None:
            return None
        staircase = path.parent / self.cost.file
        if not is_file(staircase):
            missing = quoted_path(staircase)
            raise ProfileError(f"profile {str(path)!r} needs the staircase {missing}, which does not exist")
        if sha256(staircase) != self.cost.sha256:
            raise ProfileError(
                f"the staircase {str(staircase)!r} is another than the one that profile {str(path)!r} was tuned with "
                f"(sha256 {self.cost.sha256[:12]}): tune again, or put that one back"
            )
        return staircase

    def save(self, path: Path) -> None:
        with whole_file(path) as temporary:
            fields = self.model_dump(exclude={name for name in ("budgets", "cost") if getattr(self, name) is None})
            temporary.write_text(yaml.safe_dump(fields, sort_keys=False, allow_unicode=True))


def config_value(config: Any, *names: str) -> Any:
    """The value of the first of `names` that a configuration has: a Transformers object, or a parsed config.json."""
    values = (config.get(name) if isinstance(config, Mapping) else getattr(config, name, None) for name in names)
    return next((value for value in values if value is not None), None)


def model_hash(config: Any) -> str:
    """A hash of the configuration values in FACTS."""
    facts = {name: config_value(config, *names) for name, names in FACTS.items()}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def moe_layers(config: Any) -> list[int] | None:
    """The numbers of a model's MoE layers, known before it is loaded; None for an unknown architecture."""
    kind, layers = config_value(config, "model_type"), config_value(config, "num_hidden_layers")
    if not isinstance(layers, int):
        return None
    if kind in ("gpt_oss", "mixtral", "olmoe"):
        return list(range(layers))
    if kind in ("qwen2_moe", "qwen3_moe"):
        dense, every = config_value(config, "mlp_only_layers") or (), config_value(config, "decoder_sparse_step") or 1
        return [layer for layer in range(layers) if layer not in dense and (layer + 1) % every == 0]
    return None


def read_profile(path: Path) -> Profile:
    content = read_whole(path, "profile", MOST_BYTES, ProfileError)
    try:
        fields = yaml.safe_load(content.decode())
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: an impossible date, or 5000 digits
        raise ProfileError(f"profile {str(path)!r} is not YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(fields, dict):
        raise ProfileError(f"profile {str(path)!r} must hold the fields of a profile, as `xshare tune` writes them")
    try:
        profile = Profile(**fields)
        if profile.format is None:
            profile = profile.model_copy(update={"format": 2, "policy": current_policy_text(profile.policy)})
    except TypeError:
        raise ProfileError(f"profile {str(path)!r} must name its fields by words") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ProfileError(f"profile {str(path)!r}: {where}: {first['msg'].lower()}") from None
    for name, least in (("batch", 1), ("drafts", 0)):
        value = profile.measured.get(name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (whole and least <= value <= MOST_REQUESTS):
            expected = f"a whole number from {least} to {MOST_REQUESTS}"
            raise ProfileError(f"profile {str(path)!r}: measured.{name} must be {expected}, not {short_repr(value)}")
    if Policy.parse(profile.policy).method != "xshare":  # parse() may refuse it too
        raise ProfileError(f"profile {str(path)!r}: policy must be one of XShare's own, not {profile.policy}")
    return profile
