"""The speed benchmark's own arithmetic, and one cell of it end to end in a tiny engine."""

import importlib
import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

import xshare
from xshare.engines.serving.compiled import Compiled
from xshare.engines.serving.settings import read_settings
from xshare.kernels.limits import thresholds_of
from xshare.policy import Policy

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))
LIBRARY = ("pull_request_35551", "model_shapes", "routing_fits", "speed_rows")
fit_routing, paper_speed, pull_request_35551, model_shapes, routing_fits, speed_rows = map(
    importlib.import_module,
    ("fit_routing", "paper_speed", *(f"lib.{name}" for name in LIBRARY)),
)
LOGIT_SUM, NOOP, UNUSED = speed_rows.LOGIT_SUM, speed_rows.NOOP, speed_rows.UNUSED
Bytes, Counted, rows_of = speed_rows.Bytes, speed_rows.Counted, speed_rows.rows_of

# The fit


@pytest.fixture(scope="module")
def simulation():
    return fit_routing.Simulation(draws=400)


def test_independent_rows_reach_the_closed_form(simulation):
    for batch in (4, 8, 16, 32):
        assert simulation.active(0.0, batch) == pytest.approx(fit_routing.closed_form(batch), rel=0.02)
    assert simulation.overlap(0.0, 0.0) == pytest.approx(16 / 128, abs=0.03)
    assert simulation.apart(0.0, 0.9) == pytest.approx(16 / 128, abs=0.03)  # another request's taste is another
    assert simulation.overlap(0.5, 1.0) == 4  # nothing of its own: the same experts
    assert simulation.drafted(0.0, 0.0) == pytest.approx(fit_routing.closed_form(16), rel=0.02)
    assert simulation.drafted(0.0, 1.0) == pytest.approx(fit_routing.closed_form(4), rel=0.02)


def test_a_fit_finds_what_the_statistics_were_made_with(simulation):
    ratios = {batch: fit_routing.ratio_of(simulation, 0.6, batch) for batch in (4, 8, 16, 32)}
    skew, correlation = fit_routing.fit(ratios, simulation.overlap(0.6, 0.4), simulation)
    assert skew == pytest.approx(0.6, abs=0.01)
    assert correlation == pytest.approx(0.4, abs=0.01)


def test_the_stored_fits_reproduce_the_trace():
    evidence = json.loads((ROOT / "evidence" / "fit_routing.json").read_text())
    stored, fits = evidence["rows"], routing_fits.fits()
    assert list(fits) == ["fitted", "carried"]
    draws, seed = evidence["provenance"]["draws"], evidence["provenance"]["seed"] + 1  # checked on draws of their own
    both = [fit_routing.Simulation(experts, draws, seed) for experts in (fit_routing.EXPERTS, fit_routing.THERE)]
    again = [row for regime, at in fits.items() for row in fit_routing.rows_of(regime, tuple(at.values()), *both)]
    assert [row | {"reached": None} for row in stored] == [row | {"reached": None} for row in again]
    # Another build of torch may break a tie between float32 logits otherwise: one pair of 20,000, not more.
    assert [row["reached"] for row in stored] == pytest.approx([row["reached"] for row in again], rel=1e-4)
    ratios, overlap, drafted = fit_routing.targets()
    for regime, wanted in (("fitted", fit_routing.across(ratios)), ("carried", ratios)):
        rows = [row for row in again if row["regime"] == regime]
        assert {row["batch"]: row["target"] for row in rows if row["quantity"] == "active / closed form"} == wanted
        fit = [row for row in rows if row["fit"]]
        assert fit[-1]["target"] == overlap
        for row in fit:
            assert row["reached"] == pytest.approx(row["target"], abs=0.03)
        # Not fitted: what a step with drafts loads in the trace.
        (drafted_row,) = [row for row in rows if row["target"] == drafted]
        assert drafted_row["reached"] == pytest.approx(drafted, rel=0.02)


# The law and the rows

A, B, SELECTING, NATIVE = 2.0, 0.12, 0.05, 51.0  # ms, ms an expert, ms, experts
ACTIVE = {"k0=1,m=0": 15.0, "k0=1,m=24": 37.0, "k0=0,m=24": 24.0, "k0=1,m=32": 42.0}
SETTING = {"piece": "plain", "regime": "independent", "batch": 16, "drafts": 0, "drafter": "none", "layers": 24}


