"""Which steps a kernel is there for."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from xshare.engines.gates import Tally
from xshare.engines.serving.build_state import say_what_costs_are_known
from xshare.engines.serving.settings import SettingsError
from xshare.engines.serving.state import State
from xshare.engines.serving.step import Step
from xshare.engines.serving.step_sizes import Sizes
from xshare.engines.vllm.protection import Protection, RequestError, check_admitted, check_request
from xshare.engines.vllm.runner import _watch_steps_v2
from xshare.engines.vllm.settings import has_changed_meaning, settings_of
from xshare.kernels.control import Control
from xshare.kernels.control_words import Word
from xshare.kernels.limits import MAX_ROWS
from xshare.staircase import Stairs

GRID = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]  # what vLLM captures by default


def state(drafts=0, requests=256, captured=GRID, stairs=None, control=None, **gates):
    settings = settings_of({"xshare": {"policy": "k0=1,m=24", "gates": gates, "metrics": False}})
    sizes = Sizes(min(settings.gates.max_rows, requests * (1 + drafts)), drafts, captured)
    now = Step(torch.device("cpu"), control)
    return State(settings, settings.policy, [], now, sizes, Tally(logging.getLogger("xshare")), stairs=stairs)


@pytest.mark.parametrize("drafts", [0, 1, 2, 3, 4, 7])
@pytest.mark.parametrize("requests", [1, 3, 4, 5, 6, 10, 21, 25, 64, 256])
def test_every_step_that_is_acted_on_has_a_kernel_however_it_is_padded(drafts, requests):
    step_sizes, per_request = state(drafts, requests).sizes, 1 + drafts
    rounded = [-(-size // per_request) * per_request for size in GRID]
    for rows in range(1, step_sizes.max_rows + 1):
        for sizes in (GRID, rounded):
            assert min(size for size in sizes if size >= rows) <= step_sizes.buckets[-1] <= 256
    assert step_sizes.max_rows == min(256, requests * per_request) or step_sizes.padded(step_sizes.max_rows + 1) > 256


def test_a_step_that_is_padded_beyond_the_kernels_is_left_alone():
    serving_state = state(captured=[1, 64, 512])
    assert serving_state.sizes.max_rows == 64
    assert serving_state.why_not(True, 65) == "many_rows"


def test_a_step_of_more_requests_than_were_measured_is_left_alone():
    serving_state = state(drafts=3, max_rows=64, max_requests=16, bypass=False)
    assert serving_state.why_not(True, 64, 16) is None
    assert serving_state.why_not(True, 17, 17) == "many_requests"


def test_an_engine_without_graphs_pads_nothing():
    sizes = state(requests=48, captured=()).sizes
    assert sizes.max_rows == 48
    assert sizes.buckets == [1, 2, 4, 8, 16, 32, 64]


def test_the_kernels_are_told_which_cost_table_counts():
    """By the rows of the step, as long as costs count; the words are those that a captured graph reads."""
    times = {rows: {1: 1.0, 64: 1.0 + rows} for rows in (8, 32)}
    control = Control("cpu", 256)
    serving_state = state(stairs=Stairs({"experts": 64}, times), control=control, bypass=False)

    def cost_word(rows):
        serving_state.step(True, serving_state.one_row_per_request(rows))
        return int(control.words[Word.COST])

    assert [cost_word(rows) for rows in (2, 8, 9, 32, 33, 4)] == [0, 0, 1, 1, -1, 0]
    assert serving_state.weigh_costs(False)
    assert [cost_word(4), cost_word(16)] == [-1, -1]
    assert serving_state.weigh_costs(True)
    assert [cost_word(16), cost_word(16)] == [1, 1]
    with pytest.raises(SettingsError, match="needs an engine that was started with cost"):
        state().weigh_costs(True)


@pytest.mark.parametrize(
    ("rows", "unsettled", "sentences"),
    [
        (16, (), ["in steps of up to 16 rows; in larger ones, of up to 32 rows here, no cost counts"]),
        (32, (), ["in steps of up to 32 rows"]),
        (32, (8, 32), ["in steps of up to 32 rows", "s.json is not settled for steps of 8 and 32 rows, whose times"]),
    ],
)
def test_the_log_says_what_costs_are_known(caplog, rows, unsettled, sentences):
    settings = settings_of({"xshare": {"policy": "k0=1,m=24", "cost": "s.json"}})
    stairs = Stairs({"experts": 64}, {8: {}, rows: {}}, "s.json", unsettled=unsettled)
    with caplog.at_level(logging.INFO, "xshare"):
        say_what_costs_are_known(stairs, settings, Sizes(32), logging.getLogger("xshare"))
    first, *others = caplog.messages
    assert first == f"xshare: sizes of sets are weighed by what they cost here: s.json, {sentences[0]}"
    assert len(others) == len(sentences) - 1
    assert all(line.startswith(f"xshare: {text}") for line, text in zip(others, sentences[1:], strict=True))
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"][: len(sentences)]


# Protected requests


def exact(*numbers, of):
    return np.isin(np.arange(of), numbers)


def sent(control, monkeypatch):
    """What is copied to the device from now on: the sizes."""
    sizes, native = [], torch.Tensor.copy_

    def copy_(self, *args, **kwargs):
        sizes.append(self.numel())
        return native(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "copy_", copy_)
    return sizes


def test_protected_rows_are_sent_when_they_change_and_only_then(monkeypatch):
    control = Control("cpu", 256)
    serving_state, marks = state(control=control, bypass=False), exact(1, 3, of=4)
    control.push()
    copies = sent(control, monkeypatch)
    for _ in range(3):
        serving_state.step(True, serving_state.one_row_per_request(4), exact=marks)
    assert copies.count(MAX_ROWS) == 1
    assert len(copies) == 2
    assert control.protected.nonzero().flatten().tolist() == [1, 3]
    assert int(control.words[Word.PROTECTED]) == 1
    copies.clear()
    for _ in range(3):
        serving_state.step(True, serving_state.one_row_per_request(4))
    assert len(copies) == 1  # a word: the marks stay, and nobody looks at them
    assert int(control.words[Word.PROTECTED]) == 0
    assert serving_state.now.protected is None


def test_with_nobody_protected_no_mark_is_ever_sent(monkeypatch):
    control = Control("cpu", 256)
    serving_state = state(control=control, bypass=False)
    copies = sent(control, monkeypatch)
    for rows in (4, 4, 5, 3):
        serving_state.step(True, serving_state.one_row_per_request(rows))
    assert MAX_ROWS not in copies
    assert len(copies) == 3


def test_with_everybody_protected_the_gate_is_closed():
    control = Control("cpu", 256)
    serving_state = state(control=control, bypass=False)
    serving_state.step(True, serving_state.one_row_per_request(3), exact=exact(0, 1, 2, of=3))
    assert not serving_state.now.gate
    assert serving_state.tally.bypassed == {"protected": 1}
    serving_state.step(False, serving_state.one_row_per_request(3), exact=exact(0, of=3))
    assert serving_state.tally.bypassed == {"protected": 1, "prefill": 1}


def test_rows_of_drafts_that_are_dealt_out_on_the_device():
    """The host assumed three rows per request."""
    control = Control("cpu", 256)
    serving_state = state(drafts=2, control=control, bypass=False)
    dealt = torch.tensor([0, 1, 4, 6, 9], dtype=torch.int32)
    serving_state.step(True, np.array([0, 3, 6, 9, 12], np.int32), dealt, exact(1, 3, of=4))
    assert control.protected[:9].tolist() == [0, 1, 1, 1, 0, 0, 1, 1, 1]


def new(name, kind=None):
    params = SimpleNamespace(extra_args=None if kind is None else {"xshare": kind})
    return SimpleNamespace(req_id=name, sampling_params=params)


def scheduled(*arrived, finished=()):
    return SimpleNamespace(scheduled_new_reqs=list(arrived), finished_req_ids=set(finished))


def protection(**settings):
    parsed = settings_of({"xshare": {"policy": "k0=1,m=24"} | settings})
    return Protection(parsed, 2, lambda: {"a", "z"})


def test_who_is_protected():
    guard = protection()
    assert guard.of(["a"]) is None
    guard.follow(scheduled(new("a", "exact"), new("b"), new("c", "shared")))
    marks = guard.of(["a", "b", "c"])
    assert marks.tolist() == [True, False, False]
    guard.follow(scheduled())
    assert guard.of(["a", "b", "c"]) is marks  # the very same: nothing is sent
    assert guard.of(["b", "c"]) is None
    assert guard.of(["b", "a"]).tolist() == [False, True]
    guard.follow(scheduled(finished=["a"]))
    assert guard.of(["b", "c"]) is None
    assert not guard.exact
    guard.follow(scheduled(new("a", "exact")))
    guard.follow(scheduled(new("a", "shared")))  # the same name again
    assert guard.of(["a"]) is None


def test_what_nobody_has_refused_is_protected_and_said(monkeypatch):
    guard, warnings = protection(), []
    monkeypatch.setattr("xshare.engines.vllm.protection.log.warning", lambda text, value: warnings.append(text % value))
    guard.follow(scheduled(new("a", "precise"), new("b", 3)))
    assert guard.exact == {"a", "b"}
    assert warnings == ["xshare: a request asks for 'precise', which nobody has refused: it is protected"]


@pytest.mark.parametrize("drafts", [0, 2])
def test_the_v2_runner_tells_of_them(drafts):
    """By what it hands on: a batch in an order of its own, and with drafts boundaries that the device knows."""
    control = Control("cpu", 256)
    serving_state = state(drafts=drafts, control=control, bypass=False)
    per_request = 1 + drafts
    batch = SimpleNamespace(
        req_ids=["b", "a", "c"],
        num_reqs=3,
        is_prefilling_np=np.zeros(3, bool),
        query_start_loc_np=np.arange(0, 3 * per_request + 1, per_request, dtype=np.int32),
        query_start_loc=torch.arange(0, 3 * per_request + 1, per_request, dtype=torch.int32),
    )
    runner = SimpleNamespace(
        prepare_inputs=lambda scheduled: batch,
        req_states=SimpleNamespace(req_id_to_index={}),
    )
    prepare = _watch_steps_v2(runner, serving_state)
    assert prepare(scheduled(new("a", "exact"), new("b"), new("c"))) is batch
    assert serving_state.now.gate
    assert control.protected.nonzero().flatten().tolist() == list(range(per_request, 2 * per_request))
    batch.req_ids, batch.num_reqs = ["b", "c"], 2
    prepare(scheduled(finished=["a"]))
    assert serving_state.now.protected is None
    assert int(control.words[Word.PROTECTED]) == 0


def test_those_that_ended_unseen_are_forgotten():
    guard = protection()
    guard.follow(scheduled(*(new(name, "exact") for name in "abcdefghz")))
    assert guard.exact == {"a", "z"}


def test_the_settings_say_what_a_request_is_that_says_nothing():
    guard = protection(default="exact")
    guard.follow(scheduled(new("a"), new("b", "shared"), SimpleNamespace(req_id="c", sampling_params=None)))
    assert guard.exact == {"a"}


@pytest.mark.parametrize(
    ("kind", "settings", "connector", "sentence"),
    [
        ("exact", {"protect": False}, None, "started with protect false"),
        ("exact", {}, object(), "its KV connector may hand it blocks"),
        ("neither", {}, None, "must be 'exact' or 'shared', not 'neither'"),
    ],
)
def test_requests_that_are_refused(kind, settings, connector, sentence):
    pytest.importorskip("vllm")
    parsed = settings_of({"xshare": {"policy": "k0=1,m=24"} | settings})
    config = SimpleNamespace(kv_transfer_config=connector)
    with pytest.raises(RequestError, match=sentence):
        check_request(new("a", kind).sampling_params, parsed, config)
    for fine in (None, "shared"):
        check_request(new("a", fine).sampling_params, parsed, config)


def test_a_session_in_pieces_cannot_be_protected():
    pytest.importorskip("vllm")
    parsed = settings_of({"xshare": {"policy": "k0=1,m=24"}})
    for kind in ("exact", "shared"):
        request = SimpleNamespace(cache_salt=None, resumable=True, sampling_params=new("a", kind).sampling_params)
        if kind == "shared":
            check_admitted(request, parsed)
        else:
            with pytest.raises(RequestError, match="a session whose prompt comes in pieces must be 'shared'"):
                check_admitted(request, parsed)


@pytest.mark.parametrize(
    ("fields", "changed"),
    [
        ({"policy": "k0=1,m=24"}, True),
        ({"warmup": 1, "batch_budget": 24}, True),
        ({"policy": "k0=1,m=24,score=full"}, False),
        ({"warmup": 1, "batch_budget": 24, "score": "topk"}, False),
        ({"policy": "balanced"}, False),  # 0.1 knew none of these
        ({"policy": "lam=0.04"}, False),
        ({"policy": "k0=1,m=24,p=3"}, False),
        ({"policy": "oea:k0=2"}, False),
    ],
)
def test_only_what_the_first_version_served_has_changed_its_meaning(fields, changed):
    settings = settings_of({"xshare": fields})
    assert has_changed_meaning(settings.policy, {"xshare": fields}) == changed
