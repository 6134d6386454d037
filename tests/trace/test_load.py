import json

import numpy as np
import pytest
import torch
from synthetic_traces import full_trace
from typer.testing import CliRunner

from xshare import BatchLayout, RouterSpec
from xshare.batch import Placement
from xshare.cli import app
from xshare.routing import prepare_step
from xshare.trace import Header, Trace
from xshare.trace.expert_load import load_rows, shares
from xshare.trace.file import RouterFields


def trace_of(experts):
    """experts: [tokens, layers, k]"""
    experts = torch.tensor(experts)
    header = Header(
        model="toy", num_experts=4, top_k=experts.shape[-1], score="topk", router=RouterFields(),
        layers=list(range(experts.shape[1])), domains=["a"], provenance={},
    )  # fmt: skip
    weights = torch.full(experts.shape, 1 / experts.shape[-1])
    return Trace(header, torch.tensor([len(experts)]), experts=experts.to(torch.uint8), weights=weights)


def test_shares_entropy_dead_and_heaviest():
    even, lopsided = [[0, 1], [2, 3]], [[0, 1], [0, 1]]
    trace = trace_of([[even[0], lopsided[0]], [even[1], lopsided[1]]])  # two tokens, two layers
    assert np.allclose(shares(trace), [[0.25] * 4, [0.5, 0.5, 0, 0]])
    first, second = load_rows(trace)
    assert first == {"layer": 0, "entropy": pytest.approx(1), "dead": 0, "heaviest": 1, "load": [1.0] * 4}
    assert second["entropy"] == pytest.approx(0.5)
    assert second["dead"] == 0.5
    assert second["heaviest"] == 2


def test_slots_are_routed_by_the_group_rule():
    trace = full_trace(router=RouterSpec.sigmoid(3, n_group=4, topk_group=2))
    logits = trace.logits.double().transpose(0, 1)  # [layers, tokens, N]
    layout = BatchLayout.one_per_row(trace.tokens)
    native = prepare_step(logits, trace.router(), layout, Placement(torch.zeros(12, dtype=torch.int64), 1)).native
    want = torch.stack([torch.bincount(layer.flatten(), minlength=12) for layer in native.ids]) / (3 * trace.tokens)
    assert np.allclose(shares(trace), want)


def test_the_command_prints_writes_and_draws(tmp_path):
    trace_of([[[0, 1]], [[2, 1]]]).save(tmp_path / "toy.trace")
    out, plot = tmp_path / "load.json", tmp_path / "load.svg"
    result = CliRunner().invoke(
        app, ["trace", "load", str(tmp_path / "toy.trace"), "--json", str(out), "--plot", str(plot)]
    )
    assert result.exit_code == 0, result.output
    assert "25.0%" in result.output  # expert 3 is dead
    assert json.loads(out.read_text())["rows"][0]["layer"] == 0
    assert plot.read_text().startswith("<?xml")
