"""`xshare doctor --backends`, with kernels that are played: real ones take minutes to start."""

import json

import pytest
from documented_columns import check_columns
from typer.testing import CliRunner

from xshare.bench.workload import Workload
from xshare.cli import app
from xshare.errors import ModelError, XShareError
from xshare.tune import backends
from xshare.tune.backends import BackendBenchmark, BackendResult, first_sentence

ASKED = BackendBenchmark("m", ("k0=1,m=2",), Workload(4, 4, None, 8, 6), repeats=2)


def test_a_kernel_is_measured_natively_and_under_each_policy(engine, monkeypatch):
    started = []

    def opened(kind, model, **settings):
        started.append((kind, settings["options"]))
        return engine

    monkeypatch.setattr(backends, "open_engine", opened)
    result = backends.measure_backend("marlin", ASKED, {})
    assert started == [("vllm", {"moe_backend": "marlin"})]
    assert (result.why, result.backend) == (None, "grouped_mm")
    assert [row["policy"] for row in result.rows] == ["native", "k0=1,m=16", "k0=1,m=2"]
    assert {row["moe_backend"] for row in result.rows} == {"marlin"}
    check_columns("doctor --backends", result.rows)
    assert result.rows[2]["active"] < result.rows[0]["active"]
    assert result.about["engine"] == "transformers"
    again = backends.measure_backend("triton", ASKED, {"grouped_mm": "marlin"})  # the same kernel by another name
    assert (again.rows, again.why) == ([], "the kernel is marlin's, grouped_mm")
    assert again.about == result.about  # it started, so its device is known


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ModelError("vllm cannot serve 'm': not supported on cpu. Try another."), "not supported on cpu."),
        (
            ModelError("vllm cannot serve 'm': 1 validation error for VllmConfig Value error, no 0.5 of it"),
            "no 0.5 of it",
        ),
        (ImportError("No module named 'aiter'\nmore"), "No module named 'aiter' more"),
        (AssertionError(), "AssertionError"),
    ],
)
def test_whatever_does_not_start_is_left_out_with_its_first_sentence(error, sentence, monkeypatch):
    def opened(*args, **settings):
        raise error

    monkeypatch.setattr(backends, "open_engine", opened)
    assert backends.measure_backend("aiter", ASKED, {}) == BackendResult("aiter", why=sentence)
    assert first_sentence(error) == sentence


def row(name, backend, policy, ms, native):
    ratio = native / ms
    columns = {"moe_backend": name, "backend": backend, "policy": policy, "step_ms": ms, "active": 8.0}
    return columns | {"step_ratio": ratio, "step_ratio_low": ratio, "step_ratio_high": ratio}


def played(monkeypatch, kernels, **about):
    """Kernels by the value they are asked for; None does not start. `about`: further facts of an engine."""
    tries = []

    def tried(name, benchmark, known):
        tries.append(name)
        kernel, native, pruned = kernels[name]
        if kernel is None:
            return BackendResult(name, why="no such device.")
        if kernel in known:
            return BackendResult(name, kernel, f"the kernel is {known[kernel]}'s, {kernel}")
        rows = [row(name, kernel, policy, ms, native) for policy, ms in (("native", native), ("k0=0,rho=0.7", pruned))]
        return BackendResult(name, kernel, rows=rows, about={"model": "m"} | about)

    monkeypatch.setattr("xshare.cli.backends.moe_backends", lambda: list(kernels))
    monkeypatch.setattr("xshare.cli.backends.measure_in_process", tried)
    return tries


def test_table_and_file(tmp_path, monkeypatch):
    kernels = {"auto": ("A", 4.0, 3.0), "marlin": (None, 0, 0), "triton": ("A", 0, 0), "humming": ("H", 5.0, 2.0)}
    tries = played(monkeypatch, kernels)
    path = tmp_path / "backends.json"
    command = ["doctor", "--backends", "--model", "m", "--out", str(path), "--engine-args", '{"seed": 1}']
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "marlin: left out, no such device." in result.output
    assert "triton: left out, the kernel is auto's, A" in result.output
    assert "Fastest natively: auto, 4.00 ms a step; of all: humming with k0=0,rho=0.7, 2.00 ms." in result.output
    assert "2.50x" in result.output
    content = json.loads(path.read_text())
    assert content["provenance"]["fingerprint"]["engine_args"] == {"seed": 1}
    assert content["provenance"]["fingerprint"]["policies"] == ["k0=0,rho=0.7"]  # balanced
    assert [(record["moe_backend"], record["policy"]) for record in content["rows"]] == [
        ("auto", "native"), ("auto", "k0=0,rho=0.7"), ("humming", "native"), ("humming", "k0=0,rho=0.7"),
    ]  # fmt: skip
    again = CliRunner().invoke(app, command)
    assert again.output == result.output
    assert tries == list(kernels)  # none was tried again