def sample(ms, steps=64):
    return {"seconds": ms * steps / 1000, "steps": steps, "tokens": 16 * steps, "short": 0}


def law_rows(drift=(1.0, 1.1, 0.9, 1.3, 1.0), **setting):
    """Pairs on a machine that gets faster and slower, and follows the law exactly."""
    active = {NOOP: NATIVE} | ACTIVE
    native = A + B * NATIVE
    pairs = {
        name: [(sample(d * native), sample(d * (A + B * T + SELECTING))) for d in drift] for name, T in active.items()
    }
    counted = {name: Counted(T, NATIVE) for name, T in active.items()}
    rows = rows_of(SETTING | setting, pairs, counted, Bytes(24 * 13.2e6, 4e12))
    return {row["policy"]: row for row in rows}


def test_a_prediction_is_the_law_without_the_cost_of_selecting():
    rows = law_rows()
    for name, active in ACTIVE.items():
        row = rows[name]
        assert row["predicted"] == pytest.approx((A + B * NATIVE) / (A + B * active))
        assert row["ratio"] == pytest.approx((A + B * NATIVE) / (A + B * active + SELECTING))
        assert row["ratio_low"] == pytest.approx(row["ratio_high"])  # drift is the same in both of a pair
        assert row["of_predicted"] == pytest.approx(row["ratio_low"] / row["predicted"])
        assert 0.9 < row["of_gain"] < 1
        assert row["b"] == pytest.approx(B)
    assert rows[NOOP]["ratio"] == pytest.approx(1 - SELECTING / (A + B * NATIVE), abs=1e-3)
    assert rows["native"]["active"] == NATIVE
    assert rows["native"]["step_ms"] == pytest.approx(A + B * NATIVE)
    assert rows["native"]["otps"] == pytest.approx(1000 / (A + B * NATIVE))


def test_a_policy_is_predicted_from_the_others():
    pairs = {NOOP: [(sample(8.0), sample(8.0))]} | {
        name: [(sample(8.0), sample(A + B * T))] for name, T in ACTIVE.items()
    }
    pairs["k0=1,m=0"] = [(sample(8.0), sample(1.0))]  # far off the line, which must not bend the line it is held to
    counted = {NOOP: Counted(NATIVE, NATIVE)} | {name: Counted(T, NATIVE) for name, T in ACTIVE.items()}
    rows = {row["policy"]: row for row in rows_of(SETTING, pairs, counted, Bytes(1.0, None))}
    slope = (8.0 - (A + B * 24)) / (NATIVE - 24)
    assert rows["k0=1,m=0"]["b"] == pytest.approx(slope, rel=0.1)
    assert rows["k0=1,m=24"]["b"] > 1.2 * slope


def test_without_different_sizes_there_is_no_prediction():
    active = {NOOP: 14.2, "k0=1,m=24": 14.1, "k0=0,m=24": 14.3, "k0=1,m=32": 14.0}
    pairs = {name: [(sample(4.0), sample(4.1))] for name in active}
    rows = rows_of(SETTING, pairs, {n: Counted(T, 14.2) for n, T in active.items()}, Bytes(1.0, None))
    assert all(row["predicted"] is None and row["b"] is None for row in rows)
    native, noop, policy, *_ = map(speed_rows.row_text, rows)
    assert (
        native
        == f"plain     independent batch 16 {'native':20}   4.000 ms ratio 1.000 [1.000, 1.000] active 14.2 of 14.2"
    )
    assert noop.endswith("ratio 0.976 [0.976, 0.976, range of 1] active 14.2 of 14.2: BELOW 0.99")
    assert policy.endswith("active 14.1 of 14.2 paper 1.071 to 1.127: NOT met")  # nothing predicted, nothing held to it


def test_the_floor_is_bytes_over_bandwidth():
    rows = law_rows()
    assert rows["k0=1,m=0"]["floor_ms"] == pytest.approx(1000 * 15 * 24 * 13.2e6 / 4e12)
    assert rows["native"]["law_gb_s"] == pytest.approx(24 * 13.2e6 / (B / 1000) / 1e9)
    config = model_shapes.gpt_oss_120b(24)
    assert model_shapes.expert_bytes(config) == 3 * 2880 * 2880 * 17 / 32  # 13.2 MB in MXFP4


