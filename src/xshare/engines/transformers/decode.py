"""Greedy decoding with a full batch: as soon as a sequence ends another takes its place, as in a serving engine.

`generate` keeps a batch together until its last sequence has ended, and by then decodes for one. Here sequences of any
length share a cache, left-padded; prompts are read outside the batch, so that a policy acts on decode steps alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Decoded:
    tokens: list[list[int]]  # of each prompt's answer, its end included
    times_s: list[list[float]]  # when each of them came, from the start
    seconds: float = 0.0  # in decode steps, prompts not counted
    steps: int = 0
    rows: int = 0  # over all steps

    @property
    def tokens_per_s(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0


@dataclass
class Batch:
    """The sequences under way."""

    cache: Any = None  # a transformers DynamicCache
    mask: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.long))  # [sequences, cached], 0: padding
    last: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))  # [sequences], not yet cached
    who: list[int] = field(default_factory=list)

    def add(self, new: Batch) -> None:
        if not self.who or not new.who:
            if new.who:
                self.cache, self.mask, self.last, self.who = new.cache, new.mask, new.last, new.who
            return
        width = max(self.mask.shape[1], new.mask.shape[1])
        for mine, other in zip(self.cache.layers, new.cache.layers, strict=True):
            mine.keys = torch.cat([_widen(mine.keys, width), _widen(other.keys, width)])
            mine.values = torch.cat([_widen(mine.values, width), _widen(other.values, width)])
        self.mask = torch.cat([_pad(self.mask, width), _pad(new.mask, width)])
        self.last, self.who = torch.cat([self.last, new.last]), self.who + new.who

    def keep(self, rows: list[int]) -> None:
        """Only these, and of the cache only what any of them needs."""
        index = torch.tensor(rows, dtype=torch.long, device=self.mask.device)
        self.who, self.last, self.mask = [self.who[row] for row in rows], self.last[index], self.mask[index]
        padding = int((self.mask.sum(0) == 0).sum()) if rows else 0  # always on the left
        self.mask = self.mask[:, padding:]
        for layer in self.cache.layers:
            layer.keys, layer.values = layer.keys[index, :, padding:], layer.values[index, :, padding:]


def _pad(mask: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(mask, (width - mask.shape[1], 0))


def _widen(states: Tensor, width: int) -> Tensor:
    """Keys or values [sequences, heads, cached, d], padded on the left."""
    return torch.nn.functional.pad(states, (0, 0, width - states.shape[2], 0))


@torch.inference_mode()
def decode(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    ends: int,
    limit: int = 512,
    batch: int = 16,
    arrivals: Sequence[float] | None = None,
    advance: Callable[[int], None] = lambda done: None,
) -> Decoded:
    """Decode all prompts, `batch` at a time, each until the token `ends` or `limit` tokens.

    A prompt is there from the start, or `arrivals` seconds after it. `advance` is told how many more have ended.
    """
    found = Decoded([[] for _ in prompts], [[] for _ in prompts])
    due = arrivals or [0.0] * len(prompts)
    waiting, live = sorted(range(len(prompts)), key=lambda i: due[i]), Batch()
    start = time.perf_counter()

    def write_down(some: Batch) -> None:
        """Each sequence's newest token; those that end with it leave."""
        going = []
        now = time.perf_counter() - start
        for row, (who, token) in enumerate(zip(some.who, some.last.tolist(), strict=True)):
            found.tokens[who].append(token)
            found.times_s[who].append(now)
            if token != ends and len(found.tokens[who]) < limit:
                going.append(row)
        if len(going) < len(some.who):
            advance(len(some.who) - len(going))
            some.keep(going)

    while waiting or live.who:
        now = time.perf_counter() - start
        here = [who for who in waiting[: batch - len(live.who)] if due[who] <= now]
        if here:
            new = read_prompts(model, {who: prompts[who] for who in here})
            waiting = waiting[len(here) :]
            write_down(new)
            live.add(new)
            continue
        if not live.who:
            time.sleep(max(0.0, due[waiting[0]] - now))
            continue
        found.steps, found.rows = found.steps + 1, found.rows + len(live.who)
        began = time.perf_counter()
        step(model, live)
        found.seconds += time.perf_counter() - began
        write_down(live)
    return found


def read_prompts(model: Any, prompts: dict[int, Sequence[int]]) -> Batch:
    """Prompts by number -> sequences with their first token."""
    width = max(len(prompt) for prompt in prompts.values())
    tokens = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts.values()])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts.values()])
    tokens, mask = tokens.to(model.device), mask.to(model.device)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    from transformers import DynamicCache

    out = model(
        input_ids=tokens,
        attention_mask=mask,
        position_ids=positions,
        past_key_values=DynamicCache(),  # without a configuration: layers with a sliding window keep all, too
        use_cache=True,
        logits_to_keep=1,
    )
    return Batch(out.past_key_values, mask, out.logits[:, -1].argmax(-1), list(prompts))


def step(model: Any, live: Batch) -> None:
    """One token more for every sequence."""
    positions = live.mask.sum(1, keepdim=True)
    live.mask = torch.nn.functional.pad(live.mask, (0, 1), value=1)
    out = model(
        input_ids=live.last.unsqueeze(1),
        attention_mask=live.mask,
        position_ids=positions,
        past_key_values=live.cache,
        use_cache=True,
        logits_to_keep=1,
    )
    live.last = out.logits[:, -1].argmax(-1)
