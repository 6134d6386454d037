"""The decision keeps its promise: with a true loss at the limit, it is seldom said to hold."""

import random

import pytest

from xshare import Policy
from xshare.quality.task_files import Task
from xshare.tasks import ASKED
from xshare.tune.candidate import Candidate
from xshare.tune.questions import EACH, nano_questions
from xshare.tune.search import CHANCE, Round, Search, Trial, round_span


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
    prompts = [task.prompt for unseen in (False, True) for n in range(4) for task in nano_questions(unseen, n)]
    assert len(prompts) == len(set(prompts)) == 2 * EACH * 8 * len(ASKED)  # 1, 1, 2 and 4 first rounds


class Known(Search):
    """A search with known answers: a candidate loses 40 - m of 400 questions, so more with a smaller budget."""

    def judge(self, candidate, trial):
        lost = 40 - candidate.policy.batch_budget
        trial.native, trial.looks = [True] * 400, 1
        trial.right = [i >= lost for i in range(400)]
        return trial.state(self.max_drop)


def questions(unseen, number):
    begin, length = round_span(number)
    return [Task(f"{unseen} {i}", "x", "any") for i in range(40 * begin, 40 * (begin + length))]


def searching(most, earlier=(), right=lambda name: True, max_drop=0.05):
    """A search whose answers are as `right` says, without an engine."""
    rows = []

    class Search_(Search):
        def answers(self, candidate, tasks, trial):
            name = "native" if candidate is None else candidate.name
            key = (name, trial.unseen, trial.looks)
            if key not in self.known:
                good = [candidate is None or right(name)] * len(tasks)
                turn = trial.turn if trial.unseen and candidate is not None else None
                mean = {"experts_active": 5.0 + trial.looks}
                self.known[key] = Round(*key, turn, good, len(tasks), 4 * len(tasks), mean)
                rows.append(self.known[key])
            return self.known[key]

    search = Search_(
        None, questions, max_drop=max_drop, most=most, batch=1, limit=1, known=list(earlier), keep=rows.append
    )
    return search, rows


LINE = [Candidate(Policy(warmup=1, batch_budget=m), (m,), (41.0,), (1.0,)) for m in (1, 2, 3)]


def test_rounds_double_and_only_whole_ones_are_asked():
    assert [round_span(number) for number in range(5)] == [(0, 1), (1, 1), (2, 2), (4, 4), (8, 8)]
    search, _ = searching(200, max_drop=0.02)
    assert len(search.best_case.right) == 160  # 40, 40, 80; the next would be 160
    assert not search.could_hold()
    assert searching(640, max_drop=0.02)[0].could_hold()
    assert 160 < search.best_case.needed(0.02) <= 640
    tiny, _ = searching(10)
    assert len(tiny.best_case.right) == 40  # one round at least


def test_a_chance_that_was_spent_stays_spent():
    """Whoever comes later to the unseen questions has less to spend, in this run or in another."""
    search, rows = searching(640)
    first = search.trial(LINE[0])
    assert first.unseen.turn == 1
    assert first.state == "holds"
    again, _ = searching(640, earlier=rows)
    assert again.trial(LINE[1]).unseen.turn == 2
    assert again.trial(LINE[0]).unseen.turn == 1
    assert again.trial(LINE[2]).unseen.turn == 3


def test_what_was_loaded_is_a_mean_over_steps():
    search, _ = searching(640)
    unseen = search.trial(LINE[0]).unseen
    rounds = [len(questions(True, number)) for number in range(unseen.looks)]
    wanted = sum(n * (5.0 + look) for look, n in enumerate(rounds)) / sum(rounds)
    assert unseen.mean("experts_active") == pytest.approx(wanted)
    assert unseen.mean("experts_native") is None
    assert unseen.tokens_a_step == 4


@pytest.mark.parametrize("max_drop", [0.02, 0.05, 0.5])
def test_the_boldest_that_holds_is_found_by_halving(max_drop):
    line = [Candidate(Policy(warmup=1, batch_budget=m), (m,), (41.0,), (1.0,)) for m in range(41)]
    search = Known(
        None,
        lambda unseen, number: [None] * 400,
        max_drop=max_drop,
        most=400,
        batch=1,
        limit=1,
        known=[],
        keep=lambda row: None,
    )
    tried = list(search.run(line))
    assert len(tried) <= 2 * len(line).bit_length()
    boldest = min(
        (attempt for attempt in tried if attempt.state == "holds"), key=lambda attempt: attempt.candidate.mean_active
    )
    holds = [search.judge(candidate, Trial(False)) == "holds" for candidate in line]
    # On unseen questions a later candidate has less chance to spend, and may need to be a little milder.
    assert 0 <= line.index(boldest.candidate) - holds.index(True) <= 3