@pytest.mark.parametrize(("regime", "ratio", "met"), [
    ("independent", 1.1274, False), ("independent", 1.128, True), ("fitted", 1.1266, True), ("fitted", 1.126, False),
    ("carried", 1.12707, True),
])  # fmt: skip
def test_where_the_papers_gain_is_large_its_top_is_asked_for(regime, ratio, met):
    pairs = {"k0=1,m=24": [(sample(ratio * 7), sample(7.0))]}
    row = rows_of(SETTING | {"regime": regime}, pairs, {}, Bytes(1.0, None))[1]
    assert (row["paper_low"], row["paper_high"], row["paper_met"]) == (pytest.approx(1.071), pytest.approx(1.127), met)


def test_where_the_papers_gain_is_small_its_range_is_enough():
    pairs = {"k0=2,m=12": [(sample(1.0606 * 7), sample(7.0))], NOOP: [(sample(7.0), sample(7.0))]}
    rows = {row["policy"]: row for row in rows_of(SETTING | {"regime": "fitted"}, pairs, {}, Bytes(1.0, None))}
    assert rows["k0=2,m=12"]["paper_met"] is True
    assert rows[NOOP]["paper_high"] is None


def test_the_pull_requests_rows_borrow_law_and_native_experts_from_the_plain_ones():
    plain = list(law_rows().values())
    pairs = {LOGIT_SUM: [(sample(A + B * NATIVE), sample(A + B * 23 + 0.3))]}
    setting = SETTING | {"piece": "logit-sum"}
    row = rows_of(setting, pairs, {LOGIT_SUM: Counted(23.0, None)}, Bytes(1.0, None), plain)[1]
    assert (row["method"], row["active_native"], row["paper_high"]) == ("logit-sum", NATIVE, 1.368)
    assert row["predicted"] == pytest.approx((A + B * NATIVE) / (A + B * 23))
    alone = rows_of(setting, pairs, {LOGIT_SUM: Counted(23.0, None)}, Bytes(1.0, None))[1]
    assert (alone["active_native"], alone["predicted"]) == (None, None)


def test_totals_count_what_holds():
    rows = list(law_rows().values())
    assert speed_rows.totals(rows) == [
        "lower bound at least 95 % of predicted, as a ratio: 4 of 4",
        "lower bound at least 95 % of predicted, as a share of the gain: 3 of 4",
        "control at least 0.99 at batch 16 and 32: 1 of 1",
        "paper's range met, independent: 4 of 4",
    ]
    assert speed_rows.totals([]) == []


def test_counts_are_weighted_by_their_samples():
    counts = [{"samples": 3, "active": 10.0, "native": 20.0}, {"samples": 1, "active": 14.0, "native": 24.0}]
    assert Counted.of([*counts, {"samples": 0, "active": None, "native": None}]) == Counted(11.0, 21.0)
    assert Counted.of([{"samples": 1, "active": 5.0, "native": None}]) == Counted(5.0, None)
    steps_only = {"samples": 0, "active": None, "native": None, "pruned": 4, "decoded": 5}
    assert Counted.of([steps_only, steps_only]).steps() == {"steps_pruned": 8, "steps_decoded": 10}


# What is measured


def test_policies_are_spelled_as_the_project_spells_them():
    named = {
        name
        for piece in paper_speed.PIECES.values()
        for batch in piece.batches
        for name in piece.policies(batch, "carried")
    }
    named -= {NOOP, UNUSED}
    # Two are in both of the paper's tables, and one among the budgets; the pull request's; and what is recommended.
    assert len(named) == 2 * (8 + 8 - 2) + len(paper_speed.BUDGETS) - 1 + 1 + 3  # twice: by both readings of the score
    for name in named:
        assert str(Policy.parse(name)) == name
    assert (
        len(paper_speed.PIECES["plain"].policies(16, "carried"))
        == len(paper_speed.PIECES["fixed"].policies(4, "carried"))
        == 9
    )


def test_presets_are_measured_where_routing_is_most_like_a_models_and_the_control_everywhere():
    for name in ("presets", "presets-fixed", "presets-eagle3"):
        piece = paper_speed.PIECES[name]
        assert piece.cells()[0] == ("carried", 16, paper_speed.PROMPT)
        assert {regime for regime, _, _ in piece.cells()} == set(paper_speed.REGIMES)
        for regime, batch, _ in piece.cells():
            assert piece.policies(batch, regime) == [NOOP, *(paper_speed.PRESETS if regime == "carried" else ())]


