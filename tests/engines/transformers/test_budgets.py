"""A batch_budget for each layer."""

import pytest
import torch

import xshare
from xshare.errors import PolicyError


def test_each_layer_keeps_to_its_own(tiny):
    model = tiny("qwen3")
    tokens = torch.randint(1, 60, (6, 5), generator=torch.Generator().manual_seed(0))
    attached = xshare.apply(model, "k0=0,m=1", budgets=[4, 6], bypass=False)
    model.generate(tokens, max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert attached.stats()["experts_selected"] == [4, 6]
    xshare.remove(model)


@pytest.mark.parametrize(
    ("policy", "budgets"), [("k0=1", [1]), ("k0=1", [1, -1]), ("k0=1,tau=0.9", [1, 2]), ("oea:k0=2", [1, 2])]
)
def test_what_cannot_be_is_refused(tiny, policy, budgets):
    with pytest.raises(PolicyError, match="budgets"):
        xshare.apply(tiny("qwen3"), policy, budgets=budgets)
