"""At every start: does our kernel route to the bit as vLLM does, on this machine?"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from xshare.engines.serving.gpu_selector import FusedSelector
from xshare.kernels.control import Control
from xshare.kernels.launch import FusedSelection
from xshare.kernels.routing_tables import DTYPES
from xshare.policy import Policy

COMPARED = 2**19  # random rows: if sums ran in another order, one weight in 10^5 would differ in its last bit


class Comparable(Protocol):
    """A module of one of vLLM's paths: one_launch.py, one_launch_modular.py."""

    def engine_tables(self, tables: Any, rows: int) -> Any:
        """What a launch left for so many rows, in the form of vLLM's own routing."""

    def route_natively(self, tables: Any, logits: Tensor) -> Any:
        """vLLM's own routing of these logits."""

    def same_bits(self, ours: Any, native: Any) -> bool:
        """Whether all of it is the same, to the bit."""

    def weights_of(self, routed: Any) -> Tensor:
        """The weights in a routing."""


def find_difference(selector: FusedSelector, path: Comparable) -> str | None:
    """A case in which a layer's selections route differently from vLLM; None where there is none. It tries random
    logits, with the gate closed and open. Layers share their tables, so tables are checked once."""
    dice = torch.Generator(selector.own.device).manual_seed(0)
    unchecked = {n: selection for n, selection in selector.selections.items() if not _checked(selection)}
    for rows, selection in unchecked.items():
        assert selection.tables is not None
        assert selection.router is not None
        selection.tables.checked = True
        control = Control(selection.device)
        control.set_policy(Policy(warmup=1, batch_budget=selection.router.top_k))
        control.set_step(rows)
        for is_open in (False, True):
            control.set_gate(is_open)
            control.push()
            logits = random_logits(selection, rows, dice)
            if not path.same_bits(*route_both(path, selection, control, logits)):
                return f"{rows} rows, the gate {'open' if is_open else 'closed'}"
    if unchecked:
        rows, selection = max(unchecked.items())
        control = Control(selection.device)  # the gate is closed
        control.push()
        for _ in range(min(2000, COMPARED // rows)):  # takes a second
            ours, native = route_both(path, selection, control, random_logits(selection, rows, dice))
            differing = int((as_bits(path.weights_of(ours)) != as_bits(path.weights_of(native))).sum())
            if differing:
                weights = path.weights_of(ours).numel()
                return f"{rows} rows, {differing} of whose {weights} weights have other bits"
    return None


def _checked(selection: FusedSelection) -> bool:
    return selection.tables is None or selection.tables.checked


def as_bits(tensor: Tensor) -> Tensor:
    if tensor.dtype in DTYPES:
        return tensor.view(torch.int16)
    return tensor.view(torch.int32) if tensor.dtype == torch.float32 else tensor


def random_logits(selection: FusedSelection, rows: int, dice: torch.Generator) -> Tensor:
    assert selection.tables is not None
    logits = torch.randn(rows, selection.num_experts, generator=dice, device=selection.device)
    return logits.to(selection.tables.dtype)


def route_both(path: Comparable, selection: FusedSelection, control: Control, logits: Tensor) -> tuple[Any, Any]:
    """Our routing of these logits, and vLLM's of the same logits after masking."""
    assert selection.keep is not None
    selection.launch(logits, control)
    masked = torch.where(selection.keep, logits, torch.finfo(logits.dtype).min)
    return path.engine_tables(selection.tables, len(logits)), path.route_natively(selection.tables, masked)