@pytest.mark.parametrize(("other", "name", "batch"), [("plain", "topk", 16), ("eagle3", "topk-eagle3", 4)])
def test_the_papers_policies_are_measured_by_both_readings(other, name, batch):
    pieces = paper_speed.PIECES
    full, topk = (pieces[piece].policies(batch, "carried")[1:] for piece in (other, name))
    assert [f"{policy}{speed_rows.FULL}" for policy in topk] == full
    assert {Policy.parse(policy).score for policy in topk} == {"topk"}
    assert pieces[name].engines() == pieces[other].engines()  # one start of the engines measures both


def test_long_prompts_are_measured_as_far_as_they_fit(capsys):
    piece = paper_speed.PIECES["contexts"]
    whole = paper_speed.fitting(piece, piece.cells(), 16, 8, 36, False)
    assert whole == [("carried", 16, 1024), ("carried", 4, 1024), ("carried", 64, 1024), ("carried", 4, 8192)]
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[2].partition(":")[0] for line in lines] == [
        "left out, 16 prompts of 8192 tokens", "left out, 64 prompts of 8192 tokens",
    ]  # fmt: skip
    assert paper_speed.fitting(piece, piece.cells(), 16, 8, 18, False) == piece.cells()
    short = paper_speed.PIECES["presets"]
    assert paper_speed.fitting(short, short.cells(), 16, 8, 48, False) == short.cells()  # deeper shapes too
    shape = model_shapes.gpt_oss_120b()
    assert model_shapes.cache_bytes(shape, 8192) == 18 * (8192 + 128) * 2 * 8 * 64 * 2
    long = paper_speed.Long.of(("carried", 4, 8192), 4, 16, 8, 36, False)
    round_steps = 4 * (1 + paper_speed.WARM + 16)  # steps of a round
    assert long.rounds == 8 < 8192 // 4 // round_steps  # they are read once
    assert long.decoded > long.rounds * round_steps + 4 * 8192 // paper_speed.CHUNK
    assert long.bytes > 4 * model_shapes.cache_bytes(shape, 8192 + long.rounds * round_steps)


class RecordingEngine:
    """In place of an engine: keeps what it was asked."""

    def __init__(self):
        self.decodes, self.policies = [], []

    def ask(self, what, **how):
        if what == "decode":
            self.decodes.append(how)
            return sample(8.0, how["steps"])
        if what == "policy":
            self.policies.append(how["policy"])
        return {"samples": 1, "active": 9.0, "native": 10.0, "pruned": 21, "decoded": 21}


def measured(name, cell, repeats=8):
    native, second = RecordingEngine(), RecordingEngine()
    pair = paper_speed.Pair(native, second, "k0=1,m=128", cell[0])
    return native, second, *pair.measure(paper_speed.PIECES[name], cell, 16, repeats, 36, False)


def test_pieces_that_want_the_same_engines_share_one_start():
    presets, contexts = (paper_speed.PIECES[name] for name in ("presets", "contexts"))
    assert presets.engines() == contexts.engines() != paper_speed.PIECES["presets-eagle3"].engines()
    settings = {"tiny": False, "regimes": {"carried": {"skew": 0.5}}}
    tasks = [(presets, ("carried", 16, 8), 8), (contexts, ("carried", 4, 8192), 8)]
    options = paper_speed.start_options(tasks, settings, 36, 16)
    assert options["sizes"] == [4, 8, 16, 32, 64]  # of both
    assert options["length"] > 8192
    assert options["chunk"] == paper_speed.CHUNK
    assert "cache" not in paper_speed.start_options(tasks[:1], settings, 36, 16)


def test_one_start_has_the_code_for_all_policies_of_its_pieces():
    pieces = paper_speed.PIECES
    assert pieces["topk-eagle3"].engines() != pieces["presets-eagle3"].engines()
    by_start = {}
    for piece in pieces.values():
        by_start.setdefault(piece.engines(), []).append(piece)
    for first, *others in by_start.values():
        assert all(piece.second(128) == first.second(128) for piece in others)
        if first.method != "xshare":
            continue
        settings = read_settings(first.second(128)["xshare"])
        compiled = Compiled.of(settings, settings.policy, [0], top_k=4, drafts=first.drafts, every_size=True)
        cells = [(piece, regime, size) for piece in (first, *others) for regime, size, _ in piece.cells()]
        measured = {name for piece, regime, size in cells for name in piece.policies(size, regime)}
        for policy in map(Policy.parse, measured - {NOOP}):
            assert compiled.thresholds >= thresholds_of([policy])
            assert compiled.rows_per_request or not policy.request_budget


