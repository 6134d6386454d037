"""The stand-in for vLLM's routing(), as far as no GPU is needed: what it hands out, to whom, and when not."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from sorted_rows_oracle import TILES, chosen, tables_of

from xshare import Policy, RouterSpec

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from triton.runtime.errors import OutOfResources

from xshare.engines.vllm import one_launch, routing_check
from xshare.engines.vllm.hooks import Route
from xshare.engines.vllm.layer import compile_layers
from xshare.engines.vllm.one_launch import StandIn, aligned, engine_tables, same_bits, tensors_of, why_not
from xshare.engines.vllm.routing_check import find_difference
from xshare.kernels.control import Control
from xshare.kernels.launch import FusedSelection
from xshare.kernels.plan import Plan
from xshare.kernels.routing_tables import Tables

ROOT = Path(__file__).resolve().parents[3]


def module():
    """In the form of triton_kernels.routing, whose wheel is for GPUs alone."""
    fields = {
        "ExptData": ("hist", "token_offs_raw", "token_offs_pad", "block_pid_map"),
        "RoutingData": ("gate_scal", "expt_hist", "n_expts_tot", "n_expts_act", "expt_data"),
    }

    def maker(names):
        return lambda *values: SimpleNamespace(**dict(zip(names, values, strict=True)))

    pairs = {name: lambda **indices: SimpleNamespace(**indices) for name in ("GatherIndx", "ScatterIndx")}
    return SimpleNamespace(routing=lambda *args: ("native", *args), **{n: maker(f) for n, f in fields.items()}, **pairs)


def test_what_is_ready_is_handed_out_once():
    routing_module = module()
    stand_in = StandIn(routing_module)
    assert routing_module.routing(1, 4) == ("native", 1, 4)
    assert stand_in.during("ours", lambda logits: routing_module.routing(logits, 4), 1) == "ours"
    assert routing_module.routing(1, 4) == ("native", 1, 4)
    both = stand_in.during(
        "ours", lambda logits: (routing_module.routing(logits, 4), routing_module.routing(logits, 4)), 1
    )
    assert both == ("ours", ("native", 1, 4))  # the second call is somebody else's


class Selector:
    """In place of a layer's: its launch takes more than the GPU has, unless it leaves routing to the engine."""

    one_launch = None

    def __init__(self, routes=True):
        self.routes, self.compiled = routes, 0

    def compile(self, dtype):
        if self.routes:
            raise OutOfResources(232_448, 101_376, "shared memory")
        self.compiled += 1

    def do_not_route(self):
        self.routes = False


def test_a_launch_that_does_not_compile_leaves_routing_to_vllm(caplog):
    routed = SimpleNamespace(mode=Route.mode, selector=Selector())
    other = SimpleNamespace(mode="bias", selector=Selector(routes=False))
    with caplog.at_level("WARNING", "vllm.xshare"):
        compile_layers([routed, other], torch.bfloat16)
    assert (routed.selector.routes, routed.selector.compiled, other.selector.compiled) == (False, 1, 1)
    (line,) = caplog.messages
    assert line.startswith("xshare: all layers are routed by vLLM itself: the launch does not compile here: out of")
    with pytest.raises(OutOfResources):  # nothing to fall back to
        compile_layers([SimpleNamespace(mode="logits", selector=Selector())], torch.bfloat16)


def test_experts_that_do_not_ask_are_noticed():
    stand_in = StandIn(module())
    with pytest.raises(RuntimeError, match="have not asked"):
        stand_in.during("ours", lambda logits: logits, 1)
    assert stand_in.ready is None

    def broken(_):
        raise KeyError("broken")

    with pytest.raises(KeyError):
        stand_in.during("ours", broken, 1)
    assert stand_in.ready is None  # not for the next layer


def test_tables_in_the_form_that_is_asked_for(monkeypatch):
    stand_in = StandIn(module())
    monkeypatch.setattr(one_launch, "stand_in", lambda: stand_in)
    tables = Tables(Plan.of(32, 64, 0, "cpu"), 32, 4, torch.bfloat16, "cpu")
    data, gather, scatter = routed = engine_tables(tables, 48)
    assert data.gate_scal.shape == (192,)
    assert (data.n_expts_tot, data.n_expts_act) == (32, 4)
    assert data.expt_data.token_offs_pad[128].shape == (33,)
    assert data.expt_data.block_pid_map[16].shape == (42,)  # 31 experts of one row, and 161 rows of another
    assert gather.src_indx.data_ptr() == scatter.dst_indx.data_ptr() == tables.pairs.data_ptr()
    assert gather.dst_indx.data_ptr() == tables.pairs[192:].data_ptr()
    assert len(list(tensors_of(routed))) == 16
    assert same_bits(routed, engine_tables(tables, 48))
    assert not same_bits(routed, engine_tables(tables, 47))


def test_where_it_is_not_used():
    assert why_not(SimpleNamespace(), torch.device("cpu"), torch.bfloat16) == "there is no NVIDIA GPU"
    logits = torch.zeros(8, 128, dtype=torch.bfloat16)
    assert aligned(logits)
    assert not aligned(logits[:, 1:])
    assert not aligned(torch.zeros(8, 60, dtype=torch.bfloat16))


def selection_of(rows):
    """A selection that routes, of 16 experts."""
    selection = FusedSelection(
        num_experts=16, rows=rows, device="cpu", router=RouterSpec.softmax(4), mask_logits=True, routes=True
    )
    selection.tables = Tables(selection.plan, 16, 4, torch.bfloat16, "cpu")
    return selection


