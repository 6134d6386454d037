"""What the documentation shows is true: its Python runs, its tables are what evidence/ says."""

import contextlib
import importlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from xshare.results.file import with_current_policies

ROOT = Path(__file__).parent.parent


def test_the_readmes_python_runs():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(blocks) == 2
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec("\n".join(blocks), {})
    assert "experts instead of" in printed.getvalue()


def test_tables_are_up_to_date():
    subprocess.run([sys.executable, ROOT / "tools" / "docs" / "render.py", "--check"], check=True)


def tables_of(name, results):
    """Every table of a result file, as markdown; of the others what is there."""
    sys.path.append(str(ROOT / "tools" / "docs"))
    render = importlib.import_module("render")
    tables = {}
    for marker, (files, table) in render.FILES.items():
        first, *others = files.split()
        if first == name:
            more = [json.loads((ROOT / "evidence" / f"{other}.json").read_text()) for other in others]
            titles, cells = table(results, *more)
            text = render.markdown(titles, cells) if cells else ""
            tables[marker] = text if "format" in results else render.as_meant(marker, text)
    return tables


def test_tables_stay_when_more_is_measured_into_a_file_of_before():
    path = ROOT / "evidence" / "paper_speed.json"
    before, now = json.loads(path.read_text()), with_current_policies(json.loads(path.read_text()))
    assert tables_of("paper_speed", now | {"format": 2}) == tables_of("paper_speed", before)


def test_presets_are_shown_once_they_are_measured():
    results = with_current_policies(json.loads((ROOT / "evidence" / "paper_speed.json").read_text())) | {"format": 2}
    nothing = tables_of("paper_speed", results | {"pooled": []})
    measured = {"ratio": 1.25, "ratio_low": 1.24, "ratio_high": 1.26, "active": 30.0, "active_native": 40.0}
    measured |= {"drafts": 0, "layers": 36, "step_ms": 8.0, "pairs": 16, "starts": 2, "regime": "carried", "batch": 16}
    measured |= {"steps_pruned": 464, "steps_decoded": 464, "stamps": [14]}
    rows = [
        measured | where | {"method": method, "policy": policy}
        for where in ({"piece": "presets"}, {"piece": "contexts", "prompt_tokens": 1024})
        for method, policy in (("native", "native"), ("noop", "noop"), ("xshare", "k0=0,rho=0.7"))
    ]
    one_start = [row | {"start": 1} for row in rows]  # which no table shows by itself
    shown = tables_of("paper_speed", results | {"rows": results["rows"] + one_start, "pooled": rows})
    own = {"preset_speed", "context_speed", "acted"}
    assert {name for name in shown if shown[name] != nothing[name]} == {*own, "preset_batches", "control_costs"}
    assert {nothing[name] for name in own} == {""}
    assert "| `balanced` |  |  | 1.25 (1.24 to 1.26) |  |" in shown["preset_batches"]
    gain = "1.250 (1.240 to 1.260) | +25.0 % (+24.0 % to +26.0 %) |"
    assert shown["preset_speed"].endswith(f"| none | 16 | 36 | 30.0 | 8.00 | {gain}")
    assert "`balanced (rho=0.7)`" in shown["preset_speed"]
    assert shown["context_speed"].endswith(f"| 1024 | 16 | 36 | 30.0 | 8.00 | {gain}")
    assert shown["acted"].endswith("| 16 | 2 | 464 of 464 | `8cec3f2` |")


