import json
import math
from types import SimpleNamespace

import pytest
import torch
from models import dtype_of
from torch import nn

from xshare.engines.vllm.drafter import FixedDrafter
from xshare.engines.vllm.dummy import BLOCK, FP4_RMS, LOAD_FORMAT, MARGIN, Filler, Role, Weights

D, VOCAB, N, TOP_K = 512, 16 * BLOCK, 128, 4


def normed(x):
    return x / x.pow(2).mean(-1, keepdim=True).sqrt()


def chosen(weights, tokens, layers=8):
    """Top experts [layers, tokens, k] of a model whose layers add nothing to the embedding."""
    embedding, router = torch.empty(VOCAB, D), torch.empty(N, D)
    weights.fill_embedding(embedding, "embed.weight", VOCAB)
    found = []
    for layer in range(layers):
        weights.fill_router(router, f"layers.{layer}.router.weight")
        found.append((normed(embedding[tokens]) @ router.T).topk(TOP_K).indices)
    return torch.stack(found)


def distinct(ids):
    return torch.tensor([len(layer.unique()) for layer in ids]).float().mean().item()


def shared(a, b):
    """Experts that two tokens have in common, on average over [layers, tokens, k]."""
    return (a.unsqueeze(-1) == b.unsqueeze(-2)).sum((-1, -2)).float().mean().item()


def spread(count):
    """Tokens of `count` different blocks."""
    return torch.arange(count) * (BLOCK + 7)


# Routing, as the weights alone shape it


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


# Seeds


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


# Everything else a model holds


class Layer(nn.Module):
    """Parameters as vLLM creates them, with nothing in them yet."""

    def __init__(self, **parameters):
        super().__init__()
        for name, (shape, dtype) in parameters.items():
            tensor = torch.full(shape, 1, dtype=torch.uint8).to(dtype) if dtype != torch.float32 else torch.empty(shape)
            self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def mxfp4(weight, scale):
    values = torch.stack([E2M1[(weight & 15).long()], E2M1[(weight >> 4).long()]], -1).flatten(-2)
    return values * torch.exp2(scale.float() - 127).repeat_interleave(32, -1)


def test_mxfp4_experts_are_as_large_as_plain_ones():
    layer = Layer(
        w13_weight=((4, 128, 1440), torch.uint8),
        w13_weight_scale=((4, 128, 90), torch.uint8),
        w13_bias=((4, 128), torch.float32),
        w2_weight=((4, 128, 1440), torch.uint8),
        w2_weight_scale=((4, 128, 90), torch.uint8),
    )
    Filler(Weights(), layers=36, vocab=VOCAB).fill("experts", layer, Role("experts"))
    assert layer.w13_weight_scale.unique().tolist() == [120]
    assert len(layer.w13_weight.unique()) == 256
    assert not torch.equal(layer.w13_weight, layer.w2_weight)
    assert not torch.equal(layer.w13_weight[0], layer.w13_weight[1])
    assert layer.w13_bias.eq(0).all()
    std = mxfp4(layer.w13_weight, layer.w13_weight_scale).std().item()
    assert 2**-0.5 < std * math.sqrt(2880) < 2**0.5  # a power of two away at most by half an octave
    assert mxfp4(layer.w2_weight, layer.w2_weight_scale).std() < std / 16


def test_fp8_weights_and_their_scales_are_finite_and_as_large_as_plain_ones():
    layer = Layer(
        weight=((256, 512), torch.float8_e4m3fn),
        weight_scale_inv=((2, 4), torch.float32),
        input_scale=((1,), torch.float32),
    )
    Filler(Weights(), layers=36, vocab=VOCAB).fill("qkv_proj", layer, Role())
    weight = layer.weight.float()
    assert weight.isfinite().all()
    assert (weight * layer.weight_scale_inv[0, 0]).std().item() == pytest.approx(512**-0.5, rel=0.05)
    assert layer.input_scale.item() == 1


@pytest.mark.parametrize(("name", "dtype"), [("qweight", torch.int32), ("weight_scale", torch.float8_e4m3fn)])
def test_a_storage_it_does_not_know_is_refused_by_name(name, dtype):
    with pytest.raises(ValueError, match=rf"xshare_dummy cannot fill layers.0.mlp.{name}: .*{dtype}"):
        Filler(Weights(), 1, VOCAB).fill("layers.0.mlp", Layer(**{name: ((8, 8), dtype)}), Role())


