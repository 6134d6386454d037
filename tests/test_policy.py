"""Policy: one string form, one JSON form, one sentence for every mistake."""

import json
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from xshare import Policy, PolicyError
from xshare.policy import LETTERS, PRESETS


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"warmup": 1, "batch_budget": 24}, "k0=1,m=24"),
        ({"batch_budget": 24}, "k0=0,m=24"),
        ({"warmup": 1}, "k0=1,m=0"),
        ({"warmup": 1, "request_budget": 4}, "k0=1,m=0,mr=4"),
        ({"warmup": 1, "device_budget": 5}, "k0=1,m=0,mg=5"),
        ({"warmup": 1, "device_budget": 0}, "k0=1,m=0,mg=0"),
        ({"warmup": 1, "device_budget": 5, "fill": "rounds"}, "k0=1,m=0,mg=5,fill=rounds"),
        ({"warmup": 1, "mass": 0.9}, "k0=1,tau=0.9"),
        ({"warmup": 1, "mass": 0.9, "request_budget": 2}, "k0=1,mr=2,tau=0.9"),
        ({"mass": 1.0}, "k0=0,tau=1"),
        ({"warmup": 2, "score": "full"}, "k0=2,m=0,score=full"),
        ({"coverage": 0.7}, "k0=0,rho=0.7"),
        ({"coverage": 1.0, "warmup": 1, "batch_budget": 4}, "k0=1,m=4,rho=1"),
        ({"price": 0.04, "power": 2}, "k0=0,lam=0.04,p=2"),
        ({"price": 0.04, "coverage": 0.5, "request_budget": 2}, "k0=0,mr=2,rho=0.5,lam=0.04"),
        ({"warmup": 1, "mass": 0.9, "coverage": 0.5}, "k0=1,tau=0.9,rho=0.5"),
        ({"warmup": 1, "device_budget": 4, "coverage": 0.5}, "k0=1,mg=4,rho=0.5"),
        ({"price": 0.04, "layer_weights": {2: 0.5, 0: 4.0}}, "k0=0,lam=0.04,w=0:4/2:0.5"),
        ({"method": "oea", "coverage": 0.6}, "oea:rho=0.6"),
        ({"method": "oea", "warmup": 2}, "oea:k0=2"),
        ({"method": "skip", "params": {"beta": 0.5}}, "skip:beta=0.5"),
        ({"method": "random", "warmup": 1, "batch_budget": 6, "params": {"seed": 3}}, "random:k0=1,m=6,seed=3"),
        ({"method": "logit-sum", "batch_budget": 24}, "logit-sum:m=24"),
        ({"method": "native"}, "native"),
    ],
)
def test_canonical_string_and_back(fields, text):
    policy = Policy(**fields)
    assert str(policy) == text
    assert Policy.parse(text) == policy
    assert Policy.of(policy.to_dict()) == policy
    assert Policy.of(text) == Policy.of(policy) == policy
    assert Policy.model_validate_json(policy.model_dump_json()) == policy
    assert len({policy, Policy.parse(text)}) == 1


@given(
    st.fixed_dictionaries(
        {"warmup": st.integers(1, 9), "request_budget": st.integers(0, 9), "score": st.sampled_from(["full", "topk"])},
        optional={"mass": st.floats(0, 1)},
    )
)
def test_string_loses_nothing(fields):
    policy = Policy(**fields)
    assert Policy.parse(str(policy)) == policy


def test_field_names_and_spaces_are_read_too():
    assert Policy.parse(" warmup=1 , batch_budget=24 ") == Policy.parse("k0=1,m=24") == Policy.parse("xshare:k0=1,m=24")


def test_equal_policies_spell_alike():
    a, b = Policy.parse("skip:kmin=2,t=0.2"), Policy.parse("skip:t=0.2,kmin=2")
    assert a == b
    assert str(a) == str(b)
    assert hash(a) == hash(b)


