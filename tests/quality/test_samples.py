"""Samples of a study, in the rows of a result file and out of them."""

from xshare.engines.base import Run
from xshare.engines.counters import Stats
from xshare.policy import Policy
from xshare.quality.answering import Outcome
from xshare.quality.stored_answers import ForcedDivergence, Samples

POLICY = Policy.parse("k0=1,m=2")
# As files of before have them.
OLD = [
    {"policy": "native", "mixed": True, "order": 0, "right": [True], "answers": [[5, 6]]}
    | {"stats": {"mean": {"experts_active": 4.0}, "experts_active": [3.0, 5.0]}}
    | {"run": {"decode_s": 1.5, "steps": 3, "rows": 6, "drafted": 0, "accepted": 0}},
    {"policy": "k0=1,m=2", "mixed": True, "order": "begun 1", "ended": {"3": [False, [7]]}},
    {"policy": "k0=1,m=2", "mixed": True, "order": "forced", "kl": 0.1, "perplexity": 1.2, "same_token": 0.9},
]


def test_files_of_before_are_read():
    samples = Samples([dict(row) for row in OLD], mixed=True)
    native = samples.answers(None, 0)
    assert (native.right, native.tokens, native.run.steps) == ([True], [[5, 6]], 3)
    assert native.stats == Stats(by_layer={"experts_active": [3.0, 5.0]}, mean={"experts_active": 4.0})
    assert samples.ended(POLICY, 1) == {3: (False, [7])}
    assert samples.forced(POLICY) == ForcedDivergence(0.1, 1.2, 0.9)
    assert samples.answers(POLICY, 1) is samples.answers(None, 1) is samples.forced(None) is None
    assert samples.ended(POLICY, 0) == {}
    assert Samples(samples.rows, mixed=False).answers(None, 0) is None


def test_what_is_added_has_the_form_of_before():
    rows = []
    samples = Samples(rows, mixed=True)
    stats = Stats(by_layer={"experts_active": [3.0, 5.0]}, mean={"experts_active": 4.0})
    samples.add_answers(None, 0, Outcome(None, [True], [[5, 6]], stats, Run([], 1.5, 3, 6)))
    samples.add_ended(POLICY, 1, {3: (False, [7])})
    samples.add_forced(POLICY, ForcedDivergence(0.1, 1.2, 0.9))
    assert rows == OLD


def test_answers_replace_those_that_had_ended():
    samples = Samples([dict(row) for row in OLD], mixed=True)
    samples.add_ended(POLICY, 1, {3: (False, [7]), 4: (True, [8])})
    assert samples.ended(POLICY, 1) == {3: (False, [7]), 4: (True, [8])}
    samples.add_answers(POLICY, 1, Outcome(POLICY, [True], [[1]], Stats()))
    assert samples.ended(POLICY, 1) == {}
    assert [row["order"] for row in samples.rows] == [0, "forced", 1]
