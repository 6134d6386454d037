"""Selection and routing on a CPU as one call, compiled by Numba: `algorithms/`, row by row and expert by expert.

The reference issues some hundred torch operations for a layer, each of which costs more than its arithmetic. Importing
this package imports no Numba, and without Numba the reference runs.
"""

from xshare.kernels.cpu.call import Routed, Steps, serves

__all__ = ["Routed", "Steps", "serves"]
