"""What the fused selection can serve. Nothing here needs Triton, so any caller may ask."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from xshare.policy import Policy

MAX_EXPERTS, MAX_ROWS, MAX_WARMUP = 512, 256, 4
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
THRESHOLDS = frozenset({"mass", "coverage", "price"})  # tau, rho, lam: Policy's names


def thresholds_of(policies: Iterable[Policy]) -> frozenset[str]:
    """The thresholds that any of the policies sets."""
    return frozenset(name for policy in policies for name in THRESHOLDS if getattr(policy, name) is not None)


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
