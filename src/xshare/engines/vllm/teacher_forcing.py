"""Teacher forcing while decoding: every request goes on as it is told, once natively and once under the policy.

Selection acts on decode steps alone, so that a text read as a prompt would show nothing of it. The tokens are forced
where the model gives its logits, as both model runners of every version ask for them: nothing is there while nobody
forces, and what is compared are the logits themselves, where they are. Only sums leave the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from torch import Tensor

from xshare.engines.base import Divergence
from xshare.errors import ModelError
from xshare.progress import Advance, quiet

KEY = "xshare_forced"  # in a request's extra_args: its number, and the tokens of its answer
AT_ONCE = 1 << 22  # probabilities that are compared together: a float64 of each is 32 MiB, and a few of them are needed


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
        # All workers of the last pipeline stage have the same logits; the others have none.
        sums = max(llm.collective_rpc("xshare_forced"), key=lambda found: found["tokens"])
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


class Row(NamedTuple):
    """One of a step's rows of logits, and what is to come out of it."""

    row: int
    token: int
    where: tuple[int, int]  # the answer's number, and the token's place in it


class Forcing:
    """In a worker: puts itself in front of the sampler, and compares the second pass with the first.

    A step is short, so that nothing here waits for the device. Of the first pass hidden states are kept, from which the
    model gives the same logits again: those would be a vocabulary a position, and soon fill the device.
    """

    def __init__(self, model: Any, device: torch.device) -> None:
        self.model, self.native_logits, self.device = model, model.compute_logits, device
        self.told: dict[str, tuple[int, int, list[int]]] = {}  # by request: number, length of its prompt, answer
        self.rows: list[Row] = []  # of the step
        self.decoding = False
        self.first: dict[tuple[int, int], Tensor] = {}  # [d], by where, until the second pass comes by
        self.tokens = 0
        self.sums = torch.zeros(4, dtype=torch.float64, device=device)  # kl, surprise, surprise_native, same
        model.compute_logits = self.compute_logits

    def end(self) -> dict[str, Any]:
        del self.model.compute_logits  # the class's own is behind it
        kl, surprise, surprise_native, same = self.sums.tolist()
        return asdict(Divergence(self.tokens, kl, surprise, surprise_native, int(same)))

    def step(self, scheduled: Any, order: Sequence[str]) -> None:
        """A step begins: what the scheduler said, and whose each row of its logits is."""
        cached = scheduled.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for new in scheduled.scheduled_new_reqs:
            computed[new.req_id] = new.num_computed_tokens
            given = (getattr(new.sampling_params, "extra_args", None) or {}).get(KEY)
            if given is not None:  # somebody else's request is not told anything
                self.told[new.req_id] = given[0], len(new.prompt_token_ids), given[1]
        # Beside a prompt that is being read, nothing is selected: such steps are not compared.
        self.decoding, self.rows = True, []
        for row, request in enumerate(order):
            if request not in self.told:
                continue
            number, prompt, answer = self.told[request]
            tokens = scheduled.num_scheduled_tokens[request]
            self.decoding &= computed[request] >= prompt and tokens == 1
            place = computed[request] + tokens - prompt
            if 0 <= place < len(answer):  # not in the middle of a prompt
                self.rows.append(Row(row, answer[place], (number, place)))

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        logits: Tensor | None = self.native_logits(hidden_states)
        if not self.rows:
            return logits
        if self.decoding:
            known = [row for row in self.rows if row.where in self.first]
            new = [row for row in self.rows if row.where not in self.first]
            if new:
                rows, _ = self.sent(new)
                self.first.update(zip((row.where for row in new), hidden_states[rows], strict=True))
            if known:
                native = self.native_logits(torch.stack([self.first.pop(row.where) for row in known]))
                self.tokens += len(known)
                if logits is not None:
                    self.compare(native, logits, *self.sent(known))
        if logits is not None:  # or else another rank has them, and it takes all ranks to get them
            rows, wanted = self.sent(self.rows)
            logits[rows] = -torch.inf
            logits[rows, wanted] = 0
        return logits

    def sent(self, rows: Sequence[Row]) -> Tensor:
        """Row and token of each, on the device, [2, n]."""
        found = torch.tensor([[row.row for row in rows], [row.token for row in rows]])
        if self.device.type == "cuda":
            found = found.pin_memory()  # a copy from elsewhere would wait for all that the device has to do
        return found.to(self.device, non_blocking=True)

    def compare(self, native: Tensor, logits: Tensor, rows: Tensor, wanted: Tensor) -> None:
        """Native's logits [n, vocabulary] with those of `rows`, where the tokens `wanted` follow."""
        at_once = max(1, AT_ONCE // native.shape[-1])
        for start in range(0, len(rows), at_once):
            some = slice(start, start + at_once)
            p, q = (each.double().log_softmax(-1) for each in (native[some], logits[rows[some]]))
            surprise, surprise_native = (-each.gather(-1, wanted[some].unsqueeze(-1)).sum() for each in (q, p))
            same = (p.argmax(-1) == q.argmax(-1)).sum().double()
            self.sums += torch.stack([(p.exp() * (p - q)).sum(), surprise, surprise_native, same])