def test_the_rms_of_random_fp4():
    assert E2M1.pow(2).mean().sqrt().item() == pytest.approx(FP4_RMS)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"skw": 1}, "'skw' is no key of xshare_dummy: it takes seed, skew, correlation, router_scale"),
        ({"seed": 1.5}, "seed of xshare_dummy must be a whole number from 0 to .*, not 1.5"),
        ({"seed": True}, "seed of xshare_dummy must be a whole number"),
        ({"skew": -1}, "skew of xshare_dummy must be a number from 0 to 10, not -1"),
        ({"skew": "much"}, "skew of xshare_dummy must be a number from 0 to 10, not 'much'"),
        ({"correlation": 1.1}, "correlation of xshare_dummy must be a number from 0 to 1, not 1.1"),
        ({"router_scale": 0}, "router_scale of xshare_dummy must be a number"),
        ({"router_scale": float("nan")}, "router_scale of xshare_dummy must be a number"),
        (["skew"], "model_loader_extra_config of xshare_dummy must be a mapping"),
    ],
)
def test_a_wrong_configuration_is_one_sentence(config, sentence):
    with pytest.raises(ValueError, match=sentence):
        Weights.of(config)


# The drafter


def drafter(length=3, vocab=1000, seed=0):
    return FixedDrafter(
        SimpleNamespace(
            speculative_config=SimpleNamespace(num_speculative_tokens=length),
            model_config=SimpleNamespace(get_vocab_size=lambda: vocab, seed=seed),
        )
    )


