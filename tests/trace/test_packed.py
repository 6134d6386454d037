"""Traces compressed by xz: the same trace, and what is not one is refused in one sentence."""

import hashlib
import json
import lzma
import tempfile
from itertools import islice

import pytest
import torch
from synthetic_traces import chosen_trace, full_trace
from typer.testing import CliRunner

from xshare import TraceError
from xshare.cli import app
from xshare.trace import Trace
from xshare.trace import compressed as packed


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of the traces. Unpacked files go to a folder beside it, which must be empty in the end."""
    (tmp_path / "traces").mkdir()
    (tmp_path / "unpacked").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "unpacked"))
    yield tmp_path / "traces"
    assert list((tmp_path / "unpacked").iterdir()) == []


def refused(path, match):
    with pytest.raises(TraceError, match=match) as caught:
        Trace.load(path)
    assert "\n" not in str(caught.value)
    assert path.name in str(caught.value)


@pytest.mark.parametrize("make", [chosen_trace, full_trace])
def test_a_compressed_trace_is_read_back_equal(make, folder):
    trace = make()
    for name in ("plain", "t.trace.xz", "again.trace.xz"):
        trace.save(folder / name)
    plain, content = (folder / "plain").read_bytes(), (folder / "t.trace.xz").read_bytes()
    assert lzma.decompress(content, format=lzma.FORMAT_XZ) == plain
    assert content == (folder / "again.trace.xz").read_bytes()
    back = Trace.load(folder / "t.trace.xz")
    assert back.header == trace.header
    for name in ("lengths", "experts", "weights", "logits"):
        saved, loaded = getattr(trace, name), getattr(back, name)
        assert (saved is None and loaded is None) or torch.equal(saved, loaded)
    wanted = hashlib.sha256(plain).hexdigest()
    assert packed.content_sha256(folder / "plain") == packed.content_sha256(folder / "t.trace.xz") == wanted
    assert len(list(folder.iterdir())) == 3


def test_however_it_was_compressed(folder):
    trace = full_trace()
    trace.save(folder / "plain")
    plain = (folder / "plain").read_bytes()
    for preset in (0, 6, 9 | lzma.PRESET_EXTREME):
        (folder / "t.xz").write_bytes(lzma.compress(plain, preset=preset))
        assert torch.equal(Trace.load(folder / "t.xz").logits, trace.logits)


def test_damaged_and_foreign_files(folder):
    chosen_trace().save(folder / "good.xz")
    chosen_trace().save(folder / "plain")
    good, plain = (folder / "good.xz").read_bytes(), (folder / "plain").read_bytes()
    middle = len(good) // 2
    for name, content, says in (
        ("plain.xz", plain, "cannot be unpacked by xz: input format not supported"),
        ("text.xz", b"hello, I am not a trace " * 10, "cannot be unpacked by xz"),
        ("older.xz", lzma.compress(plain, format=lzma.FORMAT_ALONE), "cannot be unpacked by xz"),
        ("damaged.xz", good[:middle] + bytes([good[middle] ^ 0x5A]) + good[middle + 1 :], "corrupt input data"),
        ("truncated.xz", good[:middle], "not a whole xz file: it ends too early"),
        ("almost.xz", good[:-1], "it ends too early"),
        ("headless.xz", good[:4], "it ends too early"),
        ("empty.xz", b"", "it ends too early"),
        ("two.xz", good + good, "something follows its end"),
        ("more.xz", good + b"\n", "something follows its end"),
        ("nothing.xz", lzma.compress(b""), "not a whole safetensors file"),
        ("half.xz", lzma.compress(plain[: len(plain) // 2]), "not a whole safetensors file"),
        ("other.xz", lzma.compress(b"hello, I am not a trace " * 10), "not a whole safetensors file"),
    ):
        (folder / name).write_bytes(content)
        refused(folder / name, says)
    (folder / "packed").write_bytes(good)  # its name does not say that it is
    refused(folder / "packed", "not a whole safetensors file")
    refused(folder / "nowhere.xz", "does not exist")


def test_what_unpacks_to_too_much_is_refused_on_the_way(folder, monkeypatch):
    bomb = folder / "bomb.xz"
    bomb.write_bytes(lzma.compress(bytes(32 << 20)))
    assert bomb.stat().st_size < 10_000
    monkeypatch.setattr(packed, "MOST_BYTES", 4 << 20)
    pieces = packed._decompressed(bomb)
    assert sum(len(piece) for piece in islice(pieces, 4)) == 4 << 20
    with pytest.raises(TraceError, match="unpacks to more than"):
        next(pieces)
    refused(bomb, "unpacks to more than 0.00390625 GiB: if you trust it")


def test_unpacking_takes_a_bounded_memory(folder, monkeypatch):
    chosen_trace().save(folder / "t.xz")
    monkeypatch.setattr(packed, "MOST_MEMORY", 1 << 20)
    refused(folder / "t.xz", "memory usage limit exceeded")


def test_no_room_to_unpack(folder, monkeypatch):
    chosen_trace().save(folder / "t.xz")

    def full(path):
        raise OSError(28, "No space left on device")
        yield b""

    monkeypatch.setattr(packed, "_decompressed", full)
    refused(folder / "t.xz", "cannot be unpacked: No space left on device")


def test_every_command_takes_one(folder):
    chosen_trace().save(folder / "plain")
    chosen_trace().save(folder / "t.trace.xz")
    wanted = hashlib.sha256((folder / "plain").read_bytes()).hexdigest()
    assert CliRunner().invoke(app, ["trace", "show", str(folder / "t.trace.xz")]).exit_code == 0
    for words in (["trace", "load"], ["replay", "--policy", "k0=1,m=2", "--batch", "4"]):
        out = folder / f"{words[0]}.json"
        done = CliRunner().invoke(app, [*words, str(folder / "t.trace.xz"), "--out", str(out)])
        assert done.exit_code == 0, done.output
        stamp = json.loads(out.read_text())["provenance"]
        assert (stamp["trace"], stamp["trace_sha256"]) == ("t.trace.xz", wanted)
