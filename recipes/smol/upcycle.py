"""A dense Llama model as a mixture of many small experts that, before it is trained, computes nearly the same.

    python recipes/smol/upcycle.py CORPUS OUT/dense OUT/start

Routers: what an MLP reads in training texts is clustered, a cluster per expert, and a token goes to the experts whose
centres are nearest. Experts: each gets, of the dense MLP, the neurons that contribute most on its own tokens. An expert
has as many as make k of them as large as the MLP. What they write is fitted: least squares over all experts of a layer
together, so that the sum for a token is what the dense model would have after the layer. Layers are fitted one after
another, on what the mixture's own layers before give, so each also mends what those got wrong. The model is a Mixtral:
Llama's attention, and nothing else.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

sys.path.append(str(Path(__file__).resolve().parents[1] / "nano"))
from data import documents, held_out
from feed import tokenizer
from settings import PROSE

SAME = ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"]
SAME += [
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_parameters",
    "tie_word_embeddings",
    "eos_token_id",
    "pad_token_id",
]
AT_ONCE = 8  # rows that a layer reads together
CHARACTERS = 8  # that a token has at most, in text as it is


@dataclass(frozen=True)
class Shape:
    experts: int = 32
    top_k: int = 4
    first: float = 0.35  # mean weight of a token's best expert; it is about that in gpt-oss-20b
    ridge: float = 0.05  # of a fit: how strongly it is held to the copied weights, in a feature's mean square
    seed: int = 0


def upcycled(dense: Any, shape: Shape, texts: Tensor, advance: Callable[[str], None] = print) -> Any:
    """texts: int64 [rows, length], by which routers and experts are found."""
    from transformers import MixtralConfig, MixtralForCausalLM

    own = dense.config
    config = MixtralConfig(
        **{name: getattr(own, name) for name in SAME},
        intermediate_size=own.intermediate_size // shape.top_k,
        num_local_experts=shape.experts,
        num_experts_per_tok=shape.top_k,
        bos_token_id=None,
    )
    with torch.device(dense.device):
        model = MixtralForCausalLM(config).to(dense.dtype)
    model.load_state_dict({name: x for name, x in dense.state_dict().items() if ".mlp." not in name}, strict=False)
    dice = torch.Generator().manual_seed(shape.seed)
    fit_layers(dense, model.eval(), shape, texts.to(dense.device), dice, advance)
    return model


@torch.inference_mode()
def fit_layers(
    dense: Any, model: Any, shape: Shape, texts: Tensor, dice: torch.Generator, advance: Callable[[str], None]
) -> None:
    """Both models read the texts side by side, and each layer's mixture is made when they get there."""
    theirs = dense.model.embed_tokens(texts)  # [rows, length, hidden]
    ours = theirs.clone()
    positions = dense.model.rotary_emb(theirs, torch.arange(texts.shape[1], device=texts.device)[None])
    for number, (old, new) in enumerate(zip(dense.model.layers, model.model.layers, strict=True)):
        theirs, ours = (attended(layer, hidden, positions) for layer, hidden in ((old, theirs), (new, ours)))
        theirs = theirs + by_rows(old.mlp, old.post_attention_layernorm(theirs))
        inputs = new.post_attention_layernorm(ours)
        flat = inputs.flatten(0, 1).float()
        wanted = (theirs - ours).flatten(0, 1).float()
        sizes = theirs.flatten(0, 1).float().norm(dim=-1, keepdim=True)
        router = router_of(flat, clusters(flat, shape.experts, dice), shape)
        gate_up, down, added = experts_of(old.mlp, flat, wanted, sizes, router, shape)
        new.mlp.gate.weight.data.copy_(router)
        new.mlp.experts.gate_up_proj.data.copy_(gate_up)
        new.mlp.experts.down_proj.data.copy_(down)
        left = ((wanted - added) / sizes).square().sum() / (wanted / sizes).square().sum()
        ours = ours + added.view_as(ours)
        advance(f"layer {number}: {1 - float(left):.1%} of what it should add")


