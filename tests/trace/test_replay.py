"""Batches and replay, against the oracle and against route() itself."""

import numpy as np
import oracle
import pytest
import torch
from synthetic_traces import DOMAINS, LENGTHS, chosen_trace, full_trace

import xshare
from xshare import BatchLayout, Placement, Policy, PolicyError, RouterSpec, TraceError
from xshare.trace import one_pass, overlap, replay, sampled
from xshare.trace.replay_rows import closed_form, replay_row

SEQUENCE = np.repeat(np.arange(len(LENGTHS)), LENGTHS)


@pytest.mark.parametrize("mix", ["random", "domain", "single"])
@pytest.mark.parametrize(("batch", "draft"), [(1, 0), (3, 0), (4, 2), (16, 3)])
def test_one_pass_takes_every_token_once(batch, draft, mix):
    got = one_pass(chosen_trace(), batch, draft, mix)
    used = np.sort(got.tokens[got.tokens >= 0])
    assert used.tolist() == list(range(sum(LENGTHS)))
    assert ((got.tokens < 0) == (got.requests < 0)).all()
    assert got.tokens.shape[1] == batch * (1 + draft)
    check_requests(got, draft)
    if mix == "single":
        for row in got.tokens:
            assert len({DOMAINS[SEQUENCE[t]] for t in row if t >= 0}) == 1


@pytest.mark.parametrize("mix", ["random", "domain", "single"])
@pytest.mark.parametrize(("batch", "draft"), [(1, 0), (3, 0), (4, 2), (16, 3)])
def test_sampled_batches(batch, draft, mix):
    got = sampled(chosen_trace(), batch, draft, mix, count=50, seed=3)
    assert got.tokens.shape == (50, batch * (1 + draft))
    check_requests(got, draft)
    again = sampled(chosen_trace(), batch, draft, mix, count=50, seed=3)
    assert (again.tokens == got.tokens).all()
    assert (sampled(chosen_trace(), batch, draft, mix, count=50, seed=4).tokens != got.tokens).any()
    for row, requests in zip(got.tokens, got.requests, strict=True):
        sequences = {r: SEQUENCE[t] for t, r in zip(row, requests, strict=True) if t >= 0}
        domains = {DOMAINS[s] for s in sequences.values()}
        if mix == "single":
            assert len(domains) == 1
        elif batch <= 3:
            assert len(set(sequences.values())) == batch  # different sequences while there are enough
        if mix == "domain":
            assert len(domains) == min(batch, 3)


def check_requests(batches, draft):
    """A request's rows are consecutive tokens of one sequence."""
    for row, requests in zip(batches.tokens, batches.requests, strict=True):
        for r in set(requests[requests >= 0]):
            tokens = row[requests == r]
            assert len(tokens) <= 1 + draft
            assert (np.diff(tokens) == 1).all()
            assert len(set(SEQUENCE[tokens])) == 1


POLICIES = ["k0=1,m=0", "k0=1,m=2", "k0=0,m=4", "k0=1,mr=2", "k0=1,mg=1", "k0=1,mg=2,fill=rounds", "k0=0,tau=0.7"]


