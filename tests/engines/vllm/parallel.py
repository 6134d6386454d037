"""Mixed into the workers of an expert-parallel engine. Importing this repairs what vLLM leaves out on a CPU:

its experts are given the map from all experts to the rank's own, and ignore it.
"""

from __future__ import annotations

import inspect
from functools import wraps

from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts


def own_experts(expert_map, weights, ids):
    """-> weights and ids with those of other ranks' experts left out"""
    own = expert_map[ids.long()]  # -1: another rank's
    return weights.masked_fill(own < 0, 0), own.clamp(min=0).to(ids.dtype)


def follow_expert_map(native):
    signature = inspect.signature(native)

    @wraps(native)
    def apply(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        if given["expert_map"] is not None and "topk_ids" in given:
            routed = own_experts(given["expert_map"], given["topk_weights"], given["topk_ids"])
            given["topk_weights"], given["topk_ids"] = routed
        given["self"].current_expert_map = given["expert_map"]
        return native(**given)

    return apply


def select_own(native):
    """Before 0.30 the experts route by themselves."""

    @wraps(native)
    def select_experts(self, *args, **kwargs):
        routed = native(self, *args, **kwargs)
        return routed if self.current_expert_map is None else own_experts(self.current_expert_map, *routed)

    return select_experts


CPUUnquantizedExperts.apply = follow_expert_map(CPUUnquantizedExperts.apply)
if hasattr(CPUUnquantizedExperts, "_select_experts"):
    CPUUnquantizedExperts._select_experts = select_own(CPUUnquantizedExperts._select_experts)


class Watched:
    def make_room(self) -> None:
        """For what a pipeline stage gets from the one before: vLLM makes it in a dummy run, which an engine that does
        not compile leaves out on a CPU."""
        self.model_runner.profile_run()

    def watch(self) -> None:
        """From now on, keep what every layer decides by."""
        self.decided = []
        for layer in self.model_runner.xshare.layers:
            layer.selector.decide = self._watched(layer.selector.decide)

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
