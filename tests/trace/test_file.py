"""The trace file: what goes in comes out, and what is not a trace is refused in one sentence."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from synthetic_traces import chosen_trace, full_trace

from xshare import RouterSpec, TraceError
from xshare.trace import Trace, import_npz
from xshare.trace.file import HEADER_KEY


@pytest.mark.parametrize("make", [chosen_trace, full_trace, lambda: full_trace(router=RouterSpec.sigmoid(3))])
def test_a_saved_trace_is_read_back_equal(make, tmp_path):
    trace = make()
    trace.save(tmp_path / "t.safetensors")
    back = Trace.load(tmp_path / "t.safetensors")
    assert back.header == trace.header
    for name in ("lengths", "experts", "weights", "logits", "correction_bias"):
        saved, loaded = getattr(trace, name), getattr(back, name)
        assert (saved is None and loaded is None) or torch.equal(saved, loaded)
    assert [p.name for p in tmp_path.iterdir()] == ["t.safetensors"]


def test_damaged_and_foreign_files(tmp_path):
    good = tmp_path / "good"
    chosen_trace().save(good)
    data = good.read_bytes()
    cases = {
        "truncated": data[: len(data) // 2],
        "headless": data[:4],
        "empty": b"",
        "text": b"hello, I am not a trace " * 10,
    }
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(TraceError, match="not a whole safetensors file") as caught:
            Trace.load(tmp_path / name)
        assert "\n" not in str(caught.value)
    save_file({"a": torch.zeros(2)}, tmp_path / "model")
    with pytest.raises(TraceError, match="not a trace"):
        Trace.load(tmp_path / "model")
    with pytest.raises(TraceError, match="does not exist"):
        Trace.load(tmp_path / "nowhere")
    with pytest.raises(TraceError, match="not a file"):
        Trace.load(tmp_path)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("{", "header"),
        ("{}", "model"),
        (json.dumps({"version": 2}), "version"),
    ],
)
def test_headers_that_cannot_be_read(text, names, tmp_path):
    save_file({"lengths": torch.tensor([1])}, tmp_path / "t", metadata={HEADER_KEY: text})
    with pytest.raises(TraceError, match=names) as caught:
        Trace.load(tmp_path / "t")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"weights": None}, "weights"),
        ({"experts": torch.zeros(3, 2, 3, dtype=torch.uint8)}, "experts"),
        ({"experts": torch.full((54, 2, 3), 12, dtype=torch.uint8)}, "from 0 to 11"),
        ({"experts": torch.zeros(54, 2, 3, dtype=torch.uint8)}, "at most once"),
        ({"weights": torch.full((54, 2, 3), torch.nan)}, "finite"),
        ({"lengths": torch.tensor([54, 0])}, "lengths"),
        ({"lengths": torch.tensor([54])}, "domains"),
        ({"lengths": torch.tensor([54.0])}, "lengths"),
        ({"weights": torch.ones(54, 2, 3, dtype=torch.int64)}, "weights"),
        ({"experts": torch.zeros(54, 2, 3)}, "experts"),
        ({"correction_bias": torch.full((2, 12), torch.nan)}, "correction_bias"),
    ],
)
def test_what_does_not_fit_together(change, names):
    with pytest.raises(TraceError, match=names):
        replace(chosen_trace(), **change)


def npz(path, **change):
    trace = chosen_trace(N=32, k=4)
    arrays = {
        "experts": trace.experts.numpy(),
        "weights": trace.weights.numpy(),
        "lengths": trace.lengths.numpy(),
        "domain": np.array(trace.header.domains),
        "category": np.array(["a"] * len(trace.lengths)),
    }
    np.savez(path, **{name: value for name, value in (arrays | change).items() if value is not None})
    return trace


def test_import_of_npz(tmp_path):
    path = tmp_path / "gpt-oss-20b.npz"
    trace = npz(path)
    got = import_npz(path)
    assert (got.header.model, got.header.num_experts, got.header.top_k) == ("gpt-oss-20b", 32, 4)
    assert got.header.domains == trace.header.domains
    assert torch.equal(got.experts, trace.experts)
    assert got.header.provenance["source"] == "gpt-oss-20b.npz"
    assert import_npz(path, model="mine", num_experts=40).header.num_experts == 40


def test_import_puts_the_best_first(tmp_path):
    path = tmp_path / "gpt-oss-20b.npz"
    trace = npz(path)
    shuffled = [2, 0, 3, 1]
    npz(path, experts=trace.experts.numpy()[..., shuffled], weights=trace.weights.numpy()[..., shuffled])
    assert torch.equal(import_npz(path).weights, trace.weights)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"weights": None}, "'weights'"),
        ({"lengths": np.array([3] * 8)}, "shape"),
        ({"domain": np.array(["one"])}, "domain"),
        ({"experts": np.zeros((5, 2), dtype=np.int64)}, "3 dimensions"),
        ({"experts": np.zeros((54, 2, 4))}, "whole numbers"),
        ({"experts": np.full((54, 2, 4), 256)}, "from 256 to 256"),  # not wrapped round to 0
        ({"experts": np.full((54, 2, 4), -1)}, "from -1 to -1"),
        ({"weights": np.zeros((54, 2, 3))}, "experts and weights"),
        ({"weights": np.zeros((54, 2, 4), dtype=complex)}, "weights"),
        ({"lengths": np.array(54)}, "1 dimensions"),
        (
            {"lengths": np.array([2**63 - 1, 2**63 - 1, 56], dtype=np.uint64), "domain": None, "category": None},
            "lengths",
        ),
        ({"domain": np.array([{"pickled": 1}], dtype=object)}, "plain arrays"),
    ],
)
def test_npz_that_does_not_fit(change, names, tmp_path):
    npz(tmp_path / "gpt-oss-20b.npz", **change)
    with pytest.raises(TraceError, match=names) as caught:
        import_npz(tmp_path / "gpt-oss-20b.npz")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("what", ["objects", "text"])
def test_nobody_is_told_to_unpickle(what, tmp_path):
    path = tmp_path / "gpt-oss-20b.npz"
    if what == "objects":
        npz(path, domain=np.array([{"pickled": 1}] * 8, dtype=object))
    else:
        path.write_text("not an archive")
    with pytest.raises(TraceError, match="expected numbers and text as savez writes them") as caught:
        import_npz(path)
    assert "pickle" not in str(caught.value)


def test_npz_that_is_one_array(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(TraceError, match="no array 'experts'"):
        import_npz(tmp_path / "a.npy")


def test_npz_damaged_anywhere_is_refused_or_read(tmp_path):
    """Whatever byte is wrong: a trace, or one sentence."""
    good = tmp_path / "gpt-oss-20b.npz"
    npz(good)
    data = bytearray(good.read_bytes())
    bad = tmp_path / "bad.npz"
    for place in range(0, len(data), 97):
        bad.write_bytes(data[:place] + bytes([data[place] ^ 0x5A]) + data[place + 1 :])
        try:
            import_npz(bad, model="gpt-oss-20b")
        except TraceError as error:
            assert "\n" not in str(error)  # noqa: PT017 (most damage is refused, some is harmless)


def test_npz_of_an_unknown_or_other_model(tmp_path):
    npz(tmp_path / "some-model.npz")
    with pytest.raises(TraceError, match="--experts"):
        import_npz(tmp_path / "some-model.npz")
    with pytest.raises(TraceError, match="top-8"):
        import_npz(tmp_path / "some-model.npz", model="olmoe")
    (tmp_path / "x.npz").write_bytes(b"PK\x03\x04 broken")
    with pytest.raises(TraceError, match=r"not a whole \.npz"):
        import_npz(tmp_path / "x.npz")


def test_only_what_the_score_asks_for_is_in_a_trace():
    full, chosen = full_trace(), chosen_trace()
    with pytest.raises(TraceError, match="logits do not belong in a trace of score 'topk'"):
        Trace(chosen.header, chosen.lengths, experts=chosen.experts, weights=chosen.weights, logits=full.logits)
    with pytest.raises(TraceError, match="experts do not belong in a trace of score 'full'"):
        Trace(full.header, full.lengths, logits=full.logits, experts=chosen.experts)
