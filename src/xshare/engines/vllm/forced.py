"""Teacher forcing while decoding: every request goes on as it is told, once natively and once under the policy.

Selection acts on decode steps alone, so that a text read as a prompt would show nothing of it. The tokens are forced
where the model gives its logits, as both model runners of every version ask for them: nothing is there while nobody
forces, and what is compared are the logits themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from xshare.engines.base import Advance, Divergence, quiet
from xshare.errors import ModelError

KEY = "xshare_forced"  # in a request's extra_args: its number, and the tokens of its answer
# Of a larger vocabulary the native pass keeps so many of the likeliest tokens, and the others as one: 64 KiB a position
# and not megabytes, for all positions of a batch.
TOP = 4096


def diverge(
    llm: Any,
    acts: bool,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    batch: int,
    advance: Advance = quiet,
) -> Divergence:
    """Decode the answers, `batch` requests side by side, natively and then as asked for; `acts`: selection is on."""
    llm.collective_rpc("xshare_force")
    try:
        for start in range(0, len(prompts), batch):
            some = slice(start, start + batch)
            for on in (False, acts):
                llm.collective_rpc("xshare_switch", args=(on,))
                decode(llm, prompts[some], answers[some], start)
            advance(len(prompts[some]))
    finally:
        sums = llm.collective_rpc("xshare_forced")[0]  # all workers have the same logits
    return Divergence(**sums)


def decode(llm: Any, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], first: int) -> None:
    """Side by side, numbered from `first`."""
    from vllm import SamplingParams

    params = [
        SamplingParams(
            temperature=0,
            max_tokens=len(answer),
            ignore_eos=True,
            detokenize=False,
            extra_args={KEY: [number, list(answer)]},
        )
        for number, answer in enumerate(answers, first)
    ]
    outputs = llm.generate([{"prompt_token_ids": list(prompt)} for prompt in prompts], params, use_tqdm=False)
    if [list(output.outputs[0].token_ids) for output in outputs] != [list(answer) for answer in answers]:
        raise ModelError("this engine's tokens cannot be forced: is batch-sharded sampling on, or another plugin?")


@dataclass(frozen=True)
class Natively:
    """One position's next token as the native pass saw it."""

    top: Tensor | None  # ids of the tokens that are told apart, None for all
    log: Tensor  # log-probabilities of those, and of all others as one
    surprise: float
    best: int


class Forcing:
    """In a worker: puts itself in front of the sampler, and compares the second pass with the first."""

    def __init__(self, model: Any) -> None:
        self.model, self.native_logits = model, model.compute_logits
        self.told: dict[str, tuple[int, int, list[int]]] = {}  # by request: number, length of its prompt, answer
        self.rows: list[tuple[int, int, int, int]] = []  # of the step: row, number, place in the answer, its token
        self.decoding = False
        self.first: dict[tuple[int, int], Natively] = {}  # by number and place, until the second pass comes by
        self.found = Divergence()
        model.compute_logits = self.compute_logits

    def end(self) -> dict[str, Any]:
        del self.model.compute_logits  # the class's own is behind it
        return asdict(self.found)

    def step(self, scheduled: Any, order: Sequence[str]) -> None:
        """A step begins: what the scheduler said, and whose each row of its logits is."""
        cached = scheduled.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for new in scheduled.scheduled_new_reqs:
            computed[new.req_id] = new.num_computed_tokens
            number, answer = new.sampling_params.extra_args[KEY]
            self.told[new.req_id] = number, len(new.prompt_token_ids), answer
        # Beside a prompt that is being read, nothing is selected: such steps are not compared.
        self.decoding, self.rows = True, []
        for row, request in enumerate(order):
            number, prompt, answer = self.told[request]
            tokens = scheduled.num_scheduled_tokens[request]
            self.decoding &= computed[request] >= prompt and tokens == 1
            place = computed[request] + tokens - prompt
            if 0 <= place < len(answer):  # not in the middle of a prompt
                self.rows.append((row, number, place, answer[place]))

    def compute_logits(self, *args: Any, **options: Any) -> Any:
        logits = self.native_logits(*args, **options)
        if logits is None or not self.rows:  # another rank has them
            return logits
        rows, numbers, places, wanted = map(list, zip(*self.rows, strict=True))
        if self.decoding:
            for log, number, place, token in zip(
                logits[rows].double().log_softmax(-1).cpu(), numbers, places, wanted, strict=True
            ):
                self.compare((number, place), log, token)
        logits[rows] = -torch.inf
        logits[rows, wanted] = 0
        return logits

    def compare(self, where: tuple[int, int], log: Tensor, token: int) -> None:
        """A position, [vocabulary]: seen for the first time it is kept, and then held against that."""
        first = self.first.pop(where, None)
        best, surprise = int(log.argmax()), -float(log[token])
        if first is None:
            top = log.topk(TOP).indices if len(log) > TOP else None
            self.first[where] = Natively(top, told_apart(log, top), surprise, best)
            return
        p, q = first.log, told_apart(log, first.top)
        self.found.tokens += 1
        self.found.kl += float((p.exp() * (p - q)).sum())
        self.found.surprise += surprise
        self.found.surprise_native += first.surprise
        self.found.same += best == first.best
        self.found.top = None if first.top is None else TOP


def told_apart(log: Tensor, top: Tensor | None) -> Tensor:
    """[vocabulary] -> [top + 1]: the others' probabilities summed."""
    if top is None:
        return log
    return torch.cat([log[top], log.index_fill(0, top, -torch.inf).logsumexp(0, keepdim=True)])
