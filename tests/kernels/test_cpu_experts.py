"""Experts of a decode step by compiled code: what Transformers' own make of the same rows."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch

from xshare.engines.transformers import experts

pytestmark = pytest.mark.skipif(find_spec("numba") is None, reason="Numba is not installed")


def model_of(hidden=24, width=10, **more):
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=32, hidden_size=hidden, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        head_dim=8, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=width, experts_implementation="eager",
        **more,
    )  # fmt: skip
    return Qwen3MoeForCausalLM(config).eval()


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 12, experts.FEW, experts.FEW + 1])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_rows_come_out_as_from_transformers(rows, threads, monkeypatch):
    odd = rows % 2 and rows <= experts.FEW  # a row of weights without a partner, which libraries do not take
    model = model_of(hidden=25 if odd else 24, width=12)
    block = model.model.layers[0].mlp.experts
    x = torch.randn(rows, block.gate_up_proj.shape[2])
    ids = torch.stack([torch.randperm(8)[:3] for _ in range(rows)])
    weights = torch.rand(rows, 3)
    # Not torch's own: a process that ever had more than one cannot be forked any more, as other tests do.
    monkeypatch.setattr(experts.torch, "get_num_threads", lambda: threads)
    with torch.inference_mode():
        theirs = block(x, ids, weights)
        assert experts.use(model)
        ours = block(x, ids, weights)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert torch.equal(x, x.clone())  # what is given stays


def test_a_model_decodes_the_same():
    model, tokens = model_of(), torch.arange(8).view(4, 2)
    theirs = model.generate(tokens, max_new_tokens=6, do_sample=False)
    assert experts.use(model)
    assert torch.equal(model.generate(tokens, max_new_tokens=6, do_sample=False), theirs)


def test_what_they_cannot_serve_stays_as_it_is(monkeypatch):
    for other in (model_of(hidden_act="gelu"), model_of().bfloat16(), torch.nn.Linear(2, 2)):
        assert not experts.use(other)
    model = model_of()
    monkeypatch.setattr(experts, "installed", lambda: False)
    assert not experts.use(model)
    assert model.config._experts_implementation == "eager"


def test_threads_have_about_as_much_to_do():
    loaded, rows = np.arange(10), np.array([1, 1, 1, 9, 1, 1, 1, 1, 1, 5])
    for threads in (1, 2, 3):
        parts = experts.split_work(loaded, rows, threads)
        assert sorted(expert for part in parts for expert in part.tolist()) == loaded.tolist()
        work = [sum(experts.work_of(int(rows[expert])) for expert in part) for part in parts]
        assert max(work) - min(work) <= experts.work_of(1)


def test_an_expert_named_twice_gets_both_weights():
    """Where a group rule leaves a token too few experts, its best one fills the slots that are left, with weight 0."""
    model = model_of()
    block = model.model.layers[0].mlp.experts
    x = torch.randn(5, block.gate_up_proj.shape[2])
    once, once_weights = torch.tensor([[2, 5, 7]] * 5), torch.tensor([[0.5, 0.3, 0.0]] * 5)
    twice, twice_weights = torch.tensor([[2, 5, 2]] * 5), torch.tensor([[0.5, 0.3, 0.0]] * 5)
    assert experts.use(model)
    with torch.inference_mode():
        torch.testing.assert_close(block(x, twice, twice_weights), block(x, once, once_weights), rtol=1e-5, atol=1e-6)
        shared = block(x, twice, torch.tensor([[0.2, 0.3, 0.3]] * 5))
        torch.testing.assert_close(shared, block(x, once, once_weights), rtol=1e-5, atol=1e-6)
