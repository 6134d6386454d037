"""The fused kernel for select() and route(), where it can serve them; otherwise the reference runs."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import pairwise

import torch
from torch import Tensor

from xshare.batch import BatchLayout, Placement
from xshare.kernels.control import Control
from xshare.kernels.limits import DTYPES, unsupported_policy, unsupported_shape
from xshare.policy import Policy
from xshare.router import RouterSpec


def fused_set(
    rows: Tensor,
    policy: Policy,
    layout: BatchLayout | None,
    placement: Placement,
    router: RouterSpec | None = None,
    cost: Tensor | None = None,
) -> Tensor | None:
    """S for logits (with a router) or scores (without) [n, N] on a CUDA device, bool [N]; None if unsupported.

    The layout must have BatchLayout.starts. During a graph capture the reference runs, because this function copies the
    policy to the device at every call. An engine keeps a Control and a FusedSelection instead.
    """
    if rows.device.type != "cuda" or rows.ndim != 2 or rows.stride(-1) != 1 or find_spec("triton") is None:
        return None
    if torch.cuda.is_current_stream_capturing():
        return None
    n, N = rows.shape
    starts = list(range(n + 1)) if layout is None else layout.starts
    if rows.dtype not in DTYPES or starts is None or placement.devices.ndim > 1 or unsupported_policy(policy):
        return None
    bias = None if router is None else router.correction_bias
    if unsupported_shape(N, n, 1 if router is None else router.n_group) or (bias is not None and bias.ndim > 1):
        return None
    from xshare.kernels.launch import FusedSelection

    with torch.cuda.device(rows.device):  # kernels launch on the current device
        selection = FusedSelection(
            num_experts=N,
            rows=n,
            device=rows.device,
            router=router,
            rows_per_request=max((b - a for a, b in pairwise(starts)), default=1) if policy.request_budget else 0,
            placement=None if policy.device_budget is None else placement,
            protects=layout is not None and layout.protected is not None,
            cost=None if cost is None else cost.unsqueeze(0),
            mask_logits=False,
            with_share=False,
        )
        control = Control(rows.device, max_requests=n)
        control.set_policy(policy)
        marks = None if layout is None else layout.protected
        protected = None if marks is None else marks.nonzero().flatten().tolist()
        control.set_step(starts[-1], starts, protected, table=None if cost is None else 0)
        control.set_gate(True)
        control.push()
        selection.launch(rows, control)
    return selection.keep