def test_the_other_reading_of_the_papers_score_stands_beside_the_first_once_it_is_timed():
    results = with_current_policies(json.loads((ROOT / "evidence" / "paper_speed.json").read_text())) | {"format": 2}
    nothing = tables_of("paper_speed", results)
    timed = [
        row
        | {"piece": "topk", "policy": row["policy"].removesuffix(",score=full"), "pairs": 8, "starts": 1}
        | {"steps_pruned": 464, "steps_decoded": 464}
        | {"ratio": 1.06, "ratio_low": 1.05, "ratio_high": 1.07, "active": 36.6, "active_native": 39.9}
        for row in results["rows"]
        if (row["piece"], row["batch"], row["layers"]) == ("plain", 16, 36)
    ]  # fmt: skip
    assert len(timed) == 3 * (1 + 1 + 8)  # native, the control and the policies, on each routing
    # Of one start: the range of its pairs stands where an interval would.
    decodes = {row["policy"]: [[ratio, 1.0, 1.0, 1.0] for ratio in (1.04, 1.06, 1.08)] for row in timed}
    runs = [
        {"piece": "topk", "regime": regime, "batch": 16, "layers": 36, "start": 1, "decodes": decodes}
        for regime in ("independent", "fitted", "carried")
    ]
    others = [run for run in results["runs"] if run["piece"] != "topk"]
    pooled = [row for row in results["pooled"] if row["piece"] != "topk"]
    results |= {"pooled": pooled + timed, "runs": others + runs}
    shown = tables_of("paper_speed", results)
    pages = {"acted", "choosing", "paper_gains", "speed_verdicts"}
    assert {name for name in shown if shown[name] != nothing[name]} == {
        *pages, *(f"paper_speed_topk_{regime}" for regime in ("independent", "fitted", "carried"))
    }  # fmt: skip
    gain = "+6.0 % (+4.0 % to +8.0 %)"
    assert all(line.endswith(f"| {gain} |") for line in shown["paper_gains"].splitlines()[2:])
    assert shown["paper_gains"].splitlines()[0].endswith("| carried, `score=topk` (range of 8, one start) |")
    assert f"| {gain} | 92% |" in shown["choosing"]
    assert "`score=topk`: tokens per second (range of 8, one start)" in shown["choosing"]
    assert "no drafts, `score=topk` |" in shown["speed_verdicts"]
    answers = [json.loads((ROOT / "evidence" / f"{name}.json").read_text()) for name in ("frontier", "paper_quality")]
    lab = json.loads((ROOT / "evidence" / "paper_quality_lab.json").read_text())
    summary = importlib.import_module("summary_tables")
    _, cells = summary.headline(answers[0], results, answers[1], lab)
    by_policy = {line[0]: line[1:] for line in cells}
    points = by_policy["the paper's `k0=1,m=24,score=topk`"]
    assert (points[0], points[3].split()[0]) == ("1.06 (1.04 to 1.08)", "-5.0")
    assert by_policy["the paper's `k0=1,m=24,score=full`"][3].startswith("-37.7 (")
    # Without a budget nothing is summed: one line, with today's speed and the answers by either reading.
    assert by_policy["the paper's `k0=2,m=0`"][0] == "1.06 (1.04 to 1.08)"
    assert points[0].mark == ", range of 8, one start"
    assert by_policy["the paper's `k0=2,m=0`"][3].startswith("-5.9 (")


def test_what_follows_the_staircase_is_shown_with_what_it_gains():
    row = {"policy": "k0=2,m=0", "cost": True, "batch": 16, "active": 26.0, "votes_lost": 0.171}
    row |= {
        "rounds": 8,
        "ms": 8.0,
        "ms_low": 7.9,
        "ms_high": 8.1,
        "gain_at_equal_votes": 1.02,
        "gain_low": 1.01,
        "gain_high": 1.03,
    }
    plain = row | {"cost": False, "gain_at_equal_votes": None, "gain_low": None, "gain_high": None}
    plain |= {"active": 23.5, "votes_lost": 0.23}
    shown = tables_of("cost_aware", {"format": 2, "rows": [plain, row]})["cost_aware"].splitlines()
    assert shown[2:] == [
        "| `k0=2,m=0` | 23.5 | 23.0% | 8.00 | 26.0 | 17.1% | 8.00 | +2.0 % (+1.0 % to +3.0 %) |",
    ]


