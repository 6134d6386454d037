"""Greedy decoding with a full batch: as soon as a sequence ends another takes its place, as in a serving engine.

`generate` keeps a batch together until its last sequence has ended, and by then decodes for one. Here sequences of any
length share a cache, left-padded; prompts are read outside the batch, so that a policy acts on decode steps alone.

With a draft model, a step verifies: the draft model goes ahead by some tokens for every sequence, and one pass of the
model reads them all. Each sequence keeps those that the model would have written itself, and the one it writes next.
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

# Not cuDNN's, which makes a plan for every new shape, in tens of milliseconds: here each step has a shape of its own.
ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
SLACK = 64  # columns that nobody needs any more, before they are dropped, which copies all that is cached
HOLES = 32  # that rejected drafts may leave in every sequence before ranks are closed, which moves all that is cached


@dataclass
class Decoded:
    tokens: list[list[int]]  # of each prompt's answer, its end included
    times_s: list[list[float]]  # when each of them came, from the start
    seconds: float = 0.0  # in decode steps, prompts not counted
    steps: int = 0
    rows: int = 0  # tokens decoded in them
    drafted: int = 0
    accepted: int = 0  # drafts that became part of an answer
    timed: list[StepTime] = field(default_factory=list)  # the steps one by one

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int]]) -> Decoded:
        """Nothing yet."""
        return cls([[] for _ in prompts], [[] for _ in prompts])

    @property
    def tokens_per_s(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0


@dataclass
class Batch:
    """The sequences under way."""

    caches: list[Any] = field(default_factory=list)  # the model's and, if there is one, its drafter's
    mask: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.long))  # [sequences, cached], 0: padding
    last: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))  # [sequences], not yet cached
    who: list[int] = field(default_factory=list)

    def replace(self, gone: list[int], new: Batch) -> None:
        """Those in some rows have ended, and new ones take their places, which moves nothing else that is cached."""
        past, taken = self.mask.shape[1], gone[: len(new.who)]
        if len(taken) < len(new.who) or new.mask.shape[1] > past:
            self.leave(gone)
            self.add(new)
            return
        index = torch.tensor(taken, dtype=torch.long, device=self.mask.device)
        for mine, other in zip(self._layers(), new._layers(), strict=True):
            mine.keys[index], mine.values[index] = (_widen(each, past) for each in (other.keys, other.values))
        self.mask[index], self.last[index] = _pad(new.mask, past), new.last
        for row, who in zip(taken, new.who, strict=True):
            self.who[row] = who
        self.leave(gone[len(taken) :])

    def add(self, new: Batch) -> None:
        if not self.who or not new.who:
            if new.who:
                self.caches, self.mask, self.last, self.who = new.caches, new.mask, new.last, new.who
            return
        width = max(self.mask.shape[1], new.mask.shape[1])
        for mine, other in zip(self._layers(), new._layers(), strict=True):
            keys = torch.cat([_widen(mine.keys, width), _widen(other.keys, width)])
            mine.put(keys, torch.cat([_widen(mine.values, width), _widen(other.values, width)]))
        self.mask = torch.cat([_pad(self.mask, width), _pad(new.mask, width)])
        self.last, self.who = torch.cat([self.last, new.last]), self.who + new.who

    def leave(self, gone: list[int]) -> None:
        """All but these stay, the last of them in the places that become free."""
        if gone:
            count = len(self.who) - len(gone)
            places = [row for row in gone if row < count]
            movers = [row for row in range(count, len(self.who)) if row not in gone]
            to, source = (torch.tensor(rows, dtype=torch.long, device=self.mask.device) for rows in (places, movers))
            for layer in self._layers():
                layer.move(source, to, count)
            self.mask[to], self.last[to] = self.mask[source], self.last[source]
            self.mask, self.last = self.mask[:count], self.last[:count]
            for place, mover in zip(places, movers, strict=True):
                self.who[place] = self.who[mover]
            self.who = self.who[:count]
        self.trim()

    def trim(self) -> None:
        """Of the cache, about what anybody needs."""
        padding = int(self.mask.amax(0).argmax()) if self.who else 0  # columns on the left that nobody needs
        if padding > SLACK:
            self.mask = self.mask[:, padding:]
            for layer in self._layers():
                layer.put(layer.keys[:, :, padding:], layer.values[:, :, padding:])

    def close_ranks(self) -> None:
        """Rejected drafts have left holes: what is cached moves to the right over them, and padding is left again."""
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
    """Keys or values [sequences, heads, cached, d], padded on the left."""
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

    A prompt is there from the start, or `arrivals` seconds after it. `drafter` is a model with the same tokens that
    proposes `drafts` of them a sequence and step. `advance` is told of every token, which is a part of an answer of
    `limit`, and of the rest of one that ends before.

    `lanes` batches go through one pass: one of many rows takes little longer than one of few. Sequences that go on
    close ranks, so that only the last batch is not full. State.in_batches gives each a set of its own. With the kind of
    each prompt no batch has two of them, and the last of each may not be full; `arrange` is told whose the rows of a
    step are, and their kinds. `into` is filled as it goes: should it break off, what there is by then is there.
    `before` is told of every step before it begins. `stops` is asked whether an answer ends with the
    tokens it has.
    """
    found = Decoded.of(prompts) if into is None else into
    due = arrivals or [0.0] * len(prompts)
    waiting, live = sorted(range(len(prompts)), key=lambda i: due[i]), Batch()
    models = [model, drafter] if drafts else [model]
    start = time.perf_counter()

    def write_down(some: Batch, new: list[list[int]]) -> tuple[int, list[int]]:
        """Each sequence's new tokens, up to its end -> how many in all, and the rows of those that end with them."""
        gone, written = [], 0
        now = time.perf_counter() - start
        for row, (who, tokens) in enumerate(zip(some.who, new, strict=True)):
            tokens = tokens[: limit - len(found.tokens[who])]
            tokens = tokens[: tokens.index(ends) + 1] if ends in tokens else tokens
            found.tokens[who] += tokens
            found.times_s[who] += [now] * len(tokens)
            written += len(tokens)
            over = tokens[-1] == ends or len(found.tokens[who]) == limit
            if over or (stops is not None and stops(found.tokens[who])):
                gone.append(row)
        spared = sum(limit - len(found.tokens[some.who[row]]) for row in gone)
        advance((written + spared) / limit)
        return written, gone

    gone: list[int] = []  # rows of the last step that have ended, and are still there
    while waiting or live.who:
        now = time.perf_counter() - start
        here = [who for who in waiting[: batch * lanes - len(live.who) + len(gone)] if due[who] <= now]
        if here:
            new = read_prompts(models, {who: prompts[who] for who in here})
            waiting = waiting[len(here) :]
            new.leave(write_down(new, new.last.unsqueeze(1).tolist())[1])
            live.replace(gone, new)
            gone = []
            continue
        if gone:
            live.leave(gone)
            gone = []
            continue
        if not live.who:
            time.sleep(max(0.0, due[waiting[0]] - now))
            continue
        sequences = len(live.who)
        whose_kind = [0] * sequences if kinds is None else [kinds[who] for who in live.who]
        arrange(live.who, whose_kind)
        if before is not None:
            before(len(found.timed))
        began = time.perf_counter()
        tokens = verify(models, live, drafts) if drafts else step(model, live)
        found.timed.append(StepTime(time.perf_counter() - began, sequences))
        found.seconds += found.timed[-1].seconds
        written, gone = write_down(live, tokens)
        found.steps += sum(-(-count // batch) for count in Counter(whose_kind).values())
        found.rows += written
        if drafts:
            found.drafted, found.accepted = found.drafted + sequences * drafts, found.accepted + written - sequences
    return found


def read_prompts(models: Sequence[Any], prompts: dict[int, Sequence[int]]) -> Batch:
    """Prompts by number -> sequences with their first token, which the first of the models says."""
    from xshare.engines.transformers.cache import new_cache

    width = max(len(prompt) for prompt in prompts.values())
    tokens = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts.values()])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts.values()])
    tokens, mask = tokens.to(models[0].device), mask.to(models[0].device)
    caches = [new_cache() for _ in models]
    first, *_ = [read(model, cache, tokens, mask, keep=1) for model, cache in zip(models, caches, strict=True)]
    return Batch(caches, mask, first.squeeze(1), list(prompts))


