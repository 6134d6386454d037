"""A batch_budget for each layer."""

import pytest
import torch

import xshare
from xshare.errors import PolicyError


def test_each_layer_keeps_to_its_own(tiny):
    model = tiny("qwen3")
    tokens = torch.randint(1, 60, (6, 5), generator=torch.Generator().manual_seed(0))
    attached = xshare.apply(model, "k0=0,m=4,ml=1:6", bypass=False)
    model.generate(tokens, max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert attached.stats()["experts_selected"] == [4, 6]
    xshare.remove(model)


@pytest.mark.parametrize("policy", ["k0=1,ml=2:1", "k0=1,ml=0:-1", "k0=1,tau=0.9,ml=0:1/1:2", "oea:k0=2,ml=0:1/1:2"])
def test_what_cannot_be_is_refused(tiny, policy):
    with pytest.raises(PolicyError, match="layer_budgets"):
        xshare.apply(tiny("qwen3"), policy)


def test_a_layer_that_would_choose_nothing_is_named(tiny):
    with pytest.raises(PolicyError, match="layer 1 of k0=0,m=0,ml=0:4: policy selects nothing"):
        xshare.apply(tiny("qwen3"), "k0=0,ml=0:4")
