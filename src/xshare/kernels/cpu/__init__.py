"""Selection and routing on a CPU in one call, compiled by Numba: `algorithms/` as loops over rows and experts.

The torch reference issues some hundred operations per layer, each of which costs more than its arithmetic. Importing
this package does not import Numba. If Numba is not installed, the reference runs.
"""

from xshare.kernels.cpu.call import Routed, Steps, serves

__all__ = ["Routed", "Steps", "serves"]