def test_what_few_pairs_give_is_called_a_range():
    sys.path.append(str(ROOT / "tools" / "docs"))
    render, spans = importlib.import_module("render"), importlib.import_module("spans")
    few, many = spans.Span("+1 (0 to 2)", 4), spans.Span("+1 (0 to 2)", 6)
    assert render.markdown(["policy", "ours (95 %)"], [["a", few]]).startswith("| policy | ours (range of 4) |\n")
    assert render.markdown(["policy", "times"], [["a", few]]).startswith("| policy | times (range of 4) |\n")
    both = render.markdown(["policy", "ours (95 %)"], [["a", few], ["b", many]]).splitlines()
    assert both[0] == "| policy | ours (95 %, or range) |"
    assert both[2:] == ["| a | +1 (0 to 2, range of 4) |", "| b | +1 (0 to 2) |"]
    with pytest.raises(ValueError, match="does not say of how many values"):
        render.markdown(["policy", "ours (95 %)"], [["a", "+1 (0 to 2)"]])
    tables = tables_of("paper_speed", json.loads((ROOT / "evidence" / "paper_speed.json").read_text()))
    assert "ours (range of 4)" in tables["paper_speed_carried"]
    assert "ours (range of 5)" in tables["paper_speed_eagle3_carried"]


def pages():
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "benchmarks" / "README.md",
        *(ROOT / "docs").rglob("*.md"),
    ]


def anchors(page):
    """A page's headings as GitHub names them in addresses."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere():
    for page in pages():
        for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text()):
            if target.startswith("https://"):
                continue
            file = page.parent / target if target else page
            assert file.exists(), (page.name, target)
            assert not anchor or anchor in anchors(file), (page.name, target, anchor)


def test_every_benchmark_is_listed_with_its_result_file():
    page = (ROOT / "benchmarks" / "README.md").read_text()
    rows = re.findall(r"^\| [^|]+ \| `(\w+\.py)` \| (?:`(\w+\.json)` )?\|", page, flags=re.MULTILINE)
    assert sorted(script for script, _ in rows) == sorted(file.name for file in (ROOT / "benchmarks").glob("*.py"))
    assert all((ROOT / "evidence" / file).is_file() for _, file in rows if file)


def test_every_page_with_tables_is_rendered():
    sys.path.append(str(ROOT / "tools" / "docs"))
    listed = importlib.import_module("render").PAGES
    marked = {str(page.relative_to(ROOT)) for page in pages() if "<!-- table:" in page.read_text()}
    assert marked <= set(listed)


def test_every_table_of_a_result_file_is_shown():
    sys.path.append(str(ROOT / "tools" / "docs"))
    tables = importlib.import_module("render").TABLES
    shown = {name for page in pages() for name in re.findall(r"<!-- table:(\w+) -->", page.read_text())}
    assert not [name for name in tables.keys() - shown if tables[name](name)]  # of what nobody measured there is none


def test_the_evidence_answers_each_question_first():
    """Its page lists questions with their answers, and each leads to a page that begins with a conclusion."""
    page = (ROOT / "docs" / "evidence.md").read_text()
    questions = re.findall(r"^\| \[[^\]]*\]\((evidence/\w+\.md)\) \| \S", page, flags=re.MULTILINE)
    assert len(questions) == 10
    for target in questions:
        title, answer = (ROOT / "docs" / target).read_text().split("\n\n")[:2]
        assert title.endswith("?"), target
        assert answer.startswith("**"), target


def test_what_tests_cite_of_the_algorithms_is_there():
    files = ("algorithms.md", "algorithms/beyond.md", "algorithms/routing.md", "algorithms/context.md")
    page = "\n".join((ROOT / "docs" / file).read_text() for file in files)
    numbers = [int(number) for number in re.findall(r"^## (\d+)\. ", page, flags=re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    cited = set()
    for file in (ROOT / "tests").rglob("*.py"):
        for citation in re.findall(r"algorithms\.md, section \d+(?: to section \d+)?", file.read_text()):
            cited |= {int(number) for number in re.findall(r"\d+", citation)}
    assert cited
    assert cited <= set(numbers)
    invariants = page.partition("## 10. Invariants")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^(\d+)\. ", invariants, flags=re.MULTILINE))
    tested = set(re.findall(r"Invariant (\d+)\.", (ROOT / "tests" / "test_invariants.py").read_text()))
    assert tested <= listed == set("123456789")
