"""Train nano, or the draft model for it, and write it as a Transformers model.

    python recipes/nano/train.py CORPUS --model nano --short --steps 7600 --out OUT
    python recipes/nano/train.py CORPUS --model nano --resume --steps 8900 --out OUT
    python recipes/nano/train.py CORPUS --model draft --steps 1510 --out OUT
    python recipes/nano/train.py CORPUS --model smol --start OUT/start --seconds 500 --out OUT

Weights are bfloat16 with float32 masters. On a CPU all is float32, but for `--bfloat16`: some compute faster in it.
`--seconds` stops early and leaves a checkpoint in OUT, `--resume` goes on from it. Without `--steps`, as many are made
as fit: the number is chosen once the compiler is done, or after half of the time, and lowered if steps become slower.
OUT gets the model, its log and its evaluation (accuracy by kind and size, loss by domain).
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from evaluate import evaluate
from feed import Feed
from padded import use_padded
from safetensors.torch import load_file, save_file
from settings import BOTH, DRAFT_MODEL, LAB_MODEL, MODEL, NANO, TRAINING, Training
from torch import Tensor, nn

EVERY = 50  # steps of a line of the log


def new_model(name: str, device: str, tiny: bool, start: Path | None, bfloat16: bool) -> Any:
    import transformers as t

    if start is not None:
        net = t.AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32).to(device)
        if hasattr(net.config, "num_experts_per_tok"):
            if bfloat16 and device == "cpu":
                use_padded(net)
            else:
                net.set_experts_implementation("grouped_mm")
        return to_bfloat16(net) if bfloat16 else net
    small = {"num_hidden_layers": 2, "hidden_size": 64} if tiny else {}
    if name.endswith("draft"):
        net = t.Qwen3ForCausalLM(t.Qwen3Config(**(DRAFT_MODEL | BOTH | small)))
    else:
        shape = LAB_MODEL if name == "lab" else MODEL
        config = t.Qwen3MoeConfig(**(shape | BOTH | small), router_aux_loss_coef=0.0)
        config._experts_implementation = "grouped_mm"
        net = t.Qwen3MoeForCausalLM(config)
    net = net.to(device)
    return to_bfloat16(net) if bfloat16 else net


def to_bfloat16(net: Any) -> Any:
    """The weights alone: frequencies of the positions stay float32, as whoever loads the model will have them."""
    for weight in net.parameters():
        weight.data = weight.data.to(torch.bfloat16)
    return net


class Masters:
    """Float32 copies of bfloat16 weights, which AdamW changes."""

    def __init__(self, model: nn.Module, settings: Training) -> None:
        self.weights = [p for p in model.parameters() if p.requires_grad]
        self.masters = [p.detach().float().clone() for p in self.weights]
        groups = [
            {"params": [m for m in self.masters if m.dim() > 1], "weight_decay": settings.decay},
            {"params": [m for m in self.masters if m.dim() <= 1], "weight_decay": 0.0},
        ]
        self.adam = torch.optim.AdamW(groups, lr=settings.rate, betas=settings.betas, fused=True)

    @torch.no_grad()
    def step(self, rate: float) -> Tensor:
        """-> the gradient's norm, before it was clipped to 1"""
        grads = [p.grad.float() if p.grad is not None else torch.zeros_like(m) for p, m in self._pairs()]
        norm = torch.nn.utils.get_total_norm(grads)
        # A step whose gradient is not finite changes nothing but the weights' decay.
        torch._foreach_mul_(grads, torch.where(norm.isfinite(), 1.0 / norm.clamp(min=1.0), 0.0))
        for grad in grads:
            grad.nan_to_num_(0.0, 0.0, 0.0)
        for master, grad in zip(self.masters, grads, strict=True):
            master.grad = grad
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        torch._foreach_copy_(self.weights, self.masters)
        for weight in self.weights:
            weight.grad = None
        return norm

    def _pairs(self) -> Any:
        return zip(self.weights, self.masters, strict=True)

    def save(self, path: Path, step: int) -> None:
        tensors = {"step": torch.tensor(step)}
        for i, master in enumerate(self.masters):
            state_of_master = self.adam.state[master]
            tensors |= {
                f"{i}.weight": master,
                f"{i}.mean": state_of_master["exp_avg"],
                f"{i}.square": state_of_master["exp_avg_sq"],
            }
        save_file(tensors, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    @torch.no_grad()
    def load(self, path: Path) -> int:
        tensors = load_file(path, device=str(self.masters[0].device))
        step = int(tensors["step"])
        for i, master in enumerate(self.masters):
            master.copy_(tensors[f"{i}.weight"])
            self.adam.state[master] = {
                "step": torch.tensor(float(step), device=master.device),
                "exp_avg": tensors[f"{i}.mean"],
                "exp_avg_sq": tensors[f"{i}.square"],
            }
        torch._foreach_copy_(self.weights, self.masters)
        return step


class Loss(nn.Module):
    """Next-token loss, and for the experts: all used alike over the batch, and logits that do not run away. Beside them
    the share of a token's weight without its last expert: near 1 - 1/k where all weigh alike.

    The caller adds them up: without experts, Inductor would make the sum and `loss.detach()` one tensor, and that one
    has no gradient.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.routed: list[tuple[Tensor, Tensor]] = []
        gates = [module for name, module in model.named_modules() if name.endswith("mlp.gate")]
        self.hooks = [
            gate.register_forward_hook(lambda _, inputs, out: self.routed.append((out[0], out[2]))) for gate in gates
        ]

    def forward(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        self.routed.clear()
        hidden = self.model.model(input_ids=inputs, use_cache=False).last_hidden_state
        logits = self.model.lm_head(hidden).float()
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
        balance, spread, without_last = torch.zeros_like(loss), torch.zeros_like(loss), torch.zeros_like(loss)
        for router_logits, ids in self.routed:  # [tokens, N], [tokens, k]
            logit = router_logits.float()
            N = logit.shape[-1]
            chosen = torch.zeros(N, device=loss.device).scatter_add_(
                0, ids.flatten().long(), torch.ones(ids.numel(), device=loss.device)
            )
            balance = balance + N * (chosen / ids.numel() * logit.softmax(-1).mean(0)).sum() / len(self.routed)
            spread = spread + logit.logsumexp(-1).square().mean() / len(self.routed)
            weights = logit.detach().gather(1, ids.long()).softmax(-1)  # [tokens, k]
            without_last = without_last + (1 - weights.amin(-1)).mean() / len(self.routed)
        self.routed.clear()
        return loss, balance, spread, without_last


def compile_layers(net: Any) -> None:
    """Attention, experts and norms, each compiled once for all layers alike: thirty layers in one piece take minutes.
    Routers are left alone, since what they give is kept for the loss."""
    for layer in net.model.layers:
        compiled = [layer.self_attn, layer.input_layernorm, layer.post_attention_layernorm]
        for part in [*compiled, getattr(layer.mlp, "experts", layer.mlp)]:
            part.compile(dynamic=False)


def rate_at(step: int, steps: int, settings: Training) -> float:
    """Up, level, and down to zero; `steps` 0: not known yet."""
    rise = min(1.0, (step + 1) / settings.warmup)
    fall = min(1.0, (steps - step) / (settings.cooldown * steps)) if steps else 1.0
    return settings.rate * rise * (1 - math.sqrt(1 - fall) if fall < 1 else 1.0)


def checkpoint_of(out: Path, model: str) -> Path:
    return out / f"checkpoint-{model}.safetensors"


def main(
    corpus: Annotated[Path, typer.Argument(help="The folder with eltec_*.txt.xz.")],
    out: Annotated[Path, typer.Option(help="Where to write.")],
    model: Annotated[str, typer.Option(help="nano, draft, lab, lab-draft, smol or smol-dense.")] = "nano",
    start: Annotated[Path | None, typer.Option(help="Train the model in this folder, not one from nothing.")] = None,
    steps: Annotated[int, typer.Option(min=0, help="Steps in all; 0: as many as fit into --seconds.")] = 0,
    rows: Annotated[int | None, typer.Option(help="Rows a step.")] = None,
    bfloat16: Annotated[bool, typer.Option("--bfloat16", help="On a CPU, too.")] = False,
    seconds: Annotated[float, typer.Option(help="Stop after these, with a checkpoint.")] = math.inf,
    short: Annotated[bool, typer.Option("--short", help="Short questions only, as nano's first steps.")] = False,
    short_steps: Annotated[int, typer.Option(min=0, help="Short questions for so many steps, then all sizes.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in OUT.")] = False,
    keep: Annotated[bool, typer.Option(help="Leave a checkpoint now and then and at the end, to go on from.")] = True,
    workers: Annotated[int, typer.Option(help="Processes that make tasks.")] = 8,
    questions: Annotated[int, typer.Option(help="Questions of each kind and size in the evaluation; 0: none.")] = 32,
    tiny: Annotated[bool, typer.Option("--tiny", help="Two narrow layers: to try the recipe out.")] = False,
) -> None:
    began = time.monotonic()
    if model not in TRAINING:
        raise SystemExit(f"there is no recipe for {model!r}, only for {', '.join(TRAINING)}")
    if not steps and math.isinf(seconds):
        raise SystemExit("say how many --steps in all, or leave them out and say --seconds")
    settings = TRAINING[model]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(settings.seed)
    torch.set_float32_matmul_precision("high")
    out.mkdir(parents=True, exist_ok=True)
    if model.startswith("smol") and start is None:
        raise SystemExit(f"{model} is not trained from nothing: say where it --start, a folder of recipes/smol")
    net = new_model(model, device, tiny, start, bfloat16 or device == "cuda")
    for name, weight in net.named_parameters():
        weight.requires_grad_(not any(part in name for part in settings.frozen))
    print(f"{model}: {sum(p.numel() for p in net.parameters()) / 1e6:.2f} M parameters", flush=True)
    masters = Masters(net, settings)
    first = masters.load(checkpoint_of(out, model)) if resume else 0
    if not steps or first < steps:
        few = short or first < short_steps
        feed = Feed(model, corpus, rows or settings.rows, settings.seed + first, workers, few, start or NANO)
        lengthen = math.inf if short else short_steps
        steps = train(net, masters, model, feed, out, first, steps, began + seconds, lengthen, keep)
        if keep:  # what comes after can be done again with --resume
            masters.save(checkpoint_of(out, model), steps)
    net.config.architectures = [type(net).__name__]
    net.generation_config.eos_token_id, net.generation_config.pad_token_id = 0, 0
    to_bfloat16(net).save_pretrained(out / model, max_shard_size="12MB" if start is None else "4GB")
    for file in [] if start is None else start.glob("tokenizer*.json"):
        shutil.copy(file, out / model)
    if questions:  # what was written is evaluated, not what was trained: they must be the same
        evaluate(corpus, out, model, questions)


def train(
    net: Any,
    masters: Masters,
    model: str,
    feed: Feed,
    out: Path,
    first: int,
    steps: int,
    until: float,
    lengthen: float,
    keep: bool,
) -> int:
    """From step `first` to the last, or until the time is up, which leaves a checkpoint.
    With `keep` there is one now and then, too.
    Questions of all sizes from step `lengthen` on.

    -> the number of steps, which is chosen after `settings.timed` more of them where it is 0
    """
    settings = TRAINING[model]
    device = str(masters.masters[0].device.type)
    checkpoint = checkpoint_of(out, model)
    loss_of = Loss(net)
    compiled: Any = loss_of
    if device == "cuda" and settings.parts == 1:
        compiled = torch.compile(loss_of, dynamic=False)
    elif device == "cuda":
        compile_layers(net)
    with (out / f"log-{model}.jsonl").open("a" if first else "w") as log:
        began = since = time.monotonic()
        tokens = 0
        step, fitted = first - 1, not steps
        spent, seen = 0.0, 0  # seconds, and tokens in them, of the lines by which the number of steps is chosen
        while (step := step + 1) < steps or not steps:
            feed.short = step < lengthen
            batch = feed.batch()
            inputs, targets = (t.pin_memory().to(device, non_blocking=True) if device == "cuda" else t for t in batch)
            for part in zip(inputs.chunk(settings.parts), targets.chunk(settings.parts), strict=True):
                loss, balance, spread, without_last = compiled(*part)
                whole = loss + settings.balance * balance + settings.spread * spread
                (whole / settings.parts).backward()
                loss, balance = loss.detach(), balance.detach()
            norm = masters.step(rate_at(step, steps, settings))
            tokens += inputs.numel()
            slow = not steps and time.monotonic() > (began + until) / 2  # too slow for `timed` steps
            if (step + 1) % EVERY == 0 or step + 1 == steps or slow:
                line = {"step": step + 1, "loss": round(float(loss), 4), "balance": round(float(balance), 3)}
                taken = time.monotonic() - since  # float() has waited for the device
                speed = tokens / taken
                line |= {"without_last": round(float(without_last), 4)} if loss_of.hooks else {}
                line |= {"norm": round(float(norm), 2), "tokens_per_s": round(speed)}
                print(json.dumps(line), file=log, flush=True)
                print(json.dumps(line), flush=True)
                if fitted and (slow or step + 1 - first >= settings.timed):  # the first steps wait for the compiler
                    spent, seen = spent + taken, seen + tokens
                    left = max(0.0, until - time.monotonic())
                    fit = step + 1 + max(int(slow), int(left * seen / spent / inputs.numel()))
                    if not steps or fit < steps:
                        steps = fit
                        print(f"{steps} steps fit", flush=True)
                since, tokens = time.monotonic(), 0
            if keep and (step + 1) % 1000 == 0 and step + 1 < steps:
                masters.save(checkpoint, step + 1)
            if time.monotonic() > until and step + 1 < steps and not fitted:
                masters.save(checkpoint, step + 1)
                feed.close()
                print(f"stopped after {step + 1} steps of {steps}: go on with --resume")
                sys.exit(3)
    feed.close()
    for hook in loss_of.hooks:
        hook.remove()
    return steps


if __name__ == "__main__":
    typer.run(main)
