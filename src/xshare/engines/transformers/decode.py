"""Greedy decoding with a full batch: when a sequence ends, another takes its row, as in a serving engine.

`generate` keeps a batch together until its last sequence has ended, and in the end decodes for one. Here sequences
of any length share a left-padded cache. Prompts are prefilled outside the batch, so that a policy acts on decode steps
only.

With a draft model, a step verifies drafts: the draft model proposes some tokens for every sequence, and one pass of the
model reads them all. Each sequence keeps the drafts that the model would have written, and the model's next token.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from xshare.engines.base import BeforeStep, StepTime
from xshare.progress import Advance, quiet

# Without cuDNN, which plans every new shape for tens of milliseconds: here each step has a new shape.
ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
SLACK = 64  # unused columns of the cache before they are dropped, which copies the whole cache
HOLES = 32  # left by rejected drafts in every sequence before they are closed, which moves the whole cache


@dataclass
class Decoded:
    tokens: list[list[int]]  # of each prompt's answer, with its end token
    times_s: list[list[float]]  # when each token came, from the start
    seconds: float = 0.0  # in decode steps, without prefill
    steps: int = 0
    rows: int = 0  # tokens decoded in them
    drafted: int = 0
    accepted: int = 0  # drafts that became part of an answer
    timed: list[StepTime] = field(default_factory=list)  # the steps one by one

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int]]) -> Decoded:
        """An empty result for these prompts."""
        return cls([[] for _ in prompts], [[] for _ in prompts])

    @property
    def tokens_per_s(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0


@dataclass
class Batch:
    """The sequences that are being decoded."""

    caches: list[Any] = field(default_factory=list)  # the model's and, if there is one, its drafter's
    mask: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.long))  # [sequences, cached], 0: padding
    last: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))  # [sequences], tokens not yet cached
    prompts: list[int] = field(default_factory=list)  # numbers of their prompts

    def replace(self, finished: list[int], new: Batch) -> None:
        """New sequences take the rows of finished ones, which moves nothing else in the cache."""
        past, taken = self.mask.shape[1], finished[: len(new.prompts)]
        if len(taken) < len(new.prompts) or new.mask.shape[1] > past:
            self.drop(finished)
            self.add(new)
            return
        index = torch.tensor(taken, dtype=torch.long, device=self.mask.device)
        for layer, added in zip(self._layers(), new._layers(), strict=True):
            layer.keys[index], layer.values[index] = _widen(added.keys, past), _widen(added.values, past)
        self.mask[index], self.last[index] = _pad(new.mask, past), new.last
        for row, prompt in zip(taken, new.prompts, strict=True):
            self.prompts[row] = prompt
        self.drop(finished[len(taken) :])

    def add(self, new: Batch) -> None:
        if not self.prompts or not new.prompts:
            if new.prompts:
                self.caches, self.mask, self.last, self.prompts = new.caches, new.mask, new.last, new.prompts
            return
        width = max(self.mask.shape[1], new.mask.shape[1])
        for layer, added in zip(self._layers(), new._layers(), strict=True):
            keys = torch.cat([_widen(layer.keys, width), _widen(added.keys, width)])
            layer.put(keys, torch.cat([_widen(layer.values, width), _widen(added.values, width)]))
        self.mask = torch.cat([_pad(self.mask, width), _pad(new.mask, width)])
        self.last, self.prompts = torch.cat([self.last, new.last]), self.prompts + new.prompts

    def drop(self, finished: list[int]) -> None:
        """Drop these rows. The last rows that stay move to the rows that become free."""
        if finished:
            count = len(self.prompts) - len(finished)
            free = [row for row in finished if row < count]
            movers = [row for row in range(count, len(self.prompts)) if row not in finished]
            to, source = (torch.tensor(rows, dtype=torch.long, device=self.mask.device) for rows in (free, movers))
            for layer in self._layers():
                layer.move(source, to, count)
            self.mask[to], self.last[to] = self.mask[source], self.last[source]
            self.mask, self.last = self.mask[:count], self.last[:count]
            for row, mover in zip(free, movers, strict=True):
                self.prompts[row] = self.prompts[mover]
            self.prompts = self.prompts[:count]
        self.trim()

    def trim(self) -> None:
        """Drop columns of the cache that are padding in every sequence, once they are many."""
        padding = int(self.mask.amax(0).argmax()) if self.prompts else 0  # unused columns on the left
        if padding > SLACK:
            self.mask = self.mask[:, padding:]
            for layer in self._layers():
                layer.put(layer.keys[:, :, padding:], layer.values[:, :, padding:])

    def close_holes(self) -> None:
        """Close the holes of rejected drafts: cached tokens move right, and padding is on the left again."""
        order = self.mask.argsort(dim=1, stable=True)[:, -int(self.mask.sum(1).max()) :]
        self.mask = self.mask.gather(1, order)
        index = order[:, None, :, None]
        for layer in self._layers():
            layer.put(layer.keys.take_along_dim(index, dim=2), layer.values.take_along_dim(index, dim=2))

    def _layers(self) -> list[Any]:
        return [layer for cache in self.caches for layer in cache.layers]


def _pad(mask: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(mask, (width - mask.shape[1], 0))


def _widen(states: Tensor, width: int) -> Tensor:
    """Keys or values [sequences, heads, cached, d], padded on the left to `width` positions."""
    return torch.nn.functional.pad(states, (0, 0, width - states.shape[2], 0))


@torch.inference_mode()
@sdpa_kernel(ATTENTION)
def decode(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    ends: int,
    limit: int = 512,
    batch: int = 16,
    arrivals: Sequence[float] | None = None,
    drafter: Any = None,
    drafts: int = 0,
    advance: Advance = quiet,
    lanes: int = 1,
    kinds: Sequence[int] | None = None,
    arrange: Callable[[list[int], list[int]], None] = lambda present, kinds: None,
    into: Decoded | None = None,
    before: BeforeStep | None = None,
    stops: Callable[[Sequence[int]], bool] | None = None,
) -> Decoded:
    """Decode all prompts, `batch` at a time, each until the token `ends` or `limit` tokens.

    arrivals    seconds after the start at which each prompt arrives; without them all are there from the start
    drafter     a model with the same tokens, which proposes `drafts` of them per sequence and step
    advance     hears of progress as shares of an answer: each token is 1 / `limit`, and an answer that ends early
                counts in full
    lanes       batches that share one pass, because a pass of many rows takes little longer than one of few. Only the
                last batch may not be full. State.in_batches gives each batch its own set
    kinds       of each prompt: no batch mixes kinds, and the last batch of each kind may not be full
    arrange     is called before each step with the prompt and the kind of each row
    into        is filled while decoding, so that an interrupted run leaves what it has
    before      is called before each step with the number of steps so far
    stops       whether an answer ends with the tokens it has
    """
    decoded = Decoded.of(prompts) if into is None else into
    due = arrivals or [0.0] * len(prompts)
    waiting, live = sorted(range(len(prompts)), key=lambda i: due[i]), Batch()
    models = [model, drafter] if drafts else [model]
    start = time.perf_counter()

    def write_down(rows: Batch, new: list[list[int]]) -> tuple[int, list[int]]:
        """Add each sequence's new tokens, up to its end; returns their number, and the rows that are finished."""
        finished, written = [], 0
        now = time.perf_counter() - start
        for row, (prompt, tokens) in enumerate(zip(rows.prompts, new, strict=True)):
            tokens = tokens[: limit - len(decoded.tokens[prompt])]
            tokens = tokens[: tokens.index(ends) + 1] if ends in tokens else tokens
            decoded.tokens[prompt] += tokens
            decoded.times_s[prompt] += [now] * len(tokens)
            written += len(tokens)
            is_over = tokens[-1] == ends or len(decoded.tokens[prompt]) == limit
            if is_over or (stops is not None and stops(decoded.tokens[prompt])):
                finished.append(row)
        unused = sum(limit - len(decoded.tokens[rows.prompts[row]]) for row in finished)
        advance((written + unused) / limit)
        return written, finished

    finished: list[int] = []  # rows that ended in the last step and are still in the batch
    while waiting or live.prompts:
        now = time.perf_counter() - start
        room = batch * lanes - len(live.prompts) + len(finished)
        arrived = [prompt for prompt in waiting[:room] if due[prompt] <= now]
        if arrived:
            new = read_prompts(models, {prompt: prompts[prompt] for prompt in arrived})
            waiting = waiting[len(arrived) :]
            new.drop(write_down(new, new.last.unsqueeze(1).tolist())[1])
            live.replace(finished, new)
            finished = []
            continue
        if finished:
            live.drop(finished)
            finished = []
            continue
        if not live.prompts:
            time.sleep(max(0.0, due[waiting[0]] - now))
            continue
        sequences = len(live.prompts)
        live_kinds = [0] * sequences if kinds is None else [kinds[prompt] for prompt in live.prompts]
        arrange(live.prompts, live_kinds)
        if before is not None:
            before(len(decoded.timed))
        began = time.perf_counter()
        tokens = verify(models, live, drafts) if drafts else step(model, live)
        decoded.timed.append(StepTime(time.perf_counter() - began, sequences))
        decoded.seconds += decoded.timed[-1].seconds
        written, finished = write_down(live, tokens)
        decoded.steps += sum(-(-count // batch) for count in Counter(live_kinds).values())
        decoded.rows += written
        if drafts:
            decoded.drafted += sequences * drafts
            decoded.accepted += written - sequences
    return decoded


def read_prompts(models: Sequence[Any], prompts: dict[int, Sequence[int]]) -> Batch:
    """Prefill prompts, by number: sequences with their first token, which the first model decides."""
    from xshare.engines.transformers.cache import new_cache

    width = max(len(prompt) for prompt in prompts.values())
    tokens = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts.values()])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts.values()])
    tokens, mask = tokens.to(models[0].device), mask.to(models[0].device)
    caches = [new_cache() for _ in models]
    first, *_ = [next_tokens(model, cache, tokens, mask, keep=1) for model, cache in zip(models, caches, strict=True)]
    return Batch(caches, mask, first.squeeze(1), list(prompts))


