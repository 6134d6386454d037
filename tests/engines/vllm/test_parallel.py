"""Expert parallelism over two processes: both choose the same set from the same logits, level over the ranks."""

import pytest
import torch
from forked_workers import forked
from tiny_vllm_models import cleaned_up, generate, prompts

import xshare

pytestmark = pytest.mark.engine

PROMPTS = prompts(12)
LENGTHS = [6 + i for i in range(12)]
ROUTER = xshare.RouterSpec.softmax(top_k=4)
PLACEMENT = xshare.Placement.contiguous(32, 2)


@pytest.fixture(scope="module")
def llm(checkpoint, started):
    with forked():
        two_ranks = started(
            checkpoint("qwen3"),
            {"policy": "k0=1,mg=2", "gates": {"bypass": False}, "metrics": {"every": 1}},
            tensor_parallel_size=2,
            enable_expert_parallel=True,
            distributed_executor_backend="mp",
            worker_extension_cls="expert_parallel_worker.Watched",
        )
        two_ranks.collective_rpc("watch")
        yield two_ranks
        two_ranks.llm_engine.engine_core.shutdown()


def run(llm, policy):
    """Tokens, and what each rank decided."""
    llm.collective_rpc("xshare_set", args=(policy,))
    llm.reset_prefix_cache()
    llm.collective_rpc("decisions")
    tokens = generate(llm, PROMPTS, LENGTHS)
    return tokens, llm.collective_rpc("decisions")


def load(experts):
    return max(torch.bincount(PLACEMENT.devices[sorted(experts)], minlength=2).tolist())


@pytest.mark.parametrize("policy", ["k0=1,mg=2", "k0=1,mg=6", "k0=1,mg=8,fill=rounds", "k0=1,m=3"])
def test_both_ranks_choose_the_set_that_the_policy_names(llm, policy):
    _, (first, second) = run(llm, policy)
    assert [keep for _, keep in first] == [keep for _, keep in second]
    assert len(first) > 20
    parsed = xshare.Policy.parse(policy)
    for logits, keep in first:
        wanted = xshare.route(torch.tensor(logits), ROUTER, parsed, placement=PLACEMENT)
        assert keep == wanted.selected.nonzero().flatten().tolist()
        if parsed.device_budget is not None and parsed.fill == "level":
            warm = xshare.route(torch.tensor(logits), ROUTER, xshare.Policy(warmup=1), placement=PLACEMENT)
            assert load(keep) <= max(parsed.device_budget, int(warm.max_load))


def test_figures_are_reported_by_the_first_rank_and_count_the_heaviest(llm):
    run(llm, "k0=1,mg=6")
    first, second = llm.collective_rpc("xshare_stats")
    assert first["steps_pruned"] == second["steps_pruned"] > 0
    for layer in range(2):
        assert first["experts_selected"][layer] / 2 <= first["max_load"][layer] < first["experts_selected"][layer]


def test_tokens_are_those_of_one_process(llm, checkpoint, started):
    parallel = {policy: run(llm, policy)[0] for policy in ("k0=1,m=3", "k0=1,m=32")}
    assert parallel["k0=1,m=3"] != parallel["k0=1,m=32"]
    llm.llm_engine.engine_core.shutdown()
    cleaned_up()
    alone = started(checkpoint("qwen3"), {"policy": "k0=1,m=3", "gates": {"bypass": False}})
    assert generate(alone, PROMPTS, LENGTHS) == parallel["k0=1,m=3"]
    alone.collective_rpc("xshare_switch", args=(False,))
    assert generate(alone, PROMPTS, LENGTHS) == parallel["k0=1,m=32"]