def routed_by_hand(logits, top_k, sm_first=False):
    """What vLLM's routing gives, in its own form, by the oracle of the kernels' tests."""
    assert not sm_first
    N = logits.shape[1]
    rows = [chosen(row, [True] * N, top_k) for row in logits]
    hist, offsets, tiles, gathers, scatters = tables_of([ids for ids, _ in rows], N, top_k)
    weights = torch.cat([weight for _, weight in rows])[gathers]
    weights = (weights.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)  # cut off, as the interpreter does
    ints = [torch.tensor(values, dtype=torch.int32) for values in (hist, offsets[0], gathers, scatters)]
    pads, maps = (
        {size: torch.tensor(values, dtype=torch.int32) for size, values in zip(TILES, tables, strict=True)}
        for tables in (offsets[1:], tiles)
    )
    routing_module = module()
    data = routing_module.ExptData(ints[0], ints[1], pads, maps)
    gather = routing_module.GatherIndx(src_indx=ints[2], dst_indx=ints[3])
    scatter = routing_module.ScatterIndx(src_indx=ints[3], dst_indx=ints[2])
    return routing_module.RoutingData(weights, ints[0], N, top_k, data), gather, scatter


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter, not a GPU's roundings")
def test_every_start_looks_whether_both_route_alike(monkeypatch):
    routing_module = module()
    routing_module.routing = routed_by_hand
    stand_in = StandIn(routing_module)
    monkeypatch.setattr(one_launch, "stand_in", lambda: stand_in)
    monkeypatch.setattr(routing_check, "COMPARED", 16)
    selections = {rows: selection_of(rows) for rows in (2, 4)}
    selector = SimpleNamespace(selections=selections, own=torch.zeros(1))
    assert find_difference(selector, one_launch) is None
    assert all(selection.tables.checked for selection in selections.values())
    stand_in.native = lambda *args, **kwargs: pytest.fail("what was looked at is not looked at again")
    assert find_difference(selector, one_launch) is None

    def otherwise(logits, top_k, sm_first=False):
        data, *indices = routed_by_hand(logits, top_k)
        data.gate_scal[-1] *= 2  # a weight
        return data, *indices

    stand_in.native = otherwise
    other = SimpleNamespace(selections={2: selection_of(2)}, own=torch.zeros(1))
    assert find_difference(other, one_launch) == "2 rows, the gate closed"


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter, not a GPU's roundings")
def test_vllm_check_records_what_each_layer_left_and_compares_it_with_vllm(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    recorded_routing = importlib.import_module("lib.recorded_routing")
    routing_module = module()
    routing_module.routing = routed_by_hand
    stand_in = StandIn(routing_module)
    monkeypatch.setattr(one_launch, "stand_in", lambda: stand_in)
    selections = {rows: selection_of(rows) for rows in (2, 4)}
    control = Control("cpu")
    control.set_policy(Policy.parse("k0=1,m=2"))
    control.set_gate(True)

    def routed(logits):
        n = len(logits)
        if logits.dtype != torch.bfloat16:
            return None
        selection = selections[2 if n <= 2 else 4]
        selection.launch(logits, control, True)
        return engine_tables(selection.tables, n)

    def layer():
        facts = {"own": torch.zeros(1), "num_experts": 16, "routes": torch.bfloat16, "one_launch": one_launch}
        selector = SimpleNamespace(selections=selections, routed=routed, **facts)
        return selector, recorded_routing.RecordedRouting(selector)

    dice = torch.Generator().manual_seed(0)
    first, recorded = layer()
    second, _ = layer()  # shares the tables of the first
    for rows, voting in ((4, 3), (2, 2), (3, 3)):  # padded, and not
        control.set_step(voting)
        control.push()
        first.routed(torch.randn(rows, 16, generator=dice).bfloat16())
        keep = selections[2 if rows <= 2 else 4].keep.clone()
        assert keep.sum() < 16
        second.routed(torch.randn(rows, 16, generator=dice).bfloat16())
        assert recorded.as_vllm(keep) == (True, rows)
        assert recorded.as_vllm(~keep) == (False, rows)
    recorded.tables[4].weights[0] *= 2
    assert recorded.as_vllm(keep) == (False, 3)
    first.routed(torch.zeros(80, 16))  # more rows than are recorded, of another type
    assert int(recorded.rows) == 3


def test_logits_that_cannot_be_routed_are_masked_and_named_once(monkeypatch, caplog):
    monkeypatch.setattr(one_launch, "stand_in", lambda: StandIn(module()))
    reason = "logits [2, 16] of torch.float32 and strides [16, 1], not aligned torch.bfloat16"
    selector = SimpleNamespace(
        routed=lambda logits: None, masked=lambda logits: (logits + 1, None), cannot_route=reason, routes=torch.bfloat16
    )
    hook = Route(SimpleNamespace(name="layer 3", monolithic=True, router=RouterSpec.softmax(4)), selector)
    with caplog.at_level("WARNING", "vllm.xshare"):
        for _ in range(2):
            assert torch.equal(hook.compute(lambda logits: logits, torch.zeros(2, 16)), torch.ones(2, 16))
    assert [record.getMessage() for record in caplog.records] == [
        f"xshare: layer 3 is routed by vLLM itself for {reason}"
    ]