def test_pairs_are_of_one_set_of_requests():
    native, second, pairs, counted = measured("presets", ("carried", 16, 8))
    twice = {NOOP: 16}  # the control has two pairs a round
    lengths = {policy: len(policy_pairs) for policy, policy_pairs in pairs.items()}
    assert lengths == dict.fromkeys(paper_speed.PRESETS, 8) | twice
    assert native.decodes == second.decodes
    assert sorted({how["seed"] for how in second.decodes}) == [0, *range(2, 10)]
    assert second.policies[:4] == ["k0=1,m=128", *paper_speed.PRESETS]
    assert counted[NOOP].steps() == {"steps_pruned": 16 * 21, "steps_decoded": 16 * 21}
    _, _, pairs, _ = measured("plain", ("carried", 4, 8), repeats=2)
    assert {len(policy_pairs) for policy, policy_pairs in pairs.items() if policy != NOOP} == {2}
    assert len(pairs[NOOP]) == 2 * paper_speed.CONTROLS


def test_long_prompts_are_read_again_when_they_have_grown_by_a_quarter():
    native, second, _, _ = measured("contexts", ("carried", 4, 1024))
    assert native.decodes == second.decodes  # contexts grow alike in both
    seeds = [how["seed"] for how in second.decodes]
    assert seeds == [2] * 12 + [3] * 12 + [4] * 8  # three rounds of four policies each
    how = second.decodes[0]
    assert (how["prompt"], how["most"] < 1024 // 3) == (1024, True)
    assert {how["seed"] for how in measured("contexts", ("carried", 4, 8192))[0].decodes} == {2}


def test_the_pull_requests_selection_is_that_of_method_logit_sum():
    router = xshare.RouterSpec.for_model("gpt-oss-120b")
    logits = torch.randn(16, 128, generator=torch.Generator().manual_seed(0))
    routing = xshare.route(logits, router, Policy.parse(LOGIT_SUM))
    pruning = pull_request_35551.Pruning(logits, 24)
    masked = pruning(logits)
    assert torch.equal(masked.topk(4).indices, routing.ids)
    assert pruning.active(16, 4) == int(routing.active.sum())
    many = torch.randn(49, 128)
    assert pruning(many) is many  # not a decode step, by its rule


# Resuming

RUN = {"piece": "plain", "regime": "fitted", "batch": 16, "layers": 4}
SETTINGS = {"tiny": True, "regimes": {"fitted": {"skew": 0.3, "correlation": 0.7}}}


def test_a_cell_is_kept_replaced_and_known(tmp_path):
    path = tmp_path / "speed.json"
    results = paper_speed.SpeedResults(path, SETTINGS)
    results.add([RUN | {"policy": "native", "step_ms": 1.0}], RUN)
    results.add([RUN | {"batch": 4, "policy": "native"}], RUN | {"batch": 4})
    results.add([RUN | {"regime": "independent", "policy": "native"}], RUN | {"regime": "independent"})
    again = paper_speed.SpeedResults(path, SETTINGS)
    cells = (("plain", "fitted", 16), ("plain", "fitted", 4), ("plain", "independent", 16))
    assert again.done() == {(*cell, 4, paper_speed.PROMPT, 1) for cell in cells}
    again.add([RUN | {"policy": name, "step_ms": 2.0} for name in ("native", "noop")], RUN)
    written = json.loads(path.read_text())
    assert len(written["runs"]) == 3
    assert [(row["regime"], row["batch"], row["policy"]) for row in written["rows"]] == [
        ("independent", 16, "native"), ("fitted", 16, "native"), ("fitted", 16, "noop"), ("fitted", 4, "native"),
    ]  # fmt: skip
    assert [row.get("step_ms") for row in written["rows"]] == [None, 2.0, 2.0, None]


def test_pairs_of_several_starts_are_pooled(tmp_path):
    path = tmp_path / "speed.json"
    where = RUN | {"piece": "presets"}
    native, faster = [8.0, 8.0, 4.0, 4.0], [8.0, 8.0, 2.0, 2.0]  # ms and the median step of both engines
    for start, decodes in ((1, [native] * 3), (2, [faster] * 5)):
        pairs = {NOOP: [(sample(a), sample(b)) for a, _, b, _ in decodes]}
        counted = {NOOP: Counted(20.0 + start, 30.0)}
        setting = where | {"drafts": 0, "drafter": "none", "start": start}
        rows = rows_of(setting, pairs, counted, Bytes(1.0, None))
        rows = [row | Counted(pruned=4, decoded=4 + start).steps() for row in rows]
        results = paper_speed.SpeedResults(path, SETTINGS)  # each start goes on from the file of the other
        results.add(rows, where | {"start": start, "prompt_tokens": paper_speed.PROMPT, "decodes": {NOOP: decodes}})
    written = json.loads(path.read_text())
    assert len(written["rows"]) == 4
    assert len(written["runs"]) == 2
    row = next(row for row in written["pooled"] if row["policy"] == NOOP)
    assert (row["starts"], row["pairs"], row["ratio"]) == (2, 8, 4.0)  # five of eight pairs
    assert (row["steps_pruned"], row["steps_decoded"]) == (8, 11)
    assert row["step_ms"] == pytest.approx((3 * 4 + 5 * 2) / 8)
    assert "NOT in all" in speed_rows.row_text(row)
    assert {"start"} & row.keys() == set()
    assert ("presets", "fitted", 16, 4, 8, 2) in results.done()
    # Both runs made the pairs, the later one pooled them. A third run that adds another cell leaves that as it is.
    assert (row["stamps"], row["stamp"]) == ([0, 1], 1)
    results = paper_speed.SpeedResults(path, SETTINGS)
    setting = where | {"batch": 4, "drafts": 0, "drafter": "none", "start": 1}
    rows = [row | Counted().steps() for row in rows_of(setting, pairs, counted, Bytes(1.0, None))]
    results.add(rows, setting | {"prompt_tokens": paper_speed.PROMPT, "decodes": {NOOP: decodes}})
    written = json.loads(path.read_text())
    assert [(row["batch"], row["stamps"], row["stamp"]) for row in written["pooled"] if row["policy"] == NOOP] == [
        (16, [0, 1], 1), (4, [2], 2)
    ]  # fmt: skip


def test_a_file_of_other_settings_is_refused(tmp_path):
    path = tmp_path / "speed.json"
    paper_speed.SpeedResults(path, SETTINGS).add([], RUN)
    with pytest.raises(ValueError, match="measured with other settings, tiny true instead of false: name another file"):
        paper_speed.SpeedResults(path, SETTINGS | {"tiny": False})


# End to end


@pytest.mark.engine
def test_cells_of_all_regimes_in_one_start(tmp_path, monkeypatch):
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    path = tmp_path / "speed.json"
    monkeypatch.setattr(paper_speed, "WARM", 2)  # times are not looked at here
    app = typer.Typer()
    app.command()(paper_speed.main)
    words = ["plain", "--tiny", "--json", str(path), "--batch", "16", "--steps", "6", "--repeats", "1"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    rows = json.loads(path.read_text())["rows"]
    cells = {(row["regime"], row["policy"]): row for row in rows}
    assert len(cells) == len(rows) == 3 * 10
    for row in rows:
        assert row["step_ms"] > 0
        assert row["short_steps"] == 0
        assert row["active"] <= 32
    for regime in paper_speed.REGIMES:
        warm, all_of_it = cells[regime, "k0=1,m=0,score=full"], cells[regime, NOOP]
        assert warm["active"] < 16 < all_of_it["active"] == all_of_it["active_native"]
        assert all_of_it["pairs"] == 3
    # The routers were filled again while both engines were running: popular experts, so fewer of them.
    independent, fitted, carried = (cells[regime, NOOP]["active_native"] for regime in paper_speed.REGIMES)
    assert independent == pytest.approx(28.2, abs=0.8)
    assert carried < fitted < independent - 0.8
    again = CliRunner().invoke(app, words)
    assert "0 cells to measure of 3" in again.stdout
    assert "starting" not in again.stdout
    assert json.loads(path.read_text())["rows"] == rows
