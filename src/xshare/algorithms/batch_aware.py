"""Algorithm 2, batch-aware selection: S = greedy(u, warm_up(...), m), then every row routes to its top-k inside S."""

from torch import Tensor


def warm_up(favourites: Tensor, voting: Tensor) -> Tensor:
    """S0, the union of the voting rows' own experts. bool [..., n, N], bool [..., n] -> bool [..., N]

    In the paper `favourites` is each row's top-k0 (`greedy.best` of its choice); coverage adds to it (own.py).
    """
    return (favourites & voting.unsqueeze(-1)).any(dim=-2)
