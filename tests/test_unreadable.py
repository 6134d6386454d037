"""What a user names and nobody can read: a path that no file can have, JSON nested too deep, numbers of 5000 digits."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from xshare.cli.output import engine_arguments, engine_of
from xshare.cli.prompts import of_a_file
from xshare.cli.quality import natives
from xshare.cli.replay import _policies
from xshare.engines.opening import open_engine
from xshare.errors import XShareError, shown
from xshare.files import check_writable
from xshare.quality.files import read_tasks
from xshare.report.read import read_folder
from xshare.results import check_continued, check_replaced
from xshare.trace import Trace, import_npz
from xshare.trace.file import HEADER_KEY
from xshare.trace.prompts import read_prompts

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
        lambda path: of_a_file(str(path)),
        lambda path: natives(path, SETTING),
        lambda path: _policies([], path),
        lambda path: check_continued(path, {}),
        check_replaced,
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
        check_continued(path, {})
    check_replaced(path)  # holds nothing that would be lost
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
    assert shown("ab") == "'ab'"
    assert shown("a" * 5000) == "'" + "a" * 79 + "… (5002 characters)"
    assert shown(10**5000) == "a number of 16610 bits"
    assert shown([10**5000]) == "such a list"