@pytest.mark.parametrize("text", POLICIES)
def test_chosen_experts_only_equals_the_oracle(text):
    """A row's routing is its logged experts inside S; S is what the oracle says on the logged weights."""
    trace, policy, placement = chosen_trace(), Policy.parse(text), Placement.contiguous(12, 3)
    batches = one_pass(trace, 4, 1)
    got = replay(trace, [policy], batches, placement)[0].metrics
    devices, k, N = placement.devices.tolist(), 3, 12
    for b in range(len(batches)):
        for layer in range(2):
            rows = [t for t in batches.tokens[b] if t >= 0]
            requests = [r for r in batches.requests[b] if r >= 0]
            ids = [trace.experts[t, layer].tolist() for t in rows]
            weights = [trace.weights[t, layer].double().tolist() for t in rows]
            scores = [[0.0] * N for _ in rows]
            for i, row in enumerate(ids):
                for j, w in zip(row, weights[i], strict=True):
                    scores[i][j] = w
            u = oracle.column_sums(scores, range(len(rows)))
            p = {"k0": policy.warmup, "m": policy.batch_budget, "m_r": policy.request_budget, "tau": policy.mass}
            choice = [{j: -place for place, j in enumerate(row)} for row in ids]
            S = oracle.select(
                scores, N, choice=choice, requests=requests, m_g=policy.device_budget, fill=policy.fill,
                devices=devices, G=3, **p,
            )  # fmt: skip
            S = oracle.greedy(u, S, k - len(S))
            active = {j for row in ids for j in row if j in S}
            kept = sum(w for i, row in enumerate(ids) for j, w in zip(row, weights[i], strict=True) if j in S)
            assert got["active"][b, layer] == len(active)
            assert got["active_native"][b, layer] == len({j for row in ids for j in row})
            assert got["mass"][b, layer] == pytest.approx(kept / sum(map(sum, weights)))
            assert got["top1_kept"][b, layer] == pytest.approx(sum(row[0] in S for row in ids) / len(ids))
            assert got["max_load"][b, layer] == max(sum(devices[j] == d for j in S) for d in range(3))


RIVALS = ["native", "topk:k=1", "oea:k0=1", "lynx:drop=2", "skip:beta=0.5", "logit-sum:k0=1,m=4", "random:k0=1,m=1"]


@pytest.mark.parametrize("router", [RouterSpec.softmax(3), RouterSpec.sigmoid(3, n_group=4, topk_group=2)])
def test_full_logits_equal_route_batch_by_batch(router):
    trace = full_trace(router=router)
    policies = [Policy.parse(text) for text in POLICIES + RIVALS]
    placement = Placement.contiguous(12, 3)
    batches = one_pass(trace, 4, 1)
    outcomes = replay(trace, policies, batches, placement)
    for policy, outcome in zip(policies, outcomes, strict=True):
        for b in (0, 3, len(batches) - 1):
            rows = torch.from_numpy(batches.tokens[b][batches.tokens[b] >= 0])
            layout = BatchLayout(batches.requests[b][batches.requests[b] >= 0].tolist())
            for layer in range(2):
                spec = trace.router()
                if spec.correction_bias is not None:
                    spec = spec.with_bias(spec.correction_bias[layer])
                one = xshare.route(trace.logits[rows, layer], spec, policy, layout=layout, placement=placement)
                assert outcome.metrics["active"][b, layer] == one.active.sum()
                assert outcome.metrics["active_native"][b, layer] == one.active_native.sum()
                assert outcome.metrics["mass"][b, layer] == pytest.approx(one.mass.item())
                assert outcome.metrics["max_load"][b, layer] == one.max_load


def test_chunks_do_not_matter():
    trace, batches = chosen_trace(), one_pass(chosen_trace(), 4)
    policy = [Policy.parse("k0=1,m=2")]
    whole = replay(trace, policy, batches)[0].metrics
    advanced = []
    parts = replay(trace, policy, batches, advance=advanced.append, chunk_elements=1)[0].metrics
    assert sum(advanced) == len(batches)
    assert all((whole[name] == parts[name]).all() for name in whole)


