"""A data-parallel rank that is driven step by step, and what it decided in every layer of every step.

All ranks go through the same numbered steps: what is to happen on one of them has a number.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Plan:
    """What happens on one rank, by the number of the step before which it does."""

    arrive: dict[int, list[tuple[str, list[int], int]]] = field(default_factory=dict)  # name, prompt, tokens to decode
    abort: dict[int, list[str]] = field(default_factory=dict)
    call: dict[int, list[tuple]] = field(default_factory=dict)  # method of xshare, and its arguments


@dataclass
class Decided:
    """One layer of one step."""

    step: int
    layer: int
    voted: bool
    starts: list[int]  # boundaries of the requests that vote
    logits: np.ndarray | None  # of the rows that vote
    S: list[int] | None  # None: left alone
    devices: list[int] | None = None  # the rank that each expert counts on
    held: list[list[int]] | None = None  # with replicas: the ranks that hold each, by vLLM's own map

    @property
    def hash(self) -> str | None:
        return None if self.S is None else hashlib.sha256(repr(self.S).encode()).hexdigest()[:16]


class Rank:
    def __init__(self, llm):
        self.llm, self.engine, self.step = llm, llm.llm_engine, 0
        self.decided: list[Decided] = []
        runner = self.engine.model_executor.driver_worker.worker.model_runner
        self.state, self.eplb = getattr(runner, "xshare", None), runner.eplb_state
        for place, layer in enumerate(self.state.layers if self.state is not None else ()):
            if hasattr(layer.selector, "decide"):
                layer.selector.decide = self._watched(layer.selector.decide, place)
            else:
                layer.selector.launch = self._watched_launch(layer, place)

    def _watched(self, native, place):
        def decide(logits):
            now = self.state.now
            voted, rows, starts = now.gate, now.rows, [int(start) for start in now.starts]
            routing = native(logits)
            S = None if routing is None else routing.selected.nonzero().flatten().tolist()
            voting_logits = logits[:rows].numpy().copy() if voted else None
            self.decided.append(Decided(self.step, place, voted, starts, voting_logits, S, *self._places(place)))
            return routing

        return decide

    def _watched_launch(self, layer, place):
        native = layer.selector.launch

        def launch(logits, route=False):
            now = self.state.now
            starts = [int(start) for start in now.starts]
            voting_logits = logits[: now.rows].numpy().copy() if now.gate else None
            selection = native(logits, route)
            keep = layer.buffers.keep
            S = None if selection is None or keep.all() else keep.nonzero().flatten().tolist()
            self.decided.append(Decided(self.step, place, now.gate, starts, voting_logits, S, *self._places(place)))
            return selection

        return launch

    def _places(self, place):
        placement = self.state.layers[place].site.placement
        devices = None if placement is None else placement.devices.tolist()
        if self.eplb is None:
            return devices, None
        (state,) = self.eplb.model_states.values()
        experts = state.physical_to_logical_map[place].tolist()
        per_device = len(experts) // placement.num_devices
        return devices, [
            [p // per_device for p, e in enumerate(experts) if e == expert] for expert in range(len(devices))
        ]

    def run(self, plan: Plan, last: int) -> dict[str, list[int]]:
        """Steps until all ranks are done; nothing happens after step `last`, on any of them. -> tokens by request"""
        from vllm import SamplingParams

        tokens: dict[str, list[int]] = {}
        begin = self.step
        while True:
            now = self.step - begin
            for name, prompt, length in plan.arrive.get(now, ()):
                params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, detokenize=False)
                self.engine.add_request(name, {"prompt_token_ids": prompt}, params)
                tokens[name] = []
            if aborted := plan.abort.get(now):
                self.engine.abort_request(aborted)
            for method, *args in plan.call.get(now, ()):
                self.llm.collective_rpc(method, args=tuple(args))
            self.step += 1
            if self.engine.has_unfinished_requests():  # on any rank
                for output in self.engine.step():
                    tokens[output.request_id] = list(output.outputs[0].token_ids)
            elif now >= last:
                return tokens

    def taken(self) -> list[Decided]:
        """The decisions since the last call."""
        decisions, self.decided = self.decided, []
        return decisions