def next_tokens(model: Any, cache: Any, tokens: Tensor, mask: Tensor, keep: int = 0) -> Tensor:
    """The model's greedy token after each new token [sequences, new], or after the last `keep`. The cache grows."""
    out = model(
        input_ids=tokens,
        attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :],
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=keep,
    )
    tokens_after: Tensor = out.logits.argmax(-1)
    return tokens_after


def step(model: Any, live: Batch) -> list[list[int]]:
    """One more token for every sequence."""
    live.mask = torch.nn.functional.pad(live.mask, (0, 1), value=1)
    new = next_tokens(model, live.caches[0], live.last.unsqueeze(1), live.mask)
    live.last = new[:, -1]
    tokens: list[list[int]] = new.tolist()
    return tokens


def verify(models: Sequence[Any], live: Batch, drafts: int) -> list[list[int]]:
    """Several more tokens for every sequence: the drafts that the model agrees with, and one token of its own."""
    (model, drafter), (cache, draft_cache) = models, live.caches
    tokens, mask = live.last.unsqueeze(1), live.mask
    for _ in range(drafts + 1):  # one pass more than drafts: the last draft must be cached too, in case it is accepted
        mask = torch.nn.functional.pad(mask, (0, 1), value=1)
        tokens = torch.cat([tokens, next_tokens(drafter, draft_cache, tokens[:, -1:], mask)], dim=1)
    tokens = tokens[:, :-1]  # [sequences, 1 + drafts]
    verified = next_tokens(model, cache, tokens, mask)
    accepted = (verified[:, :-1] == tokens[:, 1:]).cumprod(1).sum(1, keepdim=True)  # [sequences, 1]
    is_kept = torch.arange(drafts + 1, device=mask.device) <= accepted
    live.mask = torch.cat([live.mask, is_kept.to(mask.dtype)], dim=1)
    live.last = verified.gather(1, accepted).squeeze(1)
    # The mask hides holes, but a sliding window counts positions of the cache, holes included.
    if int((live.mask.shape[1] - live.mask.sum(1)).min()) > HOLES or any(map(slides, models)):
        live.close_holes()
    return [row[: count + 1] for row, (count,) in zip(verified.tolist(), accepted.tolist(), strict=True)]


def slides(model: Any) -> bool:
    return getattr(model.config.get_text_config(), "sliding_window", None) is not None
