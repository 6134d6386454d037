"""The quality benchmark on a small random model: its plan, its rows, its controls, and that it goes on where it was."""

import importlib
import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

import xshare.models
from xshare import Policy
from xshare.errors import XShareError
from xshare.trace import Header, Trace
from xshare.trace.file import RouterFields

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))
sys.path.append(str(ROOT / "tools" / "docs"))
answer_bench, paper_policies, paper_quality, cells, plots, quality_tables = map(
    importlib.import_module,
    ("lib.answer_bench", "lib.paper_policies", "paper_quality", "lib.cells", "plots", "quality_tables"),
)
COLUMNS = "model batch drafts mixed method policy active active_native accuracy accuracy_low accuracy_high kl agreement"
Setting = answer_bench.Setting


@pytest.fixture(scope="module")
def drafter(small, tmp_path_factory):
    """A folder with a model that agrees with the small one now and then."""
    from xshare.models.loading import load

    model, tokenizer = load(small, dtype="float32")
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * parameter.std() * 0.1)
    path = tmp_path_factory.mktemp("drafter") / "drafter"
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    xshare.models.write_sums(path)
    return path


@pytest.fixture
def few(monkeypatch):
    """Of every list a little."""
    monkeypatch.setattr(paper_quality, "BATCH", [(24, 1), (0, 1)])
    monkeypatch.setattr(paper_quality, "DRAFTED", [(1, 0, 4)])
    monkeypatch.setattr(paper_quality, "REFERENCES", {0: [(24, 1)], 3: []})


def run(small, drafter, path, **options):
    arguments = json.dumps({"dtype": "float32"} | ({"draft": str(drafter)} if drafter else {}))
    usual = {"tasks": 24, "file": None, "forced": 24, "tokens": 8, "jobs": 1, "threads": 1, "seconds": None, "seed": 0}
    paper_quality.main(str(small), arguments, **(usual | options), json=path)
    return json.loads(path.read_text()) if path.exists() else None


def test_budgets_are_scaled_by_the_number_of_experts():
    assert [paper_policies.scaled(m, 128) for m in (0, 10, 12, 24)] == [0, 10, 12, 24]
    assert [paper_policies.scaled(m, 64) for m in (0, 10, 12, 16, 24, 32)] == [0, 5, 6, 8, 12, 16]
    assert [paper_policies.scaled(m, 16) for m in (10, 12, 24, 2)] == [1, 2, 3, 1]  # half up, and never to nothing
    assert str(paper_policies.policy((24, 1), 64)) == "k0=1,m=12,score=full"
    assert str(paper_policies.policy((2, 10, 0), 64)) == "k0=2,m=5,score=full"
    assert str(paper_policies.policy((0, 16, 4), 64)) == "k0=0,m=8,mr=4,score=full"
    assert paper_policies.paper_name((24, 1)) == "m=24,k0=1"


def test_the_plan_has_all_of_the_paper_and_the_main_policies_first():
    settings = paper_quality.settings_of(True)
    cells = paper_quality.paper_cells(settings, 128)
    batch = {(16, 0, True): "m=0,k0=1 m=12,k0=1 m=16,k0=1 m=24,k0=1 m=32,k0=1 m=0,k0=2 m=12,k0=2 m=24,k0=0"}
    drafted = "k0=0,m=16,mr=4 k0=1,m=0,mr=4 k0=1,m=0,mr=5 k0=2,m=0,mr=4 k0=1,m=24,mr=0 k0=1,m=32,mr=0 k0=2,m=10,mr=0"
    for how, wanted in (batch | {(4, 3, False): f"{drafted} k0=0,m=0,mr=8"}).items():
        named = {paper for (setting, _), paper in cells.items() if setting == Setting(*how)}
        assert named == {*wanted.split(), "native", "no-op control"}
    order = list(cells.values())
    assert order[:8] == ["native"] * 4 + ["no-op control"] * 4
    assert set(order[8:11]) == {"m=24,k0=1", "m=0,k0=1", "m=0,k0=2"}
    assert order.index("m=12,k0=1") > order.index("k0=1,m=0,mr=5")
    other = [str(policy) for _, policy in paper_quality.other_score_cells(settings, 128)]
    assert len(other) == 6 + 8
    assert {"k0=2,m=12", "k0=1,m=0,mr=5"} < set(other)


