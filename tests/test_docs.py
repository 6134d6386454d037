"""What the documentation shows is true: its Python runs, its tables are what evidence/ says."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_readmes_python_runs():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len(blocks) == 2
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec("\n".join(blocks), {})
    assert "experts instead of" in printed.getvalue()


def test_tables_are_up_to_date():
    subprocess.run([sys.executable, ROOT / "docs" / "render.py", "--check"], check=True)


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            assert target.startswith("https://") or (page.parent / target).exists(), (page.name, target)


def test_what_tests_cite_of_the_algorithms_is_there():
    page = (ROOT / "docs" / "algorithms.md").read_text()
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
    tested = set(re.findall(r"def test_(\d+)_", (ROOT / "tests" / "test_invariants.py").read_text()))
    assert tested <= listed == set("123456789")
