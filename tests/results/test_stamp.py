"""Which commit a result is of, and whether its code had changes."""

import subprocess

import pytest

from xshare.results.stamp import commit, provenance, without_secrets


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with one file of code, and nothing in the environment that names a commit."""
    monkeypatch.delenv("XSHARE_COMMIT", raising=False)
    file = tmp_path / "src" / "package" / "code.py"
    file.parent.mkdir(parents=True)
    file.write_text("one = 1\n")

    def git(*words):
        author = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(["git", *author, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    return file, git("rev-parse", "HEAD").strip()


def test_a_clean_checkout_is_its_commit(checkout, monkeypatch):
    file, head = checkout
    assert commit(file) == head
    monkeypatch.setenv("XSHARE_COMMIT", "named")
    assert commit(file) == "named"


def test_changes_are_told_even_of_a_commit_that_is_named(checkout, monkeypatch):
    file, head = checkout
    file.write_text("one = 2\n")
    assert commit(file) == head + "+changes"
    monkeypatch.setenv("XSHARE_COMMIT", "named")
    assert commit(file) == "named+changes"


def test_a_commit_that_is_named_is_what_the_tree_is_held_against(checkout, monkeypatch):
    file, first = checkout
    file.write_text("one = 2\n")
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *author, "commit", "-qam", "two"], cwd=file.parent, check=True)
    monkeypatch.setenv("XSHARE_COMMIT", first)
    assert commit(file) == first + "+changes"
    file.write_text("one = 1\n")  # what the named commit has, though not HEAD
    assert commit(file) == first


def test_without_a_checkout_the_name_is_all_there_is(checkout, tmp_path, monkeypatch):
    beside = checkout[0].with_name("installed.py")  # some other repository surrounds it
    beside.write_text("")
    assert commit(beside) is None
    monkeypatch.setenv("XSHARE_COMMIT", "named")
    assert commit(beside) == "named"


def test_a_key_is_in_no_stamp(monkeypatch):
    words = ["bench", "--api-key", "sk-1", "--api-key=sk-2", "--engine", "http://h"]
    shown = ["bench", "--api-key", "***", "--api-key=***", "--engine", "http://h"]
    assert without_secrets(words) == shown
    monkeypatch.setattr("sys.argv", ["/bin/xshare", *words])
    monkeypatch.setenv("OPENAI_API_KEY", "sk-3")
    assert provenance()["argv"] == ["xshare", *shown]
    assert "sk-" not in repr(provenance())
