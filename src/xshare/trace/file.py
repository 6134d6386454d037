"""The trace file: what a model's routers chose, token by token, as safetensors with a JSON header. Never pickle.
A file whose name ends in .xz is the same, compressed (compressed.py).

Tensors                                                     header (JSON in the safetensors metadata)
  experts  uint8/int16 [tokens, layers, k]  best first        model, num_experts, top_k, score, router,
  weights  float16     [tokens, layers, k]                    layers, domains, categories (one per sequence),
or                                                            provenance
  logits   float       [tokens, layers, N]
  correction_bias  float32 [layers, N]      sigmoid routers
and
  lengths  int64       [sequences]          splits the token axis

`score` says which of the two forms a file has: "topk" holds the chosen experts and their weights, "full" every logit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from xshare.errors import RouterError, TraceError
from xshare.files import is_file, quoted_path, whole_file
from xshare.router import RouterSpec
from xshare.trace.compressed import compress, is_compressed, plain_file

HEADER_KEY = "xshare_trace"
TENSORS = ("lengths", "experts", "weights", "logits", "correction_bias")
MOST_EXPERTS = 2**15  # int16 holds their numbers
MOST_TOKENS = 2**40  # per sequence: int64 sums of all lengths that fit a file do not overflow


class RouterFields(BaseModel):
    """The scalar part of a RouterSpec."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    scoring: Literal["softmax", "sigmoid"] = "softmax"
    renormalize: bool = True
    n_group: int = 1
    topk_group: int = 1
    routed_scaling_factor: float = 1.0

    @classmethod
    def of(cls, router: RouterSpec) -> RouterFields:
        return cls(**{name: getattr(router, name) for name in cls.model_fields})