@pytest.mark.parametrize("make", [full_trace, chosen_trace])
@pytest.mark.parametrize("text", ["k0=0,m=1", "k0=1,mr=1", "oea:k0=1"])
def test_a_share_of_protected_requests(make, text):
    """All experts of the protected requests are loaded; what the others keep is counted apart."""
    trace, batches, policy = make(), one_pass(make(), 4, 1), Policy.parse(text)
    nobody, half, everybody = replay(trace, [policy], batches, protected=[0.0, 0.5, 1.0])
    assert [replayed.protected for replayed in (nobody, half, everybody)] == [0.0, 0.5, 1.0]
    assert (nobody.metrics["active"] == replay(trace, [policy], batches)[0].metrics["active"]).all()
    assert (nobody.metrics["mass_shared"] == nobody.metrics["mass"]).all()
    assert (everybody.metrics["active"] == everybody.metrics["active_native"]).all()
    assert (everybody.metrics["mass"] == 1).all()
    assert nobody.metrics["active"].sum() < half.metrics["active"].sum() < everybody.metrics["active"].sum()
    if make is full_trace:
        for b in (0, len(batches) - 1):
            requests = torch.from_numpy(batches.requests[b])
            layout = BatchLayout(requests, (requests == 1) | (requests == 3))  # every second of four
            logits = trace.logits[batches.tokens[b].clip(0)].transpose(0, 1)  # [layers, n, N]
            one = xshare.route(logits, trace.router(), policy, layout=layout)
            assert half.metrics["active"][b].tolist() == one.active.sum(-1).tolist()
            native = xshare.route(logits, trace.router(), "native", layout=layout)
            kept = one.selected.unsqueeze(1).expand_as(logits).gather(-1, native.ids)
            others = native.weights.double() * ((requests == 0) | (requests == 2))[:, None]
            mass = (others * kept).sum((1, 2)) / others.sum((1, 2))
            assert half.metrics["mass_shared"][b] == pytest.approx(mass.numpy(), abs=1e-6)


def test_what_a_trace_cannot_answer_is_refused():
    trace, batches = chosen_trace(), one_pass(chosen_trace(), 4)
    with pytest.raises(PolicyError, match="warmup"):
        replay(trace, [Policy.parse("k0=4,m=0")], batches)
    with pytest.raises(PolicyError, match="logits"):
        replay(trace, [Policy.parse("logit-sum:m=4")], batches)
    with pytest.raises(ValueError, match="placement"):
        replay(trace, [Policy.parse("k0=1,mg=1")], batches)
    with pytest.raises(TraceError, match="top must be"):
        overlap(trace, tops=[4])


@pytest.mark.parametrize("make", [chosen_trace, full_trace])
def test_a_budget_of_its_own_in_some_layer(make):
    trace = make()
    last = trace.header.layers[-1]
    texts = ("k0=1,m=1", "k0=1,m=3", f"k0=1,m=1,ml={last}:3")
    one, three, own = replay(trace, list(map(Policy.parse, texts)), one_pass(trace, 4))
    for name, table in own.metrics.items():
        assert (table[:, :-1] == one.metrics[name][:, :-1]).all()
        assert (table[:, -1] == three.metrics[name][:, -1]).all()
    with pytest.raises(PolicyError, match="names layer 99"):
        replay(trace, [Policy.parse("k0=1,ml=99:3")], one_pass(trace, 4))


@pytest.mark.parametrize("make", [chosen_trace, full_trace])
def test_overlap_of_neighbours_is_largest(make):
    rows = {(row["pair"], row["top"]): row for row in overlap(make(), pairs=500)}
    top = make().header.top_k
    assert rows["consecutive", top]["overlap"] > rows["same domain", top]["overlap"]
    assert rows["different domains", top]["chance"] == pytest.approx(top * top / 12)


def test_closed_form_matches_the_known_figures():
    assert round(closed_form(256, 8, 8)) == 57
    assert round(closed_form(256, 8, 32)) == 163
    assert [round(closed_form(32, 4, B), 1) for B in (8, 16, 32)] == [21.0, 28.2, 31.6]


def test_row_has_an_interval_around_its_mean():
    row = replay_row(replay(chosen_trace(), [Policy.parse("k0=1,m=2")], one_pass(chosen_trace(), 4))[0], {"batch": 4})
    assert row["active_low"] <= row["active"] <= row["active_high"]
    assert row["policy"] == "k0=1,m=2"
