import os

import torch

# Without a GPU the kernels run under Triton's interpreter; it must be chosen before they are imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
