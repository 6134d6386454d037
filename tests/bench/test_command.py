"""xshare bench on a Transformers model: the table, the file, and going on from it."""

import json

import pytest
import staircase_files
from documented_columns import check_columns
from killed_command import killed

from xshare.bench.equal_experts import find_equal_policy
from xshare.bench.interleaved import policies_by_name
from xshare.cli import main
from xshare.policy import Policy

COLUMNS = {"policy", "method", "batch", "tokens", "otps", "otps_total", "ttft_ms_p50", "itl_ms_p50", "itl_ms_p99"}
COLUMNS |= {"step_ms", "ratio", "ratio_low", "ratio_high", "active", "active_native", "accepted_length", "repeats"}
NAMES = ["native", "k0=1,m=16", "k0=1,m=2", "oea:k0=1"]


@pytest.fixture
def bench(small, tmp_path, monkeypatch, capsys):
    """Run the command in this process: -> exit code, standard output, standard error."""

    def run(*words):
        words = ["xshare", "bench", *map(str, words)]
        monkeypatch.setattr("sys.argv", words)
        with pytest.raises(SystemExit) as end:
            main()
        out = capsys.readouterr()
        return end.value.code or 0, out.out, out.err

    return run


def options(small, path, repeats=2, tokens=6):
    arguments = ["--engine", "transformers", "--model", small, "--policy", "k0=1,m=2", "--policy", "oea:k0=1"]
    return [*arguments, "--batch", 3, "--prompt-tokens", 9, "--tokens", tokens, "--repeats", repeats, "--json", path]


def test_table_and_file(small, tmp_path, bench):
    code, out, err = bench(*options(small, tmp_path / "b.json"))
    assert code == 0, err
    assert "cpu, float32, 16 experts, top-4, 2 layers" in out
    assert "3 requests, 3 at a time, prompts of 9 tokens, answers of 6" in out
    assert "k0=1,m=16 (control)" in out
    results = json.loads((tmp_path / "b.json").read_text())
    assert [row["policy"] for row in results["rows"]] == NAMES
    assert [row["method"] for row in results["rows"]] == ["native", "noop", "xshare", "oea"]
    assert all(set(row) >= COLUMNS for row in results["rows"])
    check_columns("bench", results["rows"])
    native, control, pruned, _ = results["rows"]
    assert native["ratio"] == 1
    assert control["identical"] == 1  # a budget of N changes no token
    assert control["active"] == control["active_native"] == native["active"]
    assert pruned["active"] < pruned["active_native"]
    assert (control["acted"], pruned["accepted_length"]) == (1, None)
    assert [(sample["repeat"], sample["place"], sample["policy"]) for sample in results["samples"]] == [
        *((0, place, name) for place, name in enumerate(NAMES)),
        *((1, 3 - place, name) for place, name in enumerate(NAMES)),  # the order alternates
    ]
    assert results["provenance"]["fingerprint"]["tokens"] == 6
    assert results["provenance"]["engine"] == "transformers"


def test_more_repeats_go_on_from_the_file_and_other_settings_do_not(small, tmp_path, bench):
    path = tmp_path / "b.json"
    assert bench(*options(small, path, repeats=1))[0] == 0
    first = json.loads(path.read_text())["samples"]
    assert bench(*options(small, path, repeats=2))[0] == 0
    results = json.loads(path.read_text())
    assert results["samples"][: len(first)] == first
    assert [row["repeats"] for row in results["rows"]] == [2] * 4
    written = path.read_bytes()
    code, _, err = bench(*options(small, path, tokens=7))
    assert code == 2
    assert "error: " in err
    assert "was measured with other settings, tokens 6 instead of 7: name another file, or remove that one" in err
    assert path.read_bytes() == written
    path.write_text("{}")
    code, _, err = bench(*options(small, path))
    assert code == 2
    assert "holds no results that could be gone on with" in err


def test_nothing_but_the_model_is_needed_on_this_machine(small, bench):
    """No engine is named, and no memory: what runs here is taken. Prompts are a file's, device and dtype as asked."""
    path = small.parent / "prompts.txt"
    path.write_text("one two three\nfour\n")
    words = ["--model", small, "--batch", 2, "--tokens", 3, "--repeats", 1, "--prompts", path]
    code, out, err = bench(*words, "--device", "cpu", "--dtype", "bfloat16")
    assert code == 0, err
    assert "on transformers" in out
    assert "cpu, bfloat16" in out
    assert "prompts from prompts.txt " in out


def test_a_stream_of_requests(small, bench):
    words = ["--engine", "transformers", "--model", small, "--batch", 2, "--requests", 5, "--rate", 200, "--tokens", 4]
    code, out, err = bench(*words, "--prompt-tokens", 5, "--repeats", 1)
    assert code == 0, err
    assert "5 requests, 2 at a time, 200 a second" in out


