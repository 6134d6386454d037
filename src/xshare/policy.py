"""Policy: which experts a batch may use, as a handful of knobs with one string form and one JSON form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from xshare.errors import PolicyError
from xshare.spelling import budgets_by_layer, number_of, ranges, spelled

# The paper's letters, in the order of the canonical string.
LETTERS = {
    "k0": "warmup",
    "m": "batch_budget",
    "mr": "request_budget",
    "mg": "device_budget",
    "tau": "mass",
    "ml": "layer_budgets",
    "fill": "fill",
    "score": "score",
}
FIELD_LETTERS = {name: letter for letter, name in LETTERS.items()}


@dataclass(frozen=True)
class Knob:
    """A method's own knob: `name=value` in the string form, `params[name]` in the JSON form."""

    kind: type[int] | type[float]
    help: str
    low: float
    high: float | None = None
    default: int | float | None = None

    def check(self, owner: str, value: Any) -> None:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or (self.kind is int and not isinstance(value, int)):
            raise PolicyError(f"{owner} must be {_A[self.kind]}, not {value!r}")
        if not (value >= self.low and (self.high is None or value <= self.high)):  # NaN fails too
            wanted = f"at least {self.low:g}" if self.high is None else f"from {self.low:g} to {self.high:g}"
            raise PolicyError(f"{owner} must be {wanted}, not {value!r}")


_A = {int: "a whole number", float: "a number"}


@dataclass(frozen=True)
class Knobs:
    """What a method takes: fields of Policy it shares with XShare, and knobs of its own."""

    fields: tuple[str, ...] = ()
    params: Mapping[str, Knob] = field(default_factory=dict)
    check: Callable[[Policy], None] = lambda policy: None

    def spelled(self) -> str:
        return ", ".join([*(FIELD_LETTERS[name] for name in self.fields), *self.params]) or "none"


def check_has_budget(policy: Policy) -> None:
    budgets = (policy.batch_budget, policy.request_budget, policy.device_budget, policy.mass, *policy.own_budgets)
    if not any((policy.warmup, *budgets)):
        raise PolicyError("policy selects nothing: at least one of k0, m, mr, mg and tau must be above zero")
    if policy.mass is not None and policy.batch_budget:
        raise PolicyError("mass (tau) and batch_budget (m) exclude each other: set one of the two")
    if policy.device_budget is not None and (policy.batch_budget or policy.mass is not None):
        other = "batch_budget (m)" if policy.batch_budget else "mass (tau)"
        raise PolicyError(f"device_budget (mg) and {other} exclude each other: set one of the two")
    if policy.layer_budgets and (policy.mass is not None or policy.device_budget is not None):
        other = "mass (tau)" if policy.device_budget is None else "device_budget (mg)"
        raise PolicyError(f"layer_budgets (ml) stand in place of batch_budget (m), which {other} excludes")
    if 0 in policy.own_budgets and not policy.warmup and not policy.request_budget:
        layer = min(layer for layer, m in policy.layer_budgets.items() if not m)
        raise PolicyError(
            f"layer_budgets (ml) of 0 need a warmup (k0) or a request_budget (mr): layer {layer} would choose nothing"
        )


# Filled by methods/ as it registers itself, so that a policy is checked whole where it is written,
# while this file knows nothing of any method but the paper's.
METHOD_KNOBS: dict[str, Knobs] = {"xshare": Knobs(fields=tuple(FIELD_LETTERS), check=check_has_budget)}

# Settings the paper reports as its best trade-offs (its tables for gpt-oss-120b and DeepSeek-R1).
PRESETS = {
    "paper-batch": "k0=1,m=24",
    "paper-batch-safe": "k0=2,m=12",
    "paper-speculative": "k0=1,m=0,mr=4",
    "paper-speculative-safe": "k0=1,m=0,mr=5",
    "paper-expert-parallel": "k0=1,m=0,mg=5",
}


Score = Literal["full", "topk"]
Fill = Literal["level", "rounds"]


LayerBudgets = Annotated[
    dict[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]],
    BeforeValidator(budgets_by_layer),
]


