"""Mixed into the workers of an expert-parallel engine. Importing this repairs what vLLM 0.32 leaves out on a CPU:

its experts are given the map from all experts to the rank's own, and ignore it.
"""

from __future__ import annotations

import inspect
from functools import wraps

from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts


def follow_expert_map(native):
    signature = inspect.signature(native)

    @wraps(native)
    def apply(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        if given["expert_map"] is not None:
            own = given["expert_map"][given["topk_ids"].long()]  # -1: another rank's
            given["topk_weights"] = given["topk_weights"].masked_fill(own < 0, 0)
            given["topk_ids"] = own.clamp(min=0).to(given["topk_ids"].dtype)
        return native(**given)

    return apply


CPUUnquantizedExperts.apply = follow_expert_map(CPUUnquantizedExperts.apply)


class Watched:
    def watch(self) -> None:
        """From now on, keep what every layer decides by."""
        self.decided = []
        for layer in self.model_runner.xshare.layers:
            layer.decide = self._watched(layer.decide)

    def _watched(self, native):
        def decide(logits):
            routing = native(logits)
            if routing is not None:
                self.decided.append((logits.tolist(), routing.selected.nonzero().flatten().tolist()))
            return routing

        return decide

    def decisions(self) -> list[tuple[list[list[float]], list[int]]]:
        """(logits, S) of each layer and step since the last time."""
        taken, self.decided = self.decided, []
        return taken
