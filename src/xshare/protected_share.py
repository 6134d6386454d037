"""A share of the requests, spread evenly over them: who is protected where a command compares."""

from __future__ import annotations


def protected_requests(share: float, requests: int) -> frozenset[int]:
    """Numbers of as many requests as come nearest to the share, one at least unless it is 0. Always the same ones."""
    count = max(1, round(share * requests)) if share else 0
    return frozenset(int((place + 0.5) * requests / count) for place in range(count))