def test_rivals_come_from_the_fewest_experts_to_the_most(trace):
    reference = Policy.parse("k0=1,m=2,score=full")
    rivals = paper_policies.rivals(reference, 16, 4)
    assert set(rivals) == {"oea", "lynx", "skip", "topk", "logit-sum", "random", "score=topk"}
    assert [str(policy) for policy in rivals["score=topk"]] == ["k0=1,m=2"]
    for name, policies in rivals.items():
        row = cells.nearest(trace, Setting(8, 0, True), reference, policies)
        assert row["reference"] == "k0=1,m=2,score=full"
        every = [cells.nearest(trace, Setting(8, 0, True), reference, [policy])["replayed"] for policy in policies[::5]]
        assert every == sorted(every), name
        if name in ("lynx", "skip", "random", "logit-sum"):  # these have a fine knob
            assert abs(row["replayed"] - row["replayed_reference"]) < 1.1, name
    without = paper_policies.without_warmup(reference, 16)
    assert all(policy.warmup == 0 for policy in without)


@pytest.fixture(scope="module")
def trace():
    torch.manual_seed(0)
    header = Header(
        model="x", num_experts=16, top_k=4, score="full", router=RouterFields(), layers=[0, 1],
        domains=["a", "b"] * 6, provenance={},
    )  # fmt: skip
    return Trace(header, torch.full((12,), 20), logits=torch.randn(240, 2, 16) * 2)


def test_every_cell_has_its_row_and_the_controls_hold(small, drafter, tmp_path, few, capsys):
    path = tmp_path / "paper_quality.json"
    results = run(small, drafter, path)
    rows = results["rows"]
    assert all(set(COLUMNS.split()) <= set(row) for row in rows)
    settings = {(row["batch"], row["drafts"], row["mixed"]) for row in rows}
    assert settings == {(16, 0, True), (16, 0, False), (4, 3, True), (4, 3, False)}
    for row in rows:
        assert row["model"] == "nano"  # the folder's name, not where it lies
        assert row["questions"] == 24
        assert (row["accepted"] is not None) == (row["drafts"] > 0)
        still = row["method"] == "native" or row["paper"] == "no-op control"
        assert (row["agreement"] == 1) == still, row["policy"]
        assert (row["kl"] < 1e-9) == still, row["policy"]
        assert row["kl_low"] <= row["kl"] <= row["kl_high"]
        assert row["active"] == pytest.approx(row["active_native"]) if still else row["active"] < row["active_native"]
    assert all(1 < row["accepted"] < 4 for row in rows if row["drafts"])
    assert [row["same"] for row in results["undrafted"]] == [1, 1]
    assert all(row["low"] <= row["change"] <= row["high"] for row in results["matched"])
    *pairs, scores = results["matched"]
    assert len({(row["rival"], row["mixed"]) for row in pairs}) == len(pairs) == 14
    assert {row["reference"] for row in pairs} == {"k0=1,m=3,score=full"}
    assert [scores[name] for name in ("reference", "policy")] == ["k0=1,m=0,mr=4,score=full", "k0=1,m=0,mr=4"]
    assert scores["drafts"] == 3
    assert results["provenance"]["complete"]
    assert not path.with_suffix(".native.json").exists()
    assert "k0=1,m=0,mr=4" in capsys.readouterr().out
    before = path.read_bytes()
    run(small, drafter, path)  # nothing is left to do
    assert path.read_bytes() == before
    check_pages(results, path)


