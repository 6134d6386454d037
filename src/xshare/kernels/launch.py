"""Buffers and launches of the fused selection: what an engine holds for each layer, and for all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton
from torch import Tensor

from xshare.batch import Placement
from xshare.errors import LayoutError, PolicyError
from xshare.kernels import rows
from xshare.kernels import selection as kernel
from xshare.policy import Policy
from xshare.router import RouterSpec

MAX_EXPERTS, MAX_WARMUP = 512, 4
MAX_ROWS = 256
FEW_ROWS = 16
SCORINGS = {"softmax": rows.SOFTMAX.value, "sigmoid": rows.SIGMOID.value, "given": rows.GIVEN.value}
Array = npt.NDArray[np.int32]
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class Control:
    """What changes from step to step, in device memory: a captured graph reads it afresh at every replay.

    The setters change a copy on the host; `push` sends it in one asynchronous transfer, and nothing if nothing changed,
    as in the steady decoding of one batch. Several pinned buffers take turns, each with an event, so that none is
    written while an earlier transfer still reads it.
    """

    WORDS = 8  # gate, rows, requests, k0, m, m_r, m_g, sample

    def __init__(self, device: torch.device | str, max_requests: int = MAX_ROWS) -> None:
        # after the words: query_start_loc, with room for the blocks of two launches to look past the last request
        size = self.WORDS + 2 * max_requests + 2
        self.memory = torch.zeros(size, dtype=torch.int32, device=device)
        self.words, self.starts = self.memory[: self.WORDS], self.memory[self.WORDS :]
        self.tau = torch.full((1,), -1.0, dtype=torch.float64, device=device)  # below zero: no threshold
        self.max_requests = max_requests
        self.policy: Policy | None = None  # what was set last, for FusedSelection.check
        self._tau = self._sent_tau = -1.0
        self._host = np.zeros(size, np.int32)
        self._used = self.WORDS  # how much of it this step needs
        self._changed = True  # since the last push
        self._gate, self._step = (False, False), (0, np.zeros(1, np.int32))  # as set last
        on_gpu = self.memory.is_cuda
        self._buffers = [torch.zeros(size, dtype=torch.int32, pin_memory=on_gpu) for _ in range(8 if on_gpu else 1)]
        self._views = [buffer.numpy() for buffer in self._buffers]
        self._events = [torch.cuda.Event() for _ in self._buffers] if on_gpu else []  # type: ignore[no-untyped-call]
        self._turn = 0

    def set_policy(self, policy: Policy) -> None:
        """Another policy from the next push on. Budgets beyond any N are cut, which changes nothing."""
        if reason := unsupported_policy(policy):
            raise PolicyError(reason)
        m_g = -1 if policy.device_budget is None else min(policy.device_budget, MAX_EXPERTS)
        budgets = [min(budget, MAX_EXPERTS) for budget in (policy.batch_budget, policy.request_budget)]
        self._host[3:7] = [policy.warmup, *budgets, m_g]
        self._changed = True
        self._tau = -1.0 if policy.mass is None else policy.mass
        self.policy = policy

    def set_step(self, rows: int, starts: Sequence[int] | Array | None = None) -> None:
        """The first `rows` rows vote; `starts` are their requests' boundaries, or every row is a request of its own.

        An array given again, the very same, is taken to be unchanged: comparing takes longer than all the rest.
        """
        starts = np.arange(rows + 1, dtype=np.int32) if starts is None else np.asarray(starts, np.int32)
        if starts is self._step[1] and rows == self._step[0]:
            return
        if len(starts) - 1 > self.max_requests:
            raise LayoutError(f"a step must have at most {self.max_requests} requests, not {len(starts) - 1}")
        self._step, self._changed = (rows, starts), True
        self._host[1], self._host[2] = rows, len(starts) - 1
        self._used = self.WORDS + len(starts)
        self._host[self.WORDS : self._used] = starts

    def set_gate(self, on: bool, sample: bool = False) -> None:
        """Whether selection acts at all, and whether the logits are copied aside (FusedSelection.seen)."""
        if self._gate != (on, sample):
            self._gate, self._changed = (on, sample), True
            self._host[0], self._host[7] = on, sample

    def push(self) -> None:
        """Send what was set. The launches after it, on the same stream, see it."""
        if not self._changed:
            return
        self._changed, used = False, self._used
        if self._tau != self._sent_tau:
            self.tau.fill_(self._tau)
            self._sent_tau = self._tau
        self._turn = (self._turn + 1) % len(self._buffers)
        if self._events:
            self._events[self._turn].synchronize()  # long past: eight transfers ago
        self._views[self._turn][:used] = self._host[:used]
        self.memory[:used].copy_(self._buffers[self._turn][:used], non_blocking=True)
        if self._events:
            self._events[self._turn].record()


@dataclass
class FusedSelection:
    """One layer's selection: its fixed shapes and rules, its outputs, and the launch.

    `rows` is the number of rows of the logits, voting ones first and padding after, at most 256. `rows_per_request` is
    how many rows most requests have (any number is right, this one is fast), 0 where no policy will ever set m_r.
    Nothing is allocated after construction.
    """

    num_experts: int
    top_k: int  # S is topped up to this; 0 leaves it as the algorithm defines it
    rows: int
    device: torch.device | str
    scoring: str = "softmax"  # or sigmoid, or given: the rows are scores already
    correction_bias: Tensor | None = None  # [N], sigmoid only
    n_group: int = 1
    topk_group: int = 1
    rows_per_request: int = 0
    placement: Placement | None = None  # expert parallelism
    fill: str = "level"
    mask_logits: bool = True  # in place, so that the engine's own router refines
    with_mass: bool = True
    seen: Tensor | None = None  # [rows, N]: where to leave the logits as they came, at steps that are sampled
    budget: Tensor | None = None  # int32 [1]: this layer's own m in place of the control's, unless it is below zero
    score: str = "full"  # or topk, of which a row's best have shares if the model has them renormalised
    renormalize: bool = True
    like: FusedSelection | None = None  # another layer's: share its scratch memory, as layers run one after another

    def __post_init__(self) -> None:
        if reason := unsupported_shape(self.num_experts, self.rows, self.n_group):
            raise LayoutError(reason)
        N, device = self.num_experts, self.device
        self._check_rules()
        self.keep = torch.ones(N, dtype=torch.bool, device=device)  # S
        self.mass = torch.ones(self.rows, dtype=torch.float32, device=device)  # share of each row's score inside S
        if self.seen is not None and (self.seen.shape != (self.rows, N) or not self.seen.is_contiguous()):
            which = "" if self.seen.is_contiguous() else " that is not contiguous"
            raise LayoutError(f"seen must be a contiguous [{self.rows}, {N}], not {list(self.seen.shape)}{which}")
        bias = torch.zeros(N) if self.correction_bias is None else self.correction_bias
        self.bias = bias.to(device, torch.float32).contiguous()
        self.masked_bias = self.bias.clone()  # for routers that rank by score + bias: the lowest value outside S
        devices = torch.zeros(N) if self.placement is None else self.placement.devices
        self.devices = devices.to(device, torch.int32).contiguous()
        self.num_devices = 1 if self.placement is None else self.placement.num_devices

        self.block_n = max(16, triton.next_power_of_2(N))
        # Rows of a request that are read at once: those of a draft, as far as they fit the registers.
        fit = max(1, 512 // self.block_n)
        self.each = min(fit, triton.next_power_of_2(self.rows_per_request)) if self.rows_per_request else 0
        # One expert a thread where experts are ranked, one row a warp where rows are read.
        self.warps = min(16, max(1, self.block_n // 32))
        self.block_q = min(max(4, self.warps), triton.next_power_of_2(self.rows))
        self.one_tile = not self.each and self.rows <= max(FEW_ROWS, min(2 * FEW_ROWS, 8 * self.warps))
        # Requests of one program. With few rows one program takes them all; they may be as many as there are rows.
        self.quota = self.rows if self.one_tile or (self.each and self.rows <= FEW_ROWS) else self.block_q
        self.blocks = triton.cdiv(self.rows, self.quota)
        self.block_r = triton.next_power_of_2(triton.cdiv(self.rows, self.blocks))  # rows that a program finishes
        self.on_gpu = torch.device(device).type == "cuda"
        # AMD's capabilities are numbered from 9 on too, and its kernels cannot start early.
        self.early = self.on_gpu and not torch.version.hip and torch.cuda.get_device_capability(device) >= (9, 0)

        if self.like is not None:
            if (self.like.rows, self.like.block_n, self.like.each) != (self.rows, self.block_n, self.each):
                raise LayoutError("layers that share scratch memory must have the same rows, experts and requests")
            for name in ("stats", "halves", "counts", "sums", "totals", "arrivals"):
                setattr(self, name, getattr(self.like, name))
            return

        def scratch(count: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(count, dtype=dtype, device=device)

        tile = self.blocks * self.block_q * self.block_n
        self.stats = scratch(2 * self.rows, torch.float32)  # each row's best logit and total
        self.halves, self.counts = scratch(2 * tile, torch.float32), scratch(tile, torch.int32)
        columns = self.blocks * self.block_n
        self.sums, self.totals = scratch(columns, torch.int64), scratch(columns, torch.int32)
        self.arrivals = scratch(1, torch.int64)  # counted up for as long as an engine serves

    def _check_rules(self) -> None:
        """Kernels read and write N of everything, whatever they are given."""
        if self.scoring != "given":
            rule: dict[str, Any] = {"n_group": self.n_group, "topk_group": self.topk_group, "scoring": self.scoring}
            RouterSpec(max(1, self.top_k), correction_bias=self.correction_bias, **rule).check(self.num_experts)
        if self.placement is not None and self.placement.devices.shape != (self.num_experts,):
            got = list(self.placement.devices.shape)
            raise LayoutError(f"placement must name a device for each of the {self.num_experts} experts, not {got}")
        if self.score not in ("full", "topk"):
            raise LayoutError(f"score must be full or topk, not {self.score!r}")
        if self.fill not in ("level", "rounds"):
            raise LayoutError(f"fill must be level or rounds, not {self.fill!r}")

    def check(self, policy: Policy) -> None:
        """Refuse a policy that was not provided for. A captured graph cannot: ask before changing its control."""
        if policy.request_budget and not self.each:
            raise PolicyError("request_budget (mr) needs a selection made with rows_per_request, and this one was not")
        if policy.score != self.score:
            raise PolicyError(
                f"score {policy.score!r} needs a selection made for it, and this one is for {self.score!r}: "
                "on a GPU all policies of an engine have the score of the one it was started with"
            )
        if policy.device_budget is not None and (self.placement is None or policy.fill != self.fill):
            raise PolicyError(f"device_budget (mg) needs a selection made with a placement and fill {policy.fill!r}")

    def launch(self, logits: Tensor, control: Control) -> None:
        """Select for `logits` [rows, N], rows possibly strided; leaves keep, mass, masked_bias and masked logits."""
        n, N = logits.shape if logits.ndim == 2 else (0, 0)
        if n > self.rows or self.num_experts != N or logits.dtype not in DTYPES or logits.stride(1) != 1:
            got = f"{list(logits.shape)} {logits.dtype} of strides {list(logits.stride())}"
            raise LayoutError(
                f"logits must be 16- or 32-bit floats [{self.rows} or fewer, {self.num_experts}], the experts of a row "
                f"side by side, not {got}"
            )
        if control.policy is not None:
            self.check(control.policy)
        rules: dict[str, Any] = {
            "N": self.num_experts, "BN": self.block_n, "SPAN": min(self.block_n, 512 // logits.element_size()),
            "BR": self.block_r, "BQ": self.block_q,
            "TOP_K": self.top_k, "SCORING": SCORINGS[self.scoring], "RENORMALIZE": self.renormalize,
            "BY_TOP_K": self.score == "topk" and self.scoring != "given",  # scores that are given stay as they are
            "GROUPS": self.n_group, "KEEP_GROUPS": self.topk_group,
            "DEVICES": self.placement is not None, "ROUNDS": self.fill == "rounds",
            "MASK_LOGITS": self.mask_logits, "MASK_BIAS": self.scoring == "sigmoid", "MASS": self.with_mass,
            "SEEN": self.seen is not None, "OWN": self.budget is not None,
            "LOWEST": torch.finfo(logits.dtype).min, "num_warps": self.warps,
        }  # fmt: skip
        rules |= {"EARLY": True, "launch_pdl": True} if self.early else {"EARLY": False}
        inputs = (logits, logits.stride(0), n, self.bias)
        policy = (control.words, control.tau, self.devices, self.num_devices)
        seen, budget = (
            (logits if self.seen is None else self.seen),
            (control.words if self.budget is None else self.budget),
        )
        outputs = (self.keep, self.masked_bias, self.mass, seen, budget)
        if self.one_tile:
            kernel.select_in_one_tile[(1,)](*inputs, *policy, *outputs, self.halves, self.counts, **rules)
            return
        scratch = (self.stats, self.halves, self.counts, self.sums, self.totals, self.arrivals)
        for part in (0,) if self.on_gpu else (1, 2):
            kernel.select_in_blocks[(self.blocks,)](
                *inputs, control.starts, *policy, *outputs, *scratch,
                BLOCKS=self.blocks, PART=part, QUOTA=self.quota, DIRECT=self.blocks * self.block_q <= FEW_ROWS,
                EACH=self.each, **rules,
            )  # fmt: skip

    def reroute(
        self,
        logits: Tensor,
        weights: Tensor,
        ids: Tensor,
        control: Control,
        renormalize: bool = True,
        scale: float = 1.0,
    ) -> None:
        """After `launch` with mask_logits off: the rows' top-k inside S by choice and group rule, into `weights` and
        `ids` [n, k]. For routers whose engine would judge groups by experts outside S too."""
        from xshare.kernels.refinement import reroute_rows

        reroute_rows[(len(logits),)](
            logits, logits.stride(0), self.bias, self.keep, control.words, weights, ids, scale,
            N=self.num_experts, BN=self.block_n, K=self.top_k, SLOTS=triton.next_power_of_2(self.top_k),
            SIGMOID=self.scoring == "sigmoid", RENORMALIZE=renormalize,
            GROUPS=self.n_group, KEEP_GROUPS=self.topk_group, num_warps=1,
        )  # fmt: skip


def count_step(
    seen: Tensor,
    rows: int,
    keep: Tensor,
    router: RouterSpec,
    bias: Tensor,
    devices: Tensor,
    num_devices: int,
    sums: Tensor,
) -> None:
    """Add a sampled step to `sums`, float64 [5, L]: experts native, selected, active, share of mass kept, max load.

    From the logits of its first `rows` rows, float32 [L, R, N], S [L, N], bias float32 [L, N] and devices int32 [L, N].
    """
    from xshare.kernels import counting

    layers, _, N = seen.shape
    counting.count_step[(layers,)](
        seen, seen.stride(0), rows, keep, bias, devices, num_devices, sums, layers,
        N=N, BN=max(16, triton.next_power_of_2(N)), K=router.top_k, SCORING=SCORINGS[router.scoring],
        RENORMALIZE=router.renormalize, GROUPS=router.n_group, KEEP_GROUPS=router.topk_group, num_warps=1,
    )  # fmt: skip


def unsupported_shape(num_experts: int, rows: int, n_group: int = 1) -> str | None:
    """Why the kernels cannot serve this shape, or None."""
    if not 1 <= num_experts <= MAX_EXPERTS:
        return f"the fused selection serves 1 to {MAX_EXPERTS} experts, not {num_experts}"
    if not 1 <= rows <= MAX_ROWS:
        return f"the fused selection serves 1 to {MAX_ROWS} rows, not {rows}"
    if n_group > 1 and (num_experts < 16 or num_experts & (num_experts - 1) or n_group & (n_group - 1)):
        return f"the fused selection serves groups in powers of two, not {n_group} groups of {num_experts} experts"
    return None


def unsupported_policy(policy: Policy) -> str | None:
    """Why the kernels cannot serve this policy, or None."""
    if policy.method != "xshare":
        return f"the fused selection runs method 'xshare', not {policy}"
    if policy.warmup > MAX_WARMUP:
        return f"warmup (k0) must be at most {MAX_WARMUP} in the fused selection, not {policy.warmup}"
    return None