class Policy(BaseModel):
    """A selection policy. `Policy(warmup=1, batch_budget=24)` is the paper's Algorithm 2 with k0=1, m=24."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", strict=True)

    method: str = "xshare"
    warmup: int = Field(0, ge=0)  # k0: experts every voting row is sure to keep
    batch_budget: int = Field(0, ge=0)  # m: experts added for the whole batch, on top of the warm-up
    request_budget: int = Field(0, ge=0)  # m_r: experts added for each request
    device_budget: int | None = Field(None, ge=0)  # m_g: experts each device is filled up to
    mass: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)  # tau: share of the gating score to reach
    layer_budgets: LayerBudgets = {}  # in place of m, by the model's own layer number; m for layers without one
    fill: Fill = "level"
    score: Score = "full"
    params: dict[str, Any] = {}  # a method's own knobs, checked by the method

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise PolicyError(_sentence(error)) from None
        self._check()

    def _check(self) -> None:
        knobs = METHOD_KNOBS.get(self.method)
        if knobs is None:
            raise PolicyError(f"method {self.method!r} is unknown: expected one of {', '.join(METHOD_KNOBS)}")
        for name in FIELD_LETTERS:
            if self._is_set(name) and name not in knobs.fields:
                raise PolicyError(
                    f"{name} ({FIELD_LETTERS[name]}) is no knob of method {self.method!r}: it takes {knobs.spelled()}"
                )
        for name, value in self.params.items():
            if name not in knobs.params:
                raise PolicyError(f"{name!r} is no knob of method {self.method!r}: it takes {knobs.spelled()}")
            knobs.params[name].check(f"{self.method} knob {name}", value)
        knobs.check(self)

    def _is_set(self, name: str) -> bool:
        return bool(getattr(self, name) != type(self).model_fields[name].default)

    def param(self, name: str) -> Any:
        """A method's own knob, or its default."""
        return self.params.get(name, METHOD_KNOBS[self.method].params[name].default)

    # What differs by layer

    @property
    def own_budgets(self) -> tuple[int, ...]:
        return tuple(self.layer_budgets.values())

    def for_layer(self, layer: int) -> Policy:
        """The policy of one layer, by the model's own number: its own m, and nothing that differs by layer."""
        if not self.layer_budgets:
            return self
        own = self.model_dump(exclude={"layer_budgets"})
        own["batch_budget"] = self.layer_budgets.get(layer, self.batch_budget)
        try:
            return type(self)(**own)
        except PolicyError as error:
            raise PolicyError(f"layer {layer} of {self}: {error}") from None

    def by_layer(self, layers: Sequence[int]) -> list[Policy]:
        """The policy of each of these layers, all that it acts on: a budget for any other is refused."""
        if unknown := [layer for layer in self.layer_budgets if layer not in layers]:
            raise PolicyError(
                f"layer_budgets (ml) names layer {unknown[0]}, and the layers to act on are {ranges(layers)}"
            )
        return [self.for_layer(layer) for layer in layers]

    def with_layer_budgets(self, budgets: Mapping[int, int]) -> Policy:
        """The same policy with another m in these layers."""
        return type(self)(**(self.model_dump() | {"layer_budgets": dict(budgets)}))

    # The string form

    @classmethod
    def parse(cls, text: str) -> Self:
        """`k0=1,m=24`, `oea:k0=2`, `native`, or the name of a preset."""
        if not isinstance(text, str):
            raise PolicyError(f"a policy to parse must be a string as k0=1,m=24, not {text!r}")
        text = PRESETS.get(text.strip(), text.strip())
        method, colon, knobs = text.partition(":")
        if not colon or "=" in method:  # a colon further on is one of ml's
            method, knobs = ("xshare", text) if "=" in text else (text, "")
        if method not in METHOD_KNOBS:
            expected = ", ".join([*METHOD_KNOBS, *PRESETS])
            raise PolicyError(
                f"policy {text!r} names no known method: expected one of {expected}, or letters as k0=1,m=24"
            )
        fields: dict[str, Any] = {"method": method}
        params: dict[str, Any] = {}
        for item in filter(None, (part.strip() for part in knobs.split(","))):
            letter, equals, value = (part.strip() for part in item.partition("="))
            if not equals or not value:
                raise PolicyError(f"policy {text!r}: {item!r} should read letter=value, as in k0=1")
            name = letter if letter in FIELD_LETTERS else LETTERS.get(letter)
            if name is None and letter not in METHOD_KNOBS[method].params:
                known = METHOD_KNOBS[method].spelled()
                raise PolicyError(f"policy {text!r}: unknown letter {letter!r}, method {method!r} takes {known}")
            target, key = (params, letter) if name is None else (fields, name)
            if key in target:
                raise PolicyError(f"policy {text!r}: {letter!r} is given twice")
            target[key] = number_of(value)
        return cls(**fields, params=params)

    def __str__(self) -> str:
        """The canonical string: `Policy.parse(str(policy)) == policy`."""
        items = []
        for letter, name in LETTERS.items():
            always = self.method == "xshare" and (letter == "k0" or (letter == "m" and self.mass is None))
            if always or self._is_set(name):
                items.append(f"{letter}={spelled(getattr(self, name))}")
        own = METHOD_KNOBS[self.method].params  # in the method's order, so that equal policies spell alike
        items += [f"{name}={spelled(self.params[name])}" for name in own if name in self.params]
        knobs = ",".join(items)
        if self.method == "xshare":
            return knobs
        return f"{self.method}:{knobs}" if knobs else self.method

    def __hash__(self) -> int:
        return hash(str(self))

    # The JSON form

    @classmethod
    def of(cls, value: str | Mapping[str, Any] | Policy) -> Policy:
        """A policy from whatever a configuration file holds: its string, or a mapping of its fields."""
        if isinstance(value, Policy):
            return value
        if isinstance(value, str):
            return cls.parse(value)
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return cls(**value)
        raise PolicyError(f"a policy must be a string or a mapping of its fields, not {value!r}")

    def to_dict(self) -> dict[str, Any]:
        """The fields that are set: `Policy.of(policy.to_dict()) == policy`."""
        return self.model_dump(exclude_defaults=True)


def _sentence(error: ValidationError) -> str:
    """pydantic's first complaint, as one sentence that names the field the way a user may have written it."""
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else "policy"
    if first["type"] == "extra_forbidden":
        return f"{name!r} is no field of a policy: expected one of method, {', '.join(FIELD_LETTERS)}, params"
    letter = f" ({FIELD_LETTERS[name]})" if FIELD_LETTERS.get(name, name) != name else ""
    wanted = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return f"{name}{letter} must be {wanted}, not {first['input']!r}"


def common_score(policies: Sequence[Policy]) -> Score:
    """The score of what is measured beside these, such as a control: a selection on a GPU is made for one score."""
    return "topk" if any(policy.score == "topk" for policy in policies) else "full"
