"""Which kernels for experts vLLM may be asked for."""

from __future__ import annotations

from typing import get_args

from xshare.errors import ModelError


def moe_backends() -> list[str]:
    """Values of `--moe-backend`, as the vLLM that is installed takes them: `auto` first."""
    try:
        from vllm.config.kernel import KernelConfig
    except ImportError:
        raise ModelError("vllm is not installed: pip install 'xshare[vllm]'") from None
    found = [str(value) for value in get_args(KernelConfig.__annotations__["moe_backend"])]
    return sorted(found, key=lambda value: value != "auto")
