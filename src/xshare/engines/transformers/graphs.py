"""On a GPU, what a hook does as one CUDA graph: its many small kernels take longer to launch than to run."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

OFTEN = 48  # times that shapes must come before it pays to capture: of six layers in eight steps
ROOM = 8  # steps are captured in multiples of so many, as batches end and others begin
Function = Callable[..., tuple[Tensor, ...]]  # of tensors [steps, ...] to tensors [steps, ...], step by step


class Graph:
    """A function as it was captured, for tensors of the same shapes and as many steps or fewer."""

    def __init__(self, function: Function, inputs: tuple[Tensor, ...], steps: int, pool: Any) -> None:
        self.inputs = [each.new_zeros(steps, *each.shape[1:]) for each in inputs]
        self._read(inputs)
        self.graph = torch.cuda.CUDAGraph()
        here, stream = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(here)
        # Not torch.cuda.graph(): that empties the allocator's cache, and batches change their shapes often.
        with torch.cuda.stream(stream):
            function(*self.inputs)  # once outside: libraries set themselves up
            self.graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                self.outputs = function(*self.inputs)
            finally:
                self.graph.capture_end()
        here.wait_stream(stream)

    def _read(self, inputs: tuple[Tensor, ...]) -> None:
        for mine, given in zip(self.inputs, inputs, strict=True):
            mine[: len(given)] = given

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        self._read(inputs)
        self.graph.replay()
        # The next replay writes to the same place. Steps behind those that were given hold what others left.
        return tuple(each[: len(inputs[0])].clone() for each in self.outputs)


class Graphs:
    """Of functions by name, each for the shapes that it had last: captured when they have come often."""

    def __init__(self) -> None:
        self.found: dict[Hashable, tuple[Hashable, Graph | int]] = {}  # or how often they came
        self.pool: Any = None
        self.alive: Graph | None = None  # a pool ends with the last graph that is in it

    def run(self, name: Hashable, function: Function, *inputs: Tensor) -> tuple[Tensor, ...]:
        """function(*inputs), which depends on nothing else that changes under this name."""
        first = inputs[0]
        if first.device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return function(*inputs)
        if torch.is_grad_enabled() and any(each.requires_grad for each in inputs):
            return function(*inputs)
        steps = len(first) if len(first) < ROOM else -(-len(first) // ROOM) * ROOM
        # What is made in inference_mode() may not be written to outside it.
        shapes = torch.is_inference_mode_enabled(), first.device, steps, *((e.shape[1:], e.dtype) for e in inputs)
        before, graph = self.found.get(name, (None, 0))
        if before != shapes:
            graph = 0
        if isinstance(graph, int) and graph < OFTEN:
            self.found[name] = shapes, graph + 1
            return function(*inputs)
        with torch.cuda.device(first.device):
            if isinstance(graph, int):
                self.pool = self.pool or torch.cuda.graph_pool_handle()
                graph = self.alive = Graph(function, inputs, steps, self.pool)
                self.found[name] = shapes, graph
            return graph(*inputs)

    def __deepcopy__(self, memo: Any) -> Graphs:
        """A copy of a model captures its own."""
        return Graphs()
