"""The same requests for every policy of a repeat, others for every repeat."""

from itertools import pairwise

import pytest

from xshare.bench.interleaved import TRIES, Variant, compare
from xshare.bench.summary import summary_rows
from xshare.bench.workload import Workload
from xshare.cli.bench import notes
from xshare.engines.base import About, Answer, Run
from xshare.engines.counters import Stats
from xshare.errors import XShareError
from xshare.progress import quiet


class Letters:
    """An engine of which only the tokenizer is asked: a token a character."""

    def __init__(self, **about):
        self.about = About("letters", None, "none", "none", **about)

    def encode(self, text):
        return [ord(letter) for letter in text]


def workload(**changed):
    return Workload(**({"batch": 4, "requests": 6, "rate": None, "prompt_tokens": 300, "tokens": 8} | changed))


def test_prompts_have_their_length_and_end_with_a_question():
    prompts = workload().prompts_of(Letters(), 0)
    assert [len(prompt) for prompt in prompts] == [300] * 6
    assert len({tuple(prompt) for prompt in prompts}) == 6
    assert all("answer " in "".join(map(chr, prompt)) for prompt in prompts)  # worked ones before it
    assert prompts == workload().prompts_of(Letters(), 0)
    assert not any(prompt in prompts for prompt in workload().prompts_of(Letters(), 1))
    assert not any(prompt in prompts for prompt in workload(seed=1).prompts_of(Letters(), 0))


def test_prompts_of_a_file_come_in_turn_as_they_are():
    from_file = workload(requests=2, prompts="p.txt", prompt_tokens=None, texts=("one", "two", "three"))
    spelled = [["".join(map(chr, prompt)) for prompt in from_file.prompts_of(Letters(), repeat)] for repeat in range(2)]
    assert spelled == [["one", "two"], ["three", "one"]]
    last = workload(requests=2, prompts="p.txt", prompt_tokens=2, texts=("one two three", "four"))
    assert last.prompts_of(Letters(prompt_form="text"), 0) == ["two three", "four"]
    assert "texts" not in from_file.record()
    assert from_file.record()["prompts"] == "p.txt"


def test_words_for_a_server_without_a_tokenizer():
    prompts = workload(prompt_tokens=20).prompts_of(Letters(prompt_form="text"), 0)
    assert [len(prompt.split(" ")) for prompt in prompts] == [20] * 6


def test_random_tokens_need_a_vocabulary():
    prompts = workload(prompts="random").prompts_of(Letters(vocab=7), 0)
    assert [len(prompt) for prompt in prompts] == [300] * 6
    assert {token for prompt in prompts for token in prompt} == set(range(7))
    with pytest.raises(XShareError, match="vocabulary"):
        workload(prompts="random").prompts_of(Letters(), 0)


def test_arrivals_are_poisson_and_repeat():
    assert workload().arrivals_of(0) is None
    many = workload(requests=4001, rate=50.0)
    arrivals = many.arrivals_of(3)
    assert arrivals == many.arrivals_of(3) != many.arrivals_of(4)
    assert arrivals[0] == 0
    gaps = [b - a for a, b in pairwise(arrivals)]
    assert min(gaps) > 0
    assert sum(gaps) / len(gaps) == pytest.approx(1 / 50, rel=0.06)
    assert sum(gap > 1 / 50 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.03)  # e**-1


def test_requests_join_others_in_a_stream_and_where_they_wait_for_a_place():
    assert not workload(batch=4, requests=4).joins
    assert workload(batch=4, requests=5).joins
    assert workload(batch=4, requests=4, rate=2.0).joins


class Running(Letters):
    """One that remembers what it was asked to run."""

    def __init__(self):
        super().__init__()
        self.runs, self.prompts = [], []  # (tokens per answer, arrivals), and the prompts of each

    def use(self, policy, **_):
        pass

    def stats(self):
        return Stats()

    def run(self, prompts, *, limit, arrivals=None, **_):
        self.runs.append((limit, arrivals))
        self.prompts.append(prompts)
        return Run([Answer([0] * limit, "", 0.0, [0.1 * (1 + token) for token in range(limit)]) for _ in prompts])


def runs_before_timing(rate):
    """The runs of two repeats before the first timed one, without the few tokens that begin each policy."""
    engine, samples = Running(), []
    given = workload(requests=4, rate=rate, prompt_tokens=40)
    compare(engine, [Variant(None)], given, range(2), quiet, samples.extend)
    assert len(samples) == 2
    assert engine.runs[0] == (4, None)
    timed = [run for repeat in range(2) for run in ((4, None), (8, given.arrivals_of(repeat)))]
    assert engine.runs[-4:] == timed
    return engine.runs[1:-4], engine.prompts[1:-4]


def test_requests_that_begin_together_need_no_run_before_the_timed_ones():
    assert runs_before_timing(None) == ([], [])


def test_a_stream_runs_in_bursts_and_whole_before_it_is_timed():
    runs, prompts = runs_before_timing(2.0)
    bursts = [[0.0], [0.0] * 2, [0.0] * 4, [0.0, 0.001], [0.0] + [0.001] * 2]  # at most 4 run together
    assert runs[:-1] == [(4, arrivals) for arrivals in bursts]
    limit, arrivals = runs[-1]
    assert limit == 8
    assert len(arrivals) == 4
    all_prompts = [tuple(prompt) for run in prompts for prompt in run]
    assert len(set(all_prompts)) == len(all_prompts)  # an engine that caches prefixes reads every one of them


class Compiling(Running):
    """One whose first runs of a whole workload wait for a compiler, each for another kernel."""

    def __init__(self, kernels):
        super().__init__()
        self.kernels = kernels

    def run(self, prompts, *, limit, **rest):
        run = super().run(prompts, limit=limit, **rest)
        if limit == 8 and self.kernels:
            run.compiled, self.kernels = 1, self.kernels - 1
        return run


@pytest.mark.parametrize("kernels", [0, 1, TRIES - 1])
def test_a_run_that_waited_for_a_compiler_is_run_again(kernels):
    engine, samples, given = Compiling(kernels), [], workload(requests=4)
    compare(engine, [Variant(None)], given, range(1), quiet, samples.extend)
    timed = [prompts for (limit, _), prompts in zip(engine.runs, engine.prompts, strict=True) if limit == 8]
    assert timed == [given.prompts_of(engine, 0)] * (kernels + 1)  # the same requests
    assert [sample.get("compiled") for sample in samples] == [None]


def test_a_run_that_always_waits_for_a_compiler_says_so():
    samples = []
    compare(Compiling(100), [Variant(None)], workload(rate=2.0), range(2), quiet, samples.extend)
    assert [sample["compiled"] for sample in samples] == [1, 1]
    row = summary_rows(samples, "k0=1,m=4", workload().record())[0]
    assert (row["compiled"], row["repeats"]) == (2, 2)
    about = About("letters", None, "none", "none")
    assert notes([row], about, "k0=1,m=4")[0] == (
        "native: in 2 of 2 runs the engine compiled kernels, each of the 5 times it was tried: "
        "their times are too long."
    )
