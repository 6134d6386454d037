"""What data-parallel ranks are put through, the same in the tests and in benchmarks/parallel_check.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from stepped_rank import Plan, Rank
from tiny_vllm_models import engine, prompts

import xshare

# Two experts more on each rank than without, and all of them moved every few steps.
REBALANCED = {
    "enable_expert_parallel": True,
    "enable_eplb": True,
    "eplb_config": {"window_size": 4, "step_interval": 5, "num_redundant_experts": 4, "use_async": False},
}
ALL = {"gates": {"bypass": False}, "metrics": {"every": 1}}
PRUNED, EVERYTHING = "k0=1,m=3", "k0=1,m=32"
LAST = 14  # nothing happens after this step
# Drafts are looked up in what a request has had so far.
DRAFTS = {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1, "num_speculative_tokens": 3}


def plain(rank):
    """Six requests that come at once, of different lengths."""
    rank_prompts = prompts(6, seed=rank)
    return Plan({0: [(f"{rank}-{i}", prompt, 4 + i + 3 * rank) for i, prompt in enumerate(rank_prompts)]})


def repeating(rank):
    """The same, where every second one repeats itself: it is drafted for, and the others seldom are."""
    plan = plain(rank)
    plan.arrive[0] = [
        (name, prompt[:4] * (5 if i % 2 else 1), 4 + length) for i, (name, prompt, length) in enumerate(plan.arrive[0])
    ]
    return plan


def first_scene(options):
    return repeating if "speculative_config" in options else plain


def busy(rank):
    """Requests that join, end and abort on one rank only: rank 1 idles at first, reads prompts while rank 0 decodes,
    loses two requests half way, and idles again."""
    rank_prompts = prompts(6, seed=10 + rank)
    if rank == 0:
        return Plan({0: [(f"0-{i}", prompt, 18 + i) for i, prompt in enumerate(rank_prompts)]})
    come = {
        4: [(f"1-{i}", rank_prompts[i], 30) for i in range(3)],
        6: [(f"1-{i}", rank_prompts[i], 3) for i in range(3, 6)],
    }
    return Plan(come, abort={9: ["1-0", "1-1"], 12: ["1-2"]})


def changing(rank):
    """The policy changes on rank 0 first, and on rank 1 three steps later; then one rank is switched off and on."""
    plan = plain(rank)
    plan.arrive[0] = [(name, prompt, 22) for name, prompt, _ in plan.arrive[0]]
    plan.call = {4 + 3 * rank: [("xshare_set", "k0=1,m=5")]}
    if rank == 1:
        plan.call |= {10: [("xshare_switch", False)], 13: [("xshare_switch", True)]}
    return plan


def started(model, key, options):
    if options.get("enable_eplb"):
        import rebalancing  # noqa: F401
    return Rank(engine(model, key, distributed_executor_backend="uni", **options))


def native(rank, model, options):
    """Without the key."""
    stepped = started(model, None, options)
    return {"plain": stepped.run(first_scene(options)(rank), 0), "busy": stepped.run(busy(rank), LAST)}


def pruned(rank, model, options, policies=(PRUNED,)):
    """With the key: tokens and decisions of every scene, and the counters."""
    stepped = started(model, ALL | {"policy": EVERYTHING}, options)
    outcomes, first = {}, first_scene(options)
    outcomes["everything"] = (
        {"plain": stepped.run(first(rank), 0), "busy": stepped.run(busy(rank), LAST)},
        stepped.taken(),
    )
    for policy in policies:
        stepped.llm.collective_rpc("xshare_set", args=(policy,))
        stepped.llm.reset_prefix_cache()
        outcomes[policy] = stepped.run(first(rank), 0), stepped.taken()
    outcomes["busy"] = stepped.run(busy(rank), LAST), stepped.taken()
    outcomes["stats"] = stepped.llm.collective_rpc("xshare_stats")[0]
    outcomes["changing"] = stepped.run(changing(rank), LAST), stepped.taken()
    outcomes["after"] = stepped.llm.collective_rpc("xshare_stats")[0]
    return outcomes


def drafted(rank, model, options, policy):
    """With a budget of all experts, with a policy, and switched off."""
    return in_turn(rank, model, options | {"speculative_config": DRAFTS}, policy)


def in_turn(rank, model, options, policy):
    stepped, first = started(model, ALL | {"policy": EVERYTHING}, options), first_scene(options)
    outcomes = {"everything": (stepped.run(first(rank), 0), stepped.taken())}
    for method, value in (("xshare_set", policy), ("xshare_switch", False)):
        stepped.llm.collective_rpc(method, args=(value,))
        stepped.llm.reset_prefix_cache()
        outcomes[value] = stepped.run(first(rank), 0), stepped.taken()
    return outcomes


def use_kernels():
    """In this process as on a GPU: the fused kernels choose, under Triton's interpreter, and decide about every step
    by themselves."""
    assert os.environ["TRITON_INTERPRET"] == "1"  # since before Triton was imported
    sys.path.append(str(Path(__file__).resolve().parents[2] / "kernels"))
    import one_selection  # noqa: F401  (makes the interpreter faster)

    import xshare.engines.serving.build_state as building

    building.has_kernels = lambda device: True


def pruned_by_kernels(rank, model, options, policies):
    use_kernels()
    return pruned(rank, model, options, policies)


def short_by_kernels(rank, model, options, policy):
    """Rank 1 begins later, with a prompt of more rows than its kernels are for. The policy changes on one rank after
    the other, and one is switched off for a step."""
    use_kernels()
    stepped = started(model, ALL | {"policy": EVERYTHING}, options)
    rank_prompts = prompts(3, seed=20 + rank)
    outcomes = {"everything": (stepped.run(Plan({0: [(f"{rank}-0", rank_prompts[0], 3)]}), 0), stepped.taken())}
    plan = Plan({0: [(f"0-{i}", prompt, 12) for i, prompt in enumerate(rank_prompts)]})
    if rank == 1:
        plan = Plan({2: [("1-0", rank_prompts[0] * 25, 8)], 4: [("1-1", rank_prompts[1], 4)]})
    plan.call = {0: [("xshare_set", policy)], 6 + 2 * rank: [("xshare_set", "k0=1,m=5")]}
    if rank == 0:
        plan.call |= {10: [("xshare_switch", False)], 11: [("xshare_switch", True)]}
    outcomes["short"] = stepped.run(plan, LAST), stepped.taken()
    outcomes["stats"] = stepped.llm.collective_rpc("xshare_stats")[0]
    return outcomes


def dying(rank, model, options):
    """Rank 1 ends in the middle of a step, in front of its message. -> what the others' engines end with"""
    stepped = started(model, ALL | {"policy": PRUNED}, options)
    if rank == 1:
        selector = stepped.state.layers[1].selector
        native, calls = selector.decide, iter(range(6))
        selector.decide = lambda logits: native(logits) if next(calls) < 5 else os._exit(0)
    try:
        stepped.run(plain(rank), 0)
    except RuntimeError as error:
        return str(error)
    return None


