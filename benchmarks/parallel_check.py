"""Is selection right over several ranks: data parallel, with expert parallel, and pipeline parallel?

    python benchmarks/parallel_check.py [--json evidence/parallel_check.json]

On a CPU, with the real vLLM over gloo and a tiny model with random weights. What vLLM lacks on a CPU comes from
tests/engines/vllm: collectives.py (data-parallel ranks) and rebalancing.py (EPLB). Each layout runs without the key and
with it. `hashes` of a row are of S, by step and rank (all layers of a step together); null where selection left the
rank alone. "GPU's kernels" are the fused kernels in two halves, as on a GPU, under Triton's interpreter.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer

import xshare
from xshare.cli.output import number_table, wide_console
from xshare.results import Results, Row

HERE = Path(__file__).resolve().parent.parent / "tests" / "engines" / "vllm"
ROUTER = xshare.RouterSpec.softmax(top_k=4)
SECONDS = 280  # after which ranks that still run count as hung
Sets = dict[tuple[int, int], dict[int, Any]]  # by step and layer, by rank


def sets_hash(sets: list[list[int] | None]) -> str | None:
    """A hash of the sets of all layers of a step."""
    return None if None in sets else hashlib.sha256(repr(sets).encode()).hexdigest()[:12]


def hashes(sets: Sets) -> list[list[str | None]]:
    """A hash of the sets, by step and by rank."""
    steps: dict[int, dict[int, list[list[int] | None]]] = {}
    for (step, _), ranks in sorted(sets.items()):
        for rank, results in ranks.items():
            steps.setdefault(step, {}).setdefault(rank, []).append(results.S)
    return [[sets_hash(ranks[rank]) for rank in sorted(ranks)] for ranks in steps.values()]


class Layout(NamedTuple):
    options: dict[str, Any]
    policies: tuple[str, ...]  # the last one for requests that come and go, too
    kernels: bool = False  # those of a GPU


def layouts(scenes: Any) -> dict[str, Layout]:
    everywhere, spread = (scenes.PRUNED, "k0=1,mr=1", "rho=0.6"), {"enable_expert_parallel": True}
    return {
        "DP 2": Layout({}, everywhere),
        "DP 2 + EP": Layout(spread, (*everywhere, "k0=1,mg=6")),
        "DP 2 + EP, n-gram drafts": Layout(spread | {"speculative_config": scenes.DRAFTS}, ("k0=1,mr=2",)),
        "DP 2 + EP, EPLB": Layout(scenes.REBALANCED, ("k0=1,mg=5",)),
        "DP 2 + EP, EPLB, GPU's kernels": Layout(scenes.REBALANCED, (scenes.PRUNED, "k0=1,mg=5"), kernels=True),
    }


def data_parallel(name: str, layout: Layout, model: Path) -> list[Row]:
    scenes, run_ranks = import_module("rank_scenes"), import_module("rank_processes").run_ranks
    options, policies = layout.options, layout.policies
    moving, spread = "enable_eplb" in options, "enable_expert_parallel" in options
    contiguous = xshare.Placement.contiguous(32, 2) if spread else None
    native = run_ranks(2, scenes.native, model, options, seconds=SECONDS)
    work = scenes.pruned_by_kernels if layout.kernels else scenes.pruned
    ranks = run_ranks(2, work, model, options, policies, seconds=SECONDS)
    places = set()  # of experts, by layer
    rows: list[Row] = []

    def add(check: str, passed: bool, detail: str, **columns: Any) -> None:
        rows.append({"layout": name, "check": check, "passed": bool(passed), "detail": detail, **columns})

    same = [with_key["everything"][0] == without for with_key, without in zip(ranks, native, strict=True)]
    add("budget N: tokens of the same layout without the key", all(same), f"{len(same)} ranks, two scenes")
    for policy in (*policies, "busy"):
        rule = xshare.Policy.parse(policies[-1] if policy == "busy" else policy)
        sets: Sets = scenes.together([rank[policy][1] for rank in ranks])
        acted = [by_rank for by_rank in sets.values() if any(rank.S is not None for rank in by_rank.values())]
        equal = [len({tuple(rank.S) for rank in by_rank.values() if rank.S is not None}) == 1 for by_rank in acted]
        right = []
        for by_rank in acted:
            placement: Any = scenes.places_of(by_rank) if moving else contiguous
            if moving:
                places.add((next(iter(by_rank.values())).layer, tuple(placement.devices.tolist())))
            S = scenes.wanted(by_rank, ROUTER, rule, placement)
            right.append(S in [rank.S for rank in by_rank.values() if rank.S is not None])
        joined = all(len(by_rank) == 2 for by_rank in sets.values())
        label = f"{rule}, requests come and go on one rank" if policy == "busy" else policy
        detail = f"{len(acted)} layers of steps, {sum(right)} as xshare.route on the rows of all ranks"
        passed = bool(acted) and all(equal) and all(right) and joined
        add(f"one set: {label}", passed, detail, hashes=hashes(sets))
    if moving:
        counts = [sum(layer == which for layer, _ in places) for which in (0, 1)]
        detail = f"{counts} placements by layer, the same on all ranks, each where vLLM holds a replica"
        add("devices are filled by where experts are at that step", min(counts) > 2, detail)
    busy = [rank["busy"][0] for rank in ranks]
    whole = [len(busy[0][f"0-{i}"]) == 18 + i for i in range(6)] + [len(busy[1][f"1-{i}"]) == 3 for i in range(3, 6)]
    add("no request is lost where others join, end and abort", all(whole), f"{sum(whole)} of {len(whole)} requests")
    sets = scenes.together([rank["changing"][1] for rank in ranks])
    mixed = [
        by_rank
        for by_rank in sets.values()
        if (voting := [rank.S for rank in by_rank.values() if rank.voted]) and any(voting[0] != S for S in voting)
    ]
    changing_steps = [rank["after"]["steps_bypassed"].get("changing", 0) for rank in ranks]
    ended = all(len(tokens) == 22 for rank in ranks for tokens in rank["changing"][0].values())
    passed = not mixed and all(changing_steps) and ended
    detail = f"left alone while ranks differ: {changing_steps} steps, then acted on by all"
    add("a live change acts on all ranks at once", passed, detail, hashes=hashes(sets))
    return rows


def pipeline(model: Path) -> list[Row]:
    forked, models = import_module("forked_workers").forked, import_module("tiny_vllm_models")
    prompts, lengths = models.prompts(12), [6 + i for i in range(12)]
    options = {
        "pipeline_parallel_size": 2,
        "distributed_executor_backend": "mp",
        "worker_extension_cls": "expert_parallel_worker.Watched",
    }
    policy, tokens, decided, stats = "k0=1,m=3", {}, [], []
    os.environ["VLLM_PP_LAYER_PARTITION"] = "2,1"  # vLLM wants a MoE layer on every stage
    with forked():
        for key in (None, {"policy": "k0=1,m=32", "gates": {"bypass": False}}):
            llm = models.engine(model, key, **options)
            llm.collective_rpc("make_room")
            tokens[key is None] = models.generate(llm, prompts, lengths)
            if key is not None:
                llm.collective_rpc("xshare_set", args=(policy,))
                llm.reset_prefix_cache()
                llm.collective_rpc("watch")
                models.generate(llm, prompts, lengths)
                decided, stats = llm.collective_rpc("decisions"), llm.collective_rpc("xshare_stats")
            llm.llm_engine.engine_core.shutdown()
            del llm
            models.cleaned_up()
    del os.environ["VLLM_PP_LAYER_PARTITION"]
    right = [
        xshare.route(torch.tensor(logits), ROUTER, policy).selected.nonzero().flatten().tolist() == S
        for stage in decided
        for logits, S in stage
    ]
    steps = [len(stage) for stage in decided]
    digests = [[sets_hash([S]) for _, S in step] for step in zip(*decided, strict=True)]
    layers = [name for stats_of_stage in stats for name in stats_of_stage["layers"]]
    return [
        {
            "layout": "PP 2",
            "check": "budget N: tokens of the same layout without the key",
            "passed": tokens[True] == tokens[False],
            "detail": f"{len(prompts)} requests",
        },
        {
            "layout": "PP 2",
            "check": f"each stage has the set of its own layer: {policy}",
            "passed": bool(right) and all(right) and steps[0] == steps[1],
            "detail": f"{steps} steps by stage, {sum(right)} as xshare.route; layers {', '.join(layers)}",
            "hashes": digests,
        },
    ]


def main(json: Annotated[Path | None, typer.Option(help="Write the rows here.")] = None) -> None:
    os.environ["TRITON_INTERPRET"] = "1"  # before anybody imports Triton
    sys.path.insert(0, str(HERE))
    models = import_module("tiny_vllm_models")
    import vllm

    results = Results(json, None, {"vllm": vllm.__version__, "device": "cpu", "seed": 0}, lists=())
    with tempfile.TemporaryDirectory() as folder:
        for name, layout in layouts(import_module("rank_scenes")).items():
            results.rows += data_parallel(name, layout, models.make("qwen3", Path(folder)))
            results.write()
        results.rows += pipeline(models.make("partly_dense", Path(folder)))
    results.write()
    table = number_table("selection over several ranks", "layout", "check", "passed", "detail")
    for row in results.rows:
        table.add_row(row["layout"], row["check"], "yes" if row["passed"] else "NO", row["detail"])
    wide_console().print(table)
    if not all(row["passed"] for row in results.rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
