"""RouterSpec: how a model turns router logits into score, choice and weight. The three must not be mixed up.

score   what is summed over the batch:  softmax, or sigmoid
choice  what ranks one row's experts:   the logit, or sigmoid + correction bias; then the group rule
weight  what multiplies the output:     the score of the chosen, renormalised and scaled if the model does

All of it is computed in float64. A score then rounds to the same fixed-point integer whatever the order of summation.
So equal rows tie exactly, and a decision depends on the logits alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor

from xshare.errors import RouterError

LOWEST = torch.finfo(torch.float64).min  # the choice of an expert with logit -inf: last, but the row may take it
ABSENT = float("-inf")  # the choice of an expert the row may not take at all


@dataclass(frozen=True, eq=False)
class RouterSpec:
    top_k: int
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    renormalize: bool = True
    correction_bias: Tensor | None = None  # [N], or [..., N] with the leading dimensions of the logits
    n_group: int = 1
    topk_group: int = 1
    routed_scaling_factor: float = 1.0
    num_experts: int | None = None  # where known (presets); checked against the logits

    def __post_init__(self) -> None:
        for name in ("top_k", "n_group", "topk_group"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise RouterError(f"{name} must be a whole number from 1 up, not {value!r}")
        if not isinstance(self.renormalize, bool):
            raise RouterError(f"renormalize must be True or False, not {self.renormalize!r}")
        scale, bias = self.routed_scaling_factor, self.correction_bias
        if not isinstance(scale, int | float) or not 0 < scale < float("inf"):
            raise RouterError(f"routed_scaling_factor must be a finite number above zero, not {scale!r}")
        if bias is not None and (not isinstance(bias, Tensor) or bias.ndim == 0 or not bias.is_floating_point()):
            raise RouterError("correction_bias must be a floating-point tensor with one value an expert")
        if self.scoring not in ("softmax", "sigmoid"):
            raise RouterError(f"scoring must be 'softmax' or 'sigmoid', not {self.scoring!r}")
        if self.scoring == "softmax" and (self.correction_bias is not None or self.n_group > 1):
            raise RouterError("correction_bias and n_group belong to a sigmoid router, and scoring is 'softmax'")
        if self.topk_group > self.n_group:
            raise RouterError(f"topk_group must be at most n_group ({self.n_group}), not {self.topk_group}")

    @classmethod
    def softmax(cls, top_k: int, *, renormalize: bool = True, num_experts: int | None = None) -> Self:
        """gpt-oss, Qwen3-MoE, Mixtral; OLMoE with `renormalize=False`."""
        return cls(top_k=top_k, renormalize=renormalize, num_experts=num_experts)

    @classmethod
    def sigmoid(
        cls,
        top_k: int,
        *,
        correction_bias: Tensor | None = None,
        n_group: int = 1,
        topk_group: int = 1,
        routed_scaling_factor: float = 1.0,
        renormalize: bool = True,
        num_experts: int | None = None,
    ) -> Self:
        """DeepSeek-V3/R1, Kimi, GLM: sigmoid scores, a correction bias for ranking only, groups of experts."""
        return cls(
            top_k,
            "sigmoid",
            renormalize,
            correction_bias=correction_bias,
            n_group=n_group,
            topk_group=topk_group,
            routed_scaling_factor=routed_scaling_factor,
            num_experts=num_experts,
        )

    @classmethod
    def for_model(cls, name: str) -> Self:
        """The router of a known model: `for_model("deepseek-r1")`, `for_model("Qwen/Qwen3-30B-A3B")`."""
        short = str(name).lower().rsplit("/", 1)[-1]
        match = max((known for known in PRESETS if short.startswith(known)), key=len, default=None)
        dense = any(word in short for word in ("distill", "-qwen", "-llama"))  # students of R1
        if match is None or dense:
            raise RouterError(f"no router preset for model {name!r}: expected one of {', '.join(PRESETS)}")
        return cls(**PRESETS[match])

    def with_bias(self, correction_bias: Tensor | None) -> Self:
        """The same router with a layer's correction bias, which presets cannot know."""
        return replace(self, correction_bias=correction_bias)

    def check(self, num_experts: int) -> None:
        """Refuse logits that this router cannot have made."""
        if self.num_experts not in (None, num_experts):
            raise RouterError(f"logits are over {num_experts} experts, expected {self.num_experts}")
        if self.top_k > num_experts:
            raise RouterError(f"top_k must be at most the number of experts ({num_experts}), not {self.top_k}")
        if num_experts % self.n_group:
            raise RouterError(f"n_group must divide the number of experts ({num_experts}), not {self.n_group}")
        if self.top_k > num_experts // self.n_group * self.topk_group:
            raise RouterError(f"top_k ({self.top_k}) must fit into topk_group ({self.topk_group}) groups of experts")
        if self.correction_bias is not None and self.correction_bias.shape[-1] != num_experts:
            got = self.correction_bias.shape[-1]
            raise RouterError(f"correction_bias must hold one value an expert ({num_experts}), not {got}")

    def score(self, logits: Tensor) -> Tensor:
        """float64 [..., n, N] -> float64 [..., n, N] in [0, 1]."""
        return logits.softmax(-1) if self.scoring == "softmax" else _against_zero(logits).softmax(-1)[..., 0]

    def choice(self, logits: Tensor, score: Tensor) -> Tensor:
        """The values that rank a row's experts, before the group rule. -> float64 [..., n, N]"""
        if self.scoring == "softmax":
            return logits.clamp(min=LOWEST)
        if self.correction_bias is None:
            return score
        biased = score + self.correction_bias.to(score).unsqueeze(-2)  # all rows of a layer share the bias
        return biased.nan_to_num(nan=LOWEST, neginf=LOWEST)

    def limit_groups(self, choice: Tensor) -> Tensor:
        """DeepSeek-V3's rule: the topk_group groups with the largest sum of two best choices stay, the rest are ABSENT.

        A group with one present choice is ranked by that choice alone; a group with none ranks last.
        """
        if self.n_group == 1:
            return choice
        *rows, N = choice.shape
        groups = choice.view(*rows, self.n_group, N // self.n_group)  # [..., n, n_group, N / n_group]
        best = groups.topk(min(2, groups.shape[-1]), dim=-1).values
        present = best > ABSENT
        value = torch.where(present, best, 0).sum(-1).clamp(min=LOWEST)  # [..., n, n_group]; LOWEST twice overflows
        value = value.masked_fill(~present.any(-1), ABSENT)
        order = value.argsort(dim=-1, descending=True, stable=True)
        stays = torch.zeros_like(value, dtype=torch.bool).scatter_(-1, order[..., : self.topk_group], True)
        return groups.masked_fill(~stays.unsqueeze(-1), ABSENT).flatten(-2)

    def weight(self, logits: Tensor, score: Tensor, ids: Tensor, real: Tensor) -> Tensor:
        """Weights of the chosen `ids` [..., n, k]; a slot that is not `real` gets 0. `route` applies the scaling factor
        afterwards."""
        if not self.renormalize:
            return score.gather(-1, ids) * real
        # score / sum of scores in the log domain, which is right even if every chosen score underflows to zero.
        log_score = logits if self.scoring == "softmax" else _against_zero(logits).log_softmax(-1)[..., 0]
        chosen = log_score.gather(-1, ids).clamp(min=LOWEST)
        return chosen.masked_fill(~real, ABSENT).softmax(-1)


def _against_zero(logits: Tensor) -> Tensor:
    """[...] -> [..., 2]: softmax over the pair (x, 0) is sigmoid(x).

    torch's sigmoid rounds differently in the scalar tail of a vectorised loop, so equal logits might not tie. Its
    softmax treats all rows alike.
    """
    return torch.stack((logits, torch.zeros_like(logits)), dim=-1)


_DEEPSEEK_V3: dict[str, Any] = {
    "scoring": "sigmoid",
    "num_experts": 256,
    "top_k": 8,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
}
# By the beginning of a checkpoint's name, in lower case; values from the models' published configurations.
PRESETS: dict[str, dict[str, Any]] = {
    "gpt-oss-20b": {"num_experts": 32, "top_k": 4},
    "gpt-oss-120b": {"num_experts": 128, "top_k": 4},
    "qwen3-30b-a3b": {"num_experts": 128, "top_k": 8},
    "qwen3-235b": {"num_experts": 128, "top_k": 8},
    "olmoe": {"num_experts": 64, "top_k": 8, "renormalize": False},
    "mixtral": {"num_experts": 8, "top_k": 2},
    "deepseek-v3": _DEEPSEEK_V3,
    "deepseek-r1": _DEEPSEEK_V3,
}
