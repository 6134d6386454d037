"""Teacher forcing: the same text under two routings, as if its sequences were decoded side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from xshare.batch import BatchLayout
from xshare.engines.transformers.attach import Attached


@dataclass
class Divergence:
    """Sums over the positions of the answers."""

    tokens: int = 0
    kl: float = 0.0  # of native's next-token distribution from the policy's, in nats
    surprise: float = 0.0  # of the text under the policy, and natively
    surprise_native: float = 0.0
    same: int = 0  # positions at which both would go on with the same token


@torch.inference_mode()
def diverge(
    attached: Attached, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], batch: int
) -> Divergence:
    """Score the answers under the policy at work and natively, `batch` sequences at a time."""
    found = Divergence()
    model = attached.model
    for start in range(0, len(prompts), batch):
        some = slice(start, start + batch)
        tokens, mask, requests = lay_out(prompts[some], answers[some], str(model.device))
        first = max(map(len, prompts[some]))  # position of the answers' first token
        inputs: dict[str, Any] = {"input_ids": tokens, "attention_mask": mask, "use_cache": False}
        inputs["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
        attached.switch(False)
        native = model(**inputs).logits
        attached.switch(True)
        with attached.state.laid_out(BatchLayout(requests)):
            ours = model(**inputs).logits
        for row, answer in enumerate(answers[some]):  # one sequence at a time: vocabularies are large
            there = slice(first, first + len(answer) - 1)
            p, q = native[row, there].double().log_softmax(-1), ours[row, there].double().log_softmax(-1)
            wanted = tokens[row, first + 1 : first + len(answer)].unsqueeze(-1)
            found.tokens += len(answer) - 1
            found.kl += float((p.exp() * (p - q)).sum())
            found.surprise -= float(q.gather(-1, wanted).sum())
            found.surprise_native -= float(p.gather(-1, wanted).sum())
            found.same += int((p.argmax(-1) == q.argmax(-1)).sum())
    return found


def lay_out(
    prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], device: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Prompts padded on the left to end together, answers on the right -> tokens and mask [sequences, positions], and
    whose each row is, [positions, sequences].

    A token of an answer is read in a decode step, all but the last, after which nothing was decoded.
    """
    before, after = max(map(len, prompts)), max(map(len, answers))
    tokens = torch.zeros(len(prompts), before + after, dtype=torch.long)
    mask = torch.zeros_like(tokens)
    requests = torch.full((before + after, len(prompts)), -1)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        begin, end = before - len(prompt), before + len(answer)
        tokens[row, begin:end] = torch.tensor([*prompt, *answer])
        mask[row, begin:end] = 1
        requests[before : end - 1, row] = row
    return tokens.to(device), mask.to(device), requests.to(device)
