"""One name for each notion in all commands; command lines of before still work."""

import re
from pathlib import Path

import pytest
import typer

import xshare
from xshare.cli import app
from xshare.cli.output import chosen_engine, engine_arguments
from xshare.engines import by_name as opening
from xshare.errors import XShareError

MEASURING = ("bench", "doctor", "quality", "tune")


def commands():
    """All commands by their words: `bench`, `trace record` ..."""
    group = typer.main.get_command(app)
    context = typer.Context(group)
    by_words = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        more = getattr(command, "commands", None)
        by_words |= {name: command} if more is None else {f"{name} {word}": more[word] for word in more}
    return by_words


COMMANDS = commands()


def parsed(name, *words):
    return COMMANDS[name].make_context(name, list(words)).params


def names(command):
    return {name for param in command.params for name in param.opts}


def test_no_command_shows_a_spelling_of_before():
    assert set(COMMANDS) >= {*MEASURING, "replay", "demo", "report", "trace record", "trace import", "trace load"}
    for name, command in COMMANDS.items():
        before = {"--output", "--draft"} | ({"--json"} if name != "watch" else set())  # that writes no file
        assert not names(command) & before, name
        if "--out" in names(command):
            assert "-o" in names(command), name


@pytest.mark.parametrize("name", MEASURING)
def test_what_is_measured_with_is_named_alike(name):
    wanted = {"--engine", "--model", "--device", "--dtype", "--drafts", "--engine-args", "--out", "--batch", "--tokens"}
    assert wanted <= names(COMMANDS[name])
    assert parsed(name)["engine"] is None  # then the default of all


def test_prompts_are_named_alike():
    shared = {name for name, command in COMMANDS.items() if "--prompts" in names(command)}
    assert shared == {"bench", "doctor", "trace record"}
    assert {parsed(name, "--out", "o")["prompts"] for name in shared} == {"questions"}
    assert {"--device", "--dtype", "--model"} <= names(COMMANDS["trace record"])


@pytest.mark.parametrize(
    ("name", "before", "today"),
    [
        *((name, ["--json", "r.json"], ["--out", "r.json"]) for name in (*MEASURING, "demo")),
        ("bench", ["--json=r.json"], ["-o", "r.json"]),
        ("replay", ["t", "--json", "r", "--draft", "3"], ["t", "--out", "r", "--drafts", "3"]),
        ("replay", ["t", "--mix", "domain"], ["t", "--mix", "mixed"]),
        ("replay", ["t", "--mix=single", "--draft=2"], ["t", "--mix", "alike", "--drafts", "2"]),
        ("trace load", ["t", "--json", "r.json"], ["t", "--out", "r.json"]),
        ("trace import", ["t", "--output", "o", "--model", "m"], ["t", "--out", "o", "--name", "m"]),
        ("trace record", ["--prompts", "p", "--output", "o"], ["--prompts", "p", "--out", "o"]),
    ],
)
def test_old_spellings_mean_the_same(name, before, today):
    assert parsed(name, *before) == parsed(name, *today)


def test_the_documentation_shows_todays_spellings():
    root = Path(__file__).parents[2]
    pages = [root / "README.md", root / "Makefile", *(root / "docs").rglob("*.md")]
    lines = [line for page in pages for line in page.read_text().replace("\\\n", " ").splitlines()]
    shown = 0
    for name, command in COMMANDS.items():
        examples = [line for line in lines if re.search(rf"(?<!rm -f )\bxshare {name}\b", line)]
        used = {word for line in examples for word in re.findall(r"(?<![\w-])--[a-z][a-z-]+", line.split("#")[0])}
        assert used <= {*names(command), "--additional-config"}, name
        shown += len(used)
    assert shown > 30


def test_the_model_of_a_recording_may_still_stand_alone():
    assert parsed("trace record", "FOLDER", "--out", "o")["folder"] == "FOLDER"


def test_the_default_engine_is_the_one_that_runs_here(monkeypatch, tmp_path):
    monkeypatch.setattr(opening, "find_spec", lambda name: None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert opening.default_engine() == "transformers"
    monkeypatch.setattr(opening, "find_spec", lambda name: object())
    assert opening.default_engine() == "vllm"
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert opening.default_engine() == chosen_engine(None, None) == "transformers"
    assert chosen_engine("vllm", None) == "vllm"
    path = tmp_path / "r.json"
    path.write_text('{"provenance": {"fingerprint": {"engine": "vllm"}}}')
    assert chosen_engine(None, path) == "vllm"  # the same command goes on as it began
    path.write_text("{}")
    assert chosen_engine(None, path) == "transformers"


def test_device_and_dtype_are_arguments_of_the_engine():
    assert engine_arguments("{}", device="cuda", dtype="bfloat16") == {"device": "cuda", "dtype": "bfloat16"}
    assert engine_arguments('{"dtype": "float32"}', dtype="float32") == {"dtype": "float32"}
    with pytest.raises(XShareError, match="--dtype is float32 and engine-args say 'bfloat16': say it once"):
        engine_arguments('{"dtype": "bfloat16"}', dtype="float32")


def test_the_package_gives_all_its_names():
    assert {name for name in xshare.__all__ if getattr(xshare, name) is None} == set()
    assert set(xshare.__all__) <= set(dir(xshare))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        xshare.nonsense  # noqa: B018
