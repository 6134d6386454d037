"""The trace file: per token and layer, the experts that a router chose, or all its logits. It is a safetensors file
with a JSON header in its metadata, never pickle. A file name that ends in .xz means xz-compressed (compressed.py).

The header's `score` says which tensors the file holds (types as XShare writes them):

  both    lengths          int64        [sequences]          tokens per sequence; their sum is `tokens`
  "topk"  experts          uint8/int16  [tokens, layers, k]  chosen experts, best first
          weights          float16      [tokens, layers, k]  their weights
  "full"  logits           float        [tokens, layers, N]
          correction_bias  float32      [layers, N]          sigmoid routers only

`Header` describes the other fields of the header.
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
MOST_EXPERTS = 2**15  # expert ids fit int16
MOST_TOKENS = 2**40  # per sequence: the int64 sum of fewer than 2**23 such lengths cannot overflow


class RouterFields(BaseModel):
    """The router's rules in the header: the scalars of a RouterSpec. Header itself holds top_k and num_experts."""

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

    version: Literal[1] = Field(default=1, description="version of the file format")
    model: str = Field(description="the model's name")
    num_experts: int = Field(ge=1, le=MOST_EXPERTS, description="experts per layer, N")
    top_k: int = Field(ge=1, le=MOST_EXPERTS, description="experts per token, k")
    score: Literal["topk", "full"] = Field(
        description="`topk`: the chosen experts and their weights; `full`: every logit"
    )
    router: RouterFields = Field(description="the router's rules: scoring, renormalize, groups, scaling factor")
    layers: list[int] = Field(description="numbers of the recorded layers, as the model counts them")
    domains: list[str] = Field(description="a label per sequence")
    categories: list[str] = Field(default=[], description="a second label per sequence; may be empty")
    provenance: dict[str, Any] = Field(description="how the trace was made: command, versions, commit, machine")


@dataclass(frozen=True)
class Trace:
    """A trace in memory. Construction raises TraceError or RouterError if header and tensors disagree."""

    header: Header
    lengths: Tensor  # int64 [sequences]
    experts: Tensor | None = None  # [tokens, layers, k], with score "topk"
    weights: Tensor | None = None  # [tokens, layers, k], with score "topk"
    logits: Tensor | None = None  # [tokens, layers, N], with score "full"
    correction_bias: Tensor | None = None  # [layers, N], of sigmoid routers

    def __post_init__(self) -> None:
        self._check()

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())

    @property
    def starts(self) -> NDArray[np.int64]:
        """Index of each sequence's first token on the token axis, [sequences]."""
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
                header_json = (file.metadata() or {}).get(HEADER_KEY)
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it cannot be iterated)
        except (SafetensorError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise TraceError(f"trace {str(path)!r} is not a whole safetensors file: {reason}") from None
        if header_json is None:
            raise TraceError(f"{str(path)!r} is a safetensors file but not a trace: its metadata has no {HEADER_KEY!r}")
        if unknown := set(tensors) - set(TENSORS):
            first, known = sorted(unknown)[0], ", ".join(TENSORS)
            raise TraceError(f"trace {str(path)!r} holds an unknown tensor {first!r}, expected only {known}")
        if "lengths" not in tensors:
            raise TraceError(f"trace {str(path)!r} has no tensor 'lengths'")
        try:
            return cls(Header.model_validate(json.loads(header_json)), **tensors)
        except (TraceError, RouterError) as error:
            raise TraceError(f"trace {str(path)!r} is inconsistent: {error}") from None
        except (
            ValueError,
            RecursionError,
        ) as error:  # pydantic and json raise ValueErrors; deeply nested JSON raises RecursionError
            raise TraceError(f"trace {str(path)!r} has a header that cannot be read: {_header_error(error)}") from None

    def _check(self) -> None:
        header, lengths = self.header, self.lengths
        if lengths.ndim != 1 or lengths.dtype != torch.int64 or lengths.numel() == 0:
            raise TraceError("lengths must be a non-empty int64 tensor [sequences]")
        if int(lengths.min()) < 1 or int(lengths.max()) > MOST_TOKENS:
            span = f"from {int(lengths.min())} to {int(lengths.max())}"
            raise TraceError(f"lengths must be from 1 to {MOST_TOKENS}, but range {span}")
        if not header.layers:
            raise TraceError("layers must name at least one layer")
        L, k, N = len(header.layers), header.top_k, header.num_experts
        unexpected = ("experts", "weights") if header.score == "full" else ("logits",)
        for name in unexpected:
            if getattr(self, name) is not None:
                raise TraceError(f"{name} do not belong in a trace of score {header.score!r}")
        if header.score == "full":
            _check_tensor("logits", self.logits, (self.tokens, L, N), floating=True)
        else:
            experts = _check_tensor("experts", self.experts, (self.tokens, L, k), floating=False)
            weights = _check_tensor("weights", self.weights, (self.tokens, L, k), floating=True)
            check_ids(experts, N)
            if not bool(weights.isfinite().all()) or float(weights.min()) < 0:
                raise TraceError("weights must be finite and not negative")
            # Once sorted, an expert that stands there twice has an equal neighbour.
            if k > 1 and bool((experts.sort(-1).values.diff(dim=-1) == 0).any()):
                raise TraceError("experts must name each expert at most once per token and layer")
        if self.correction_bias is not None:
            bias = _check_tensor("correction_bias", self.correction_bias, (L, N), floating=True)
            if not bool(bias.isfinite().all()):
                raise TraceError("correction_bias must be finite")
        for name, labels in (("domains", header.domains), ("categories", header.categories)):
            left_out = name == "categories" and not labels  # they are optional
            if len(labels) != len(lengths) and not left_out:
                raise TraceError(f"{name} must hold one label for each of {len(lengths)} sequences, not {len(labels)}")
        self.router().check(N)  # top_k and groups must be possible with N experts


def _check_tensor(name: str, tensor: Tensor | None, shape: tuple[int, ...], floating: bool) -> Tensor:
    """`tensor` itself; raises TraceError if it is missing, or has another shape or kind of number."""
    if tensor is None or tuple(tensor.shape) != shape:
        actual = "is missing" if tensor is None else f"has {list(tensor.shape)}"
        raise TraceError(f"{name} must have the shape {list(shape)}, but {actual}")
    if tensor.is_floating_point() != floating or tensor.is_complex():  # complex numbers are not floating-point to torch
        raise TraceError(f"{name} must be {'floating-point' if floating else 'whole'} numbers, not {tensor.dtype}")
    return tensor


def check_ids(ids: Tensor, num_experts: int) -> None:
    """Refuse expert ids outside 0 to num_experts - 1."""
    lowest, highest = int(ids.min()), int(ids.max())
    if lowest < 0 or highest >= num_experts:
        raise TraceError(f"experts must be numbers from 0 to {num_experts - 1}, but range from {lowest} to {highest}")


def narrow_ids(ids: Tensor, num_experts: int) -> Tensor:
    """Expert ids as the file stores them: uint8 for up to 256 experts, otherwise int16."""
    check_ids(ids, num_experts)
    return ids.to(torch.uint8 if num_experts <= 256 else torch.int16)


def _header_error(error: Exception) -> str:
    """An error in the header on one line: of a ValidationError the first field and its message."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}"
