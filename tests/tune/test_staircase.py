"""The staircase on a machine of known stairs, played, and on a real engine."""

import random
import re
from dataclasses import dataclass, field

import pytest

from xshare.cli.staircase import staircase_lines
from xshare.engines.base import About, Answer, Run, StepTime
from xshare.engines.counters import Stats
from xshare.errors import XShareError
from xshare.policy import Policy
from xshare.staircase import LEAST
from xshare.tune.staircase import (
    SETTLING,
    STEPS,
    Staircase,
    Visit,
    experts_by_size,
    filled_sizes,
    measure_staircase,
    native_experts,
    staircase_rows,
    time_sizes,
)

ENDS = (8, 12)


@dataclass
class Machine:
    """Steps of which each takes what the set of the step before takes, as in an engine that schedules a step ahead."""

    noise: float = 0.0
    slow: float = 0.0  # by which a run may be slower than another, all of it
    native: float = 14.4
    ends: tuple = ENDS
    room: int | None = None
    drafts: int = 0
    late: int = 0  # tokens that the first request is ahead of the others
    about: About = field(init=False)

    def __post_init__(self):
        self.about = About("played", "1", "m", "here", experts=16, top_k=4, layers=2, drafts=self.drafts)
        self.dice, self.runs, self.seen = random.Random(0), [], []

    def use(self, policy, timed=False):
        self.size = self.last = policy.batch_budget

    def change(self, policy):
        self.size = policy.batch_budget
        self.seen.append(self.size)

    def count_all(self, on):
        pass

    def stats(self):
        # Half of the layers load less than what is natively loaded on average, and half more.
        active = sum(min(self.size, self.native + by) for by in (-0.5, 0.5)) / 2
        return Stats(mean={"experts_active": active, "experts_native": self.native})

    def run(self, prompts, *, limit, batch, to_the_end, before=None):
        assert to_the_end
        self.runs.append(limit)
        spell, timed = 1 + self.slow * self.dice.random(), []
        steps = -(-(limit - 1) // (1 + self.drafts))
        for step in range(steps):
            if before is not None:
                before(step)
                before(step)  # an engine may come back before there is anything
            ms = 2 + 0.5 * sum(self.last > end for end in self.ends) + self.noise * self.dice.random()
            timed.append(StepTime(spell * ms / 1000, batch - (step >= steps - self.late)))
            self.last = self.size
        return Run([Answer([], "")] * len(prompts), timed=timed)


def staircase(machine, **options):
    prompts = [[1, 2, 3]] * 4
    active = experts_by_size(machine, prompts, native_experts(machine, prompts))
    return active, measure_staircase(
        machine, lambda number: prompts, 4, filled_sizes(active), **({"rounds": 12} | options)
    )


def test_stairs_are_found_whatever_else_goes_slower():
    machine = Machine(noise=0.1, slow=0.5)
    active, stairs = staircase(machine)
    assert stairs.rounds == LEAST
    assert stairs.sizes == list(range(4, 15))
    assert stairs.edges(16) == list(ENDS)
    assert stairs.settled
    low, high = stairs.times[4], stairs.times[13]
    assert 1.35 < high[0] / low[0] < 1.6
    assert low[1] <= low[0] <= low[2]
    rows = staircase_rows(stairs, active, 16, backend="B", layers=2)
    assert rows[0].keys() == {
        "batch", "experts", "ms", "ms_low", "ms_high", "active", "cost", "backend", "layers", "rounds",
        "settled",
    }  # fmt: skip
    assert [row["experts"] for row in rows] == stairs.sizes
    assert {row["settled"] for row in rows} == {True}


def test_every_round_has_an_order_of_its_own_and_every_size_once():
    machine = Machine()
    staircase(machine)
    sizes = list(range(4, 15))
    orders = [machine.seen[start : start + 2 * len(sizes) : 2] for start in range(0, len(machine.seen), 2 * len(sizes))]
    assert len(orders) == LEAST
    assert all(sorted(order) == sizes for order in orders)
    assert len({tuple(order) for order in orders}) == LEAST


def test_sets_that_a_batch_does_not_fill_are_left_out():
    active, _ = staircase(Machine(native=9.2))
    assert list(active) == list(range(4, 11))
    assert filled_sizes(active) == [4, 5, 6, 7, 8, 9]
    assert active[9] == pytest.approx(8.85)


def test_noise_goes_on_to_the_last_round_and_is_said():
    _, stairs = staircase(Machine(noise=5.0), rounds=6)
    assert (stairs.rounds, stairs.settled) == (6, False)
    lines = staircase_lines(stairs, [15, 16], 16)
    assert "no stairs are clear of the noise" in "".join(lines) or "times do not grow" in "".join(lines)
    assert lines[-2].startswith("  not settled: more --rounds")
    assert {row["settled"] for row in staircase_rows(stairs, dict.fromkeys(range(4, 17), 4.0), 16)} == {False}
    assert lines[-1] == "  2 sizes from 15 up left out: the batch does not fill such a set"


def test_stairs_that_stand_out_of_too_few_rounds_are_not_settled():
    """A jump that is clear, and a size whose time scatters by more than all experts cost."""
    times = {4: [1, 1, 1, 9], 5: [1] * 4, 6: [1] * 4, 7: [1] * 4, 8: [3] * 4}
    visits = [Visit(4, size, number, float(ms)) for size in times for number, ms in enumerate(times[size])]
    stairs = Staircase(4, visits)
    assert stairs.edges(8) == [7]
    lines = staircase_lines(stairs, [], 8)
    assert lines[2].startswith("  stairs end at 7")
    assert lines[3] == (
        "  not settled: more --rounds, or a machine that does nothing else; a standard error of 25% of what an expert "
        "costs was not reached"
    )


def test_the_lines_say_where_stairs_end_and_what_an_expert_costs():
    _, stairs = staircase(Machine(noise=0.02))
    lines = staircase_lines(stairs, [], 16)
    assert lines[0].startswith("4 rows: 4 to 14 experts, 2.0")
    assert "an expert costs" in lines[1]
    assert lines[1].endswith("after 4 rounds)")
    # 0.5 ms where eleven sizes differ by 1 ms
    assert re.fullmatch(r"  stairs end at 8, 12: one expert more than (8|12) costs as much as [45] others", lines[2])
    assert len(lines) == 3
    flat = Staircase(4, [Visit(4, size, number, 2.0 + (size == 4)) for size in (4, 5, 6) for number in range(4)])
    assert "times do not grow with the experts" in staircase_lines(flat, [], 16)[1]


def test_a_round_that_does_not_fit_is_cut_into_several_batches():
    machine = Machine(room=3 + 2 * STEPS + 6)
    machine.use(Policy(batch_budget=4))
    times = time_sizes(machine, [[1, 2, 3]] * 2, [4, 9, 13, 5, 10])
    assert {size: round(ms, 6) for size, ms in times.items()} == {4: 2.0, 9: 2.5, 13: 3.0, 5: 2.0, 10: 2.5}
    assert machine.runs == [20, 20, 11]
    assert max(machine.runs) <= machine.room - 3
    assert time_sizes(machine, [[1, 2, 3]] * 2, [4, 9], tokens=12) == pytest.approx({4: 2.0, 9: 2.5})
    assert machine.runs[-2:] == [12, 11]
    with pytest.raises(XShareError, match="must have room for 11 tokens, not 10: more --tokens, shorter prompts"):
        time_sizes(machine, [[1, 2, 3]], [4], tokens=10)


def test_with_drafts_a_step_brings_several_tokens():
    machine = Machine(drafts=3)
    machine.use(Policy(batch_budget=4))
    assert time_sizes(machine, [[1]] * 2, [4, 9, 13]) == pytest.approx({4: 2.0, 9: 2.5, 13: 3.0})


def test_steps_in_which_a_request_has_ended_do_not_count():
    machine = Machine(late=6)
    machine.use(Policy(batch_budget=4))
    assert time_sizes(machine, [[1]] * 2, [4, 9]) == pytest.approx({4: 2.0, 9: 2.5})
    assert machine.runs == [18, 11, 23]  # the second size in a batch of its own, and with more to spare
    machine.late, machine.room = 100, 50
    with pytest.raises(XShareError, match="all 2 requests were decoded together in 0 steps, and a visit takes 7"):
        time_sizes(machine, [[1]] * 2, [4])


def test_an_engine_that_leaves_steps_alone_is_refused(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(machine, "stats", lambda: Stats(steps_bypassed={"prefill": 1, "many_rows": 5}))
    with pytest.raises(XShareError, match="no step of 2 requests was counted: the engine left them alone by many_rows"):
        native_experts(machine, [[1]] * 2)


def test_earlier_rounds_are_gone_on_from():
    _, whole = staircase(Machine(noise=5.0), rounds=6)
    saved = []
    machine = Machine(noise=5.0)
    earlier = [visit for visit in whole.visits if visit.round < 5]
    _, stairs = staircase(machine, rounds=6, known=earlier, keep=saved.append)
    assert [{visit.round for visit in visits} for visits in saved] == [{5}]
    assert stairs.rounds == 6


def test_a_real_engine_changes_its_policy_between_steps(engine):
    prompts = [engine.encode(f"Compute {number} + {number}") for number in range(4)]
    native = native_experts(engine, prompts)
    active = experts_by_size(engine, prompts, native)
    assert active[4] == 4.0
    assert filled_sizes(active)[:4] == [4, 5, 6, 7]
    engine.use(Policy(batch_budget=4))
    state, layer, budgets = engine.attached.state, engine.attached.layers[0], []
    begin = state.begin

    def spied(step):
        begin(step)
        if state.gate:
            budgets.append(layer.policy.batch_budget)

    state.begin = spied
    times = time_sizes(engine, prompts, [6, 4, 7])
    assert sorted(times) == [4, 6, 7]
    assert all(ms > 0 for ms in times.values())
    assert budgets == [6] * STEPS + [4] * STEPS + [7] * (len(budgets) - 2 * STEPS)
    assert SETTLING < STEPS
    run = engine.run(prompts, limit=5, batch=4, to_the_end=True)
    assert len(run.timed) == run.steps == 4
    assert sum(step.seconds for step in run.timed) == pytest.approx(run.decode_s)
    assert "timed" not in run.record()
    assert (run + run).timed == 2 * run.timed
