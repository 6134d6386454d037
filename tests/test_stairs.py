"""The staircase's file and cost tables: against an independent fit, and on stairs of known shape."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from xshare.staircase import WHERE, Stairs, StairsError, clear_edges, cost_of, edges, never_falling, read_stairs

STAMP = {"engine": "vllm", "device": "H200", "backend": "MarlinExperts", "dtype": "bfloat16", "experts": 32, "top_k": 4}
STAMP |= {"layers": 24, "config": "abc", "tensor_parallel": 1, "version": "0.26.0", "cpu": "Neoverse-N1"}
STAMP |= {"expert_parallel": False, "expert_bytes": 1 << 20, "host_layers": 0}


def stair(size, ends=(11, 16, 22), rise=0.4):
    return 3 + rise * sum(size > end for end in ends)


def write(path, rows, **stamp):
    path.write_text(json.dumps({"format": 2, "provenance": STAMP | stamp, "rows": rows}))


def rows_of(batch, sizes=range(8, 29), ms=stair, **more):
    return [{"batch": batch, "experts": size, "ms": ms(size)} | more for size in sizes]


def spread(rows, by):
    """With intervals of `by` ms to either side."""
    return [row | {"ms_low": row["ms"] - by, "ms_high": row["ms"] + by} for row in rows]


def min_max_fit(values):
    """Isotonic regression by its closed form: the largest over beginnings of the smallest mean over ends."""
    count = len(values)
    return [
        max(min(np.mean(values[start : end + 1]) for end in range(place, count)) for start in range(place + 1))
        for place in range(count)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_never_falling_is_the_least_squares_fit(seed):
    values = np.random.default_rng(seed).normal(size=1 + seed) + 0.1 * np.arange(1 + seed)
    fit = never_falling(values)
    assert np.allclose(fit, min_max_fit(values))
    assert all(a <= b for a, b in pairwise(fit))
    assert fit.sum() == pytest.approx(values.sum())
    # No other that never falls is nearer: not one a little towards a random one that never falls.
    other = np.sort(np.random.default_rng(seed + 100).normal(size=len(values)))
    near = ((fit + 0.01 * (other - fit) - values) ** 2).sum()
    assert ((fit - values) ** 2).sum() <= near + 1e-12
    assert np.array_equal(never_falling(fit), fit)


@pytest.mark.parametrize("seed", range(5))
def test_the_unit_is_one_expert_and_beyond_what_was_measured_each_costs_one(seed):
    dice = np.random.default_rng(seed)
    sizes = sorted(dice.choice(range(4, 60), 20, replace=False).tolist())
    ms = [5 + 0.03 * size + float(dice.normal(0, 0.05)) for size in sizes]
    cost = cost_of(sizes, ms, 64)
    assert cost.dtype == torch.float64
    assert cost.shape == (65,)
    assert bool((cost.diff() >= 0).all())
    assert np.polyfit(sizes, cost[sizes], 1)[0] == pytest.approx(1)
    assert cost[: sizes[0] + 1].tolist() == list(range(sizes[0] + 1))
    assert cost[sizes[-1] :].diff().tolist() == pytest.approx([1] * (64 - sizes[-1]))
    shuffled = dice.permutation(20)
    again = cost_of([sizes[place] for place in shuffled], [ms[place] for place in shuffled], 64)
    assert torch.equal(cost, again)
    assert torch.allclose(cost_of(sizes, [7 * value + 3 for value in ms], 64), cost)  # whatever the unit of time


def test_on_a_straight_line_a_set_costs_its_size():
    assert torch.allclose(
        cost_of(range(4, 33), [2 + 0.1 * size for size in range(4, 33)], 40), torch.arange(41.0).double()
    )


def test_sizes_in_between_are_interpolated():
    cost = cost_of([4, 8], [1.0, 2.0], 10)
    assert cost.tolist() == pytest.approx(list(range(11)))


def test_edges_are_the_ends_of_stairs():
    sizes = range(8, 29)
    cost = cost_of(sizes, [stair(size) for size in sizes], 32)
    assert edges(cost, 8, 28) == [11, 16, 22, 28]
    assert edges(cost, 12, 20) == [16, 20]
    assert edges(cost, 26, 31) == [28, 29, 30, 31]  # beyond what was measured every expert costs one
    assert edges(torch.arange(9.0), 2, 5) == [2, 3, 4, 5]


def test_edges_that_are_noise_are_not_clear():
    times = {size: (stair(size), stair(size) - 0.02, stair(size) + 0.02) for size in range(8, 29)}
    cost = cost_of(list(times), [ms for ms, _, _ in times.values()], 32)
    assert clear_edges(cost, times) == [11, 16, 22]
    wide = {size: (ms, ms - 0.2, ms + 0.2) for size, (ms, _, _) in times.items()}
    assert clear_edges(cost, wide) == []
    line = {size: (float(size), size - 0.01, size + 0.01) for size in range(8, 29)}
    assert clear_edges(cost_of(list(line), list(range(8, 29)), 32), line) == []  # every expert costs the same


@pytest.mark.parametrize(
    ("sizes", "ms"),
    [([], []), ([4], [1.0]), ([4, 4], [1.0, 2.0]), ([-1, 4], [1.0, 2.0]), ([4, 33], [1.0, 2.0])],
)
def test_too_few_or_impossible_sizes_are_refused(sizes, ms):
    with pytest.raises(StairsError, match="needs times of two sizes or more, each once, from 0 to 32 experts"):
        cost_of(sizes, ms, 32)


def test_times_that_do_not_grow_are_refused():
    with pytest.raises(StairsError, match="needs times that grow with the experts, and these do not"):
        cost_of([4, 8, 12], [3.0, 2.0, 1.0], 32)


def test_a_staircase_file_is_read_by_rows(tmp_path):
    path = tmp_path / "stairs.json"
    write(path, rows_of(16) + rows_of(4, range(8, 20)))
    stairs = read_stairs(path)
    assert stairs.rows == [4, 16]
    assert stairs.where == STAMP
    assert stairs.costs.shape == (2, 33)
    assert torch.equal(stairs.costs[1], cost_of(range(8, 29), [stair(size) for size in range(8, 29)], 32))
    assert [stairs.table_for(rows) for rows in (1, 4, 5, 16, 17)] == [0, 0, 1, 1, None]
    stairs.check_conditions(STAMP)
    stairs.check_conditions({})  # what is not known cannot differ
    stairs.check_conditions(STAMP | {"tensor_parallel": None})


@pytest.mark.parametrize("what", WHERE)
def test_a_staircase_is_of_one_place(what):
    conditions = STAMP | {what: "another"}
    with pytest.raises(
        StairsError, match=f"measured with {what.replace('_', ' ')} .*, and here it is 'another': measure"
    ):
        Stairs(STAMP, {4: {8: 1.0, 9: 2.0}}).check_conditions(conditions)


def test_of_two_files_that_name_neither_processor_nor_version_none_is_refused(tmp_path):
    path = tmp_path / "stairs.json"
    write(path, rows_of(4), cpu=None, version=None)
    read_stairs(path).check_conditions(STAMP)
    read_stairs(path).check_conditions(STAMP | {"cpu": "another", "version": "another"})


def test_a_batch_whose_steps_are_larger_than_any_that_was_measured(tmp_path):
    path = tmp_path / "stairs.json"
    write(path, rows_of(4) + rows_of(12))
    stairs = read_stairs(path)
    for requests, drafts in ((4, 0), (5, 0), (12, 0), (4, 2)):
        stairs.check_batch(requests, drafts)
    for requests, drafts, rows in ((13, 0, 13), (5, 2, 15)):
        with pytest.raises(StairsError) as caught:
            stairs.check_batch(requests, drafts)
        assert str(caught.value) == (
            f"staircase {str(path)!r} has steps of up to 12 rows, and a batch of {requests} here has steps of {rows}: "
            f"measure those too, with xshare doctor --stairs and --rows {rows}, or take a smaller batch"
        )


def test_what_is_not_settled_is_known(tmp_path):
    path = tmp_path / "stairs.json"
    slope = float(np.polyfit(range(8, 29), [stair(size) for size in range(8, 29)], 1)[0])
    fine, wide = 0.9 * slope * 0.25 * 1.96, 1.1 * slope * 0.25 * 1.96

    def unsettled(rows):
        write(path, rows)
        return read_stairs(path).unsettled

    # As the file says, whatever the intervals.
    assert unsettled(rows_of(4, settled=True) + rows_of(8, settled=False)) == (8,)
    assert unsettled(spread(rows_of(4, settled=True), wide)) == ()
    # By the intervals, where it was written before it said so; without those nobody knows.
    assert unsettled(spread(rows_of(4, rounds=6), fine) + spread(rows_of(8, rounds=6), wide)) == (8,)
    assert unsettled(spread(rows_of(4, rounds=3), fine)) == (4,)
    assert unsettled(rows_of(4)) == ()
    assert unsettled(rows_of(4, settled=True)[:-1] + rows_of(4, settled=False)[-1:]) == (4,)
    assert read_stairs(path).notes() == [
        f"staircase {str(path)!r} is not settled for steps of 4 rows, whose times scatter by more than 25% of what an "
        "expert costs: give xshare doctor --stairs more --rounds"
    ]
    write(path, rows_of(4, settled=False) + rows_of(8, settled=True) + rows_of(16, settled=False))
    assert "for steps of 4 and 16 rows, whose" in read_stairs(path).notes()[0]
    write(path, rows_of(4, settled=True))
    assert read_stairs(path).notes() == []


def test_the_staircase_of_the_pages_was_settled_for_the_small_steps():
    stairs = read_stairs(Path(__file__).parent.parent / "evidence" / "staircase.json")
    assert stairs.rows == [4, 8, 16, 32]
    assert stairs.unsettled == (16, 32)  # docs/staircase.md says by how much
    assert (stairs.where["version"], stairs.where["cpu"]) == ("0.26.0", None)


def test_files_that_are_none(tmp_path):
    path = tmp_path / "stairs.json"
    with pytest.raises(StairsError, match="does not exist or is not a file"):
        read_stairs(path)
    for text in (
        "no JSON",
        "[]",
        '{"rows": []}',
        '{"provenance": {}, "rows": [{"batch": 4}]}',
        '{"provenance": {}, "rows": []}',
    ):
        path.write_text(text)
        with pytest.raises(StairsError, match="must be a file that xshare doctor --stairs has written"):
            read_stairs(path)
    write(path, [])
    with pytest.raises(StairsError, match="holds no times: let xshare doctor --stairs finish"):
        read_stairs(path)
    write(path, rows_of(4, ms=lambda size: 5 - size / 10))
    with pytest.raises(StairsError, match="needs times that grow"):
        read_stairs(path)


LONG = Path("a" * 5000)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10_000,
        '{"provenance": ' + '{"a": ' * 10_000,
        '{"provenance": {"experts": 1e999}, "rows": []}',
        '{"provenance": {"experts": 32}, "rows": [{"batch": 1e999, "experts": 8, "ms": 1}]}',
        '{"provenance": {"experts": 32}, "rows": [{"batch": 4, "experts": 8, "ms": 1' + "0" * 400 + "}]}",
        '{"provenance": {"experts": 32}, "rows": [{"batch": ' + "9" * 5000 + ', "experts": 8, "ms": 1}]}',
    ],
    ids=["deep list", "deep object", "experts", "batch", "time", "digits"],
)
def test_a_file_that_is_an_attack_is_one_sentence(tmp_path, text):
    (tmp_path / "stairs.json").write_text(text)
    with pytest.raises(StairsError, match="must be a file that xshare doctor --stairs has written"):
        read_stairs(tmp_path / "stairs.json")


@pytest.mark.parametrize(
    ("stamp", "row", "sentence"),
    [
        ({"experts": 10**12}, {}, "is of a model with 1 to 8192 experts, not 1000000000000"),
        ({"experts": 0}, {}, "is of a model with 1 to 8192 experts, not 0"),
        ({}, {"batch": 10**30}, "has steps of 1 to 2147483647 rows"),
        ({}, {"batch": 0}, "has steps of 1 to 2147483647 rows"),
        ({}, {"ms": float("nan")}, "holds a time that is no number"),
    ],
)
def test_numbers_that_nothing_has_are_refused(tmp_path, stamp, row, sentence):
    path = tmp_path / "stairs.json"
    path.write_text(json.dumps({"provenance": STAMP | stamp, "rows": [good | row for good in rows_of(4)]}))
    with pytest.raises(StairsError, match=sentence):
        read_stairs(path)


def test_paths_that_no_file_can_have(tmp_path):
    for path in (LONG, Path("a\0b"), tmp_path):
        with pytest.raises(StairsError, match="does not exist or is not a file") as caught:
            read_stairs(path)
        assert len(str(caught.value)) < 450
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(StairsError, match="is larger than 16 MiB, which none is"):
        read_stairs(tmp_path / "huge.json")
