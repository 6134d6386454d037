"""RouterSpec: presets, checks, and the three things a router gives."""

import pytest
import torch

import xshare
from xshare import RouterError, RouterSpec


@pytest.mark.parametrize(
    ("name", "N", "k", "scoring", "renormalize"),
    [
        ("gpt-oss-20b", 32, 4, "softmax", True),
        ("openai/gpt-oss-120b", 128, 4, "softmax", True),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", 128, 8, "softmax", True),
        ("Qwen3-235B-A22B", 128, 8, "softmax", True),
        ("allenai/OLMoE-1B-7B-0924", 64, 8, "softmax", False),
        ("mistralai/Mixtral-8x7B-v0.1", 8, 2, "softmax", True),
        ("deepseek-r1", 256, 8, "sigmoid", True),
        ("deepseek-ai/DeepSeek-V3-0324", 256, 8, "sigmoid", True),
    ],
)
def test_published_models_have_their_routers(name, N, k, scoring, renormalize):
    router = RouterSpec.for_model(name)
    assert (router.num_experts, router.top_k, router.scoring, router.renormalize) == (N, k, scoring, renormalize)
    if scoring == "sigmoid":
        assert (router.n_group, router.topk_group, router.routed_scaling_factor) == (8, 4, 2.5)
        assert router.with_bias(torch.zeros(256)).correction_bias is not None


@pytest.mark.parametrize("name", ["llama-3", "DeepSeek-R1-Distill-Qwen-7B", ""])
def test_unknown_models_are_refused(name):
    with pytest.raises(RouterError, match="gpt-oss-20b"):
        RouterSpec.for_model(name)


@pytest.mark.parametrize(
    ("make", "N", "names"),
    [
        (lambda: RouterSpec(0), 8, "top_k"),
        (lambda: RouterSpec.softmax(9), 8, "top_k"),
        (lambda: RouterSpec(2, scoring="tanh"), 8, "scoring"),
        (lambda: RouterSpec(2, correction_bias=torch.zeros(8)), 8, "correction_bias"),
        (lambda: RouterSpec.sigmoid(2, n_group=3), 8, "n_group"),
        (lambda: RouterSpec.sigmoid(2, n_group=2, topk_group=3), 8, "topk_group"),
        (lambda: RouterSpec.sigmoid(5, n_group=2, topk_group=1), 8, "top_k"),
        (lambda: RouterSpec.sigmoid(2, correction_bias=torch.zeros(7)), 8, "correction_bias"),
        (lambda: RouterSpec.for_model("gpt-oss-20b"), 8, "expected 32"),
        (lambda: RouterSpec.softmax(True), 8, "top_k"),
        (lambda: RouterSpec.softmax(2, renormalize="no"), 8, "renormalize"),
        (lambda: RouterSpec.sigmoid(2, routed_scaling_factor=float("nan")), 8, "routed_scaling_factor"),
        (lambda: RouterSpec.sigmoid(2, correction_bias=[0.0] * 8), 8, "correction_bias"),
    ],
)
def test_what_does_not_fit_is_named(make, N, names):
    with pytest.raises(RouterError, match=names):
        make().check(N)


@pytest.mark.parametrize("shape", [(1, 33), (3, 11), (7, 60), (5, 100)])
def test_equal_logits_tie_wherever_they_stand(shape):
    """torch's own sigmoid gives equal inputs unequal results in the tail of a vectorised loop; ours must not."""
    for value in (0.0986328125, 0.470703125, -3.0, 1.7, -0.3):
        logits = torch.full(shape, value, dtype=torch.float64)
        for router in (RouterSpec.sigmoid(1), RouterSpec.softmax(1)):
            assert router.score(logits).unique().numel() == 1


def test_a_broken_bias_never_makes_nan():
    logits = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    for value in (torch.nan, -torch.inf):
        router = RouterSpec.sigmoid(2, correction_bias=torch.full((8,), value))
        assert not xshare.route(logits, router, xshare.Policy(warmup=1)).weights.isnan().any()


def test_a_group_of_broken_biases_is_still_before_one_that_is_not_in_the_set():
    bias = torch.tensor([0.0, 0.0, -torch.inf, -torch.inf])
    router = RouterSpec.sigmoid(1, correction_bias=bias, n_group=2, topk_group=1)
    scores = torch.tensor([[-9.0, -9.0, 5.0, 5.0]])
    routing = xshare.route(scores, router, xshare.Policy(warmup=0, batch_budget=2, score="full"))
    assert routing.selected.tolist() == [False, False, True, True]
    assert routing.ids.tolist() == [[2]]
    assert routing.weights.tolist() == [[1.0]]


def test_score_choice_and_weight_are_three_things():
    logits = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)
    bias = torch.tensor([-1.0, 0.0, 1.0])
    router = RouterSpec.sigmoid(2, correction_bias=bias)
    score = router.score(logits)
    torch.testing.assert_close(score, logits.sigmoid())
    torch.testing.assert_close(router.choice(logits, score), logits.sigmoid() + bias)
    ids = torch.tensor([[2, 1]])
    weight = router.weight(logits, score, ids, torch.ones_like(ids, dtype=torch.bool))
    torch.testing.assert_close(weight, score[:, [2, 1]] / score[:, [2, 1]].sum())
