"""The fused selection for CUDA. Importing this package imports neither Triton nor a kernel."""

from xshare.kernels.dispatch import fused_set

__all__ = ["fused_set"]
