"""The command line as a user meets it: real processes for what must be real, one process for the many mistakes."""

import json
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from documented_columns import check_columns
from synthetic_traces import chosen_trace, full_trace

import xshare
from xshare.cli import main

XSHARE = [sys.executable, "-c", "from xshare.cli import main; main()"]


@pytest.fixture
def xshare_command(monkeypatch, capsys):
    """Run a command in this process: -> exit code, standard output, standard error."""

    def run(*words):
        monkeypatch.setattr("sys.argv", ["xshare", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        out = capsys.readouterr()
        return end.value.code or 0, out.out, out.err

    return run


@pytest.fixture
def trace(tmp_path):
    chosen_trace().save(tmp_path / "t.safetensors")
    return tmp_path / "t.safetensors"


def test_version_and_methods_in_real_processes_as_a_script_and_as_a_module():
    script = Path(sys.executable).with_name("xshare")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"xshare {xshare.__version__}"
    done = subprocess.run([sys.executable, "-m", "xshare", "methods"], capture_output=True, text=True, check=True)
    for name in ("xshare", "native", "topk", "oea", "lynx", "skip", "logit-sum", "random"):
        assert any(line.startswith(name) for line in done.stdout.splitlines())


def test_the_version_does_not_wait_for_torch():
    code = "import sys; from xshare.cli import main\ntry: main()\nfinally: print({'torch', 'numpy'} & {*sys.modules})"
    took = []
    for _ in range(3):  # by the processor's time: others may use the machine too
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert done.stdout.splitlines() == [f"xshare {xshare.__version__}", "set()"]
    assert min(took) < 0.5


def test_rivals_are_known_whatever_was_imported_first():
    code = "from xshare.policy import Policy; print(Policy.parse('oea:k0=2'), Policy(method='native'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "oea:k0=2 native\n"


def test_batches_of_one_domain_that_is_small_say_so(trace, xshare_command):
    code, out, _ = xshare_command("replay", trace, "--mix", "alike", "--batch", 8, "--batches", 2)
    assert code == 0
    assert "hold some of them several times" in out


def test_import_show_replay(tmp_path, xshare_command):
    small_trace = chosen_trace(N=32, k=4)
    arrays = {name: getattr(small_trace, name).numpy() for name in ("experts", "weights", "lengths")}
    np.savez(tmp_path / "gpt-oss-20b.npz", domain=np.array(small_trace.header.domains), **arrays)
    code, out, _ = xshare_command("trace", "import", tmp_path / "gpt-oss-20b.npz", "--output", tmp_path / "t")
    assert code == 0
    assert "54 tokens" in out
    code, out, _ = xshare_command("trace", "show", tmp_path / "t")
    assert code == 0
    for fact in ("gpt-oss-20b", "32 a layer, 2 layers, top-4", "softmax", "score form: topk", "law", "maths"):
        assert fact in out
    code, out, _ = xshare_command(
        "replay", tmp_path / "t", "--policy", "k0=1,m=2", "--batch", 4, "--json", tmp_path / "r"
    )
    assert code == 0
    result = json.loads((tmp_path / "r").read_text())
    assert [row["policy"] for row in result["rows"]] == ["native", "k0=1,m=2"]
    wanted = {"policy", "method", "batch", "active", "active_native", "mass", "top1_kept", "max_load"}
    assert wanted <= set(result["rows"][0])
    assert {"argv", "versions", "git", "seed"} <= set(result["provenance"])
    assert result["provenance"]["argv"][1] == "replay"


def test_replay_with_protected_requests(trace, tmp_path, xshare_command):
    words = (
        "replay",
        trace,
        "--policy",
        "k0=0,m=1",
        "--batch",
        4,
        "--protect",
        0.5,
        "--by-layer",
        "--out",
        tmp_path / "r",
    )
    code, out, _ = xshare_command(*words)
    assert code == 0
    assert "others' mass" in out
    assert "k0=0,m=1, 50% protected" in out  # by layer
    rows = [row for row in json.loads((tmp_path / "r").read_text())["rows"] if row["layer"] is None]
    assert [(row["policy"], row.get("protected")) for row in rows] == [
        ("native", None), ("k0=0,m=1", None), ("k0=0,m=1", 0.5)
    ]  # fmt: skip
    native, nobody, half = rows
    assert nobody["active"] < half["active"] < native["active"]


def test_replay_variants(trace, tmp_path, xshare_command):
    policies = tmp_path / "p.yaml"
    policies.write_text("- oea:k0=1\n- {warmup: 1, request_budget: 2}\n")
    code, out, _ = xshare_command(
        *("replay", trace, "--policies", policies, "--policy", "k0=1,mg=1", "--batch", 3, "--draft", 2, "--devices", 3),
        *("--mix", "domain", "--all", "--by-layer", "--json", tmp_path / "r.json", "--plot", tmp_path / "p.svg"),
    )
    assert code == 0
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    check_columns("replay", rows)
    assert [row["policy"] for row in rows[:4]] == ["native", "k0=1,m=0,mg=1", "oea:k0=1", "k0=1,m=0,mr=2"]
    assert {row["layer"] for row in rows} == {None, 0, 1}
    assert "<svg" in (tmp_path / "p.svg").read_text()
    assert "by layer" in out


def test_curve_and_overlap(tmp_path, xshare_command):
    full_trace().save(tmp_path / "t")
    code, out, _ = xshare_command(
        "replay", tmp_path / "t", "--curve", "--json", tmp_path / "c", "--plot", tmp_path / "c.png"
    )
    assert code == 0
    assert "closed form" in out
    assert [row["batch"] for row in json.loads((tmp_path / "c").read_text())["rows"]] == [1, 2, 4, 8]
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    code, out, _ = xshare_command("replay", tmp_path / "t", "--overlap", "--plot", tmp_path / "o.svg")
    assert code == 0
    for kind in ("consecutive", "same domain", "different domains"):
        assert kind in out


def test_without_a_policy_there_is_something_to_look_at(trace, xshare_command):
    code, out, _ = xshare_command("replay", trace, "--batch", 4)
    assert code == 0
    assert "random:k0=1,m=3" in out


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["replay", "TRACE", "--policy", "k0=0,m=0"], "k0, m, mr, mg, tau, rho and lam"),
        (["replay", "TRACE", "--policy", "zz=1"], "'zz'"),
        (["replay", "TRACE", "--policy", "nothing:k0=1"], "nothing"),
        (["replay", "TRACE", "--policy", "k0=9,m=0"], "warmup"),
        (["replay", "TRACE", "--policy", "k0=1,m=-4"], "batch_budget"),
        (["replay", "TRACE", "--batch", "0"], "--batch"),
        (["replay", "TRACE", "--batch", "5000"], "batch must be at most 8, the sequences of this trace, not 5000"),
        (["replay", "TRACE", "--batch", "5000", "--all"], "at most 8"),
        (["replay", "TRACE", "--policy", "k0=1,mg=3"], "name them by --devices"),
        (["replay", "TRACE", "--protect", "0.5", "--curve"], "--protect is for policies at one batch size"),
        (["replay", "TRACE", "--protect", "2"], "--protect"),
        (["replay", "TRACE", "--mix", "salad"], "--mix"),
        (["replay", "TRACE", "--policies", "nowhere.yaml"], "nowhere.yaml"),
        (["replay", "TRACE", "--policies", "TRACE"], "YAML"),
        (["replay", "TRACE", "--policy", "logit-sum:m=3"], "logits"),
        (["replay", "TRACE", "--curve", "--overlap"], "--curve"),
        (["replay", "TRACE", "--plot", "p.gif"], ".png or .svg"),
        (["replay", "TRACE", "--json", "no/such/folder/r.json"], "no/such/folder"),
        (["replay", "nowhere"], "nowhere"),
        (["replay", __file__], "safetensors"),
        (["trace", "show", "nowhere"], "nowhere"),
        (["trace", "import", "nowhere.npz", "--output", "o"], "nowhere.npz"),
        (["trace", "import", __file__, "--output", "o"], ".npz"),
        (["trace", "import", "TRACE"], "'--out'"),
        (["trace", "record", "FOLDER", "--model", "nano", "--out", "o"], "named twice"),
        (["bench", "--prompts", "nowhere.txt"], "'nowhere.txt' does not exist"),
        (["doctor", "--prompts", "nowhere.txt"], "'nowhere.txt' does not exist"),
        (["nonsense"], "nonsense"),
    ],
)
def test_mistakes_end_with_code_2_and_a_sentence(words, names, trace, xshare_command, monkeypatch):
    monkeypatch.chdir(trace.parent)
    before = sorted(trace.parent.iterdir())
    code, out, err = xshare_command(*[str(trace) if word == "TRACE" else word for word in words])
    assert code == 2
    assert names in err
    assert "Traceback" not in out + err
    assert sorted(trace.parent.iterdir()) == before  # nothing half-written