def read(model: Any, cache: Any, tokens: Tensor, mask: Tensor, keep: int = 0) -> Tensor:
    """New tokens [sequences, new] on top of a cache -> what the model says after each of them, or the last `keep`."""
    out = model(
        input_ids=tokens,
        attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :],
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=keep,
    )
    said: Tensor = out.logits.argmax(-1)
    return said


def step(model: Any, live: Batch) -> list[list[int]]:
    """One token more for every sequence."""
    live.mask = torch.nn.functional.pad(live.mask, (0, 1), value=1)
    said = read(model, live.caches[0], live.last.unsqueeze(1), live.mask)
    live.last = said[:, -1]
    tokens: list[list[int]] = said.tolist()
    return tokens


def verify(models: Sequence[Any], live: Batch, drafts: int) -> list[list[int]]:
    """Several tokens more for every sequence: of the drafts those that the model says too, and one of its own."""
    (model, drafter), (cache, ahead) = models, live.caches
    tokens, mask = live.last.unsqueeze(1), live.mask
    for _ in range(drafts + 1):  # once more than there are drafts: the last must be cached as well, should it hold
        mask = torch.nn.functional.pad(mask, (0, 1), value=1)
        tokens = torch.cat([tokens, read(drafter, ahead, tokens[:, -1:], mask)], dim=1)
    tokens = tokens[:, :-1]  # [sequences, 1 + drafts]
    said = read(model, cache, tokens, mask)
    accepted = (said[:, :-1] == tokens[:, 1:]).cumprod(1).sum(1, keepdim=True)  # [sequences, 1]
    held = torch.arange(drafts + 1, device=mask.device) <= accepted
    live.mask = torch.cat([live.mask, held.to(mask.dtype)], dim=1)
    live.last = said.gather(1, accepted).squeeze(1)
    # Nobody reads a hole, but a sliding window, which counts positions of the cache, would count it.
    if int((live.mask.shape[1] - live.mask.sum(1)).min()) > HOLES or any(map(slides, models)):
        live.close_ranks()
    return [row[: count + 1] for row, (count,) in zip(said.tolist(), accepted.tolist(), strict=True)]


def slides(model: Any) -> bool:
    return getattr(model.config.get_text_config(), "sliding_window", None) is not None
