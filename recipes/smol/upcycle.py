"""A dense Llama model as a mixture of many small experts that, before it is trained, computes nearly the same.

    python recipes/smol/upcycle.py CORPUS OUT/dense OUT/start

Every MLP is cut into as many parts as a token has experts, and there are several copies of each part. A token that goes
to one copy of every part gets what the dense MLP gives: weights of 1/4 each, so the parts are scaled by 4. Routers make
it so ("virtual groups", arXiv:2410.07524): the parts of a copy share a direction, and are chosen together. Directions
are the centres of clusters of what the layer reads in the training texts, so that copies begin with texts of their own;
a little noise beside them lets parts be chosen apart. The model is a Mixtral: Llama's attention, and nothing else.
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
    copies: int = 8  # of each part
    noise: float = 0.02  # in a router's rows, as a share of their length
    sharpness: float = 1.0  # standard deviation of a router's logits
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
        gate_up, down = experts_of(theirs.mlp, shape, dice)
        layer.mlp.experts.gate_up_proj.data.copy_(gate_up)
        layer.mlp.experts.down_proj.data.copy_(down)
        layer.mlp.gate.weight.data.copy_(router_of(hidden, shape, dice))
    return model


def experts_of(mlp: Any, shape: Shape, dice: torch.Generator) -> tuple[Tensor, Tensor]:
    """[experts, 2 width, hidden] and [experts, hidden, width]: copy after copy, each with all parts in turn.

    Neurons are dealt out at random, so that every part is a fair sample. The factor is a product of two, where the
    result is linear: in what the gate multiplies, and behind it. With four parts both are exact in bfloat16.
    """
    parts = torch.randperm(mlp.down_proj.in_features, generator=dice).view(shape.parts, -1)
    factor = shape.parts**0.5
    gate_up = [torch.cat([mlp.gate_proj.weight[part], factor * mlp.up_proj.weight[part]]) for part in parts]
    down = [factor * mlp.down_proj.weight[:, part] for part in parts]
    return torch.stack(gate_up * shape.copies).detach(), torch.stack(down * shape.copies).detach()


def router_of(inputs: Tensor, shape: Shape, dice: torch.Generator) -> Tensor:
    """[experts, hidden]. Directions leave out what all inputs have in common: a router has no bias to weigh it up."""
    centres = clusters(inputs, shape.copies, dice)  # [copies, hidden]
    rows = centres.repeat_interleave(shape.parts, dim=0)
    noise = nn.functional.normalize(torch.randn(rows.shape, generator=dice), dim=-1).to(rows.device)
    rows = rows + shape.noise * noise
    return rows * (shape.sharpness / (inputs @ centres.T).std())


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
    copies: Annotated[int, typer.Option(min=1, help="Of each of the four parts.")] = Shape.copies,
    noise: Annotated[float, typer.Option(min=0, help="In a router's rows.")] = Shape.noise,
    rows: Annotated[int, typer.Option(min=1, help="Of each domain, to find directions by.")] = 48,
    length: Annotated[int, typer.Option(min=1, help="Tokens of a row.")] = 256,
) -> None:
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    dense_model = AutoModelForCausalLM.from_pretrained(dense, dtype=dtype).to(device).eval()
    model = upcycled(dense_model, Shape(copies=copies, noise=noise), sampled(corpus, dense, rows, length))
    model.to(torch.bfloat16).save_pretrained(out)
    for file in dense.glob("tokenizer*.json"):
        shutil.copy(file, out)


if __name__ == "__main__":
    typer.run(main)
