"""On a GPU, what a hook does as one CUDA graph: its many small kernels take longer to launch than to run."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., tuple[Tensor, ...]]


class Graph:
    """A function of tensors as it was captured, for others of the same shapes."""

    def __init__(self, function: Function, inputs: tuple[Tensor, ...], pool: Any) -> None:
        self.inputs = [each.clone() for each in inputs]
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

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        for mine, given in zip(self.inputs, inputs, strict=True):
            mine.copy_(given)
        self.graph.replay()
        return tuple(each.clone() for each in self.outputs)  # the next replay writes to the same place


class Graphs:
    """Of functions by name, each for the shapes that it had last: captured when they come a second time."""

    def __init__(self) -> None:
        self.found: dict[Hashable, tuple[Hashable, Graph | None]] = {}
        self.pool: Any = None
        self.alive: Graph | None = None  # a pool ends with the last graph that is in it

    def run(self, name: Hashable, function: Function, *inputs: Tensor) -> tuple[Tensor, ...]:
        """function(*inputs), whose tensors depend on nothing else that changes under this name."""
        if inputs[0].device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return function(*inputs)
        if torch.is_grad_enabled() and any(each.requires_grad for each in inputs):
            return function(*inputs)
        # What is made in inference_mode() may not be written to outside it.
        shapes = torch.is_inference_mode_enabled(), *((each.shape, each.dtype, each.device) for each in inputs)
        before, graph = self.found.get(name, (None, None))
        if before != shapes:
            self.found[name] = shapes, None
            return function(*inputs)
        with torch.cuda.device(inputs[0].device):
            if graph is None:
                self.pool = self.pool or torch.cuda.graph_pool_handle()
                graph = self.alive = Graph(function, inputs, self.pool)
                self.found[name] = shapes, graph
            return graph(*inputs)

    def __deepcopy__(self, memo: Any) -> Graphs:
        """A copy of a model captures its own."""
        return Graphs()