def attended(layer: Any, hidden: Tensor, positions: tuple[Tensor, Tensor]) -> Tensor:
    """The residual stream before the MLP."""

    def attention(rows: Tensor) -> Tensor:
        return layer.self_attn(rows, position_embeddings=positions, attention_mask=None)[0]

    return hidden + by_rows(attention, layer.input_layernorm(hidden))


def by_rows(part: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
    return torch.cat([part(rows) for rows in hidden.split(AT_ONCE)])


def routed(inputs: Tensor, router: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """-> weights and ids, [tokens, k]"""
    best = (inputs @ router.T).topk(top_k)
    return best.values.softmax(-1), best.indices


def router_of(inputs: Tensor, centres: Tensor, shape: Shape) -> Tensor:
    """[experts, hidden]: the centres, as long as gives a token's best expert the mean weight that it shall have."""
    low, high = 0.0, 1e3 / float((inputs @ centres.T).std())
    for _ in range(40):
        middle = (low + high) / 2
        weights, _ = routed(inputs, middle * centres, shape.top_k)
        low, high = (middle, high) if float(weights[:, 0].mean()) < shape.first else (low, middle)
    return high * centres


def experts_of(
    mlp: Any, inputs: Tensor, wanted: Tensor, sizes: Tensor, router: Tensor, shape: Shape
) -> tuple[Tensor, Tensor, Tensor]:
    """Neurons of the MLP, and what they write, fitted: [experts, 2 width, hidden] and [experts, hidden, width]; and
    what the experts then add to the inputs, [tokens, hidden].

    sizes: [tokens, 1], of the residual stream behind the layer. What reads it is normed, so errors count by their share
    of it: else the few tokens with a hundred times the others' size would decide alone.
    """
    gate, up, down = (part.weight.float() for part in (mlp.gate_proj, mlp.up_proj, mlp.down_proj))
    weights, ids = routed(inputs, router, shape.top_k)
    width = len(gate) // shape.top_k
    acts = torch.cat([nn.functional.silu(rows @ gate.T) * (rows @ up.T) for rows in inputs.split(4096)])
    own = [(ids == expert).nonzero(as_tuple=True) for expert in range(shape.experts)]  # tokens, and which of their k
    neurons = shared_out(acts / sizes, down.norm(dim=0), [tokens for tokens, _ in own], width)
    features = [
        acts[tokens][:, best] * weights[tokens, slot, None] for (tokens, slot), best in zip(own, neurons, strict=True)
    ]
    before = torch.cat([down[:, best].T for best in neurons])  # [experts * width, hidden]
    shares = [rows / sizes[tokens] for (tokens, _), rows in zip(own, features, strict=True)]
    fitted = before + fit(shares, [tokens for tokens, _ in own], wanted / sizes, before, shape.ridge)
    gate_up = torch.stack([torch.cat([gate[best], up[best]]) for best in neurons])
    added = torch.zeros_like(wanted)
    for (tokens, _), rows, part in zip(own, features, fitted.split(width), strict=True):
        added.index_add_(0, tokens, rows @ part)
    return gate_up, fitted.view(shape.experts, width, -1).transpose(1, 2), added


def shared_out(acts: Tensor, lengths: Tensor, own: list[Tensor], width: int, rounds: int = 3) -> Tensor:
    """[experts, width]: the neurons of each expert, ascending: those that would be missed most on its own tokens.

    A neuron is missed by a token if none of the token's other experts has it. So experts are chosen in turn, given the
    others, and over a few rounds those that often come together share the MLP's neurons out among themselves.
    """
    sizes = acts.abs() * lengths
    has = torch.zeros(len(own), acts.shape[1], dtype=torch.uint8, device=acts.device)  # [experts, neurons]
    held = torch.zeros(acts.shape, dtype=torch.uint8, device=acts.device)  # by how many of a token's experts
    for _ in range(rounds):
        for expert, tokens in enumerate(own):
            others = held[tokens] - has[expert]
            missed = sizes[tokens].masked_fill_(others > 0, 0).sum(0)
            has[expert] = torch.zeros_like(has[expert]).index_fill_(0, missed.topk(width).indices, 1)
            held[tokens] = others + has[expert]
    return has.nonzero()[:, 1].view(len(own), width)


def fit(features: list[Tensor], own: list[Tensor], wanted: Tensor, before: Tensor, ridge: float) -> Tensor:
    """What to add to `before`, so that all experts' features together give what is wanted: ridge regression.

    features: of each expert, [its tokens, width]; own: which tokens, ascending; wanted: [tokens, hidden].
    """
    width, count = features[0].shape[1], len(features)
    gram = wanted.new_zeros(count * width, count * width)
    parts = before.split(width)
    left = wanted.clone()
    for tokens, rows, part in zip(own, features, parts, strict=True):
        left.index_add_(0, tokens, rows @ part, alpha=-1)
    aims = torch.cat([rows.T @ left[tokens] for tokens, rows in zip(own, features, strict=True)])
    for i in range(count):
        place = torch.full((len(wanted),), -1, device=wanted.device)
        place[own[i]] = torch.arange(len(own[i]), device=wanted.device)
        for j in range(i, count):
            at = place[own[j]]
            both = at >= 0
            block = features[i][at[both]].T @ features[j][both]
            gram[i * width : (i + 1) * width, j * width : (j + 1) * width] = block
            gram[j * width : (j + 1) * width, i * width : (i + 1) * width] = block.T
    diagonal = gram.diagonal()
    diagonal += ridge * diagonal.mean()
    return torch.cholesky_solve(aims, torch.linalg.cholesky(gram))


def clusters(inputs: Tensor, count: int, dice: torch.Generator, rounds: int = 20) -> Tensor:
    """Directions of length 1, [count, hidden], orthogonal to the mean of the inputs: k-means on a sphere."""
    mean = nn.functional.normalize(inputs.mean(0), dim=0)

    def direction(rows: Tensor) -> Tensor:
        return nn.functional.normalize(rows - (rows @ mean).unsqueeze(-1) * mean, dim=-1)

    points = direction(inputs)
    centres = points[torch.randperm(len(points), generator=dice)[:count].to(points.device)]
    for _ in range(rounds):
        nearest = (points @ centres.T).argmax(-1)
        centres = direction(torch.zeros_like(centres).index_add_(0, nearest, points))
    return centres


def sampled(corpus: Path, folder: Path, rows: int, length: int) -> Tensor:
    """From all over the training texts in all languages and Python, as many rows of each."""
    words = tokenizer(folder)
    chosen = []
    for domain in [*PROSE, "python"]:
        texts = [text for text in documents(corpus, domain) if not held_out(text)]
        size = CHARACTERS * length
        texts = [text for text in texts if len(text) > size]
        each = -(-rows // len(texts))  # pieces of a text
        places = ((text, (len(text) - size) * number // each) for number in range(each) for text in texts)
        ids = (words.encode(text[begin : begin + size]).ids[:length] for text, begin in places)
        chosen += list(islice((row for row in ids if len(row) == length), rows))
    return torch.tensor(chosen)


def main(
    corpus: Annotated[Path, typer.Argument(help="The folder with eltec_*.txt.xz.")],
    dense: Annotated[Path, typer.Argument(help="What dense.py wrote.")],
    out: Annotated[Path, typer.Argument(help="Where to write the mixture.")],
    experts: Annotated[int, typer.Option(min=1, help="In a layer; a token has four.")] = Shape.experts,
    first: Annotated[float, typer.Option(help="Mean weight of a token's best expert.")] = Shape.first,
    ridge: Annotated[
        float, typer.Option(min=0, help="How strongly a fit is held to the copied weights.")
    ] = Shape.ridge,
    rows: Annotated[int, typer.Option(min=1, help="Of each domain, to fit to.")] = 48,
    length: Annotated[int, typer.Option(min=1, help="Tokens of a row.")] = 512,
) -> None:
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dense_model = AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float32).to(device).eval()
    model = upcycled(dense_model, Shape(experts, first=first, ridge=ridge), sampled(corpus, dense, rows, length))
    model.to(torch.bfloat16).save_pretrained(out)
    for file in dense.glob("tokenizer*.json"):
        shutil.copy(file, out)


if __name__ == "__main__":
    typer.run(main)
