"""Mixed into workers of other processes (--worker-extension-cls), and asked by collective_rpc what they did."""

from __future__ import annotations

import gc

import torch


class Watched:
    def watch(self) -> None:
        """From now on, count the steps and keep every layer's set."""
        state, runner = self.model_runner.xshare, self.model_runner
        self.steps, self.sets = 0, []
        native = runner.execute_model

        def execute_model(scheduled, *args, **kwargs):
            output = native(scheduled, *args, **kwargs)
            if scheduled.total_num_scheduled_tokens:
                self.steps += 1
                if state.now.gate:
                    self.sets.append([layer.buffers.keep.nonzero().flatten().tolist() for layer in state.layers])
            return output

        runner.execute_model = execute_model

    def bypass(self, on: bool) -> None:
        """Whether steps in which nothing can be saved are left alone, from now on."""
        state = self.model_runner.xshare
        state.gates = state.gates.model_copy(update={"bypass": on})

    def tensors_alive(self) -> int:
        gc.collect()
        return sum(isinstance(item, torch.Tensor) for item in gc.get_objects())

    def steps_seen(self) -> int:
        return self.steps

    def sets_seen(self) -> list[list[list[int]]]:
        """The sets since the last time, by step and layer."""
        taken, self.sets = self.sets, []
        return taken
