"""The settings of an engine that is to serve several policies: its kernels have the code for all of them."""

from itertools import combinations

import pytest

from xshare import Policy
from xshare.engines.serving.compiled import Compiled, start_fields
from xshare.engines.vllm.settings import settings_of
from xshare.kernels.limits import THRESHOLDS, thresholds_of
from xshare.policy import RECOMMENDED

POLICIES = [
    Policy.parse(text)
    for text in ("k0=1,m=24", "k0=2,m=0", "rho=0.7", "lam=0.04,p=2", "k0=1,tau=0.9", "k0=1,mr=4", "k0=1,mg=4")
]


def compiled_for(policies, drafts=3):
    settings = settings_of({"xshare": start_fields(policies)})
    return settings, Compiled.of(settings, settings.policy, [0, 1], top_k=4, drafts=drafts, every_size=True)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_kernels_have_the_code_for_every_policy(count):
    for policies in combinations(POLICIES, count):
        settings, compiled = compiled_for(policies)
        assert compiled.thresholds >= thresholds_of(policies)
        assert compiled.rows_per_request or not any(policy.request_budget for policy in policies)
        if any(policy.device_budget is not None for policy in policies):
            assert settings.policy.device_budget is not None
        if settings.live != "any":
            assert compiled.thresholds == thresholds_of(policies)


def test_only_the_code_that_they_need():
    settings, compiled = compiled_for([Policy.parse(name) for name in RECOMMENDED])
    assert settings.live == "budgets"
    assert (compiled.thresholds, compiled.rows_per_request) == ({"coverage"}, 0)
    assert compiled_for(POLICIES[:2])[1].thresholds == frozenset()
    assert compiled_for(POLICIES[:4])[1].thresholds == {"coverage", "price"}


def test_policies_that_no_single_one_can_stand_for():
    settings, compiled = compiled_for([Policy.parse("lam=0.04,p=2"), Policy.parse("k0=1,tau=0.9")])
    assert (settings.live, compiled.thresholds) == ("any", THRESHOLDS)


@pytest.mark.parametrize("drafts", [0, 3])
def test_without_policies_any_can_be_set(drafts):
    settings, compiled = compiled_for([], drafts)
    assert (settings.live, compiled.thresholds) == ("any", THRESHOLDS)
    assert compiled.rows_per_request == (4 if drafts else 0)
