"""The fused selection of one layer: its fixed shapes and rules, its outputs, and the launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from xshare.batch import Placement
from xshare.errors import LayoutError, PolicyError
from xshare.kernels import row_votes as rows
from xshare.kernels import selection as kernel
from xshare.kernels.control import Control
from xshare.kernels.control_words import LayerNumber
from xshare.kernels.limits import DTYPES, THRESHOLDS, thresholds_of, unsupported_shape
from xshare.kernels.plan import Plan, Scratch
from xshare.kernels.refinement import reroute_rows
from xshare.kernels.routing_blocks import Blocks
from xshare.kernels.routing_tables import Tables, no_tables
from xshare.kernels.two_halves import leave_message
from xshare.policy import Policy
from xshare.router import RouterSpec

SCORINGS = {"softmax": rows.SOFTMAX.value, "sigmoid": rows.SIGMOID.value}
GIVEN = rows.GIVEN.value  # without a router, the rows are scores already


@dataclass(kw_only=True)
class FusedSelection:
    """Selects for one layer by Triton kernels. Nothing is allocated after construction."""

    num_experts: int
    rows: int  # of the logits, at most 256: voting rows first, then padding
    device: torch.device | str
    router: RouterSpec | None  # S is topped up to its top_k; None: the rows are scores, and S is not topped up
    rows_per_request: int = 0  # of most requests: affects speed only; 0: no policy will set m_r
    placement: Placement | None = None  # expert parallelism
    mask_logits: bool = True  # in place, so that the engine's own router refines
    with_share: bool = True
    seen: Tensor | None = None  # [rows, N]: where sampled steps save the logits before masking
    keep: Tensor | None = None  # bool [N]: where to write S
    own: Tensor | None = None  # float64 [len(LayerNumber)]: this layer's numbers, in place of the control's
    protects: bool = False  # whether rows can be protected (Control.set_step)
    cost: Tensor | None = None  # float64 [tables, N + 1]: cost tables
    thresholds: frozenset[str] = THRESHOLDS  # that policies may set: code for the others is not compiled
    scratch: Scratch | None = None  # of another layer with the same plan, to share it
    routes: bool = False  # whether tables will be set: affects speed only
    tables: Tables | Blocks | None = None  # where to write the routing of 16-bit logits, instead of masking the logits
    # An all-reduce in place: sums an int64 tensor over all ranks, so that S is chosen from the votes of all of them. It
    # is called at every launch, on every rank, and a graph must be able to capture it.
    across: Callable[[Tensor], None] | None = None

    def __post_init__(self) -> None:
        self._check_rules()
        N, device = self.num_experts, self.device
        self.keep = torch.ones(N, dtype=torch.bool, device=device) if self.keep is None else self.keep  # S
        self.share = torch.ones(self.rows, dtype=torch.float32, device=device)  # of each row's full score inside S
        bias = None if self.router is None else self.router.correction_bias
        self.bias = (torch.zeros(N) if bias is None else bias).to(device, torch.float32).contiguous()
        self.masked_bias = self.bias.clone()  # for routers that rank by score + bias: the lowest value outside S
        devices = torch.zeros(N) if self.placement is None else self.placement.devices
        self.devices = devices.to(device, torch.int32).contiguous()
        self.num_devices = 1 if self.placement is None else self.placement.num_devices
        routed = self.router.top_k if self.routes and self.router is not None else 0
        self.plan = Plan.of(N, self.rows, self.rows_per_request, device, self.across is not None, routed)
        self.scratch = Scratch(self.plan, device) if self.scratch is None else self.scratch
        if self.scratch.plan != self.plan:
            raise LayoutError("layers that share scratch memory must have the same rows, experts and requests")

    def _check_rules(self) -> None:
        """Check every shape: the kernels read and write N entries without looking at a tensor's size."""
        N, n_group = self.num_experts, 1 if self.router is None else self.router.n_group
        if reason := unsupported_shape(N, self.rows, n_group):
            raise LayoutError(reason)
        if self.router is not None:
            self.router.check(N)
        if self.placement is not None and self.placement.devices.shape != (N,):
            got = list(self.placement.devices.shape)
            raise LayoutError(f"placement must name a device for each of the {N} experts, not {got}")
        tables = 0 if self.cost is None else len(self.cost)
        for name, shape in (
            ("seen", (self.rows, N)),
            ("keep", (N,)),
            ("own", (len(LayerNumber),)),
            ("cost", (tables, N + 1)),
        ):
            tensor: Tensor | None = getattr(self, name)
            if tensor is not None and (tensor.shape != shape or not tensor.is_contiguous()):
                which = "" if tensor.is_contiguous() else " that is not contiguous"
                raise LayoutError(f"{name} must be a contiguous {list(shape)}, not {list(tensor.shape)}{which}")

    @property
    def _by_logit(self) -> bool:
        """Whether a row's experts are ranked by its input values, without a sigmoid or a bias."""
        return self.router is None or self.router.scoring == "softmax"

    def check(self, policy: Policy) -> None:
        """Refuse a policy that this selection was not built for. A captured graph cannot check: call this before
        changing its control."""
        if policy.request_budget and not self.plan.each:
            raise PolicyError(
                f"request_budget (mr) in {policy} needs a selection made with rows_per_request, and this one was not: "
                f"start an engine with such a policy"
            )
        if policy.device_budget is not None and self.placement is None:
            raise PolicyError("device_budget (mg) needs a selection made with a placement, and this one was not")
        if left_out := thresholds_of([policy]) - self.thresholds:
            raise PolicyError(
                f"{min(left_out)} in {policy} needs a selection that was made for it, and this one was made without: "
                f"start an engine with such a policy, or with live 'any'"
            )

    def launch(self, logits: Tensor, control: Control, route: bool = True) -> bool:
        """Select for `logits` [rows, N], whose rows may be strided; writes keep, share, masked_bias and masked logits.
        With `tables`, logits of their type and `route`, writes the tables instead of masked logits. -> whether it did
        that"""
        self._check_logits(logits)
        if control.policy is not None:
            self.check(control.policy)
        plan, scratch = self.plan, self.scratch
        assert scratch is not None
        tables = self.tables if route and self.tables is not None and logits.dtype == self.tables.dtype else None
        arguments = self._data(logits, control) | self._rules(logits)
        arguments |= no_tables(logits) if tables is None else tables.arguments(len(logits))
        arguments["MASK_LOGITS"] = self.mask_logits and tables is None
        if plan.one_tile:
            kernel.select_in_one_tile[(1,)](
                **arguments, halves=scratch.halves, counts=scratch.counts, order=scratch.order
            )
            return tables is not None
        shared = {name: value for name, value in vars(scratch).items() if name != "plan"}
        shared["hists"] = logits if tables is None else tables.hists
        together = self.across is not None
        for part in (0,) if plan.on_gpu and not together else (1, 2) if tables is None else (1, 2, 3):
            if part == 2 and together:
                self._add_up(control)
                if plan.early:  # the second launch waits for the collective's kernels in the usual way
                    arguments |= {"EARLY": False, "launch_pdl": False}
            kernel.select_in_blocks[(plan.blocks,)](
                **arguments, **shared, starts=control.starts,
                BLOCKS=plan.blocks, PART=part, QUOTA=plan.quota, DIRECT=plan.direct, EACH=plan.each,
                ACROSS=together,
            )  # fmt: skip
        return tables is not None

    def _add_up(self, control: Control) -> None:
        """Between the two launches: replace this rank's votes by the sum over all ranks."""
        plan, scratch = self.plan, self.scratch
        assert scratch is not None
        assert self.across is not None
        early = {"EARLY": True, "launch_pdl": True} if plan.early else {"EARLY": False}
        leave_message[(1,)](
            scratch.sums, scratch.totals, control.words, scratch.message, BLOCKS=plan.blocks, BN=plan.block_n,
            num_warps=plan.warps, **early,
        )  # fmt: skip
        self.across(scratch.message)

    def only_listen(self) -> None:
        """Take part in the all-reduce without votes, on a rank that has no rows: the other ranks wait for it."""
        assert self.scratch is not None
        assert self.across is not None
        self.across(self.scratch.message.zero_())

    def _check_logits(self, logits: Tensor) -> None:
        n, N = logits.shape if logits.ndim == 2 else (0, 0)
        if n > self.rows or self.num_experts != N or logits.dtype not in DTYPES or logits.stride(1) != 1:
            got = f"{list(logits.shape)} {logits.dtype} of strides {list(logits.stride())}"
            raise LayoutError(
                f"logits must be 16- or 32-bit floats [{self.rows} or fewer, {self.num_experts}], the experts of a row "
                f"side by side, not {got}"
            )

    def _data(self, logits: Tensor, control: Control) -> dict[str, Any]:
        """The kernels' data. An argument that a kernel is compiled not to use may be any tensor."""
        return {
            "logits": logits, "stride": logits.stride(0), "present": len(logits), "bias_ptr": self.bias,
            "control": control.words, "own": control.own if self.own is None else self.own,
            "protected_ptr": control.protected, "cost": control.own if self.cost is None else self.cost,
            "devices": self.devices, "num_devices": self.num_devices,
            "keep": self.keep, "masked_bias": self.masked_bias, "share": self.share,
            "seen": logits if self.seen is None else self.seen,
        }  # fmt: skip

    def _rules(self, logits: Tensor) -> dict[str, Any]:
        """The kernels' compile-time constants."""
        plan, router = self.plan, self.router
        rules: dict[str, Any] = {
            "N": self.num_experts, "BN": plan.block_n, "SPAN": min(plan.block_n, 512 // logits.element_size()),
            "BR": plan.block_r, "BQ": plan.block_q,
            "TOP_K": 0 if router is None else router.top_k,
            "SCORING": GIVEN if router is None else SCORINGS[router.scoring],
            "RENORMALIZE": router is None or router.renormalize,
            "GROUPS": 1 if router is None else router.n_group,
            "KEEP_GROUPS": 1 if router is None else router.topk_group,
            "DEVICES": self.placement is not None, "COST": self.cost is not None,
            "PROTECT": self.protects, "UNIQUE": logits.dtype == torch.bfloat16 and self._by_logit,
            "MASK_BIAS": router is not None and router.scoring == "sigmoid",
            "SHARE": self.with_share, "SEEN": self.seen is not None,
            **{name.upper(): name in self.thresholds for name in THRESHOLDS},
            "LOWEST": torch.finfo(logits.dtype).min, "num_warps": plan.warps,
        }  # fmt: skip
        return rules | ({"EARLY": True, "launch_pdl": True} if plan.early else {"EARLY": False})

    def reroute(self, logits: Tensor, weights: Tensor, ids: Tensor, control: Control) -> None:
        """After `launch` with mask_logits off: write the rows' top-k inside S, by choice and group rule, into `weights`
        and `ids` [n, k]. For routers whose engine would rank groups by experts outside S too."""
        router = self.router
        assert router is not None
        reroute_rows[(len(logits),)](
            logits=logits, stride=logits.stride(0), bias_ptr=self.bias, keep_ptr=self.keep, control=control.words,
            weights=weights, ids=ids, scale=router.routed_scaling_factor,
            N=self.num_experts, BN=self.plan.block_n, K=router.top_k, SLOTS=triton.next_power_of_2(router.top_k),
            SIGMOID=router.scoring == "sigmoid", RENORMALIZE=router.renormalize,
            GROUPS=router.n_group, KEEP_GROUPS=router.topk_group, num_warps=1,
        )  # fmt: skip
