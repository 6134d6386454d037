"""A dense Llama model as a mixture of many small experts that, before it is trained, computes nearly the same.

    python recipes/smol/upcycle.py CORPUS OUT/dense OUT/start

Every MLP is copied several times, and each copy is cut into as many parts as a token has experts. A token that goes to
all parts of one copy gets what the dense MLP gives, since every part is scaled by one over its weight. Routers make it
so ("virtual groups", arXiv:2410.07524): the parts of a copy share a direction, and are chosen together. Directions are
the centres of clusters of what the layer reads in the training texts, so that copies begin with texts of their own. A
copy is cut by what its neurons contribute on its own texts: the first part has those that contribute most, and weighs
most. So no two copies are cut alike, and a token leans on some of its experts more than on others, as in trained
mixtures. A little noise lets parts be chosen apart. The model is a Mixtral: Llama's attention, and nothing else.
"""

from __future__ import annotations

import shutil
import sys
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
CHARACTERS = 8  # that a token has at most, in text as it is


@dataclass(frozen=True)
class Shape:
    parts: int = 4  # of an MLP, and experts of a token
    copies: int = 8  # of the MLP
    noise: float = 0.02  # in a router's rows, as a share of their length
    sharpness: float = 4.0  # standard deviation of a router's logits between copies
    leaning: float = 1.0  # of weights: 1 as parts contribute, 0 all alike
    seed: int = 0

    @property
    def experts(self) -> int:
        return self.parts * self.copies


def upcycled(dense: Any, shape: Shape, texts: Tensor) -> Any:
    """texts: int64 [rows, length], by which the routers' directions are found."""
    from transformers import MixtralConfig, MixtralForCausalLM

    own = dense.config
    config = MixtralConfig(
        **{name: getattr(own, name) for name in SAME},
        intermediate_size=own.intermediate_size // shape.parts,
        num_local_experts=shape.experts,
        num_experts_per_tok=shape.parts,
        bos_token_id=None,
    )
    with torch.device(dense.device):
        model = MixtralForCausalLM(config).to(dense.dtype)
    dice = torch.Generator().manual_seed(shape.seed)
    kept = {name: tensor for name, tensor in dense.state_dict().items() if ".mlp." not in name}
    model.load_state_dict(kept, strict=False)
    inputs = mlp_inputs(dense, texts)
    for layer, theirs, hidden in zip(model.model.layers, dense.model.layers, inputs, strict=True):
        centres = clusters(hidden, shape.copies, dice)  # [copies, hidden]
        contributions = contributions_of(theirs.mlp, hidden, centres)
        parts = contributions.argsort(dim=-1, descending=True, stable=True).view(shape.copies, shape.parts, -1)
        weights = weights_of(contributions, parts, shape)
        gate_up, down = experts_of(theirs.mlp, parts, weights)
        layer.mlp.experts.gate_up_proj.data.copy_(gate_up)
        layer.mlp.experts.down_proj.data.copy_(down)
        layer.mlp.gate.weight.data.copy_(router_of(hidden, centres, weights, shape, dice))
    return model


def contributions_of(mlp: Any, inputs: Tensor, centres: Tensor) -> Tensor:
    """[copies, neurons]: how much each neuron adds to the MLP's output, on the inputs nearest to each centre."""
    gate, up, down = (part.weight.float() for part in (mlp.gate_proj, mlp.up_proj, mlp.down_proj))
    lengths = down.norm(dim=0)
    nearest = (inputs @ centres.T).argmax(-1)
    contributions = []
    for copy in range(len(centres)):
        own = inputs[nearest == copy] if (nearest == copy).any() else inputs
        contributions.append((nn.functional.silu(own @ gate.T) * (own @ up.T)).abs().mean(0) * lengths)
    return torch.stack(contributions)


def weights_of(contributions: Tensor, parts: Tensor, shape: Shape) -> Tensor:
    """[parts]: what a token's experts are to weigh, by what the parts contribute; the sum is 1."""
    shares = contributions.gather(1, parts.flatten(1)).view(parts.shape).sum(-1)  # [copies, parts]
    leaning = (shares / shares.sum(-1, keepdim=True)).mean(0) ** shape.leaning
    return leaning / leaning.sum()