def test_killed_and_continued(small, tmp_path, bench):
    path = tmp_path / "b.json"
    kept = killed(["bench", *options(small, path, repeats=1000)], path, lambda results: results["samples"])["samples"]
    repeats = len(kept) // len(NAMES)
    assert len(kept) == repeats * len(NAMES) > 0
    code, _, err = bench(*options(small, path, repeats=repeats + 1))
    assert code == 0, err
    results = json.loads(path.read_text())
    assert results["samples"][:-4] == kept
    assert [row["repeats"] for row in results["rows"]] == [repeats + 1] * 4


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--rate", "0"], "rate must be above 0"),
        (["--engine-args", "[1]"], "engine-args must be a JSON object"),
        (["--engine", "tgi"], "engine 'tgi' is not known: expected transformers, vllm or the http:// address"),
        (["--engine", "transformers", "--model", "nowhere"], "model 'nowhere' is no folder"),
        (["--engine", "transformers", "--engine-args", '{"dtpe": "float32"}'], "'dtpe' is no argument of transformers"),
        (["--engine", "transformers", "--engine-args", '{"lanes": 8}'], "nothing can be timed so"),
        (["--engine", "transformers", "--drafts", "2"], "drafts nothing"),
        (["--engine", "http://127.0.0.1:1", "--drafts", "2"], "a server drafts as it was started to"),
        (["--engine", "http://127.0.0.1:nine"], "is no address: expected one as http://127.0.0.1:8000"),
        (["--engine", "http://127.0.0.1:1"], "no server answers at http://127.0.0.1:1: Connection refused"),
    ],
)
def test_mistakes_are_one_sentence(small, bench, words, sentence):
    code, _, err = bench(*(["--model", small] if "--model" not in words and "http" not in words[1] else []), *words)
    assert code == 2
    assert sentence in err
    assert len([line for line in err.splitlines() if line.startswith("error: ")]) == 1


STAIRS = {2: (5, 9, 13), 4: (7, 11)}


@pytest.fixture
def stairs(small, tmp_path, engine):
    """What doctor --stairs would write of this model."""
    where = {name: getattr(engine.about, name) for name in ("engine", "device", "dtype", "experts", "top_k")}
    where |= {"layers": engine.about.layers, "config": engine.about.config}
    return staircase_files.write(tmp_path / "stairs.json", where, STAIRS)


def test_by_cost_beside_a_plain_policy_of_as_many_experts(small, tmp_path, bench, stairs):
    path = tmp_path / "b.json"
    words = ["--engine", "transformers", "--model", small, "--batch", 3, "--prompt-tokens", 9, "--tokens", 6]
    words += ["--policy", "k0=1,m=2", "--policy", "k0=0,lam=0.3,p=2", "--policy", "oea:k0=1", "--cost", stairs]
    code, out, err = bench(*words, "--repeats", 1, "--out", path)
    assert code == 0, err
    assert "k0=1,m=2 by cost" in out
    assert "(as many)" in out
    assert "by cost is" in out
    assert "Rivals know no costs, and were measured without." in out
    first = json.loads(path.read_text())
    check_columns("bench", first["rows"])
    forms = [(row["policy"], row.get("cost", False), row.get("equals")) for row in first["rows"]]
    budget, price = (name for name, _, equals in forms if equals is not None)
    assert forms == [
        ("native", False, None),
        ("k0=1,m=16", False, None),
        *(("k0=1,m=2", False, None), ("k0=1,m=2", True, None), (budget, False, "k0=1,m=2")),
        *(("k0=0,lam=0.3,p=2", False, None), ("k0=0,lam=0.3,p=2", True, None), (price, False, "k0=0,lam=0.3,p=2")),
        ("oea:k0=1", False, None),
    ]
    assert Policy.parse(budget).batch_budget >= 2
    assert Policy.parse(price).price is not None
    plain, by_cost, equal = first["rows"][2:5]
    assert by_cost["active"] > plain["active"]  # filled up to the end of a stair
    assert abs(equal["active"] - by_cost["active"]) < abs(plain["active"] - by_cost["active"])
    assert by_cost["equal_ratio_low"] <= by_cost["equal_ratio"] <= by_cost["equal_ratio_high"]
    # Gone on with: the same plain policies, which are not looked for again.
    assert bench(*words, "--repeats", 2, "--out", path)[0] == 0
    results = json.loads(path.read_text())
    assert results["samples"][: len(first["samples"])] == first["samples"]
    assert [(row["policy"], row.get("cost", False), row.get("equals")) for row in results["rows"]] == forms
    assert [row["repeats"] for row in results["rows"]] == [2] * 9
    code, _, err = bench(*words[:-2], "--repeats", 2, "--out", path)  # without costs it is another measurement
    assert code == 2
    assert "was measured with other settings, cost " in err


def test_costs_that_are_of_another_place_or_cannot_be_read(small, tmp_path, bench, stairs):
    words = ["--engine", "transformers", "--model", small, "--policy", "k0=1", "--batch", 4, "--cost"]
    code, _, err = bench(*words, tmp_path / "none.json")
    assert code == 2
    assert "does not exist or is not a file" in err
    other = json.loads(stairs.read_text())
    other["provenance"]["device"] = "NVIDIA H200"
    stairs.write_text(json.dumps(other))
    code, _, err = bench(*words, stairs)
    assert code == 2
    assert "was measured with device 'NVIDIA H200', and here it is 'cpu'" in err


