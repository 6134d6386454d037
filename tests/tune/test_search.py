"""The decision keeps its promise: with a true loss at the limit, it is seldom said to hold."""

import random

import pytest

from xshare import Policy
from xshare.cli.tune import own_questions
from xshare.quality.tasks import ASKED
from xshare.tune.scan import Candidate
from xshare.tune.search import CHANCE, Search, Trial


def says_it_holds(rng, drop, limit, rounds=12, size=40):
    trial = Trial(True)
    for look in range(1, rounds + 1):
        trial.native += [True] * size
        trial.right += [rng.random() >= drop for _ in range(size)]
        trial.looks = look
        if (state := trial.state(limit)) != "undecided":
            return state == "holds"
    return False


def test_seldom_wrong_at_the_limit():
    rng = random.Random(0)
    wrong = sum(says_it_holds(rng, 0.05, 0.05) for _ in range(200))
    assert wrong <= CHANCE * 200


def test_often_right_far_from_it():
    rng = random.Random(1)
    assert sum(says_it_holds(rng, 0.0, 0.05) for _ in range(20)) == 20
    assert not any(says_it_holds(rng, 0.2, 0.05) for _ in range(20))


def test_no_question_twice_and_none_in_both_sets():
    prompts = [task.prompt for unseen in (False, True) for n in range(6) for task in own_questions(unseen, n)]
    assert len(prompts) == len(set(prompts)) == 2 * 6 * 4 * len(ASKED)


class Known(Search):
    """Answers that are known beforehand: of 400 questions so many are lost, the more the bolder."""

    def judge(self, candidate, trial):
        lost = 40 - candidate.policy.batch_budget
        trial.native, trial.looks = [True] * 400, 1
        trial.right = [i >= lost for i in range(400)]
        return trial.state(self.max_drop)


@pytest.mark.parametrize("max_drop", [0.02, 0.05, 0.5])
def test_the_boldest_that_holds_is_found_by_halving(max_drop):
    line = [Candidate(Policy(warmup=1, batch_budget=m), None, (m,), (41.0,), (1.0,)) for m in range(41)]
    search = Known(
        None,
        lambda unseen, number: [None] * 400,
        max_drop=max_drop,
        most=400,
        batch=1,
        limit=1,
        kept=[],
        keep=lambda row: None,
    )
    tried = list(search.run(line))
    assert len(tried) <= 2 * len(line).bit_length()
    boldest = min((each for each in tried if each.state == "holds"), key=lambda each: each.candidate.mean_active)
    holds = [search.judge(candidate, Trial(False)) == "holds" for candidate in line]
    # On unseen questions a later candidate has less chance to spend, and may need to be a little milder.
    assert 0 <= line.index(boldest.candidate) - holds.index(True) <= 3
