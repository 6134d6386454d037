"""Teacher forcing while decoding: every request decodes a given answer, once natively and once under the policy.

Selection acts on decode steps only, so a text that is prefilled as a prompt would show no effect of it. Tokens are
forced in the model's compute_logits, which both model runners of every version call. It is wrapped only while tokens
are forced. The logits are compared on the device, and only sums leave it.
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
AT_ONCE = 1 << 22  # probabilities that are compared together: 32 MiB in float64, of which a few copies are needed


def diverge(
    llm: Any,
    acts: bool,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    batch: int,
    advance: Advance = quiet,
) -> Divergence:
    """Decode the answers, `batch` requests at a time, natively and then again with selection on if `acts`."""
    llm.collective_rpc("xshare_force")
    try:
        for start in range(0, len(prompts), batch):
            part = slice(start, start + batch)
            for on in (False, acts):
                llm.collective_rpc("xshare_switch", args=(on,))
                decode(llm, prompts[part], answers[part], start)
            advance(len(prompts[part]))
    finally:
        # All workers of the last pipeline stage have the same logits; the others have none.
        sums = max(llm.collective_rpc("xshare_forced"), key=lambda sums: sums["tokens"])
    return Divergence(**sums)


def decode(llm: Any, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], first: int) -> None:
    """Decode these answers in one batch, numbered from `first`."""
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
    """One of a step's rows of logits, and the token that is forced there."""

    row: int
    token: int
    position: tuple[int, int]  # the answer's number, and the token's index in it


class Forcing:
    """In a worker: forces the sampler's tokens, and compares the second pass with the first.

    A step is short, so nothing here waits for the device. The first pass keeps hidden states, from which the model
    computes the same logits again: logits, one vocabulary per position, would soon fill the device.
    """

    def __init__(self, model: Any, device: torch.device) -> None:
        self.model, self.native_logits, self.device = model, model.compute_logits, device
        self.forced: dict[str, tuple[int, int, list[int]]] = {}  # by request: number, length of its prompt, answer
        self.rows: list[Row] = []  # of the step
        self.decoding = False
        self.first: dict[tuple[int, int], Tensor] = {}  # hidden states [d], by position, until the second pass
        self.tokens = 0
        self.sums = torch.zeros(4, dtype=torch.float64, device=device)  # kl, surprise, surprise_native, same
        model.compute_logits = self.compute_logits

    def end(self) -> dict[str, Any]:
        del self.model.compute_logits  # uncovers the class's method
        kl, surprise, surprise_native, same = self.sums.tolist()
        return asdict(Divergence(self.tokens, kl, surprise, surprise_native, int(same)))

    def step(self, scheduled: Any, order: Sequence[str]) -> None:
        """A step begins. `scheduled`: the scheduler's output. `order`: the request of each row of logits."""
        cached = scheduled.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for new in scheduled.scheduled_new_reqs:
            computed[new.req_id] = new.num_computed_tokens
            forced = (getattr(new.sampling_params, "extra_args", None) or {}).get(KEY)
            if forced is not None:  # other requests decode freely
                self.forced[new.req_id] = forced[0], len(new.prompt_token_ids), forced[1]
        # Selection does not act on a step with a prefill: such steps are not compared.
        self.decoding, self.rows = True, []
        for row, request in enumerate(order):
            if request not in self.forced:
                continue
            number, prompt, answer = self.forced[request]
            tokens = scheduled.num_scheduled_tokens[request]
            self.decoding &= computed[request] >= prompt and tokens == 1
            index = computed[request] + tokens - prompt
            if 0 <= index < len(answer):  # not in the middle of a prompt
                self.rows.append(Row(row, answer[index], (number, index)))

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        logits: Tensor | None = self.native_logits(hidden_states)
        if not self.rows:
            return logits
        if self.decoding:
            known = [row for row in self.rows if row.position in self.first]
            new = [row for row in self.rows if row.position not in self.first]
            if new:
                rows, _ = self.on_device(new)
                self.first.update(zip((row.position for row in new), hidden_states[rows], strict=True))
            if known:
                native = self.native_logits(torch.stack([self.first.pop(row.position) for row in known]))
                self.tokens += len(known)
                if logits is not None:
                    self.compare(native, logits, *self.on_device(known))
        if logits is not None:  # None on ranks that only help to compute them
            rows, tokens = self.on_device(self.rows)
            logits[rows] = -torch.inf
            logits[rows, tokens] = 0
        return logits

    def on_device(self, rows: Sequence[Row]) -> Tensor:
        """Row numbers and tokens, on the device, [2, n]."""
        pairs = torch.tensor([[row.row for row in rows], [row.token for row in rows]])
        if self.device.type == "cuda":
            pairs = pairs.pin_memory()  # a copy from pageable memory would wait for the device
        return pairs.to(self.device, non_blocking=True)

    def compare(self, native: Tensor, logits: Tensor, rows: Tensor, tokens: Tensor) -> None:
        """Compare native logits [n, vocabulary] with those of `rows`, whose forced tokens are `tokens`."""
        at_once = max(1, AT_ONCE // native.shape[-1])
        for start in range(0, len(rows), at_once):
            part = slice(start, start + at_once)
            p, q = (x.double().log_softmax(-1) for x in (native[part], logits[rows[part]]))
            surprise, surprise_native = (-x.gather(-1, tokens[part].unsqueeze(-1)).sum() for x in (q, p))
            same = (p.argmax(-1) == q.argmax(-1)).sum().double()
            self.sums += torch.stack([(p.exp() * (p - q)).sum(), surprise, surprise_native, same])
