"""What the profile makes of kernels' names, as an H200 has shown them, and what it asks of engines with drafts."""

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
sys.path.append(str(ROOT / "tools" / "docs"))
routing_profile, summary_tables = map(importlib.import_module, ("routing_profile", "summary_tables"))


@pytest.mark.parametrize(
    ("kernel", "part"),
    [
        ("_topk_forward", "routing"),
        ("_sum_bitmatrix_rows", "routing"),
        ("_combined_routing_compute", "routing"),
        ("void vllm::moe::moe_align_block_size_small_batch_expert_kernel<int, 256>", "routing"),
        ("void vllm::moe::topkGating<8, 128, 4, 16, 32, int, __nv_bfloat16>", "routing"),
        ("select_in_blocks", "selection"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1_swiglu", "experts"),
        ("fused_moe_kernel", "experts"),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90", "attention"),
        ("nvjet_sm90_tst_64x16_64x16_4x1_v_bz_bias_TNT", "other"),
    ],
)
def test_kernels_are_told_apart(kernel, part):
    assert routing_profile.part_of(kernel) == part


class ProfiledEngine:
    """In place of an engine with drafts: it keeps its options and what it was asked."""

    def __init__(self, name, options):
        self.name, self.options, self.asked = name, options, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def answer(self):
        return {}

    def ask(self, what, **how):
        self.asked.append((what, how))
        if what == "profile":
            per = routing_profile.LAYERS * how["steps"]
            return {"matmul_ogs": [per, 90.0 * per], "select_in_blocks": [per, 4.0 * per], "once": [1, 0.5]}
        return {"pruned": 41, "decoded": 41}


def drafted(monkeypatch):
    engines = []

    def start(name, options):
        engines.append(ProfiledEngine(name, options))
        return engines[-1]

    monkeypatch.setattr(routing_profile, "Engine", start)
    return routing_profile.drafted(list(routing_profile.DRAFTED), 4, False), engines


def test_with_drafts_three_engines_are_profiled(monkeypatch):
    rows, engines = drafted(monkeypatch)
    assert len({engine.name for engine in engines}) == 3
    keys = [set(engine.options.get("xshare", {})) for engine in engines]
    both = {"warmup", "batch_budget", "gates"}
    assert keys == [set(), both | {"coverage"}, both | {"request_budget"}]
    for engine in engines:
        assert {engine.options[name] for name in ("drafter", "runner")} == {"eagle3", "V2"}
        assert (engine.options["drafts"], engine.options["layers"]) == (3, routing_profile.LAYERS)
        assert {4, 16} <= set(engine.options["sizes"])
        set_to = [how["policy"] for what, how in engine.asked if what == "policy"]
        assert set_to == (["k0=1,m=128"] if engine.options["rule"] else [])
    assert [(row["who"], row["drafts"], row["part"], row["launches"], row["us"]) for row in rows] == [
        (who, 3, part, 1.0, us)
        for who in ("native", "control", "control, request budgets")
        for part, us in (("experts", 90.0), ("selection", 4.0))
    ]


def test_the_table_of_models_is_without_drafts(monkeypatch):
    stored = json.loads((ROOT / "evidence" / "routing_profile.json").read_text())
    plain = [row for row in stored["rows"] if "drafts" not in row]
    rows, _ = drafted(monkeypatch)
    assert summary_tables.routing_profile({"rows": plain + rows}) == summary_tables.routing_profile({"rows": plain})
