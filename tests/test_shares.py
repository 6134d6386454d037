"""A share of the requests, spread evenly over them."""

import pytest

from xshare.protected_share import protected_requests


@pytest.mark.parametrize(
    ("share", "requests", "places"),
    [(0, 16, []), (0.1, 16, [4, 12]), (0.5, 4, [1, 3]), (1, 3, [0, 1, 2]), (0.01, 5, [2]), (0.25, 16, [2, 6, 10, 14])],
)
def test_a_share_protects_evenly_spread_requests(share, requests, places):
    assert sorted(protected_requests(share, requests)) == places


def test_as_many_as_come_nearest_and_nobody_twice():
    for requests in range(1, 70):
        for share in (0.1, 1 / 3, 0.5, 0.77, 0.99, 1):
            protected = protected_requests(share, requests)
            assert len(protected) == max(1, round(share * requests))
            assert protected <= set(range(requests))