def test_costs_of_smaller_steps_alone_are_refused(small, tmp_path, bench, stairs):
    words = ["--engine", "transformers", "--model", small, "--policy", "k0=1", "--cost", stairs, "--batch", 8]
    out = tmp_path / "b.json"
    code, _, err = bench(*words, "--out", out)
    assert code == 2
    assert "has steps of up to 4 rows, and a batch of 8 here has steps of 8: measure those too" in err
    assert not out.exists()
    code, _, err = bench(*words[:-1], 2, "--drafts", 2, "--engine-args", json.dumps({"draft": str(small)}))
    assert code == 2
    assert "a batch of 2 here has steps of 6" in err
    code, _, err = bench(*words, "--requests", 2, "--prompt-tokens", 9, "--tokens", 4, "--repeats", 1)
    assert code == 0, err  # no step has more than two requests
    assert "warning" not in err


def test_costs_that_are_not_settled_are_taken_with_a_warning(small, bench, stairs):
    noisy = json.loads(stairs.read_text())
    noisy["rows"] = [row | {"settled": row["batch"] != 4} for row in noisy["rows"]]
    stairs.write_text(json.dumps(noisy))
    words = ["--engine", "transformers", "--model", small, "--policy", "k0=1", "--cost", stairs, "--batch", 2]
    code, _, err = bench(*words, "--prompt-tokens", 9, "--tokens", 4, "--repeats", 1)
    assert code == 0
    (line,) = [line for line in err.splitlines() if line.startswith("warning: ")]
    assert "stairs.json' is not settled for steps of 4 rows, whose times scatter by more than 25% of what" in line


@pytest.mark.parametrize(
    ("policy", "wanted", "expected"),
    [
        ("k0=1,m=2", 12.0, "k0=1,m=4"),
        ("k0=1,m=2", 8.1, "k0=1,m=2"),  # as it is
        ("k0=1,m=2", 99.0, "k0=1,m=16"),  # the nearest
        ("k0=1,m=2,ml=0:4", 10.0, "k0=1,m=3,ml=0:5"),
        ("k0=0,rho=0.7", 7.0, "k0=0,m=3,rho=0.7"),
        ("k0=0,lam=0.04,p=2", 50.0, "k0=0,lam=0.02,p=2"),
        ("k0=0,lam=0.04,p=2", 12.5, "k0=0,lam=0.08,p=2"),
        ("k0=1,tau=0.5", 75.0, "k0=1,tau=0.75"),
        ("k0=1,m=0,mg=3", 9.0, "k0=1,m=0,mg=3"),
    ],
)
def test_a_plain_policy_of_as_many_experts(policy, wanted, expected):
    def count(policy):
        if policy.price is not None:
            return 1 / policy.price
        if policy.mass is not None:
            return 100 * policy.mass
        return 4 * policy.warmup + policy.batch_budget * (1 if policy.coverage else 2) + (4 if policy.coverage else 0)

    assert str(find_equal_policy(Policy.parse(policy), wanted, 16, count)) == expected


def test_policies_of_both_scores_have_one_control(engine):
    both = [Policy.parse("k0=1,m=2"), Policy.parse("k0=1,m=2,score=full")]
    assert list(policies_by_name(engine, both)) == ["native", "k0=1,m=16", "k0=1,m=2", "k0=1,m=2,score=full"]


def test_what_protected_requests_cost(small, tmp_path, bench):
    path = tmp_path / "b.json"
    words = ["--engine", "transformers", "--model", small, "--policy", "k0=0,m=4", "--batch", 6, "--prompt-tokens", 9]
    words += ["--tokens", 6, "--repeats", 2, "--out", path, "--protect", 0.1, "--protect", 0.5, "--protect", 1]
    code, out, err = bench(*words)
    assert code == 0, err
    assert "what protected requests cost" in out
    assert "vs nobody" in out
    assert "k0=0,m=4, 100% protected left 100% of its decode steps alone, mostly by protected" in out
    rows = json.loads(path.read_text())["rows"]
    native, _, nobody, tenth, half, everybody = rows
    assert [row.get("protected") for row in rows] == [None, None, None, 0.1, 0.5, 1]
    assert nobody["active"] < tenth["active"] < half["active"] < native["active"]
    assert nobody["mass_shared"] == nobody["mass"] < tenth["mass_shared"] < tenth["mass"]
    assert everybody["identical"] == 1
    for row in (tenth, half, everybody):
        assert row["protected_identical"] == 1
        assert row["nobody_ratio_low"] <= row["nobody_ratio"] <= row["nobody_ratio_high"]
        assert row["ratio"] > 0
    assert bench(*words)[0] == 0  # goes on from the file
    code, _, err = bench(*words[:-2])
    assert code == 2
    assert "protect [0.1, 0.5, 1.0] instead of [0.1, 0.5]" in err
    assert bench("--protect", 1.5)[0] == 2