def check_pages(results, path):
    """Its tables and plots."""
    for name, (file, table) in quality_tables.tables().items():
        if file == "paper_quality":
            titles, cells = table(results)
            assert all(len(line) == len(titles) for line in cells)
            assert bool(cells) == (name != "paper_matched_drafts_alike"), name  # no references there, above
    lines = quality_tables.policies(results, (16, 0, True))[1]
    assert [line[0] for line in lines[:2]] == ["`native`", "`k0=1,m=16,score=full`"]
    plot_files = plots.draw([path, path.with_name("none.json")], path.parent)
    names = {"pareto_accuracy", "pareto_kl"}
    assert {plot.stem for plot in plot_files} == {f"{name}{alike}" for name in names for alike in ("", "_alike")}
    more = [row | {"drafts": 3, "batch": 4} for row in results["rows"] if not row["drafts"]]
    drawn = plots.plots({"rows": [row for row in results["rows"] if not row["drafts"]] + more})
    assert set(drawn) == {
        f"{name}{drafts}{alike}" for name in names for drafts in ("", "_drafts") for alike in ("", "_alike")
    }
    assert all(plot.stat().st_size < 100_000 for plot in plot_files)
    drawn = plot_files[0].read_bytes()
    plots.draw([path], path.parent)
    assert plot_files[0].read_bytes() == drawn  # the same when nothing has changed


def test_a_killed_run_leaves_a_valid_file_and_goes_on(small, tmp_path, few, monkeypatch):
    path, cell = tmp_path / "some.json", answer_bench.Bench.cell
    monkeypatch.setattr(paper_quality, "settings_of", lambda drafts: [Setting(16, 0, True)])
    whole = run(small, None, tmp_path / "whole.json")
    calls = []

    def dying(*args):
        calls.append(args[2])
        if len(calls) == 5:
            raise KeyboardInterrupt
        return cell(*args)

    monkeypatch.setattr(answer_bench.Bench, "cell", dying)
    with pytest.raises(KeyboardInterrupt):
        run(small, None, path)
    interrupted = json.loads(path.read_text())
    assert len(interrupted["rows"]) == 4
    assert path.with_suffix(".native.json").exists()
    results = run(small, None, path)
    assert len(calls) == 5 + len(whole["rows"]) - 4  # what was there is not measured again
    assert results["rows"][:4] == interrupted["rows"]
    assert [row.get("stamp") for row in results["rows"]] == [None] * 4 + [1] * (len(whole["rows"]) - 4)
    assert (results["provenance"] | {"complete": False}, len(results["stamps"])) == (interrupted["provenance"], 1)

    def timeless(rows, but=("tokens_per_s", "stamp")):
        return [{name: value for name, value in row.items() if name not in but} for row in rows]

    assert timeless(results["rows"]) == timeless(whole["rows"])
    assert timeless(results["matched"], but=("stamp",)) == whole["matched"]
    with pytest.raises(XShareError, match="was measured with other settings, tokens 8 instead of 9"):
        run(small, None, path, tokens=9)


def test_a_file_gives_as_many_of_each_kind(tmp_path):
    lines = [json.dumps({"question": f"{kind} {i}", "answer": "x", "kind": kind}) for kind in "abc" for i in range(5)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(lines))
    tasks = cells.tasks_of(tmp_path / "tasks.jsonl", 6, 0)
    assert [task.prompt for task in tasks] == ["a 0", "a 1", "b 0", "b 1", "c 0", "c 1"]


def test_it_ends_in_time(small, tmp_path, few, capsys):
    assert run(small, None, tmp_path / "none.json", seconds=1e-9) is None
    assert "incomplete: run the same command to continue" in capsys.readouterr().out


def test_a_control_that_changes_a_token_stops_everything(small, tmp_path, few, monkeypatch):
    monkeypatch.setattr(paper_quality, "no_op", lambda experts: Policy.parse("k0=1,m=0"))
    with pytest.raises(XShareError, match="the no-op control k0=1,m=0 changed"):
        run(small, None, tmp_path / "wrong.json")


def test_a_mistake_is_one_sentence(monkeypatch, capsys):
    script = str(ROOT / "benchmarks" / "paper_quality.py")
    monkeypatch.setattr("sys.argv", [script, "--model", "nowhere", "--tasks", "10"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(script, run_name="__main__")
    assert end.value.code == 2
    assert (
        capsys.readouterr().err.strip()
        == "error: model 'nowhere' is no folder of a Transformers model: it has no config.json"
    )
