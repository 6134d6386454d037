"""The documentation as a site: it builds strictly, pages are short, the reference and the sentences are the code's."""

import ast
import contextlib
import importlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from xshare.cli import app

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
sys.path.append(str(ROOT / "tools" / "docs"))
meanings, reference, sentences, site_hooks = map(
    importlib.import_module, ("meanings", "reference", "sentences", "site_hooks")
)
MOST_WORDS, MOST_ROWS = 1500, 10


def pages():
    return sorted(DOCS.rglob("*.md"))


def is_reference(page):
    return page.is_relative_to(DOCS / "reference")


def words(text):
    """As a reader counts them: no comments, no addresses, no lines of tables."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return len(re.findall(r"[^\s|]*\w[^\s|]*", text))


def test_the_site_builds_with_no_link_that_leads_nowhere(tmp_path):
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.rglob("*.html"))) == len(pages()) + 1  # and the one for what is not there
    assert (tmp_path / "evidence" / "demo.json").is_file()
    loaded = re.compile(r"<(?:script|link|img)[^>]*(?:src|href)=\"https?://")
    assert not [page.name for page in tmp_path.rglob("*.html") if loaded.search(page.read_text())]


@pytest.mark.parametrize("page", [page for page in pages() if not is_reference(page)], ids=lambda page: page.stem)
def test_a_page_can_be_read(page):
    text = page.read_text()
    assert words(text) <= MOST_WORDS
    tables = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    assert all(len(table.splitlines()) - 2 <= MOST_ROWS for table in tables)  # a heading and a rule: others are plots


def test_the_reference_is_what_the_code_says():
    reference.main(check=True)


def test_the_reference_has_every_option_of_every_command():
    group = typer.main.get_command(app)
    context = typer.Context(group)
    text = (DOCS / "reference" / "commands.md").read_text()
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        for subname, leaf in getattr(command, "commands", {"": command}).items():
            section = text.partition(f"## xshare {name} {subname}".strip() + "\n")[2].partition("\n## ")[0]
            shown = [param for param in leaf.params if not getattr(param, "hidden", False)]
            options = {word for param in shown for word in (*param.opts, *param.secondary_opts)}
            assert section, name
            for option in options - {"--help"}:
                assert f"`{option}`" in section or f"`{leaf.params[0].metavar or option.upper()}`" in section, option


def test_the_reference_has_every_column():
    files = {"demo": "demo", "staircase": "doctor --stairs", "nano_load": "trace load"}
    files |= {"curve": "replay --curve", "overlap": "replay --overlap", "replay_devices": "replay"}
    for file, command in files.items():
        rows = json.loads((ROOT / "evidence" / f"{file}.json").read_text())["rows"]
        names = {re.sub("_lo$", "_low", re.sub("_hi$", "_high", name)) for row in rows for name in row}
        assert not meanings.unknown(f"xshare {command}", names), file


def test_the_reference_has_every_field_of_the_stats():
    def keys(file, function):
        tree = ast.parse((ROOT / "src" / "xshare" / "engines" / file).read_text())
        definition = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == function)
        (returned,) = (node.value for node in ast.walk(definition) if isinstance(node, ast.Return))
        return {key.value for key in returned.keys if key is not None}

    code = keys("serving/state.py", "snapshot") | keys("gates.py", "snapshot") | keys("serving/metrics.py", "means")
    assert code == set(meanings.STATS)


@pytest.mark.parametrize("page", sentences.PAGES)
def test_every_sentence_is_explained(page):
    assert len(sentences.sentences(page)) > 10
    assert not sentences.missing(page, (DOCS / page).read_text())


def test_no_refusal_of_the_plugin_is_forgotten():
    folder = sentences.SOURCE / "engines" / "vllm"
    listed = {file for files in sentences.PAGES.values() for file in files}
    for path in folder.glob("*.py"):
        if re.search(r"^\s*raise (?:\w*Error|refusal|Refused|NotOurs)\(\s*f?\"", path.read_text(), flags=re.MULTILINE):
            assert str(path.relative_to(sentences.SOURCE)) in listed


def test_every_bypass_reason_is_explained():
    text = (DOCS / "troubleshooting.md").read_text().partition("## Bypass reasons")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE) == list(sentences.reasons())
    rules = (DOCS / "algorithms" / "routing.md").read_text()
    assert all(f"`{reason}`" in rules for reason in sentences.reasons())


def test_links_out_of_the_documentation_are_put_into_words():
    text = (
        "[`router.py`](../src/xshare/router.py), [the file](../evidence/demo.json), [next](start.md), ![a](plots/a.svg)"
    )
    shown = site_hooks.for_site(text, "")
    assert shown == "`src/xshare/router.py`, [the file](evidence/demo.json), [next](start.md), ![a](plots/a.svg)"
    deeper = site_hooks.for_site("[rows](../../../evidence/demo.json), [how](../../../tools/x.py)", "reference/rows")
    assert deeper == "[rows](../../evidence/demo.json), how (`tools/x.py`)"
    assert site_hooks.for_site("```\n[a](../b)\n```", "") == "```\n[a](../b)\n```"


def test_plots_stand_where_tables_had_many_rows(tmp_path):
    importlib.import_module("row_plots").main(ROOT / "evidence", tmp_path)
    drawn = {plot.name for plot in tmp_path.glob("*.svg")}
    assert len(drawn) > 10
    assert drawn <= {plot.name for plot in (DOCS / "plots").iterdir()}


def test_the_python_of_the_pages_runs():
    (block,) = re.findall(r"```python\n(.*?)```", (DOCS / "python.md").read_text(), flags=re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(block, {})
    assert "experts instead of" in printed.getvalue()
