"""Compares every layer's S with the reference's on live steps, from the logits that a sampled step leaves behind."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from xshare.engines.serving.state import State
from xshare.routing import route


class Witness:
    """Compares every sampled step before it is counted."""

    def __init__(self, state: State) -> None:
        assert state.samples is not None
        self.state, self.samples = state, state.samples
        self.compared = self.differ = self.steps = 0
        self.ours, self.reference = hashlib.sha256(), hashlib.sha256()  # over all sets, in order
        self._settle = self.samples.settle
        self.samples.settle = self.settle  # type: ignore[method-assign]

    def end(self) -> None:
        self.settle()
        del self.samples.settle  # uncovers the class's method

    def settle(self) -> None:
        if (rows := self.samples._waiting) is not None:
            self._compare(rows)
        self._settle()

    def _compare(self, rows: int) -> None:
        self.steps += 1
        layout = self.state.now.layout(rows).to(torch.device("cpu"))
        for layer in self.state.layers:
            buffers: Any = layer.buffers  # type: ignore[attr-defined]
            bias = layer.site.router.correction_bias
            router = layer.site.router if bias is None else layer.site.router.with_bias(bias.cpu())
            policy = self.state.policy.for_layer(layer.site.number)
            reference = route(buffers.seen[:rows].cpu(), router, policy, layout=layout).selected
            keep = buffers.keep.cpu()
            self.compared += 1
            self.differ += int(not keep.equal(reference))
            self.ours.update(keep.numpy().tobytes())
            self.reference.update(reference.numpy().tobytes())

    def summary(self) -> dict[str, Any]:
        self.settle()
        return {
            "steps": self.steps,
            "compared": self.compared,
            "differ": self.differ,
            "sha256": self.ours.hexdigest(),
            "sha256_reference": self.reference.hexdigest(),
        }
