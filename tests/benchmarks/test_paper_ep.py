"""benchmarks/paper_ep.py and the layer it times, on the CPU: counts, plans, the layer's output, the bookkeeping."""

import importlib
import json
import math
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import xshare

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
expert_parallel_layer = importlib.import_module("lib.expert_parallel_layer")
paper_ep = importlib.import_module("paper_ep")


def by_device(experts):
    """Distinct experts on each of 8 devices of 32."""
    return [len({e for e in experts if e // 32 == device}) for device in range(8)]


def native_experts(row, bias):
    """DeepSeek-V3's rule on one row of logits, in plain Python."""
    choice = (torch.tensor(row, dtype=torch.float64).sigmoid() + bias.double()).tolist()
    groups = [choice[first : first + 32] for first in range(0, 256, 32)]
    best = sorted(range(8), key=lambda g: -sum(sorted(groups[g])[-2:]))[:4]
    inside = [e for g in best for e in range(32 * g, 32 * g + 32)]
    return sorted(inside, key=lambda e: -choice[e])[:8]


@pytest.mark.parametrize("regime", ["independent", "skewed"])
def test_counts_are_those_of_route(regime):
    logits, router = paper_ep.draw(regime, 3, 16)
    routings = paper_ep.route_all(logits, router)
    placement = xshare.Placement.contiguous(256, 8)
    for point, at in zip(paper_ep.CHOICES, routings, strict=True):
        row = paper_ep.counts(at, routings[0], None)
        routes = [xshare.route(step, router, point.policy, placement=placement) for step in logits]
        loads = [by_device(route.ids.flatten().tolist()) for route in routes]
        assert at.loads.tolist() == loads
        assert all(torch.equal(a, route.ids) for a, route in zip(at.ids, routes, strict=True))
        assert row["active"] == pytest.approx(sum(map(sum, loads)) / 3)
        assert row["peak"] == pytest.approx(sum(map(max, loads)) / 3)
        assert row["mass"] == pytest.approx(sum(float(route.mass) for route in routes) / 3)
        assert row["active_low"] <= row["active"] <= row["active_high"]


def test_native_is_deepseeks_rule():
    logits, router = paper_ep.draw("skewed", 2, 8)
    native = paper_ep.route_all(logits, router)[0]
    for step, ids in zip(logits.tolist(), native.ids.tolist(), strict=True):
        assert [native_experts(row, router.correction_bias) for row in step] == ids


def test_chunks_of_steps_do_not_show(monkeypatch):
    logits, router = paper_ep.draw("independent", 5, 8)
    whole = paper_ep.route_all(logits, router)
    monkeypatch.setattr(paper_ep, "CHUNK", 2)
    for a, b in zip(whole, paper_ep.route_all(logits, router), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def most_in_set(method, mg, favourites):
    """MaxLoad(S) from the rows' best experts, one each: the fills of docs/algorithms.md, section 7, counted by
    hand, as no device of 32 experts runs out at these budgets."""
    warm = by_device(favourites)
    if method == "level":
        return max(mg, *warm)
    return max(warm) + max(0, math.ceil((8 * mg - sum(warm)) / 8))  # a round adds one on every device


@pytest.mark.parametrize("rows", [8, 32])
def test_level_is_never_above_rounds(rows):
    for regime in paper_ep.SKEW:
        routings = paper_ep.route_all(*paper_ep.draw(regime, 20, rows))
        favourites = routings[0].ids[..., 0].tolist()
        for point, at in zip(paper_ep.CHOICES, routings, strict=True):
            assert at.peak.tolist() == [max(by_device(step.flatten().tolist())) for step in at.ids]
            if point.method != "native":
                assert at.max_load.tolist() == [most_in_set(point.method, point.mg, step) for step in favourites]
                assert (at.peak <= at.max_load).all()  # rows use S and nothing else
        for number, point in enumerate(paper_ep.CHOICES):
            if point.method == "level":
                level, rounds = routings[number], routings[number + 1]
                assert paper_ep.CHOICES[number + 1][:2] == ("rounds", point.mg)
                assert (level.max_load <= rounds.max_load).all()
                assert level.peak.sum() <= rounds.peak.sum()


def test_skewed_rows_load_fewer_experts_and_rows_differ():
    a, b = (paper_ep.route_all(*paper_ep.draw(regime, 10, 32))[0] for regime in ("independent", "skewed"))
    assert b.loads.sum() < a.loads.sum()
    closed_form = 256 * (1 - (1 - 8 / 256) ** 32)
    assert float(a.loads.sum(-1).double().mean()) == pytest.approx(closed_form, rel=0.04)


def test_the_layer_is_a_plain_loop_over_experts():
    torch.manual_seed(0)
    layer = expert_parallel_layer.Layer(16, 8, "cpu", torch.float32)
    ids = torch.stack([torch.randperm(160)[:8] for _ in range(5)])  # devices 5 to 7 have nothing to do
    ids[0, 7] = ids[0, 0]  # a slot that repeats the row's best, with weight 0
    weights = torch.rand(5, 8)
    weights[0, 7] = 0
    pairs = expert_parallel_layer.most_pairs(ids) + 3  # more room than is needed
    layer.capture(5, pairs)
    got = layer.output(expert_parallel_layer.plans_of(ids[None], weights[None], pairs)[0])
    want = torch.zeros(5, 16)
    for row in range(5):
        for slot in range(8):
            up, down = (part[int(ids[row, slot]) % 32] for part in layer.weights[int(ids[row, slot]) // 32])
            gate, value = (up @ layer.x[row]).chunk(2)
            want[row] += weights[row, slot] * (down @ (F.silu(gate) * value))
    torch.testing.assert_close(got, want)


def test_a_wrong_layer_is_refused():
    torch.manual_seed(0)
    layer = expert_parallel_layer.Layer(16, 8, "cpu")
    ids, weights = torch.stack([torch.randperm(256)[:8] for _ in range(4)]), torch.rand(4, 8)
    plans = expert_parallel_layer.plans_of(ids[None], weights[None], 32)[0]
    layer.capture(4, 32)
    layer.check(ids, weights, plans)
    with pytest.raises(SystemExit, match="differs from a plain loop"):
        layer.check(ids, weights * 1.1, plans)


def test_times_belong_to_their_plan(monkeypatch):
    """With a clock that each device's call moves on by what its plan says."""
    clock = [0.0]

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = clock[0]

        def elapsed_time(self, end):
            return end.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    layer = expert_parallel_layer.Layer(16, 8, "cpu")
    plans = torch.arange(3 * 2 * 8 * 40, dtype=torch.int32).view(3, 2, 8, 40)
    layer.plans = torch.zeros(8, 40, dtype=torch.int32)
    layer.calls = [lambda d=d: clock.__setitem__(0, clock[0] + int(layer.plans[d, 0])) for d in range(8)]
    assert torch.equal(layer.times_us(plans), plans[..., 0].double() * 1000)


def test_columns_of_time_are_of_the_slowest_device():
    us = torch.tensor([[100.0] + [50.0] * 7, [40.0] * 7 + [200.0]], dtype=torch.float64)
    loads = torch.tensor([[4] + [9] * 7, [9] * 7 + [8]])
    row = paper_ep.times(us, 3 * us, loads, 50_000_000, 4000.0)
    assert set(row) == set(paper_ep.TIMES)
    assert row["layer_us"] == 150
    assert row["ratio"] == 3
    assert row["gbps"] == 2000  # 4 experts of 50 MB in 100 us, 8 in 200
    assert row["copy_share"] == 0.5


def test_the_command_writes_a_row_per_cell(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paper_ep, "ROWS", (8, 16, 32))
    path = tmp_path / "found.json"
    paper_ep.main(json=path, tiny=True)
    result = json.loads(path.read_text())
    rows = result["rows"]
    assert len(rows) == 2 * 3 * 11
    assert result["provenance"]["steps"] == 8
    held = {(r["rows"], r["method"], r["paper_active"], r["paper_peak"]) for r in rows if r["paper_peak"] is not None}
    assert held == {
        (8, "native", 50.7, 11.3),
        (8, "level", 33.2, 5.94),
        (8, "rounds", 33.2, 5.94),
        (32, "native", 160.4, 25.6),
        (32, "level", 43.4, 8.64),
        (32, "rounds", 43.4, 8.64),
    }
    output = capsys.readouterr().out
    assert "level's mean peak and MaxLoad are not above rounds' at equal mg: holds" in output
    if not torch.cuda.is_available():
        assert all(row[name] is None for row in rows for name in paper_ep.TIMES)


def test_both_readings_of_the_papers_score_can_be_counted():
    logits, router = paper_ep.draw("independent", 3, 16)
    full, topk = (paper_ep.route_all(logits, router, paper_ep.choices(score)) for score in ("full", "topk"))
    assert torch.equal(full[0].ids, topk[0].ids)
    assert all(str(point.policy).endswith("score=full") for point in paper_ep.CHOICES[1:])
    # A row's own experts have all votes: what is chosen by them keeps more of the rows' weight.
    assert all((a.mass <= b.mass).all() for a, b in zip(full[1:], topk[1:], strict=True))
