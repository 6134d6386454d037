"""The paper's configurations for a model of any size, and its rivals at every knob, from fewest experts to most."""

from __future__ import annotations

from collections.abc import Sequence

from xshare.policy import Policy

PAPER_EXPERTS = 128  # experts of the model that the paper's budgets are for

# (m, k0) in batches of 16, and (k0, m, mr) with 3 drafts in batches of 4; those that matter most come first.
BATCH = [(24, 1), (0, 1), (0, 2), (12, 1), (16, 1), (32, 1), (12, 2), (24, 0)]
DRAFTED = [(1, 0, 4), (1, 24, 0), (1, 0, 5), (2, 10, 0), (2, 0, 4), (0, 16, 4), (1, 32, 0), (0, 0, 8)]
# By drafts: the references that rivals are compared with, at about as many active experts.
REFERENCES: dict[int, list[tuple[int, ...]]] = {0: [(24, 1), (0, 1), (12, 1)], 3: [(1, 0, 4)]}
MAIN = 3  # the first of each list: measured before anything else


def scaled(m: int, experts: int) -> int:
    """A batch budget for another number of experts, rounded half up; at least 1 unless m is 0."""
    return max(1, (2 * m * experts + PAPER_EXPERTS) // (2 * PAPER_EXPERTS)) if m else 0


def policy(numbers: Sequence[int], experts: int) -> Policy:
    """The paper's (m, k0) or (k0, m, mr) as a policy, with the score that its speed table fits. Only m is scaled:
    k0 and mr are per token and per request."""
    k0, m, mr = (numbers[1], numbers[0], 0) if len(numbers) == 2 else numbers
    return Policy(warmup=k0, batch_budget=scaled(m, experts), request_budget=mr, score="full")


def paper_name(numbers: Sequence[int]) -> str:
    letters = ("m", "k0") if len(numbers) == 2 else ("k0", "m", "mr")
    return ",".join(f"{letter}={number}" for letter, number in zip(letters, numbers, strict=True))


def no_op(experts: int) -> Policy:
    """The no-op control: selection runs and keeps every expert."""
    return Policy(warmup=1, batch_budget=experts, score="full")


def rivals(reference: Policy, experts: int, top_k: int) -> dict[str, list[Policy]]:
    """By method: its policies from fewest experts to most. `score=topk` is the reference with the other score."""
    warmup = f"k0={reference.warmup}," if reference.warmup else ""
    texts = {
        "oea": [f"oea:k0={k}" for k in range(1, top_k + 1)],
        "topk": [f"topk:k={k}" for k in range(1, top_k + 1)],
        "lynx": [f"lynx:drop={drop}" for drop in range(experts, -1, -1)],
        "skip": [f"skip:beta={(100 - i) / 100}" for i in range(101)],
        "logit-sum": [f"logit-sum:{warmup}m={m}" for m in range(1, experts + 1)],
        "random": [f"random:k0=0,m={m},score=full" for m in range(1, experts + 1)],
    }
    policies = {method: list(map(Policy.parse, of_method)) for method, of_method in texts.items()}
    return {"score=topk": [reference.model_copy(update={"score": "topk"})]} | policies


def without_warmup(reference: Policy, experts: int) -> list[Policy]:
    return [reference.model_copy(update={"warmup": 0, "batch_budget": m}) for m in range(1, experts + 1)]
