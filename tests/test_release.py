"""What a release says of itself: one version everywhere, wheels that hold what they should, a sentence without nano."""

import re
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path

import pytest
import yaml

import xshare.models
from xshare import ModelError, __version__

ROOT = Path(__file__).parent.parent


def project(name="."):
    return tomllib.loads((ROOT / name / "pyproject.toml").read_text())


def test_versions_agree():
    newest, day = re.search(r"^## \[([\d.]+)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE).groups()
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert newest == cited["version"] == __version__
    assert date.fromisoformat(day) == cited["date-released"]
    assert project()["project"]["dynamic"] == ["version"]  # xshare.version has it
    bounds = re.fullmatch(r"xshare-nano>=(\d+),<(\d+)", *project()["project"]["optional-dependencies"]["nano"])
    has = int(project("nano")["project"]["version"].split(".")[0])
    assert int(bounds[1]) <= has < int(bounds[2])


def test_who_wrote_the_paper_is_cited():
    paper = yaml.safe_load((ROOT / "CITATION.cff").read_text())["preferred-citation"]
    assert len(paper["authors"]) == 6
    assert paper["url"] == project()["project"]["urls"]["Paper"]


def test_no_weights_in_the_wheel_and_all_in_nanos():
    packaged = project()["tool"]["setuptools"]["package-data"]["xshare"]
    assert not any((ROOT / "src" / "xshare" / name).suffix == ".safetensors" for name in packaged)
    assert not list((ROOT / "src").rglob("*.safetensors"))
    folder = ROOT / "nano" / "xshare_nano"
    packed = {
        file
        for glob in project("nano")["tool"]["setuptools"]["package-data"]["xshare_nano"]
        for file in folder.glob(glob)
    }
    assert packed == {file for model in xshare.models.NAMES for file in (folder / model).iterdir()}


def test_without_nano_one_sentence_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(xshare.models, "CHECKOUT", tmp_path / "nowhere")
    monkeypatch.setattr(sys, "path", [place for place in sys.path if not (Path(place) / "xshare_nano").exists()])
    with pytest.raises(ModelError, match=r"nano is in a package of its own, xshare-nano: pip install \./nano"):
        xshare.models.folder("nano")
    monkeypatch.syspath_prepend(ROOT / "nano")  # as if it were installed
    assert xshare.models.folder("nano-draft") == ROOT / "nano" / "xshare_nano" / "nano-draft"


def test_workflows_call_what_the_makefile_has():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for file in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        workflow = yaml.safe_load(file.read_text())
        steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
        called = {name for step in steps for name in re.findall(r"\bmake ([\w-]+)", step.get("run", ""))}
        assert called, file.name
        assert called <= {*targets, "site"}, file.name
        assert workflow["permissions"] == {"contents": "read"}
        assert all("timeout-minutes" in job for job in workflow["jobs"].values())


def test_the_image_copies_what_the_wheel_is_made_of():
    copied = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == {"pyproject.toml", "README.md", "LICENSE", "src"}
    assert "ENTRYPOINT" not in (ROOT / "Dockerfile").read_text()  # vLLM's stays


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_bash_and_can_be_run(script):
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    assert bool(script.stat().st_mode & 0o100) == (script.name != "serving.sh")  # which is sourced
    assert script.name == "serving.sh" or f"](./{script.name})" in (ROOT / "examples" / "README.md").read_text()