def test_named_kernels_alone_and_the_others_later_into_the_same_file(tmp_path, monkeypatch):
    kernels = {"auto": ("A", 4.0, 3.0), "marlin": ("M", 5.0, 2.0), "triton": ("A", 0, 0)}
    tries = played(monkeypatch, kernels)
    command = ["doctor", "--out", str(tmp_path / "backends.json")]
    result = CliRunner().invoke(app, [*command, "--backend", "marlin"])
    assert tries == ["marlin"]
    assert "Only one kernel was measured, M" in result.output
    result = CliRunner().invoke(app, [*command, "--backends"])
    assert tries == ["marlin", "auto", "triton"]
    assert "Fastest natively: auto" in result.output


H200 = {"device": "NVIDIA H200", "version": "0.26.0"}


def ask(path, *names):
    return CliRunner().invoke(app, ["doctor", "--out", str(path), *(f"--backend={name}" for name in names)])


def test_a_later_run_leaves_the_first_ones_stamp_as_it_is(tmp_path, monkeypatch):
    path = tmp_path / "backends.json"
    kernels = {"auto": ("A", 4.0, 3.0), "marlin": ("M", 5.0, 2.0)}
    played(monkeypatch, kernels, **H200, expert_bytes=1)
    assert ask(path, "auto").exit_code == 0
    first = json.loads(path.read_text())
    played(monkeypatch, kernels, **H200, expert_bytes=2)
    assert ask(path, "marlin").exit_code == 0
    content = json.loads(path.read_text())
    assert content["provenance"] == first["provenance"]
    assert content["provenance"]["expert_bytes"] == 1
    (stamp,) = content["stamps"]
    assert stamp | H200 | {"expert_bytes": 2} == stamp
    assert [record.get("stamp") for record in content["rows"]] == [None, None, 1, 1]


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"device": "NVIDIA A100"}, "device NVIDIA H200 instead of NVIDIA A100"),
        ({"version": "0.24.0"}, "version 0.26.0 instead of 0.24.0"),
        (
            {"device": "NVIDIA A100", "version": "0.24.0"},
            "device NVIDIA H200 instead of NVIDIA A100, version 0.26.0 instead of 0.24.0",
        ),
    ],
)
def test_another_device_or_version_does_not_join_the_file(tmp_path, monkeypatch, other, sentence):
    path = tmp_path / "backends.json"
    kernels = {"auto": ("A", 4.0, 3.0), "marlin": ("M", 5.0, 2.0), "triton": (None, 0, 0)}
    played(monkeypatch, kernels, **H200)
    ask(path, "auto")
    before = path.read_bytes()
    played(monkeypatch, kernels, **H200 | other)
    result = ask(path, "marlin", "triton")
    assert str(result.exception) == (
        f"{str(path)!r} was measured with other settings, {sentence}: name another file, or remove that one"
    )
    assert isinstance(result.exception, XShareError)
    assert path.read_bytes() == before
    # What does not start says nothing of the device that it was tried on.
    assert ask(path, "triton").exit_code == 0
    assert path.read_bytes() == before
    played(monkeypatch, kernels, **H200)
    ask(path, "triton", "marlin")
    samples = json.loads(path.read_text())["samples"]
    assert [record["moe_backend"] for record in samples] == ["auto", "marlin", "triton"]


def test_where_there_is_one_kernel_or_none_it_says_so(monkeypatch):
    played(monkeypatch, {"auto": ("A", 4.0, 3.0), "triton": ("A", 0, 0)})
    result = CliRunner().invoke(app, ["doctor", "--backends"])
    assert "Only one kernel was measured, A: there is none to choose." in result.output
    played(monkeypatch, {"auto": (None, 0, 0)})
    result = CliRunner().invoke(app, ["doctor", "--backends"])
    assert str(result.exception) == "no moe_backend of this vLLM could be measured here: the lines above say why"


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--engine", "transformers"], "--backends are kernels of vLLM"),
        (["--stairs", "s.json"], "--backends are kernels of vLLM"),
        (["--backend", "nvfp4"], "--backend nvfp4: this vLLM has auto, triton"),
        (["--engine-args", '{"moe_backend": "triton"}'], "--backends names the moe_backend itself"),
    ],
)
def test_what_does_not_go_together_is_refused(more, sentence, monkeypatch):
    played(monkeypatch, {"auto": ("A", 4.0, 3.0), "triton": ("A", 0, 0)})
    result = CliRunner().invoke(app, ["doctor", "--backends", *more])
    assert isinstance(result.exception, XShareError)
    assert sentence in str(result.exception)
