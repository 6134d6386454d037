"""The third model's measurements on a small random mixture: texts are forced as they go on, and everything is there."""

import importlib
import json
import math
import sys
from pathlib import Path

import pytest
import torch

from xshare.trace import Trace
from xshare.trace.random_routing import random_trace

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))
sys.path.append(str(ROOT / "tools" / "docs"))
answer_bench, expert_choice, third_model, third_tables = map(
    importlib.import_module, ("lib.answer_bench", "lib.expert_choice", "third_model", "third_tables")
)
TEXTS = {"english": "The river was low that year, and nobody ", "french": "La rivière était basse cette année, et "}


@pytest.fixture
def measured(small, tmp_path, monkeypatch):
    monkeypatch.setattr(third_model, "SETTINGS", [answer_bench.Setting(4, 0, True), answer_bench.Setting(4, 0, False)])
    monkeypatch.setattr(third_model, "PAPER", [(24, 1)])
    monkeypatch.setattr(third_model, "RIVALED", ["balanced"])
    monkeypatch.setattr(third_model, "REPLAYED", 2)
    rows = [
        {"question": f"{n}. {text}", "answer": 5 * f" {text}{n}", "kind": k} for k, text in TEXTS.items() for n in "123"
    ]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "questions.jsonl").write_text(json.dumps({"question": "6 * 7?", "answer": "42", "kind": "sums"}))
    options = {
        "engine_args": '{"dtype": "float32"}',
        "count": 6,
        "tokens": 8,
        "answer_tokens": 4,
        "jobs": 1,
        "threads": 1,
    }
    path = tmp_path / "third_model.json"
    random_trace("random:32,4").save(tmp_path / "other.trace")
    options["trace"] = [tmp_path / "other.trace"]
    third_model.main(
        str(small), tmp_path / "texts.jsonl", tmp_path / "questions.jsonl", [f"twin={small}", "gone=/nowhere"],
        **options, together=64, seconds=None, json=path,
    )  # fmt: skip
    return json.loads(path.read_text())


def test_it_is_told_whether_experts_come_in_groups():
    free = random_trace("random:32,4")
    free.logits[:, 0] = torch.arange(32.0).div(4, rounding_mode="floor").roll(4)  # always the same four
    fixed, *others = expert_choice.choice_rows(free)
    assert fixed["company"] == 1
    for row in others:
        assert 3 / 31 < row["company"] < 0.4
        assert row["without_last"] == pytest.approx(sum(row["weights"][:3]))
    # A trace that names the chosen alone says the same.
    best = free.logits.float().topk(4)
    header = free.header.model_copy(update={"score": "topk"})
    chosen = Trace(header, free.lengths, experts=best.indices.to(torch.uint8), weights=best.values.softmax(-1).half())
    for ours, theirs in zip(expert_choice.choice_rows(chosen), [fixed, *others], strict=True):
        assert ours["company"] == theirs["company"]
        assert ours["weights"] == pytest.approx(theirs["weights"], abs=1e-3)


def test_texts_questions_and_routers_are_measured(measured):
    rows = {(row["set"], row["mixed"], row["policy"]): row for row in measured["rows"]}
    assert {name for name, *_ in rows} == {"texts", "questions"}
    assert len({row["weights"] for row in measured["rows"]}) == 1
    control = rows["texts", True, "k0=1,m=16,score=full"]
    assert (control["diverged"], control["agreement"]) == (0, 1)
    pruned, reading = rows["texts", True, "k0=1,m=3,score=full"], rows["texts", True, "k0=1,m=3"]
    assert pruned["kl"] > 0
    assert pruned["perplexity"] != pruned["perplexity_native"]
    assert pruned["perplexity_ratio"] == pytest.approx(pruned["perplexity"] / pruned["perplexity_native"])
    assert pruned["perplexity_ratio_low"] < pruned["perplexity_ratio"] < pruned["perplexity_ratio_high"]
    assert pruned["active"] < pruned["active_native"]
    assert reading["paper"] == pruned["paper"] == "m=24,k0=1"
    assert pruned["accuracy"] is None  # nobody asked anything
    assert rows["questions", True, "native"]["accuracy"] == 0
    assert {row["rival"] for row in measured["calibration"]} >= {"oea", "lynx", "random"}
    assert len(measured["load"]) == 2
    assert {row["pair"] for row in measured["overlap"]} == {"consecutive", "same domain", "different domains"}
    assert [row["model"] for row in measured["choice"]] == 2 * ["nano"] + 4 * ["random:32,4"]
    for row in measured["choice"]:
        assert math.isclose(sum(row["weights"]), 1, rel_tol=1e-5)
        assert row["weights"] == sorted(row["weights"], reverse=True)
    # The text under the mixture itself is what a forced pass says, and its twin says the same.
    at = {(row["model"], row["kind"]): row["perplexity"] for row in measured["perplexity"]}
    assert {model for model, _ in at} == {"nano", "twin"}
    for kind in TEXTS:
        assert math.isclose(at["nano", kind], at["twin", kind])
        assert math.isclose(at["nano", kind], pruned[f"perplexity_native {kind}"], rel_tol=1e-4)

    # The tables of its page.
    tables = third_tables.tables()
    assert tables["third_16"][0] == "third_model"
    assert tables["prose_32_alike"][0] == "nano_texts"
    titles, cells = tables["third_perplexity"][1](measured)
    assert titles[:3] == ["model", "parameters", "english (95 %)"]
    whole = next(row for row in measured["perplexity"] if row["kind"] is None)
    assert whole["perplexity_low"] < whole["perplexity"] < whole["perplexity_high"]
    assert [line[0] for line in tables["third_choice"][1](measured)[1]] == ["nano", "random:32,4"]
    assert [line[0] for line in cells] == ["nano", "twin"]
    setting = third_tables.policies(measured, 4, True)
    assert setting[1][0][0] == "`native`"
    assert "no-op control" in {line[1] for line in setting[1]}
    assert third_tables.questions(measured)[1]
    files, health = tables["third_routers"]
    evidence = [json.loads((ROOT / "evidence" / f"{name}.json").read_text()) for name in files.split()[1:]]
    lines = {line[0]: line for line in health(measured | {"rows": [{"model": "smol"}]}, *evidence)[1]}
    assert {"smol", "nano", "lab", "gpt-oss-20b"} == set(lines)
