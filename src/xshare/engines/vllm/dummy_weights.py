"""Random weights that route as a trained model does: vLLM's load format `xshare_dummy`.

vLLM's own dummy weights lie about routing. They are so small that the router's bias alone decides (16 tokens of a
gpt-oss reach 7 experts of 128 and not 52), every layer is the same, and MXFP4 bytes are not filled at all. Here
biases are zero, norms are one, each parameter is drawn with a seed from its own name, and a forward pass keeps
activations of order one. Speed can be measured with such weights, quality cannot.

    LLM(model=DIRECTORY, load_format="xshare_dummy", model_loader_extra_config={"skew": 0.5, "correlation": 0.5})

How the routing is shaped, by weights alone. An embedding is made of three unit gaussian parts,

    embedding[t] = sqrt(s) common + sqrt((1 - s) c) block[t // 256] + sqrt((1 - s) (1 - c)) own[t],

and output projections are so small that all layers together add a few percent to it: every router sees the
embedding of its token, normed. Routers are plain gaussians, drawn for each layer. Their products with the common part
are the popularity of the experts, with a block the taste of a request, with the rest the token's own:

    logit[t, e] = router_scale (skew popular[e] + sqrt(c) taste[block, e] + sqrt(1 - c) own[t, e]),

each standard normal, with c = correlation and s = skew² / (1 + skew²). The head adds to the tokens of the present
token's block, so what is sampled stays in its block: the request of a benchmark has the taste of the last token of its
prompt, and keeps it while it decodes. So give the requests prompts that end in different blocks of 256 ids (random
prompts nearly always do), sample at temperature 1 (greedy decoding soon runs in a circle of a few tokens), and draft
with FixedDrafter, which stays in the block too. Below a correlation of 0.02 the block is too faint for the head to
follow. With tied embeddings a token is its own likeliest successor. An EAGLE-3 head starts from the mean of the streams
it is given, so that its drafts stay in the block (the third in 95 % of cases), and its MLP adds much to it at every
draft, so that they are different tokens (four of five neighbours).

skew=0.5, correlation=0.5 is close to gpt-oss-20b: 24 of 32 experts for 16 tokens (measured there 23), 1.6 of 4 experts
shared by consecutive tokens (1.75) and 0.8 by tokens of two requests (0.71). At 128 experts it gives 42 for 16 tokens;
benchmarks/fit_routing.py fits the two for that size.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor, nn

from xshare.engines.vllm.dummy_roles import Role, roles_of
from xshare.errors import XShareError

LOAD_FORMAT = "xshare_dummy"
BLOCK = 256  # token ids that share a part of their embedding: gpt-oss has 786 such blocks, for as many requests
MARGIN = 20.0  # what the head adds to the logits of the present block: e^20 outweighs any vocabulary
GROWTH = 0.1  # variance that all output projections together may add to a stream that starts at 1
DRAFT_GROWTH = (
    10.0  # the same for the MLP of an EAGLE-3 head: with less its drafts repeat, with more they leave the block
)

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
FP4_RMS = math.sqrt(sum(v * v for v in (0, 0.5, 1, 1.5, 2, 3, 4, 6)) / 8)  # 2.93: E2M1 values of random nibbles
CHUNK = 1 << 26  # elements of FP8 drawn at a time: 256 MB of float32 beside the parameter

LIMITS = {"seed": (0, 2**63 - 1), "skew": (0, 10), "correlation": (0, 1), "router_scale": (1e-3, 100)}


@dataclass(frozen=True)
class Weights:
    """The knobs, from `model_loader_extra_config`."""

    seed: int = 0
    skew: float = 0.5  # how much an expert's popularity varies, against how much a token's logits do
    correlation: float = 0.5  # share of a token's own logits that its request's other tokens have too
    router_scale: float = 1.0  # standard deviation of an expert's logit over tokens

    def __post_init__(self) -> None:
        for name, (low, high) in LIMITS.items():
            value = getattr(self, name)
            kinds, expected = (int, "a whole number") if name == "seed" else (int | float, "a number")
            if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:  # NaN fails too
                raise XShareError(f"{name} of {LOAD_FORMAT} must be {expected} from {low} to {high}, not {value!r}")

    @classmethod
    def of(cls, config: Any) -> Self:
        if not isinstance(config, Mapping):
            raise XShareError(f"model_loader_extra_config of {LOAD_FORMAT} must be a mapping, not {config!r}")
        names = [field.name for field in fields(cls)]
        for key in config:
            if key not in names:
                raise XShareError(f"{key!r} is no key of {LOAD_FORMAT}: it takes {', '.join(names)}")
        return cls(**config)

    @property
    def common(self) -> float:
        return self.skew**2 / (1 + self.skew**2)

    @property
    def block(self) -> float:
        return (1 - self.common) * self.correlation

    @property
    def own(self) -> float:
        return (1 - self.common) * (1 - self.correlation)

    def generator(self, name: str, device: torch.device) -> torch.Generator:
        """Seeded by name, so that a replicated parameter is the same on every rank and no two layers are the same."""
        digest = hashlib.sha256(f"{self.seed}/{name}".encode()).digest()
        return torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "big"))

    # The three that shape routing. `first` is the token id of the first row, where a rank holds a part of them.

    def fill_router(self, weight: Tensor, name: str) -> None:
        """[N, d]: with the shares of the embedding, logits are router_scale (skew popular + the token's own)."""
        gaussian(
            weight,
            self.router_scale * math.sqrt((1 + self.skew**2) / weight.shape[1]),
            self._generator_for(weight, name),
        )

    def fill_embedding(self, weight: Tensor, name: str, vocab: int, first: int = 0) -> None:
        """[V, d], with a root mean square of 1."""
        gaussian(weight, math.sqrt(self.own), self._generator_for(weight, f"{name}/{first}"))
        common = torch.empty(weight.shape[1], dtype=torch.float32, device=weight.device)
        gaussian(common, math.sqrt(self.common), self._generator_for(weight, "common"))
        self._add_blocks(weight, math.sqrt(self.block), vocab, first, common)

    def fill_head(self, weight: Tensor, name: str, vocab: int, first: int = 0) -> None:
        """[V, d]: standard normal logits, and MARGIN more for the tokens of the present token's block."""
        gaussian(weight, weight.shape[1] ** -0.5, self._generator_for(weight, f"{name}/{first}"))
        if self.block:
            self._add_blocks(weight, MARGIN / weight.shape[1] / math.sqrt(self.block), vocab, first)

    def _generator_for(self, tensor: Tensor, name: str) -> torch.Generator:
        return self.generator(name, tensor.device)

    def _add_blocks(self, weight: Tensor, scale: float, vocab: int, first: int, offset: Tensor | float = 0.0) -> None:
        blocks = torch.empty(-(-vocab // BLOCK), weight.shape[1], dtype=torch.float32, device=weight.device)
        gaussian(
            blocks, 1.0, self._generator_for(weight, "block")
        )  # all blocks on every rank: the head uses those of the embedding
        parts = blocks * scale + offset
        row = 0
        while row < len(weight):
            block, inside = divmod(first + row, BLOCK)
            end = row + BLOCK - inside
            weight[row:end] += parts[min(block, len(parts) - 1)]  # rows past the vocabulary are padding
            row = end


def gaussian(tensor: Tensor, std: float, generator: torch.Generator) -> None:
    """Fill in place, on the tensor's device. FP8 is drawn in float32, a chunk at a time."""
    if tensor.dtype not in FP8:
        tensor.normal_(0.0, std, generator=generator)
        return
    for part in torch.split(tensor.view(-1), CHUNK):
        drawn = torch.empty(part.shape, dtype=torch.float32, device=part.device)
        part.copy_(drawn.normal_(0.0, std, generator=generator))


def random_bytes(tensor: Tensor, generator: torch.Generator) -> None:
    """Fill a uint8 tensor, eight bytes per draw: experts may take tens of GiB."""
    flat = tensor.view(-1)
    whole = len(flat) // 8 * 8
    flat[:whole].view(torch.int64).random_(-(2**63), None, generator=generator)
    flat[whole:].random_(0, 256, generator=generator)


@dataclass(frozen=True)
class Filler:
    weights: Weights
    layers: int
    vocab: int

    @torch.no_grad()
    def fill(self, path: str, module: nn.Module, role: Role) -> None:
        """Fill the module's own parameters. Buffers stay: a model computes them (rotary tables, expert maps)."""
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.device.type != "meta":
                self._fill(f"{path}.{name}", parameter, module, role)

    def _fill(self, path: str, parameter: nn.Parameter, module: nn.Module, role: Role) -> None:
        tensor, name = parameter.data, path.rsplit(".", 1)[1]
        if (value := getattr(parameter, "dummy_weight_value", None)) is not None:  # the model sets it
            tensor.fill_(value)
        elif name.endswith("bias"):
            tensor.zero_()
        elif "scale" in name:
            self._fill_scale(path, name, tensor, module, role)
        elif tensor.ndim < 2:  # norms; and sinks, gates' constants and the like, for which zero is neutral
            tensor.fill_(1.0 if "norm" in path.lower() and role.kind != "centred norm" else 0.0)
        elif role.kind == "embedding":
            self.weights.fill_embedding(tensor, path, self.vocab, role.first)
        elif role.kind == "head":
            self.weights.fill_head(tensor, path, self.vocab, role.first)
        elif role.kind == "router":
            self.weights.fill_router(tensor, path)
        elif role.kind == "fusion":  # [d, n d]: the mean of n streams
            parts = tensor.shape[1] // len(tensor)
            tensor.copy_(torch.eye(len(tensor), dtype=tensor.dtype, device=tensor.device).repeat(1, parts) / parts)
        else:
            generator = self.weights.generator(f"{path}/{role.shard}", tensor.device)
            if tensor.dtype == torch.uint8:
                random_bytes(tensor, generator)
            elif tensor.is_floating_point():
                gaussian(tensor, 1.0 if tensor.dtype in FP8 else self._std(name, tensor, module, role), generator)
            else:
                raise XShareError(f"{LOAD_FORMAT} cannot fill {path}: it knows no weights of type {tensor.dtype}")

    def _fill_scale(self, path: str, name: str, tensor: Tensor, module: nn.Module, role: Role) -> None:
        """Scales of weights, so that a product is as large as with unquantised weights; 1 for all other scales."""
        head, of_weight, _ = name.partition("weight")
        stored = dict(module.named_parameters(recurse=False)).get(f"{head}weight") if of_weight else None
        scale = 1.0
        if stored is not None:
            rms = FP4_RMS if stored.dtype == torch.uint8 else 1.0
            scale = self._std(f"{head}weight", stored, module, role) / rms
        if tensor.dtype in (torch.uint8, torch.float8_e8m0fnu):  # E8M0: 2^(byte - 127); 120 for a fan-in of 2880
            tensor.view(torch.uint8).fill_(127 + round(math.log2(scale)))
        elif tensor.is_floating_point() and tensor.dtype not in FP8:
            tensor.fill_(scale)
        else:
            raise XShareError(f"{LOAD_FORMAT} cannot fill {path}: it knows no scales of type {tensor.dtype}")

    def _std(self, name: str, tensor: Tensor, module: nn.Module, role: Role) -> float:
        """1 / sqrt(fan-in); less for what is added to the residual stream, twice per layer."""
        output = "output" in role.kind or (role.kind == "experts" and name.startswith("w2"))
        growth = DRAFT_GROWTH if role.kind == "draft output" else GROWTH
        fan_in = getattr(module, "input_size", None)  # a linear layer's, before it is sharded or packed
        if fan_in is None:
            fan_in = tensor.shape[-1] * (2 if tensor.dtype == torch.uint8 else 1) * (role.parts if output else 1)
        return math.sqrt((growth / (2 * self.layers) if output else 1.0) / fan_in)


@torch.inference_mode()
def refill(worker: Any, config: Mapping[str, Any]) -> int:
    """Fill embedding, head and routers of a running engine again, in place; returns the number of routers.

        llm.collective_rpc(refill, args=({"skew": 0, "correlation": 0},))

    Captured graphs see the new weights, since nothing moves. On a CPU vLLM has repacked linear weights, so they are
    allocated again.
    """
    model, model_config = worker.model_runner.get_model(), worker.model_config
    filler, routers = Filler(Weights.of(config), 1, model_config.get_vocab_size()), 0
    for path, module, role in roles_of(model, model_config.get_num_experts()):
        if role.kind not in ("embedding", "head", "router"):
            continue
        if not module.weight.numel():
            empty = torch.empty(module.output_size, module.input_size, dtype=module.params_dtype)
            module.weight = nn.Parameter(empty, requires_grad=False)
        filler.fill(path, module, role)
        if module.weight.device.type == "cpu":
            module.quant_method.process_weights_after_loading(module)
        routers += role.kind == "router"
    if not routers:
        raise XShareError(f"{LOAD_FORMAT} found no router to fill again in {type(model).__name__}")
    return routers


@cache
def register_dummy_loader() -> None:
    """Register the load format with vLLM. Every process that loads a model needs it; a second call does nothing."""
    from vllm.model_executor.model_loader import register_model_loader

    register_model_loader(LOAD_FORMAT)(_loader())


def _loader() -> type:
    # Imported here: shaping weights needs torch alone, and importing vLLM takes ten seconds.
    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader
    from vllm.model_executor.model_loader.reload.layerwise import _get_original_loader, get_layerwise_info
    from vllm.model_executor.model_loader.reload.meta import materialize_layer
    from vllm.model_executor.model_loader.reload.utils import get_layer_tensors

    class XShareDummyLoader(DummyModelLoader):
        def __init__(self, load_config: Any) -> None:
            BaseModelLoader.__init__(self, load_config)  # DummyModelLoader's refuses any extra configuration
            self.weights = Weights.of(load_config.model_loader_extra_config or {})

        def load_weights(self, model: nn.Module, model_config: Any) -> None:
            layers = model_config.get_total_num_hidden_layers()
            filler = Filler(self.weights, max(layers, 1), model_config.get_vocab_size())
            for path, module, role in roles_of(model, model_config.get_num_experts()):
                info = get_layerwise_info(module)
                online = info.can_load()  # quantised while loading: it has no memory yet
                if online:
                    materialize_layer(module, info)
                filler.fill(path, module, role)
                if online:  # as DummyModelLoader does it
                    for tensor in get_layer_tensors(module).values():
                        tensor.weight_loader = _get_original_loader(tensor)
                    method = getattr(module, "quant_method", None)
                    if isinstance(method, QuantizeMethodBase):
                        method.process_weights_after_loading(module)
                    info.reset()

    return XShareDummyLoader
