"""The expert kernels that vLLM can be started with."""

from __future__ import annotations

from typing import get_args

from xshare.errors import ModelError


def moe_backends() -> list[str]:
    """The values of `--moe-backend` that the installed vLLM takes, `auto` first."""
    try:
        from vllm.config.kernel import KernelConfig
    except ImportError:
        raise ModelError("vllm is not installed: pip install 'xshare[vllm]'") from None
    backends = [str(value) for value in get_args(KernelConfig.__annotations__["moe_backend"])]
    return sorted(backends, key=lambda value: value != "auto")