def experts_of(mlp: Any, parts: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """[experts, 2 width, hidden] and [experts, hidden, width]: copy after copy, each with all parts in turn.

    parts: int64 [copies, parts, width], each part's neurons. An expert is scaled by one over its weight: by the root
    of that where the result is linear, in what the gate multiplies and behind it. With four parts that weigh alike both
    are exact in bfloat16.
    """
    gate_up, down = [], []
    for copy in parts:
        for part, weight in zip(copy, weights, strict=True):
            factor = weight**-0.5
            gate_up.append(torch.cat([mlp.gate_proj.weight[part], factor * mlp.up_proj.weight[part]]))
            down.append(factor * mlp.down_proj.weight[:, part])
    return torch.stack(gate_up).detach(), torch.stack(down).detach()


def router_of(inputs: Tensor, centres: Tensor, weights: Tensor, shape: Shape, dice: torch.Generator) -> Tensor:
    """[experts, hidden]. Directions leave out what all inputs have in common. That, which is nearly the same for all,
    stands in for the bias that a router lacks: by it a copy's parts differ by the logarithms of their weights."""
    rows = centres.repeat_interleave(shape.parts, dim=0)
    noise = nn.functional.normalize(torch.randn(rows.shape, generator=dice), dim=-1).to(rows.device)
    rows = (rows + shape.noise * noise) * (shape.sharpness / (inputs @ centres.T).std())
    mean = nn.functional.normalize(inputs.mean(0), dim=0)
    biases = weights.log() - weights.log().mean()
    return rows + (biases / (inputs @ mean).mean()).repeat(shape.copies).unsqueeze(-1) * mean


def clusters(inputs: Tensor, count: int, dice: torch.Generator, rounds: int = 20) -> Tensor:
    """Directions of length 1, [count, hidden], orthogonal to the mean of the inputs: k-means on a sphere."""
    mean = nn.functional.normalize(inputs.mean(0), dim=0)

    def direction(rows: Tensor) -> Tensor:
        return nn.functional.normalize(rows - (rows @ mean).unsqueeze(-1) * mean, dim=-1)

    points = direction(inputs)
    centres = points[torch.randperm(len(points), generator=dice)[:count]]
    for _ in range(rounds):
        nearest = (points @ centres.T).argmax(-1)
        centres = direction(torch.zeros_like(centres).index_add_(0, nearest, points))
    return centres


@torch.inference_mode()
def mlp_inputs(dense: Any, texts: Tensor) -> list[Tensor]:
    """What each layer's MLP reads, float32 [tokens, hidden]."""
    by_layer: list[list[Tensor]] = [[] for _ in dense.model.layers]
    hooks = [
        layer.mlp.register_forward_pre_hook(
            lambda _, inputs, parts=parts: parts.append(inputs[0].flatten(0, 1).float())
        )
        for layer, parts in zip(dense.model.layers, by_layer, strict=True)
    ]
    for rows in texts.split(8):
        dense.model(input_ids=rows.to(dense.device), use_cache=False)
    for hook in hooks:
        hook.remove()
    return [torch.cat(parts) for parts in by_layer]


def sampled(corpus: Path, folder: Path, rows: int, length: int) -> Tensor:
    """From the middle of training texts in all languages and Python, as many rows of each."""
    words = tokenizer(folder)
    chosen = []
    for domain in [*PROSE, "python"]:
        texts = [text for text in documents(corpus, domain) if not held_out(text)]
        middles = (text[len(text) // 2 :][: CHARACTERS * length] for text in texts)
        ids = (words.encode(middle).ids[:length] for middle in middles)
        chosen += list(islice((row for row in ids if len(row) == length), rows))
    return torch.tensor(chosen)


def main(
    corpus: Annotated[Path, typer.Argument(help="The folder with eltec_*.txt.xz.")],
    dense: Annotated[Path, typer.Argument(help="What dense.py wrote.")],
    out: Annotated[Path, typer.Argument(help="Where to write the mixture.")],
    copies: Annotated[int, typer.Option(min=1, help="Of the MLP, each in four parts.")] = Shape.copies,
    noise: Annotated[float, typer.Option(min=0, help="In a router's rows.")] = Shape.noise,
    leaning: Annotated[
        float, typer.Option(min=0, help="1: parts weigh what they contribute; 0: alike.")
    ] = Shape.leaning,
    rows: Annotated[int, typer.Option(min=1, help="Of each domain, to find directions by.")] = 48,
    length: Annotated[int, typer.Option(min=1, help="Tokens of a row.")] = 256,
) -> None:
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    dense_model = AutoModelForCausalLM.from_pretrained(dense, dtype=dtype).to(device).eval()
    model = upcycled(
        dense_model, Shape(copies=copies, noise=noise, leaning=leaning), sampled(corpus, dense, rows, length)
    )
    model.to(torch.bfloat16).save_pretrained(out)
    for file in dense.glob("tokenizer*.json"):
        shutil.copy(file, out)


if __name__ == "__main__":
    typer.run(main)
