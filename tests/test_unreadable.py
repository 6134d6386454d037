"""What a user names and nobody can read: a path that no file can have, JSON nested too deep, numbers of 5000 digits."""

import json
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from xshare.cli.output import engine_arguments, engine_of
from xshare.cli.prompts import prompts_from_file
from xshare.cli.quality import native_samples
from xshare.cli.replay import _policies
from xshare.engines.by_name import open_engine
from xshare.errors import XShareError, short_repr
from xshare.files import check_writable
from xshare.profile import read_profile
from xshare.quality.task_files import read_tasks
from xshare.report.page import page
from xshare.report.result_files import read_folder
from xshare.results import Results, check_replaceable, check_resumable
from xshare.trace import Trace, import_npz
from xshare.trace import numpy_import as npz
from xshare.trace.file import HEADER_KEY
from xshare.trace.prompt_file import read_prompts

LONG = Path("a" * 5000)
SETTING = dict.fromkeys(("batch", "tokens", "seed", "questions", "tasks"))
DEEP = ["[" * 10_000, '{"provenance": ' * 10_000]
BAD = [*DEEP, '{"a": ' + "9" * 5000 + "}"]


@pytest.mark.parametrize(
    "read",
    [
        Trace.load,
        import_npz,
        read_prompts,
        read_tasks,
        lambda path: prompts_from_file(str(path)),
        lambda path: native_samples(path, SETTING),
        lambda path: _policies([], path),
        lambda path: check_resumable(path, {}),
        check_replaceable,
        check_writable,
        read_folder,
        lambda path: open_engine("transformers", model=str(path)),
    ],
)
def test_a_path_that_no_file_can_have_is_one_sentence(read):
    with pytest.raises(XShareError) as caught:
        read(LONG)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("text", BAD, ids=["list", "object", "digits"])
def test_json_that_cannot_be_read_is_one_sentence(tmp_path, text):
    path = tmp_path / "file.jsonl"
    path.write_text(text)
    for read in (read_prompts, read_tasks):
        with pytest.raises(XShareError, match="line 1 is not JSON"):
            read(path)
    with pytest.raises(XShareError, match="holds no results that could be gone on with"):
        check_resumable(path, {})
    check_replaceable(path)  # holds nothing that would be lost
    assert engine_of(path) is None
    with pytest.raises(XShareError, match="engine-args must be a JSON object") as caught:
        engine_arguments(text)
    assert len(str(caught.value)) < 300
    files, notes = read_folder(tmp_path)
    assert (files, len(notes)) == ([], 0 if text.startswith("[") else 1)


@pytest.mark.parametrize("text", [*DEEP, "- " + "9" * 5000, "- 2024-13-45"], ids=["list", "object", "digits", "date"])
def test_policies_that_cannot_be_read(tmp_path, text):
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(XShareError, match="is not YAML"):
        _policies([], tmp_path / "p.yaml")


@pytest.mark.parametrize("text", BAD, ids=["list", "object", "digits"])
def test_a_trace_whose_header_cannot_be_read(tmp_path, text):
    save_file({"lengths": torch.ones(1, dtype=torch.int64)}, tmp_path / "t.trace", {HEADER_KEY: text})
    with pytest.raises(XShareError, match="has a header that cannot be read"):
        Trace.load(tmp_path / "t.trace")


def test_what_is_refused_is_shown_in_short():
    assert short_repr("ab") == "'ab'"
    assert short_repr("a" * 5000) == "'" + "a" * 79 + "… (5002 characters)"
    assert short_repr(10**5000) == "a number of 16610 bits"
    assert short_repr([10**5000]) == "such a list"


# What make fuzz has found (tests/test_fuzz.py)


def test_a_value_that_names_itself_ten_times_over_is_not_spelled(tmp_path):
    """A profile of less than a kilobyte, whose `batch` would take 10^12 words."""
    lines = ["  - &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"  - &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    fields = ["model: m", "config: c", "policy: k0=1", "versions:", "  all:", *lines, "measured: {batch: *a11}"]
    (tmp_path / "p.yaml").write_text("\n".join(fields))
    with pytest.raises(XShareError, match=r"measured\.batch must be a whole number from 1 to 65536, not such a list$"):
        read_profile(tmp_path / "p.yaml")


def test_a_sentence_is_one_short_line_that_can_be_printed():
    sentence = str(XShareError(f"{'a' * 5000}\nis no field\ud800"))
    assert sentence.startswith("aaaa")
    assert sentence.endswith("a is no field\\ud800")
    assert len(sentence) < 1000
    sentence.encode()
    assert str(XShareError()) == ""


def test_results_of_a_command_that_is_no_text_are_not_written_over(tmp_path):
    path = tmp_path / "r.json"
    for argv, by in [([None, 3, "a"], "None 3"), ("bench", "a command"), (None, "a command")]:
        path.write_text(json.dumps({"provenance": {"fingerprint": {}, "argv": argv}}))
        with pytest.raises(XShareError, match=f"holds what `{by}` has measured"):
            check_replaceable(path)
    path.write_text(json.dumps({"provenance": "fingerprint"}))
    check_replaceable(path)


UNWRITABLE = [{"rows": None}, {"rows": "k0=1"}, {"rows": [[]]}, {"stamps": 3}, {"samples": [{"ms": 1e999}]}]


@pytest.mark.parametrize("wrong", UNWRITABLE)
def test_a_file_that_could_not_be_written_again_is_not_gone_on_with(tmp_path, wrong):
    """Before the measuring, not after it."""
    path = tmp_path / "r.json"
    good = {"format": 2, "provenance": {"fingerprint": {"tokens": 8}}, "rows": [], "samples": []}
    path.write_text(json.dumps(good | wrong))
    with pytest.raises(XShareError, match="holds no results that could be gone on with: name another file"):
        Results(path, {"tokens": 8}, {})
    path.write_text(json.dumps(good))
    Results(path, {"tokens": 8}, {}).write()


def test_a_share_of_next_to_nothing_is_in_no_plot(tmp_path):
    row = {
        "policy": "k0=1,m=8",
        "active": 20.5,
        "active_native": 5e-324,
        "mass": 0.9,
        "top1_kept": 1.0,
        "accuracy": 0.9,
    }
    speed = [{"policy": "native", "otps": 5e-324}, {"policy": "k0=1,m=8", "otps": 20.0}]
    (tmp_path / "r.json").write_text(json.dumps({"provenance": {}, "rows": [row, row | {"policy": "native"}, *speed]}))
    assert "k0=1,m=8" in page(*read_folder(tmp_path), title="all")


def test_an_npz_file_that_unpacks_to_more_than_any_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(npz, "MOST_BYTES", 1 << 20)
    with zipfile.ZipFile(tmp_path / "n.npz", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("experts.npy", bytes(2 << 20))
    assert (tmp_path / "n.npz").stat().st_size < 1 << 12
    with pytest.raises(XShareError, match=r"unpacks to 0\.0 GiB, expected at most"):
        import_npz(tmp_path / "n.npz")