def test_presets_are_policies():
    for name, text in PRESETS.items():
        assert Policy.parse(name) == Policy.parse(text)
    assert Policy.parse("balanced") == Policy(coverage=0.7)
    assert Policy.parse("paper-batch") == Policy(warmup=1, batch_budget=24, score="topk")
    assert Policy.parse("paper-batch-full") == Policy(warmup=1, batch_budget=24, score="full")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("k0=0,m=0", "k0, m, mr, mg, tau, rho and lam"),
        ("k0=0,tau=0", "above zero"),
        ("m=-1", "batch_budget (m)"),
        ("k0=-1,m=3", "warmup (k0)"),
        ("k0=1.5", "warmup (k0)"),
        ("k0=one", "warmup (k0)"),
        ("k0=1,mg=-2", "device_budget (mg)"),
        ("k0=1,tau=1.1", "mass (tau)"),
        ("k0=1,tau=nan", "mass (tau)"),
        ("k0=1,m=2,tau=0.5", "mass (tau) and batch_budget (m)"),
        ("k0=1,m=2,mg=3", "device_budget (mg) and batch_budget (m)"),
        ("k0=1,tau=0.5,mg=3", "device_budget (mg) and mass (tau)"),
        ("k0=1,rho=0", "coverage (rho)"),
        ("k0=1,rho=1.1", "coverage (rho)"),
        ("k0=1,rho=nan", "coverage (rho)"),
        ("k0=1,lam=0", "price (lam)"),
        ("k0=1,lam=inf", "price (lam)"),
        ("k0=1,m=2,lam=0.5", "price (lam) and batch_budget (m)"),
        ("k0=1,tau=0.5,lam=0.5", "price (lam) and mass (tau)"),
        ("k0=1,mg=2,lam=0.5", "price (lam) and device_budget (mg)"),
        ("k0=1,lam=0.5,ml=0:3", "price (lam) and layer_budgets (ml)"),
        ("k0=1,p=0", "power (p)"),
        ("k0=1,p=5", "power (p)"),
        ("k0=1,p=1.5", "power (p)"),
        ("k0=1,p=2,score=full", "power (p) above 1"),
        ("k0=1,w=0:4", "layer_weights (w) weigh a coverage (rho) or a price (lam)"),
        ("k0=1,lam=0.1,w=0:0", "layer_weights (w)"),
        ("rho=0.5,w=3:0.5", "layer 3 of k0=0,rho=0.5,w=3:0.5: policy selects nothing"),
        ("k0=1,fill=up", "fill"),
        ("k0=1,score=some", "score"),
        ("k1=1", "unknown letter 'k1'"),
        ("k0=1,k0=2", "twice"),
        ("k0=", "'k0='"),
        ("k0=1_0", "warmup (k0)"),
        ("k0", "'k0'"),
        ("", "''"),
        ("oae:k0=1", "'oae:k0=1'"),
        ("oea", "warmup (k0)"),
        ("oea:k0=1,m=3", "batch_budget (m)"),
        ("oea:beta=1", "unknown letter 'beta'"),
        ("topk", "knob k"),
        ("topk:k=0", "topk knob k"),
        ("topk:k=two", "topk"),
        ("lynx", "knob drop"),
        ("skip", "skip:beta=0.5"),
        ("skip:beta=0.5,t=0.2", "skip:beta=0.5"),
        ("skip:beta=2", "skip knob beta"),
        ("logit-sum:k0=1", "batch_budget (m)"),
        ("random:seed=1", "k0, m, mr, mg, tau, rho and lam"),
        ("native:k0=1", "warmup (k0)"),
    ],
)
def test_mistakes_are_named_in_one_sentence(text, names):
    with pytest.raises(PolicyError) as caught:
        Policy.parse(text)
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"warmup": True}, "warmup (k0)"),
        ({"budget": 3}, "'budget'"),
        ({"method": "lnyx"}, "'lnyx'"),
        ({"params": {"a": 1}, "warmup": 1}, "'a'"),
        ({"params": 3}, "params"),
    ],
)
def test_mistakes_in_fields(fields, names):
    with pytest.raises(PolicyError) as caught:
        Policy(**fields)
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)


BEYOND = [2**31, 2**64, 10**30, 10**5000]  # the last is one that Python does not even spell


@pytest.mark.parametrize("number", BEYOND, ids=["2**31", "2**64", "10**30", "10**5000"])
@pytest.mark.parametrize(
    "fields",
    [
        lambda number: {"warmup": number},
        lambda number: {"batch_budget": number},
        lambda number: {"request_budget": number},
        lambda number: {"device_budget": number},
        lambda number: {"price": number},
        lambda number: {"warmup": 1, "layer_budgets": {0: number}},
        lambda number: {"warmup": 1, "layer_budgets": {number: 1}},
        lambda number: {"coverage": 0.5, "layer_weights": {0: number}},
        lambda number: {"coverage": 0.5, "layer_weights": {number: 1.0}},
        lambda number: {"method": "random", "warmup": 1, "params": {"seed": number}},
        lambda number: {"method": "lynx", "params": {"drop": number}},
        lambda number: {"method": "topk", "params": {"k": number}},
    ],
)
def test_a_number_beyond_the_bound_is_one_sentence(fields, number):
    Policy(**fields(3))
    with pytest.raises(PolicyError) as caught:
        Policy(**fields(number))
    assert re.search(
        "(must be (less than or equal to|at most) 2147483647|must be a valid number), not", str(caught.value)
    )
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("text", ["k0=1,m={}", "k0=1,ml=0:{}", "rho=0.5,w=0:{}", "k0=1,ml={}:2", "lam={}"])
@pytest.mark.parametrize("number", ["2147483648", "9" * 40, "9" * 5000], ids=["2**31", "40 digits", "5000 digits"])
def test_a_number_beyond_the_bound_in_a_string(text, number):
    with pytest.raises(PolicyError) as caught:
        Policy.parse(text.format(number))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert Policy.parse(text.format(2147483647))