def test_drafts_are_fixed_in_number_repeat_and_stay_in_the_block():
    sampled = [[5], [1, 2, 700], [], [999]]
    drafts = drafter().propose(sampled, None, None, slot_mappings=None)
    assert [len(d) for d in drafts] == [3, 3, 0, 3]
    assert all(t // BLOCK == s[-1] // BLOCK and t < 1000 for s, d in zip(sampled, drafts, strict=True) for t in d)
    assert drafts == drafter().propose(sampled)
    assert drafts != drafter(seed=1).propose(sampled)
    assert len({tuple(d) for d in drafter().propose([[t] for t in range(50)])}) == 50


# The engine

LAYERS, DRAFTS, REQUESTS = 36, 3, 8
TINY = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "num_hidden_layers": LAYERS,
    "hidden_size": 128,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_local_experts": 32,
    "num_experts_per_tok": TOP_K,
    "experts_per_token": TOP_K,
    "vocab_size": 8 * BLOCK,
    "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2),
    "rope_theta": 150000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    "max_position_embeddings": 4096,
    "initial_context_length": 4096,
    "rms_norm_eps": 1e-5,
    "swiglu_limit": 7.0,
    "attention_bias": True,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": 2,
    "pad_token_id": 1,
    "torch_dtype": "float32",
}
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "2",
    "HF_HUB_OFFLINE": "1",
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """One decoding of eight requests, and what its routers saw: logits [rows, N] by step and layer."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        vllm = pytest.importorskip("vllm", reason="vLLM is not installed")
        from vllm.distributed import cleanup_dist_env_and_memory
        from vllm.model_executor.model_loader import get_model_loader

        from xshare.engines.vllm.dummy import register_dummy_loader

        register_dummy_loader()
        register_dummy_loader()
        seen = SimpleNamespace(weights={}, logits=[], stream=[])
        loader = type(get_model_loader(vllm.config.LoadConfig(load_format=LOAD_FORMAT)))
        load_weights = loader.load_weights

        def load(self, model, model_config):  # what is loaded, before kernels repack it
            load_weights(self, model, model_config)
            seen.weights = {n: t.clone() for n, t in [*model.named_parameters(), *model.named_buffers()]}

        patch.setattr(loader, "load_weights", load)
        with pytest.raises(ValueError, match="'skw' is no key"):
            get_model_loader(vllm.config.LoadConfig(load_format=LOAD_FORMAT, model_loader_extra_config={"skw": 1}))
        directory = tmp_path_factory.mktemp("gpt-oss")
        (directory / "config.json").write_text(json.dumps(TINY))
        # torch.empty then gives NaN, so that whatever is not filled shows.
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            llm = vllm.LLM(
                model=str(directory),
                load_format=LOAD_FORMAT,
                model_loader_extra_config={"seed": 3, "skew": 0.5, "correlation": 0.5},
                speculative_config={
                    "method": "custom_class",
                    "model": "xshare.engines.vllm.drafter.FixedDrafter",
                    "num_speculative_tokens": DRAFTS,
                },
                dtype=dtype_of("gpt_oss"),
                enforce_eager=True,
                skip_tokenizer_init=True,
                kv_cache_memory_bytes=256 << 20,
                max_model_len=256,
            )
        finally:
            torch.use_deterministic_algorithms(False)
        model = llm.apply_model(lambda model: model)[0]
        routers = [m for n, m in model.named_modules() if n.endswith("mlp.router")]
        assert len(routers) == LAYERS
        for router in routers:
            router.register_forward_hook(lambda _, args, out: seen.logits.append(out.detach().float()))
        model.model.norm.register_forward_hook(lambda _, args, out: seen.stream.append((args, out)))
        generator = torch.Generator().manual_seed(0)
        seen.prompts = [torch.randint(0, 8 * BLOCK, (12,), generator=generator).tolist() for _ in range(REQUESTS)]
        for block, prompt in enumerate(seen.prompts):
            prompt[-1] = block * BLOCK + 17  # every request in a block of its own
        # Greedy: at temperature 1, vLLM 0.32 on a CPU replaces a rejected draft by a token the model gives no chance.
        sampling = vllm.SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
        outputs = llm.generate([{"prompt_token_ids": p} for p in seen.prompts], sampling, use_tqdm=False)
        seen.tokens = [list(o.outputs[0].token_ids) for o in outputs]
        yield seen
        llm.llm_engine.engine_core.shutdown()
        del llm
        cleanup_dist_env_and_memory()


@pytest.fixture
def decode(engine):
    """Logits [layers, requests, 1 + drafts, N] of the steps in which all requests decode."""
    steps = [torch.stack(engine.logits[i : i + LAYERS]) for i in range(0, len(engine.logits), LAYERS)]
    whole = [s for s in steps[1:] if s.shape[1] == REQUESTS * (1 + DRAFTS)]
    assert len(whole) > 5
    return torch.stack(whole).unflatten(2, (REQUESTS, 1 + DRAFTS))


@pytest.mark.engine
def test_nothing_is_left_unfilled(engine):
    assert len(engine.weights) > 10 * LAYERS
    for name, tensor in engine.weights.items():
        assert tensor.isfinite().all(), name
        if "norm" in name:
            assert tensor.eq(1).all(), name
        elif name.endswith("bias"):
            assert tensor.eq(0).all(), name


@pytest.mark.engine
def test_no_two_layers_are_equal(engine):
    for end in ("router.weight", "w13_weight", "w2_weight", "qkv_proj.weight", "o_proj.weight"):
        sums = {tensor.double().sum().item() for name, tensor in engine.weights.items() if name.endswith(end)}
        assert len(sums) == LAYERS, end


@pytest.mark.engine
def test_activations_stay_of_order_one_through_the_layers(engine):
    for (hidden, residual), _ in engine.stream[-5:]:  # the last step's, before the last norm
        rms = (hidden + residual).float().pow(2).mean(-1).sqrt()
        assert 0.7 < rms.min() <= rms.max() < 1.5


@pytest.mark.engine
def test_logits_have_the_deviation_asked_for(decode):
    assert decode.isfinite().all()
    assert decode.std(-1).mean().item() == pytest.approx(math.sqrt(1 + 0.5**2), rel=0.1)


@pytest.mark.engine
def test_what_is_decoded_stays_in_the_block(engine):
    for prompt, tokens in zip(engine.prompts, engine.tokens, strict=True):
        assert {t // BLOCK for t in tokens} == {prompt[-1] // BLOCK}


@pytest.mark.engine
def test_a_requests_rows_share_more_experts_than_two_requests(decode):
    ids = decode.topk(TOP_K).indices  # [steps, layers, requests, 1 + drafts, k]
    within = shared(ids[..., 1:, :], ids[..., :-1, :])
    across = shared(ids, ids.roll(1, dims=2))
    assert within == pytest.approx(1.6, abs=0.25)
    assert across == pytest.approx(0.8, abs=0.25)
    one_row_each = ids[..., 0, :].flatten(0, 1)
    assert distinct(one_row_each) == pytest.approx(17.9, abs=2)  # of 32: independent draws would reach 21.0