def test_names_in_a_file_are_not_markup(tmp_path, xshare_command):
    small_trace = chosen_trace()
    odd = small_trace.header.model_copy(update={"model": "[/red]x", "domains": ["[bold]"] * 8})
    replace(small_trace, header=odd).save(tmp_path / "t")
    code, out, _ = xshare_command("trace", "show", tmp_path / "t")
    assert code == 0
    assert "[/red]x" in out
    assert "[bold]" in out
    code, out, _ = xshare_command("replay", tmp_path / "t")
    assert code == 0
    assert "[/red]x" in out


def test_logits_that_are_all_broken_replay_as_nothing(tmp_path, xshare_command):
    small_trace = full_trace()
    replace(small_trace, logits=torch.full_like(small_trace.logits, torch.nan)).save(tmp_path / "t")
    code, out, _ = xshare_command("replay", tmp_path / "t", "--policy", "k0=1,m=2")
    assert code == 0
    assert "nan" not in out


def test_import_does_not_overwrite_its_input(tmp_path, xshare_command):
    (tmp_path / "a.npz").write_bytes(b"something")
    code, _, err = xshare_command("trace", "import", tmp_path / "a.npz", "--output", tmp_path / "a.npz")
    assert code == 2
    assert "would replace what is read" in err
    assert (tmp_path / "a.npz").read_bytes() == b"something"


def test_no_traceback_in_a_real_process(tmp_path):
    (tmp_path / "t").write_bytes(b"\x10\0\0\0\0\0\0\0 broken")
    done = subprocess.run([*XSHARE, "replay", str(tmp_path / "t")], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: trace ")
    assert len(done.stderr.strip().splitlines()) == 1


def test_what_took_long_to_measure_is_not_written_over(trace, tmp_path, xshare_command):
    old_file = tmp_path / "quality.json"
    text = '{"provenance": {"fingerprint": {}, "argv": ["xshare", "quality"]}, "rows": [], "samples": []}'
    old_file.write_text(text)
    code, _, err = xshare_command("replay", trace, "--batches", "2", "--json", old_file)
    assert code == 2
    assert "holds what `xshare quality` has measured and would go on from: name another file" in err
    assert old_file.read_text() == text