def test_only_strings_can_be_parsed():
    with pytest.raises(PolicyError, match="string"):
        Policy.parse(None)


@pytest.mark.parametrize("value", [3, None, ["k0=1"], {1: 2}])
def test_what_cannot_be_a_policy(value):
    with pytest.raises(PolicyError, match="string or a mapping"):
        Policy.of(value)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("k0=1,ml=3:8/0:24", "k0=1,m=0,ml=0:24/3:8"),
        ("k0=1,m=4,mr=2,ml=10:1/2:3,score=full", "k0=1,m=4,mr=2,ml=2:3/10:1,score=full"),
        ("random:k0=1,ml=0:8", "random:k0=1,ml=0:8"),
    ],
)
def test_budgets_by_layer_in_every_form(text, canonical):
    policy = Policy.parse(text)
    assert str(policy) == canonical
    fields = policy.to_dict()
    for form in (canonical, fields, json.loads(json.dumps(fields)), yaml.safe_load(yaml.safe_dump(fields))):
        assert Policy.of(form) == policy
        assert hash(Policy.of(form)) == hash(policy)


def test_each_layer_has_its_own_policy_and_no_other_layer_is_named():
    policy = Policy.parse("k0=1,m=4,ml=3:8")
    assert list(map(str, policy.by_layer([2, 3]))) == ["k0=1,m=4", "k0=1,m=8"]
    with pytest.raises(PolicyError, match=r"names layer 3, and the layers to act on are 0 to 2, 5"):
        policy.by_layer([0, 1, 2, 5])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("k0=1,ml=x", "layer_budgets (ml) must be layer:budget pairs as 0:24/3:8, not 'x'"),
        ("k0=1,ml=5", "layer_budgets (ml) must be layer:budget pairs as 0:24/3:8, or a mapping of them, not 5"),
        ("k0=1,ml=0:1/0:2", "layer_budgets (ml) must be one budget for each layer, not '0:1/0:2'"),
        ("k0=1,tau=0.5,ml=0:8", "mass (tau) and layer_budgets (ml) exclude each other"),
        ("k0=0,ml=0:8/1:0", "layer 1 of k0=0,m=0,ml=0:8/1:0: policy selects nothing"),
        ("oea:k0=1,ml=0:8", "layer_budgets (ml) is no knob of method 'oea'"),
    ],
)
def test_budgets_by_layer_that_cannot_be(text, sentence):
    with pytest.raises(PolicyError, match=re.escape(sentence)):
        Policy.parse(text)


def test_a_layers_weight_divides_its_price_and_what_its_coverage_may_lose():
    policy = Policy.parse("rho=0.6,lam=0.04,p=2,w=0:4/5:0.5")
    assert policy.for_layer(1) == Policy.parse("rho=0.6,lam=0.04,p=2")
    assert (policy.for_layer(0).price, policy.for_layer(0).coverage) == (0.01, pytest.approx(0.9))
    assert (policy.for_layer(5).price, policy.for_layer(5).coverage) == (0.08, pytest.approx(0.2))
    assert Policy.parse("k0=1,rho=0.4,w=0:0.5").for_layer(0) == Policy(warmup=1)  # nothing is guaranteed there
    with pytest.raises(PolicyError, match=r"layer_weights \(w\) names layer 5, and the layers to act on are 0 to 3"):
        policy.by_layer(range(4))


def test_help_explains_every_field():
    lines = [line.split() for line in Policy.__doc__.splitlines() if line.startswith("      ")]
    explained = {word.rstrip(",") for line in lines for word in line[:2]}
    assert set(Policy.model_fields) <= explained
    assert {f"({letter})" for letter, name in LETTERS.items() if letter != name} <= explained
