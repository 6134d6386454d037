"""The fused selection for CUDA. Importing this package does not import Triton or any kernel."""

from xshare.kernels.dispatch import fused_set

__all__ = ["fused_set"]