def rebalanced(rank, model, policy):
    """While vLLM moves experts: with a budget of all of them, with a policy, and switched off."""
    return in_turn(rank, model, REBALANCED, policy)


def together(decided):
    """By step and layer what each rank did, from each rank's list."""
    by_step = {}
    for rank, decisions in enumerate(decided):
        for decision in decisions:
            by_step.setdefault((decision.step, decision.layer), {})[rank] = decision
    return by_step


def places_of(ranks):
    """Where experts count in a layer of a step: the same for all ranks, and a place where vLLM holds them."""
    (devices,) = {tuple(decision.devices) for decision in ranks.values() if decision.voted}
    for decision in ranks.values():
        assert all(device in held for device, held in zip(devices, decision.held, strict=True) if decision.voted)
    return xshare.Placement(torch.tensor(devices), 1 + max(devices))


def wanted(ranks, router, policy, placement=None):
    """S by xshare.route, on the rows of all ranks that vote."""
    voting = [decision for decision in ranks.values() if decision.voted]
    requests, first = [], 0
    for decision in voting:
        starts = torch.tensor(decision.starts)
        requests.append(torch.arange(first, first + len(starts) - 1).repeat_interleave(starts.diff()))
        first += len(starts) - 1
    rows = torch.cat([torch.from_numpy(decision.logits) for decision in voting])
    routing = xshare.route(rows, router, policy, layout=xshare.BatchLayout(torch.cat(requests)), placement=placement)
    return routing.selected.nonzero().flatten().tolist()
