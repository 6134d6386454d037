"""Files are written whole or not at all, and nothing else is put in their place."""

import os

import pytest

from xshare.errors import XShareError
from xshare.files import check_distinct_paths, check_writable, whole_file


def test_a_pipe_or_device_is_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(XShareError, match="is a device or a pipe, expected a file"):
        check_writable(pipe)


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real.json").write_text("old")
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "real.json")
    with whole_file(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert (tmp_path / "real.json").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "real.json"]


def test_an_output_is_neither_an_input_nor_another_output(tmp_path):
    trace, json, plot = (tmp_path / name for name in ("a.trace", "a.json", "a.svg"))
    check_distinct_paths([json, plot, None], [trace, None])
    with pytest.raises(XShareError, match="would replace what is read: name another file"):
        check_distinct_paths([tmp_path / "." / "a.trace"], [trace])
    with pytest.raises(XShareError, match="would replace another output"):
        check_distinct_paths([json, json])
