import os

import torch
from hypothesis import settings

# Without a GPU the kernels run under Triton's interpreter, which must be chosen before anybody imports Triton.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

torch.set_num_threads(1)  # tests run in parallel processes, each with small tensors

# Fresh examples at every run, but the same ones in continuous integration: red must mean the change, not the dice.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")
