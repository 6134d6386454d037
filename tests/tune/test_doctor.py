"""The verdict on machines of known character, and one examination of a real engine."""

import itertools

import pytest

from xshare import Policy
from xshare.cli.doctor import show
from xshare.engines.base import About
from xshare.tune.doctor import Examination, TimedVariant, count_runs, examine, forced_budgets, verdict

PRUNED = Policy.parse("k0=1,m=2")


def examination(step_ms, native=51, overhead=0.01, pruned=30, top_k=4):
    """A machine whose step of T experts and n rows takes step_ms(T, n)."""

    def point(name, active, batch=16, cost=overhead):
        figures = {"experts_active": active, "experts_native": native, "mass_kept": 0.9}
        return TimedVariant(name, batch, [step_ms(active, batch) * (1 + cost)] * 3, [figures] * 3)

    forced = [point(f"k0=0,m={m}", m) for m in forced_budgets(128, top_k)]
    few, half = point("native", top_k, 1, 0), point("native", native * 0.6, 8, 0)
    return Examination(
        point("native", native, cost=0), point("k0=1,m=128", native), forced, [point(str(PRUNED), pruned)], [few, half],
        top_k, copy_gbps=4000.0, expert_bytes=100_000_000,
    )  # fmt: skip


def test_worth_it_where_experts_are_the_step():
    measured = examination(lambda T, n: 2 + 0.1 * T)
    worth, why = verdict(measured)
    assert worth, why
    assert measured.overhead == pytest.approx(1.01)
    assert measured.expected_gain(measured.policies[0]) == pytest.approx(7.1 / 5 / 1.01, rel=0.01)
    assert measured.bandwidth_gbps == pytest.approx(1000 / 1.01)
    assert "k0=1,m=2 loads 30.0 instead of 51.0 and should give 1.4" in why


def test_a_host_bound_machine_is_told_so():
    worth, why = verdict(examination(lambda T, n: 8 + 0.005 * T))
    assert not worth
    assert "host-bound" in why


def test_a_compute_bound_machine_is_told_so():
    worth, why = verdict(examination(lambda T, n: 0.5 * n + 0.002 * T))
    assert not worth
    assert "compute-bound, 2.0 times the rows take 2.0" in why


def test_times_on_no_line_tell_nothing():
    busy = iter([3.0, 1.0, 2.9, 1.1, 3.1, 1.2, 3.0, 1.0, 3.0, 1.0])
    worth, why = verdict(examination(lambda T, n: next(busy) + 0.01 * T))
    assert not worth
    assert "the times lie on no line" in why


def test_too_few_rows_are_told_so():
    worth, why = verdict(examination(lambda T, n: 1 + 0.1 * T, native=5, pruned=4))
    assert not worth
    assert "too few rows" in why


def test_too_little_to_save():
    worth, why = verdict(examination(lambda T, n: 2 + 0.1 * T, pruned=50))
    assert not worth
    assert "too little" in why


@pytest.mark.parametrize(("N", "k"), list(itertools.product([8, 64, 128, 384], [1, 4, 8])))
def test_sizes_reach_from_k_towards_n(N, k):
    budgets = forced_budgets(N, k)
    assert budgets[0] == k
    assert budgets == sorted(set(budgets))
    assert budgets[-1] < max(N, k + 1)


def test_an_examination_of_a_real_engine_orders_its_expert_counts(engine):
    prompts = [engine.encode(f"Compute {i} + {i}") for i in range(6)]
    done = []
    measured = examine(engine, prompts, [PRUNED], tokens=6, repeats=2, advance=done.append)
    assert sum(done) == count_runs(16, 4, 6, 1, 2)
    assert all(4 <= point.active <= m for point, m in zip(measured.forced, forced_budgets(16, 4), strict=True))
    assert measured.forced[0].active == 4
    assert measured.native.active is None  # nothing is attached that would count
    assert measured.noop.active > measured.forced[0].active
    assert measured.policies[0].active < measured.noop.active
    assert {point.batch for point in measured.by_batch} == {1, 3}
    assert measured.expert_bytes == 2 * 3 * 64 * 32 * 4  # layers, matrices, float32
    assert measured.copy_gbps > 0
    # The times are of this machine and say what they like; with times that follow a law the verdict is known.
    for point in (measured.native, measured.noop, *measured.forced, *measured.policies):
        point.step_ms = [1 + measured.noop.active if point is measured.native else 1 + point.active] * 2
    worth, why = verdict(measured)
    native, pruned = measured.noop.active, measured.policies[0].active
    assert worth, why
    gain = (1 + native) / (1 + pruned)
    assert f"{PRUNED} loads {pruned:.1f} instead of {native:.1f} and should give {gain:.2f}x" in why


def test_runs_without_a_count_are_left_out_of_the_law():
    measured = examination(lambda T, n: 2 + 0.1 * T)
    measured.forced[0].counted, measured.native.counted = [], []
    assert measured.law.r2 > 0.999
    assert measured.expected_gain(measured.forced[0]) is None
    assert verdict(measured)[0]


def test_experts_in_host_memory_are_held_against_the_bus(capsys):
    measured = examination(lambda T, n: 20 + 2 * T)  # 100 MB in 2 ms: 50 GB/s
    measured.on_host, measured.copy_gbps = True, 55.0
    show(measured, About("vllm", "0.26", "m", "cuda"), *verdict(measured))
    out = capsys.readouterr().out
    assert "experts are read at 50 GB/s, 90% of the bus to host memory, where they lie: 55 GB/s in a copy" in out
    assert "51.0 experts take at least 93 ms to read, a step natively" in out
