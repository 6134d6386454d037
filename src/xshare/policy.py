"""Policy: which experts a batch may use, as a handful of knobs with one string form and one JSON form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from xshare.errors import PolicyError, short_repr
from xshare.policy_text import by_layer, number_or_text, ranges, value_text

# The largest number accepted anywhere: the kernels count in 32-bit integers, and engines send at most 64 bits.
MOST = 2**31 - 1

# The paper's letters, in the order of the canonical string.
LETTERS = {
    "k0": "warmup",
    "m": "batch_budget",
    "mr": "request_budget",
    "mg": "device_budget",
    "tau": "mass",
    "rho": "coverage",
    "lam": "price",
    "p": "power",
    "ml": "layer_budgets",
    "w": "layer_weights",
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

    def check_value(self, owner: str, value: Any) -> None:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or (self.kind is int and not isinstance(value, int)):
            raise PolicyError(f"{owner} must be {KIND_TEXT[self.kind]}, not {short_repr(value)}")
        if not (value >= self.low and (self.high is None or value <= self.high)):  # NaN fails too
            expected = f"at least {self.low:g}" if self.high is None else f"from {self.low:g} to {self.high:g}"
            raise PolicyError(f"{owner} must be {expected}, not {short_repr(value)}")
        if value > MOST:
            raise PolicyError(f"{owner} must be at most {MOST}, not {short_repr(value)}")


KIND_TEXT = {int: "a whole number", float: "a number"}


@dataclass(frozen=True)
class Knobs:
    """What a method takes: fields of Policy that it shares with XShare, and knobs of its own (`params`)."""

    fields: tuple[str, ...] = ()
    params: Mapping[str, Knob] = field(default_factory=dict)
    check: Callable[[Policy], None] = lambda policy: None

    def names_text(self) -> str:
        """`k0, rho`, or `none`."""
        return ", ".join([*(FIELD_LETTERS[name] for name in self.fields), *self.params]) or "none"


def check_combination(policy: Policy) -> None:
    """Refuse knobs that exclude each other, and a policy that selects nothing."""
    budgets = (*policy.layer_budgets.values(), policy.batch_budget, policy.request_budget, policy.device_budget)
    if not any((policy.warmup, *budgets, policy.mass, policy.coverage, policy.price)):
        raise PolicyError("policy selects nothing: at least one of k0, m, mr, mg, tau, rho and lam must be above zero")
    for one, other in EXCLUSIVE:
        if policy._is_set(one) and policy._is_set(other):
            raise PolicyError(f"{_with_letter(one)} and {_with_letter(other)} exclude each other: set one of the two")
    if policy.power > 1 and policy.score != "topk":
        raise PolicyError(f"power (p) above 1 is of a token's own weights, score=topk, not score={policy.score}")
    if policy.layer_weights and policy.coverage is None and policy.price is None:
        raise PolicyError("layer_weights (w) weigh a coverage (rho) or a price (lam), and the policy sets neither")
    for layer in sorted({*policy.layer_budgets, *policy.layer_weights}):
        policy.for_layer(layer)  # refuses a layer that would select nothing


# Pairs of which each decides alone how many experts are added, so a policy sets at most one.
EXCLUSIVE = (
    ("mass", "batch_budget"),
    ("device_budget", "batch_budget"),
    ("device_budget", "mass"),
    ("price", "batch_budget"),
    ("price", "mass"),
    ("price", "device_budget"),
    ("mass", "layer_budgets"),
    ("device_budget", "layer_budgets"),
    ("price", "layer_budgets"),
)


def _with_letter(name: str) -> str:
    """`batch_budget (m)`"""
    return f"{name} ({FIELD_LETTERS[name]})"


# methods/ adds its entries when it is imported. So a policy is checked completely where it is constructed, while this
# file knows only the paper's method.
METHOD_KNOBS: dict[str, Knobs] = {"xshare": Knobs(fields=tuple(FIELD_LETTERS), check=check_combination)}


def knobs_of(method: str) -> Knobs | None:
    if method not in METHOD_KNOBS:
        import_module("xshare.methods")  # imports torch, which is slow: only where a policy names a rival
    return METHOD_KNOBS.get(method)


# For any model, by how much quality they may cost: every token keeps a share of its routing weight (docs/choosing.md).
RECOMMENDED = {"careful": "rho=0.8", "balanced": "rho=0.7", "fast": "rho=0.6"}
# Settings the paper reports as its best trade-offs (its tables for gpt-oss-120b and DeepSeek-R1).
PAPER = {
    "paper-batch": "k0=1,m=24",
    "paper-batch-safe": "k0=2,m=12",
    "paper-speculative": "k0=1,m=0,mr=4",
    "paper-speculative-safe": "k0=1,m=0,mr=5",
    "paper-expert-parallel": "k0=1,m=0,mg=5",
}
# In the paper's text a token votes with its top-k weights; its speed table fits votes with all scores, hence `-full`.
PRESETS = RECOMMENDED | PAPER | {f"{name}-full": f"{text},score=full" for name, text in PAPER.items()}


Score = Literal["full", "topk"]
Fill = Literal["level", "rounds"]


Layer = Annotated[int, Field(ge=0, le=MOST)]  # the model's own number
LayerBudgets = Annotated[
    dict[Layer, Annotated[int, Field(ge=0, le=MOST)]], BeforeValidator(by_layer("budget", "0:24/3:8"))
]
LayerWeights = Annotated[
    dict[Layer, Annotated[float, Field(gt=0, le=MOST, allow_inf_nan=False)]],
    BeforeValidator(by_layer("weight", "0:4/3:0.5")),
]


class Policy(BaseModel):
    """Which experts a batch may use. `Policy(coverage=0.7)` is `Policy.parse("rho=0.7")`, or the preset "balanced".

    What every token is sure to keep:
      warmup (k0)           its best k0 experts
      coverage (rho)        its best experts until they hold this share of its routing weight, above 0 to 1
    What is added for the batch, at most one of these (request_budget combines with any):
      batch_budget (m)      this many experts, those with the most votes; the paper's Algorithm 2
      request_budget (mr)   this many experts per request; Algorithms 3 and 4
      device_budget (mg)    experts until each device has this many; Algorithms 5 and 6, needs a placement
      mass (tau)            experts until the set holds this share of all votes, 0 to 1; Algorithm 1's threshold
      price (lam)           every expert with at least this many votes
    What a vote is:
      score                 "topk", a token's own routing weights, or "full", its scores of all experts
      power (p)             each vote is raised to this power, 1 to 4: strong votes count more against weak ones
    What differs per layer, by the model's own layer numbers:
      layer_budgets (ml)    another batch_budget, {0: 24, 3: 8}
      layer_weights (w)     how much a layer matters, {0: 4.0}: divides its price, and what its coverage may lose
    Other:
      fill                  how devices are filled, "level" or "rounds"
      method, params        a rival in place of XShare, as "oea", and its own knobs: `xshare methods` lists them
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", strict=True)

    method: str = "xshare"
    warmup: int = Field(0, ge=0, le=MOST)  # k0: experts every voting row is sure to keep
    batch_budget: int = Field(0, ge=0, le=MOST)  # m: experts added for the whole batch, on top of the warm-up
    request_budget: int = Field(0, ge=0, le=MOST)  # m_r: experts added for each request
    device_budget: int | None = Field(None, ge=0, le=MOST)  # m_g: experts each device is filled up to
    mass: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)  # tau: share of all votes to reach
    coverage: float | None = Field(None, gt=0, le=1, allow_inf_nan=False)  # rho: share of its weight every row keeps
    price: float | None = Field(None, gt=0, le=MOST, allow_inf_nan=False)  # lam: votes that an expert must have
    power: int = Field(1, ge=1, le=4)  # p: exponent of each vote
    layer_budgets: LayerBudgets = {}  # m by the model's own layer number; batch_budget for layers without an entry
    layer_weights: LayerWeights = {}  # how much a layer matters: divides its price, and what its coverage may lose
    fill: Fill = "level"
    score: Score = "topk"
    params: dict[str, Any] = {}  # a method's own knobs, checked by the method

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise PolicyError(_sentence(error)) from None
        self._check()

    def _check(self) -> None:
        knobs = knobs_of(self.method)
        if knobs is None:
            raise PolicyError(f"method {self.method!r} is unknown: expected one of {', '.join(METHOD_KNOBS)}")
        for name in FIELD_LETTERS:
            if self._is_set(name) and name not in knobs.fields:
                takes = knobs.names_text()
                raise PolicyError(
                    f"{name} ({FIELD_LETTERS[name]}) is no knob of method {self.method!r}: it takes {takes}"
                )
        for name, value in self.params.items():
            if name not in knobs.params:
                raise PolicyError(f"{name!r} is no knob of method {self.method!r}: it takes {knobs.names_text()}")
            knobs.params[name].check_value(f"{self.method} knob {name}", value)
        knobs.check(self)

    def _is_set(self, name: str) -> bool:
        return bool(getattr(self, name) != type(self).model_fields[name].default)

    @property
    def _has_threshold(self) -> bool:
        return any(threshold is not None for threshold in (self.mass, self.coverage, self.price))

    def param(self, name: str) -> Any:
        """The value of a method's own knob, or its default."""
        return self.params.get(name, METHOD_KNOBS[self.method].params[name].default)

    @property
    def votes(self) -> tuple[Score, int]:
        """The score and power by which experts are summed and topped up. Rivals take the full score."""
        return (self.score, self.power) if "score" in METHOD_KNOBS[self.method].fields else ("full", 1)

    # What differs by layer

    @property
    def differs_by_layer(self) -> bool:
        return bool(self.layer_budgets or self.layer_weights)

    def for_layer(self, layer: int) -> Policy:
        """The policy of one layer, by the model's own number, with its m, rho and lam and without per-layer fields."""
        if not self.differs_by_layer:
            return self
        knobs = self.model_dump(exclude={"layer_budgets", "layer_weights"})
        knobs["batch_budget"] = self.layer_budgets.get(layer, self.batch_budget)
        weight = self.layer_weights.get(layer, 1.0)
        if self.price is not None:
            knobs["price"] = self.price / weight
        if self.coverage is not None and weight != 1:
            coverage = min(1.0, 1 - (1 - self.coverage) / weight)
            knobs["coverage"] = coverage if coverage > 0 else None
        try:
            return type(self)(**knobs)
        except PolicyError as error:
            raise PolicyError(f"layer {layer} of {self}: {error}") from None

    def by_layer(self, layers: Sequence[int]) -> list[Policy]:
        """One policy for each of `layers`, the layers to act on. A budget or weight for any other layer is refused."""
        for name in ("layer_budgets", "layer_weights"):
            if unknown := [layer for layer in getattr(self, name) if layer not in layers]:
                acts = f"and the layers to act on are {ranges(layers)}"
                raise PolicyError(f"{_with_letter(name)} names layer {unknown[0]}, {acts}")
        return [self.for_layer(layer) for layer in layers]

    def with_layer_budgets(self, budgets: Mapping[int, int]) -> Policy:
        """The same policy with another m in these layers."""
        return type(self)(**(self.model_dump() | {"layer_budgets": dict(budgets)}))

    # The string form

    @classmethod
    def parse(cls, text: str) -> Self:
        """`k0=1,m=24`, `oea:k0=2`, `native`, or the name of a preset."""
        if not isinstance(text, str):
            raise PolicyError(f"a policy to parse must be a string as k0=1,m=24, not {short_repr(text)}")
        text = PRESETS.get(text.strip(), text.strip())
        method, colon, knobs = text.partition(":")
        if not colon or "=" in method:  # a later colon belongs to ml or w
            method, knobs = ("xshare", text) if "=" in text else (text, "")
        if knobs_of(method) is None:
            expected = ", ".join([*METHOD_KNOBS, *PRESETS])
            raise PolicyError(
                f"policy {short_repr(text, 200)} names no known method: "
                f"expected one of {expected}, or letters as k0=1,m=24"
            )
        fields: dict[str, Any] = {"method": method}
        params: dict[str, Any] = {}
        for item in filter(None, (part.strip() for part in knobs.split(","))):
            letter, equals, value = (part.strip() for part in item.partition("="))
            if not equals or not value:
                raise PolicyError(f"policy {short_repr(text, 200)}: {item!r} should read letter=value, as in k0=1")
            name = letter if letter in FIELD_LETTERS else LETTERS.get(letter)
            if name is None and letter not in METHOD_KNOBS[method].params:
                known = METHOD_KNOBS[method].names_text()
                raise PolicyError(
                    f"policy {short_repr(text, 200)}: unknown letter {letter!r}, method {method!r} takes {known}"
                )
            target, key = (params, letter) if name is None else (fields, name)
            if key in target:
                raise PolicyError(f"policy {short_repr(text, 200)}: {letter!r} is given twice")
            target[key] = number_or_text(value)
        return cls(**fields, params=params)

    def __str__(self) -> str:
        """The canonical string: `Policy.parse(str(policy)) == policy`."""
        items = []
        for letter, name in LETTERS.items():
            always = self.method == "xshare" and (letter == "k0" or (letter == "m" and not self._has_threshold))
            if always or self._is_set(name):
                items.append(f"{letter}={value_text(getattr(self, name))}")
        method_params = METHOD_KNOBS[self.method].params  # in the method's order: equal policies have equal strings
        items += [f"{name}={value_text(self.params[name])}" for name in method_params if name in self.params]
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
        raise PolicyError(f"a policy must be a string or a mapping of its fields, not {short_repr(value)}")

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
    expected = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return f"{name}{letter} must be {expected}, not {short_repr(first['input'])}"
