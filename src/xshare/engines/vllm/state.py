"""One worker's XShare: the policy, what this step is, the attached layers, and what was counted."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from xshare.batch import BatchLayout
from xshare.engines.vllm.settings import MAX_ROWS, Settings, SettingsError
from xshare.errors import PolicyError
from xshare.policy import Policy
from xshare.routing import check_policy, with_budgets

if TYPE_CHECKING:
    from xshare.engines.vllm.forced import Forcing
    from xshare.engines.vllm.layer import Layer
    from xshare.engines.vllm.metrics import Samples

log = logging.getLogger("vllm.xshare")
Array = npt.NDArray[np.int32]
FOLLOW = 32  # steps between two looks at where the engine has put its experts' replicas


class State:
    """Made when the model is loaded; told of every step by the model runner before its forward pass."""

    def __init__(
        self,
        settings: Settings,
        device: torch.device,
        num_spec_tokens: int,
        max_requests: int,
        captured: Sequence[int] = (),
    ) -> None:
        """`captured`: the numbers of rows for which the engine captures graphs, and to which it pads a step."""
        self.settings, self.device, self.num_spec_tokens = settings, device, num_spec_tokens
        self.policy, self.on = settings.policy, True
        self.every = settings.metrics.every  # steps between two of which experts are counted
        self._captured = captured
        # A step of more rows than this is never acted on: padded, it would have more rows than a kernel can take.
        most = min(settings.gates.max_rows, max_requests * (1 + num_spec_tokens))
        self.max_rows = next(rows for rows in range(most, -1, -1) if self.padded(rows) <= MAX_ROWS)
        self.layers: list[Layer] = []
        self.gate, self.sampling = False, False  # of the step under way
        self.rows, self.starts = 0, np.zeros(1, np.int32)
        self._one_row_each = self.starts
        self.pruned, self.bypassed = 0, Counter[str]()
        self.samples: Samples | None = None
        self.forcing: Forcing | None = None  # while tokens are forced
        self.control: Any = None  # kernels.launch.Control, on a GPU
        if device.type == "cuda":
            from xshare.kernels.launch import Control

            self.control = Control(device, max_requests)
            self.control.set_policy(self.policy)
            self.control.push()

    @cached_property
    def buckets(self) -> list[int]:
        """Numbers of rows that a kernel is compiled for, powers of two. The last may be more than ever vote: steps are
        padded."""
        return [1 << n for n in range(9) if 1 << n < 2 * self.padded(self.max_rows)]

    def padded(self, rows: int) -> int:
        """The most rows that a step of `rows` may be padded to. With drafts an engine may round captured sizes up to
        whole requests."""
        each = 1 + self.num_spec_tokens
        rounded = [-(-size // each) * each for size in self._captured]
        grids = [[size for size in sizes if size >= rows] for sizes in (self._captured, rounded)]
        return max([rows, *(min(grid) for grid in grids if grid)])

    @cached_property
    def top_k(self) -> int:
        """Known once the layers are."""
        return max(layer.router.top_k for layer in self.layers)

    @property
    def expert_bytes(self) -> int | None:
        """Of one expert in all layers together, None where some layer's are not known."""
        found = [layer.expert_bytes for layer in self.layers]
        return sum(size for size in found if size is not None) if None not in found else None

    @property
    def budgets(self) -> list[int | None] | None:
        """By layer, None where all have the policy's."""
        found = [layer.budget for layer in self.layers]
        return None if all(budget is None for budget in found) else found

    # Every step

    def one_row_each(self, requests: int) -> Array:
        """The boundaries of a step without drafts: the same array as long as the batch stays, so nothing is sent."""
        if len(self._one_row_each) != requests + 1:
            self._one_row_each = np.arange(requests + 1, dtype=np.int32)
        return self._one_row_each

    def step(self, decoding: bool, starts: Array, on_device: Tensor | None = None) -> None:
        """A step begins: whether all its requests decode, and where each request's rows begin (query_start_loc).

        `on_device` is the same in device memory, where an engine deals drafts out there. The device may be waiting for
        the host, so this takes microseconds, and sends nothing where nothing changed.
        """
        if self.samples is not None:
            self.samples.settle()
        was_open, self.rows = self.gate, int(starts[-1])
        reason = self.why_not(decoding, self.rows, len(starts) - 1)
        self.gate, self.sampling = reason is None, False
        if reason is not None:
            self.bypassed[reason] += 1
        else:
            self.starts = starts
            self.sampling = self.samples is not None and self.samples.due(self.every)
            self.pruned += 1
            if self.pruned % FOLLOW == 1:
                for layer in self.layers:
                    layer.follow_replicas()
        if self.control is not None and (self.gate or was_open):
            self.control.set_gate(self.gate, self.sampling)
            if self.gate:
                self.control.set_step(self.rows, starts)
            self.control.push()
            if on_device is not None and self.gate:
                self.control.starts[: len(starts)].copy_(on_device[: len(starts)])
        if self.sampling and self.samples is not None:
            self.samples.begin(self.rows)

    def why_not(self, decoding: bool, rows: int, requests: int = 0) -> str | None:
        gates = self.settings.gates
        if not self.on:
            return "off"
        if not decoding:
            return "prefill"
        if rows > self.max_rows:
            return "many_rows"
        if gates.max_requests is not None and requests > gates.max_requests:
            return "many_requests"
        if gates.bypass and rows < gates.min_rows:
            return "few_rows"
        if rows * self.top_k <= self._bypass_budget(self.policy):
            return "within_budget"
        return None

    def never_acts(self, rows: int) -> bool:
        """Whether the first policy can never act on a step of that many rows, padding included: launch nothing."""
        return rows > self.buckets[-1] or rows * self.top_k <= self._bypass_budget(self.settings.policy)

    def layout(self, n: int) -> BatchLayout:
        """Requests of n rows, those after the voting ones -1."""
        requests = np.full(n, -1, np.int64)
        requests[: self.rows] = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
        return BatchLayout(torch.from_numpy(requests).to(self.device))

    def mismatch(self, rows: int) -> None:
        """A layer got fewer rows than the step has: route natively rather than guess, count it, say so once."""
        if not self.bypassed["mismatch"]:
            log.warning(
                "xshare: a layer got %d rows where the step has %d; such layers route natively", rows, self.rows
            )
        self.bypassed["mismatch"] += 1

    # Live control

    def set_policy(self, given: str | dict[str, Any], budgets: Sequence[int] | None = None) -> bool:
        """Another policy from the next step on, with a budget for each layer or one for all; whether it is another."""
        policy = Policy.of(given)
        if budgets is not None:
            policy = with_budgets(policy, budgets, len(self.layers))
        if policy.method != self.policy.method:
            raise PolicyError(f"method cannot change while serving, from {self.policy.method!r} to {policy.method!r}")
        for layer in self.layers:
            check_policy(policy, layer.placement, layer.num_experts)
            layer.check(policy)
        if self.control is not None and self._bypass_budget(policy) < self._bypass_budget(self.settings.policy):
            raise PolicyError(
                f"policy {policy} can act on smaller batches than {self.settings.policy}, for which this engine has no "
                f"selection captured: start with the smaller budget, or with gates {{'bypass': false}}"
            )
        if self.control is not None:
            self.control.set_policy(policy)  # may refuse
        own = [None] * len(self.layers) if budgets is None else list(budgets)
        changed = policy != self.policy or own != [layer.budget for layer in self.layers]
        self.policy = policy
        for layer, budget in zip(self.layers, own, strict=True):
            layer.set_budget(budget)
        if self.samples is not None:
            self.samples.restart(clear=changed)
        return changed

    def _bypass_budget(self, policy: Policy) -> int:
        """Native routing of a step that loads no more experts than this is left alone."""
        return policy.batch_budget if self.settings.gates.bypass else 0

    def switch(self, on: bool) -> bool:
        if not isinstance(on, bool):
            raise SettingsError(f"xshare_switch takes True or False, not {on!r}")
        changed, self.on = on != self.on, on
        return changed

    def count_every(self, steps: int | None) -> None:
        if steps is not None and (not isinstance(steps, int) or isinstance(steps, bool) or steps < 1):
            raise SettingsError(f"xshare_count takes a number of steps from 1 up, or None, not {steps!r}")
        self.every = self.settings.metrics.every if steps is None else steps
        if self.samples is not None:
            self.samples.restart()

    def stats(self) -> dict[str, Any]:
        """Everything that was counted, to the last step: this waits for the device."""
        if self.samples is not None:
            self.samples.settle()
            if self.device.type == "cuda":
                torch.cuda.synchronize()
        return self.snapshot()

    def snapshot(self) -> dict[str, Any]:
        """The same as far as it is known, without touching the device: other threads may ask."""
        return {
            "pid": os.getpid(),
            "policy": str(self.policy),
            "budgets": self.budgets,
            "on": self.on,
            "steps_pruned": self.pruned,
            "steps_bypassed": dict(self.bypassed),
            "layers": [layer.name for layer in self.layers],
            "experts": max((layer.num_experts for layer in self.layers), default=0),
            "top_k": max((layer.router.top_k for layer in self.layers), default=0),
            "expert_bytes": self.expert_bytes,
            **(self.samples.means() if self.samples is not None else {}),
        }
