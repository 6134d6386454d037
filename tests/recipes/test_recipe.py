"""The recipe of nano and lab, tried out on a CPU: it trains, goes on from a checkpoint, and asks what it should."""

import importlib
import json
import lzma
import os
import runpy
import shutil
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

RECIPES = Path(__file__).parents[2] / "recipes"
OPTIONS = ["--model", "lab", "--tiny", "--rows", "1", "--workers", "1", "--questions", "0"]


# Run at the start of every process that makes rows: the whole standard library would take long to read.
SMALL_LIBRARY = """
import sysconfig
get_path = sysconfig.get_path
sysconfig.get_path = lambda name, *more: {folder!r} if name == "stdlib" else get_path(name, *more)
"""


@pytest.fixture
def train(tmp_path, monkeypatch):
    """recipes/nano/train.py in this process: a function from its words to how it ended."""
    monkeypatch.syspath_prepend(str(RECIPES / "nano"))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    shutil.copytree(Path(json.__file__).parent, tmp_path / "library" / "json")
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "sitecustomize.py").write_text(SMALL_LIBRARY.format(folder=str(tmp_path / "library")))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "first"), prepend=os.pathsep)
    app, precision = typer.Typer(), torch.get_float32_matmul_precision()  # it asks for another
    app.command()(importlib.import_module("train").main)
    yield lambda *words: CliRunner().invoke(app, [str(word) for word in words])
    torch.set_float32_matmul_precision(precision)


def test_it_trains_and_goes_on(tmp_path, train):
    for language in ("eng", "fra", "deu", "spa"):
        with lzma.open(tmp_path / f"eltec_{language}.txt.xz", "wt") as file:
            file.write(
                "\n<|endoftext|>\n".join(f"{number} " + "A sentence of some words. " * 400 for number in range(30))
            )
    out, more = tmp_path / "out", ["--resume", "--short-steps", "1"]
    for steps, options in ((2, ["--short"]), (3, more)):
        ended = train(tmp_path, "--out", out, *OPTIONS, "--steps", steps, *options)
        assert ended.exit_code == 0, ended.output
    assert json.loads((out / "log-lab.jsonl").read_text().splitlines()[-1])["step"] == 3
    assert json.loads((out / "lab" / "config.json").read_text())["model_type"] == "qwen3_moe"
    refused = train(tmp_path, "--out", out, *OPTIONS)
    assert refused.exit_code != 0
    assert "say how many --steps" in refused.output


def test_lab_is_asked_at_the_largest_size_it_answers_well(tmp_path, monkeypatch, capsys):
    accuracy = {"sums": {"3": 1.0, "20": 0.8, "30": 0.5}, "sorting": {"4": 0.75}, "legs": {"3": 0.7}}
    (tmp_path / "evaluation.json").write_text(json.dumps({"accuracy": accuracy}))
    script = str(RECIPES / "lab" / "tasks.py")
    monkeypatch.setattr("sys.argv", [script, "2", str(tmp_path / "evaluation.json")])
    runpy.run_path(script, run_name="__main__")
    tasks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [task["kind"] for task in tasks] == ["sums", "sums", "sorting", "sorting"]
    assert all(task["question"].count("+") + task["question"].count(" - ") == 19 for task in tasks[:2])
