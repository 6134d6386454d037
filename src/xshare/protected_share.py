"""Which requests a command protects when the user gives a share of them."""

from __future__ import annotations


def protected_requests(share: float, requests: int) -> frozenset[int]:
    """The numbers of the protected requests: the nearest count to the share, at least one unless the share is 0, spread
    evenly and always the same."""
    count = max(1, round(share * requests)) if share else 0
    return frozenset(int((place + 0.5) * requests / count) for place in range(count))
