"""Routing as the dummy weights alone shape it, and the seeds they are made from."""

import pytest
import torch
from expert_counts import TOP_K, distinct, shared
from torch import nn

from xshare.engines.vllm.dummy_weights import BLOCK, MARGIN, Filler, Role, Weights

D, VOCAB, N = 512, 16 * BLOCK, 128


def normed(x):
    return x / x.pow(2).mean(-1, keepdim=True).sqrt()


def chosen(weights, tokens, layers=8):
    """Top experts [layers, tokens, k] of a model whose layers add nothing to the embedding."""
    embedding, router = torch.empty(VOCAB, D), torch.empty(N, D)
    weights.fill_embedding(embedding, "embed.weight", VOCAB)
    ids = []
    for layer in range(layers):
        weights.fill_router(router, f"layers.{layer}.router.weight")
        ids.append((normed(embedding[tokens]) @ router.T).topk(TOP_K).indices)
    return torch.stack(ids)


def spread(count):
    """Tokens of `count` different blocks."""
    return torch.arange(count) * (BLOCK + 7)


def test_without_skew_and_correlation_experts_are_drawn_independently():
    ids = chosen(Weights(skew=0, correlation=0), spread(16), layers=32)
    expected = N * (1 - (1 - TOP_K / N) ** 16)  # 51.0
    assert distinct(ids) == pytest.approx(expected, rel=0.04)
    assert shared(ids[:, 1:], ids[:, :-1]) == pytest.approx(TOP_K**2 / N, abs=0.08)


def test_skew_concentrates_a_batch_on_fewer_experts():
    counts = [distinct(chosen(Weights(skew=skew), spread(16), layers=32)) for skew in (0, 0.5, 1, 2)]
    assert counts == sorted(counts, reverse=True)
    assert counts == pytest.approx([51, 42, 29, 17], abs=3)  # as logits of independent normals have it


@pytest.mark.parametrize("correlation", [0, 0.25, 0.5, 0.75, 1])
def test_correlation_makes_a_block_share_experts_and_leaves_blocks_apart(correlation):
    weights = Weights(skew=0, correlation=correlation)
    first = spread(16)
    second = first // BLOCK * BLOCK + (first + 1) % BLOCK  # the same blocks, other tokens
    ids = chosen(weights, torch.cat([first, second]), layers=16)
    within = shared(ids[:, :16], ids[:, 16:])
    across = shared(ids[:, :16], ids[:, 16:].roll(1, dims=1))
    expected = {0: 0.13, 0.25: 0.38, 0.5: 0.78, 0.75: 1.5, 1: 4.0}[correlation]
    assert within == pytest.approx(expected, abs=0.15)
    assert across == pytest.approx(TOP_K**2 / N, abs=0.1)  # chance


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_router_scale_is_the_deviation_of_a_logit_and_moves_no_choice(scale):
    weights, plain = Weights(skew=1, router_scale=scale), Weights(skew=1)
    embedding, router = torch.empty(VOCAB, D), torch.empty(N, D)
    weights.fill_embedding(embedding, "e", VOCAB)
    weights.fill_router(router, "r")
    logits = normed(embedding[::7]) @ router.T
    assert logits.std(0).mean().item() == pytest.approx(scale, rel=0.05)
    assert logits.mean(0).std().item() == pytest.approx(scale, rel=0.25)  # skew 1: popularity varies as much
    assert torch.equal(chosen(weights, spread(16)), chosen(plain, spread(16)))


def test_the_head_keeps_sampled_tokens_in_the_block():
    weights = Weights(skew=0.5, correlation=0.5)
    embedding, head = torch.empty(VOCAB, D), torch.empty(VOCAB, D)
    weights.fill_embedding(embedding, "e", VOCAB)
    weights.fill_head(head, "h", VOCAB)
    tokens = spread(16)
    probability = (normed(embedding[tokens]) @ head.T).softmax(-1).view(16, -1, BLOCK)
    inside = probability.sum(-1).gather(1, (tokens // BLOCK)[:, None])
    assert inside.min() > 0.999
    own = probability[torch.arange(16), tokens // BLOCK]
    assert own.max() < 0.2  # and spread over it: a decoding request visits many tokens


def filled(seed=0, name="layers.0.router.weight"):
    weight = torch.empty(N, D)
    Weights(seed=seed).fill_router(weight, name)
    return weight


def test_a_name_and_a_seed_make_a_weight():
    assert torch.equal(filled(), filled())
    assert not torch.equal(filled(), filled(seed=1))
    assert not torch.equal(filled(), filled(name="layers.1.router.weight"))


def test_ranks_share_what_is_replicated_and_differ_in_what_is_sharded():
    filler = Filler(Weights(), layers=36, vocab=VOCAB)

    def of(role):
        module = nn.Linear(D, 64, bias=False)
        filler.fill("layers.0.x", module, role)
        return module.weight

    assert torch.equal(of(Role("router")), of(Role("router")))
    assert not torch.equal(of(Role("other", "tp0")), of(Role("other", "tp1")))


@pytest.mark.parametrize("fill", [Weights.fill_embedding, Weights.fill_head])
def test_a_shard_of_the_vocabulary_has_the_blocks_of_the_whole(fill):
    weights, first = Weights(correlation=1.0, skew=1), 5 * BLOCK + 100  # shards do not begin where blocks do
    whole, shard = torch.empty(VOCAB, D), torch.empty(BLOCK, D)
    fill(weights, whole, "w", VOCAB)
    fill(weights, shard, "w", VOCAB, first)
    part = whole[first : first + BLOCK]
    if fill is Weights.fill_embedding:  # correlation 1: nothing of its own
        torch.testing.assert_close(shard, part)
    else:  # the block's part is MARGIN / sqrt(block d) long, the own part 1
        alike = torch.cosine_similarity(shard, part).mean()
        block = MARGIN**2 / (weights.block * D)
        assert alike.item() == pytest.approx(block / (1 + block), abs=0.05)
