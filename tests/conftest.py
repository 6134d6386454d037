import torch

torch.set_num_threads(1)  # tests run in parallel processes, each with small tensors
