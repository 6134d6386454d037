"""One decoding in an engine with dummy weights and fixed drafts: nothing is unfilled, and rows route as asked."""

import importlib
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from expert_counts import TOP_K, distinct, shared
from tiny_vllm_models import dtype_of, prepared, serves_gpt_oss

from xshare.engines.vllm.dummy_weights import BLOCK, LOAD_FORMAT

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))
model_shapes = importlib.import_module("lib.model_shapes")

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not serves_gpt_oss(), reason="this vLLM cannot serve gpt-oss on this CPU"),
]

LAYERS, DRAFTS, REQUESTS = 36, 3, 8
TINY = model_shapes.gpt_oss_120b(LAYERS, tiny=True) | {
    "hidden_size": 128,
    "num_attention_heads": 4,
    "vocab_size": 8 * BLOCK,
    "sliding_window": 16,
    "max_position_embeddings": 4096,
    "eos_token_id": 2,
    "pad_token_id": 1,
    "torch_dtype": "float32",
}
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
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

        from xshare.engines.vllm.dummy_weights import register_dummy_loader

        prepared()
        register_dummy_loader()
        register_dummy_loader()
        record = SimpleNamespace(weights={}, logits=[], stream=[])
        loader = type(get_model_loader(vllm.config.LoadConfig(load_format=LOAD_FORMAT)))
        load_weights = loader.load_weights

        def load(self, model, model_config):  # what is loaded, before kernels repack it
            load_weights(self, model, model_config)
            record.weights = {n: t.clone() for n, t in [*model.named_parameters(), *model.named_buffers()]}

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
                kv_cache_memory_bytes=64 << 20,
                max_model_len=256,
            )
        finally:
            torch.use_deterministic_algorithms(False)
        model = llm.apply_model(lambda model: model)[0]
        routers = [m for n, m in model.named_modules() if n.endswith("mlp.router")]
        assert len(routers) == LAYERS
        for router in routers:
            router.register_forward_hook(lambda _, args, out: record.logits.append(out.detach().float()))
        model.model.norm.register_forward_hook(lambda _, args, out: record.stream.append((args, out)))
        generator = torch.Generator().manual_seed(0)
        record.prompts = [torch.randint(0, 8 * BLOCK, (12,), generator=generator).tolist() for _ in range(REQUESTS)]
        for block, prompt in enumerate(record.prompts):
            prompt[-1] = block * BLOCK + 17  # every request in a block of its own
        # Greedy: at temperature 1, vLLM 0.32 on a CPU replaces a rejected draft by a token the model gives no chance.
        sampling = vllm.SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
        outputs = llm.generate([{"prompt_token_ids": p} for p in record.prompts], sampling, use_tqdm=False)
        record.tokens = [list(o.outputs[0].token_ids) for o in outputs]
        yield record
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


def test_nothing_is_left_unfilled(engine):
    assert len(engine.weights) > 10 * LAYERS
    for name, tensor in engine.weights.items():
        assert tensor.isfinite().all(), name
        if "norm" in name:
            assert tensor.eq(1).all(), name
        elif name.endswith("bias"):
            assert tensor.eq(0).all(), name


def test_no_two_layers_are_equal(engine):
    for end in ("router.weight", "w13_weight", "w2_weight", "qkv_proj.weight", "o_proj.weight"):
        sums = {tensor.double().sum().item() for name, tensor in engine.weights.items() if name.endswith(end)}
        assert len(sums) == LAYERS, end


def test_activations_stay_of_order_one_through_the_layers(engine):
    for (hidden, residual), _ in engine.stream[-5:]:  # the last step's, before the last norm
        rms = (hidden + residual).float().pow(2).mean(-1).sqrt()
        assert 0.7 < rms.min() <= rms.max() < 1.5


def test_logits_have_the_deviation_asked_for(decode):
    assert decode.isfinite().all()
    assert decode.std(-1).mean().item() == pytest.approx(math.sqrt(1 + 0.5**2), rel=0.1)


def test_what_is_decoded_stays_in_the_block(engine):
    for prompt, tokens in zip(engine.prompts, engine.tokens, strict=True):
        assert {t // BLOCK for t in tokens} == {prompt[-1] // BLOCK}


def test_a_requests_rows_share_more_experts_than_two_requests(decode):
    ids = decode.topk(TOP_K).indices  # [steps, layers, requests, 1 + drafts, k]
    within = shared(ids[..., 1:, :], ids[..., :-1, :])
    across = shared(ids, ids.roll(1, dims=2))
    assert within == pytest.approx(1.6, abs=0.25)
    assert across == pytest.approx(0.8, abs=0.25)
    one_row_each = ids[..., 0, :].flatten(0, 1)
    assert distinct(one_row_each) == pytest.approx(17.9, abs=2)  # of 32: independent draws would reach 21.0
