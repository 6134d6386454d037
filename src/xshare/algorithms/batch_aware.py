"""Algorithm 2, batch-aware selection: S = greedy(u, warm_up(...), m), then every row its top-k inside S."""

from torch import Tensor


def warm_up(favourites: Tensor, voting: Tensor) -> Tensor:
    """S0, the union of the voting rows' top-k0 by choice. bool [..., n, N], bool [..., n] -> bool [..., N]

    `favourites` marks each row's own top-k0 (`greedy.best` of its choice).
    """
    return (favourites & voting.unsqueeze(-1)).any(dim=-2)
