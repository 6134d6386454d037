"""The decision keeps its promise: with a true loss at the limit, it is seldom said to hold."""

import random

from xshare.cli.tune import own_questions
from xshare.quality.tasks import ASKED
from xshare.tune.search import CHANCE, Trial


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
