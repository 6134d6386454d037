"""Algorithm 2, batch-aware selection: S = greedy(u, warm_up(...), m), then every row its top-k inside S."""

from torch import Tensor


def warm_up(choice_rank: Tensor, voting: Tensor, k0: int) -> Tensor:
    """S0, the union of the voting rows' top-k0 by choice. int64 [..., n, N], bool [..., n] -> bool [..., N].

    `choice_rank` comes from `greedy.rank`; N and above means that the row may not take the expert at all.
    """
    return best_of_rows(choice_rank, voting, k0).any(dim=-2)


def best_of_rows(choice_rank: Tensor, voting: Tensor, k0: int) -> Tensor:
    """Each voting row's own top-k0. -> bool [..., n, N]"""
    return (choice_rank < k0) & voting.unsqueeze(-1)
