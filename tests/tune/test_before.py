"""A tuning that was begun before policies held budgets by layer goes on: its samples are those of today's names."""

import pytest

from xshare.tune.old_samples import upgrade_sample


@pytest.mark.parametrize(
    ("sample", "today"),
    [
        (
            {"scan": "k0=1,m=16,score=full", "budgets": [8, 4], "kl": 0.1},
            {"scan": "k0=1,m=0,ml=1:8/2:4,score=full", "kl": 0.1},
        ),
        ({"scan": "k0=1,m=16", "budgets": None}, {"scan": "k0=1,m=16"}),
        (
            {"policy": "k0=2,m=[0,8]", "right": [True]},
            {"policy": "k0=2,m=0,ml=1:0/2:8", "right": [True]},
        ),
        ({"timed": "k0=1,m=[0,8],score=full"}, {"timed": "k0=1,m=0,ml=1:0/2:8,score=full"}),
        ({"policy": "native", "round": 0}, {"policy": "native", "round": 0}),
        ({"policy": "k0=1,m=0,ml=1:8/2:4"}, {"policy": "k0=1,m=0,ml=1:8/2:4"}),
    ],
)
def test_old_samples_have_todays_names(sample, today):
    assert upgrade_sample(sample, [1, 2]) == today