class Header(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = Field(default=1, description="of the form of the file")
    model: str = Field(description="the model's name")
    num_experts: int = Field(ge=1, le=MOST_EXPERTS, description="experts per layer, N")
    top_k: int = Field(ge=1, le=MOST_EXPERTS, description="experts that the model gives a token, k")
    score: Literal["topk", "full"] = Field(description="`topk`: the chosen experts alone; `full`: every logit")
    router: RouterFields = Field(description="the router's rules: scoring, renormalize, groups, scaling factor")
    layers: list[int] = Field(description="the model's own layer numbers")
    domains: list[str] = Field(description="one per sequence")
    categories: list[str] = Field(default=[], description="one per sequence, or none at all")
    provenance: dict[str, Any] = Field(description="what recorded it: command, versions, commit, machine")


@dataclass(frozen=True)
class Trace:
    header: Header
    lengths: Tensor  # int64 [sequences]
    experts: Tensor | None = None  # [tokens, layers, k], with weights
    weights: Tensor | None = None
    logits: Tensor | None = None  # [tokens, layers, N], instead of them
    correction_bias: Tensor | None = None  # [layers, N]

    def __post_init__(self) -> None:
        self._check()

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())

    @property
    def starts(self) -> NDArray[np.int64]:
        """The first token of each sequence."""
        starts: NDArray[np.int64] = (self.lengths.cumsum(0) - self.lengths).numpy()
        return starts

    def router(self) -> RouterSpec:
        header = self.header
        return RouterSpec(
            top_k=header.top_k,
            num_experts=header.num_experts,
            correction_bias=self.correction_bias,
            **header.router.model_dump(),
        )

    def save(self, path: Path) -> None:
        tensors = {name: value.contiguous() for name in TENSORS if (value := getattr(self, name)) is not None}
        with whole_file(path) as temporary:
            content = save(tensors, metadata={HEADER_KEY: self.header.model_dump_json()})
            temporary.write_bytes(compress(content) if is_compressed(path) else content)

    @classmethod
    def load(cls, path: Path) -> Trace:
        if not is_file(path):
            raise TraceError(f"trace {quoted_path(path)} does not exist or is not a file")
        try:
            with plain_file(path) as plain, safe_open(plain, framework="pt") as file:
                text = (file.metadata() or {}).get(HEADER_KEY)
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        except (SafetensorError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise TraceError(f"trace {str(path)!r} is not a whole safetensors file: {reason}") from None
        if text is None:
            raise TraceError(f"{str(path)!r} is a safetensors file but no trace: its header has no {HEADER_KEY!r}")
        if unknown := set(tensors) - set(TENSORS):
            raise TraceError(f"trace {str(path)!r} holds {sorted(unknown)[0]!r}, expected only {', '.join(TENSORS)}")
        if "lengths" not in tensors:
            raise TraceError(f"trace {str(path)!r} does not fit together: lengths are missing")
        try:
            return cls(Header.model_validate(json.loads(text)), **tensors)
        except (TraceError, RouterError) as error:
            raise TraceError(f"trace {str(path)!r} does not fit together: {error}") from None
        except (ValueError, RecursionError) as error:  # pydantic's and JSON's errors are ValueErrors
            raise TraceError(f"trace {str(path)!r} has a header that cannot be read: {_reason(error)}") from None

    def _check(self) -> None:
        header, lengths = self.header, self.lengths
        if lengths.ndim != 1 or lengths.dtype != torch.int64 or lengths.numel() == 0:
            raise TraceError("lengths must be a list of int64 numbers, one a sequence")
        if int(lengths.min()) < 1 or int(lengths.max()) > MOST_TOKENS:
            got = f"from {int(lengths.min())} to {int(lengths.max())}"
            raise TraceError(f"lengths must each be from 1 to {MOST_TOKENS}, and run {got}")
        if not header.layers:
            raise TraceError("layers must name at least one layer")
        L, k, N = len(header.layers), header.top_k, header.num_experts
        unexpected = ("experts", "weights") if header.score == "full" else ("logits",)
        for name in unexpected:
            if getattr(self, name) is not None:
                raise TraceError(f"{name} do not belong into a trace of score {header.score!r}")
        if header.score == "full":
            _checked("logits", self.logits, (self.tokens, L, N), floating=True)
        else:
            experts = _checked("experts", self.experts, (self.tokens, L, k), floating=False)
            weights = _checked("weights", self.weights, (self.tokens, L, k), floating=True)
            check_ids(experts, N)
            if not bool(weights.isfinite().all()) or float(weights.min()) < 0:
                raise TraceError("weights must be finite and not negative")
            if k > 1 and bool((experts.sort(-1).values.diff(dim=-1) == 0).any()):
                raise TraceError("experts must name each expert at most once a token and layer")
        if self.correction_bias is not None:
            bias = _checked("correction_bias", self.correction_bias, (L, N), floating=True)
            if not bool(bias.isfinite().all()):
                raise TraceError("correction_bias must be finite")
        for name, labels in (("domains", header.domains), ("categories", header.categories)):
            if len(labels) != len(lengths) and not (name == "categories" and not labels):
                raise TraceError(f"{name} must hold one label for each of {len(lengths)} sequences, not {len(labels)}")
        self.router().check(N)


def _checked(name: str, tensor: Tensor | None, shape: tuple[int, ...], floating: bool) -> Tensor:
    if tensor is None or tuple(tensor.shape) != shape:
        got = "missing" if tensor is None else list(tensor.shape)
        raise TraceError(f"{name} must have the shape {list(shape)}, and is {got}")
    if tensor.is_floating_point() != floating or tensor.is_complex():
        raise TraceError(f"{name} must be {'floating-point' if floating else 'whole'} numbers, not {tensor.dtype}")
    return tensor


def check_ids(ids: Tensor, num_experts: int) -> None:
    least, most = int(ids.min()), int(ids.max())
    if least < 0 or most >= num_experts:
        raise TraceError(f"experts must be numbers from 0 to {num_experts - 1}, and run from {least} to {most}")


def narrow_ids(ids: Tensor, num_experts: int) -> Tensor:
    """Expert ids in the smallest type that holds them."""
    check_ids(ids, num_experts)
    return ids.to(torch.uint8 if num_experts <= 256 else torch.int16)


def _reason(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}"
