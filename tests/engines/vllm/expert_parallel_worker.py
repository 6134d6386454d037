"""Mixed into workers of an expert-parallel engine, whose experts examples/tiny repairs: they keep what they decide."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "examples" / "tiny"))

from cpu_ranks import Repaired


class Watched(Repaired):
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
