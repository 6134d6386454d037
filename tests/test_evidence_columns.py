"""What files without samples conclude follows at least from their own other columns, computed again in plain Python."""

import re
from math import log

import numpy as np
import pytest
from evidence_files import check_accuracy, check_change, content

READ = ("nano_texts", "third_model")  # whose texts were read under policies
EXPERTS = {
    "overlap": 32,
    "nano_overlap": 64,
    "assumptions": 64,
    "assumptions_lab": 128,
    "nano_texts": 64,
    "third_model": 32,
}


def whole(value):
    """A count that was kept as a share."""
    assert value == pytest.approx(round(value))
    return round(value)


def check_diverged(row):
    """Where a right answer becomes a wrong one, its tokens have changed."""
    differing = whole(row["diverged"] * row["questions"])
    assert row["lost"] + row["won"] <= differing <= row["questions"]
    assert (row["agreement"] == 1) == (differing == 0) == (row["diverged_at"] is None)


def check_answers(row, native):
    right, before = (whole(record["accuracy"] * row["questions"]) for record in (row, native))
    check_accuracy(row, right)
    if row["change"] is not None:
        assert row["won"] - row["lost"] == right - before
        assert row["won"] <= right
        assert row["lost"] <= before
        check_change(row, row["lost"], row["won"], row["questions"])
        check_diverged(row)


@pytest.mark.parametrize(("name", "column"), [("one_model", "preset"), ("demo", "policy")])
def test_answers_agree_with_the_questions_that_changed(name, column):
    rows = [row for row in content(name)["rows"] if "accuracy" in row]
    (native,) = (row for row in rows if row[column] == "native")
    for row in rows:
        assert row["questions"] == native["questions"]
        check_answers(row, native)
    assert len(rows) > 3


ANSWERED = ("frontier", "paper_quality", "paper_quality_lab", "assumptions", "assumptions_lab", "further_quality")


@pytest.mark.parametrize("name", ANSWERED)
def test_answers_that_changed_have_other_tokens(name):
    for row in content(name)["rows"]:
        check_diverged(row)


def mean_over(tokens, values):
    """Of kinds of texts, each with so many tokens."""
    return sum(tokens[kind] * values[kind] for kind in tokens) / sum(tokens.values())


def check_forced(row):
    """What a policy costs in texts that were forced."""
    assert row["kl_answers"] == (0 if row["policy"] == "native" else row["questions"])
    assert row["kl_low"] <= row["kl"] <= row["kl_high"]
    assert row["perplexity_ratio"] == pytest.approx(row["perplexity"] / row["perplexity_native"])
    assert row["perplexity_ratio_low"] <= row["perplexity_ratio"] <= row["perplexity_ratio_high"]


@pytest.mark.parametrize("name", READ)
def test_perplexity_is_the_mean_over_kinds(name):
    rows = content(name)["perplexity"]
    for model in {row["model"] for row in rows}:
        (all_kinds,) = (row for row in rows if (row["model"], row["kind"]) == (model, None))
        parts = {row["kind"]: row for row in rows if row["model"] == model and row["kind"]}
        for column in ("texts", "tokens"):
            assert all_kinds[column] == sum(row[column] for row in parts.values())
        tokens = {kind: row["tokens"] for kind, row in parts.items()}
        surprise = {kind: log(row["perplexity"]) for kind, row in parts.items()}
        assert log(all_kinds["perplexity"]) == pytest.approx(mean_over(tokens, surprise))
        for row in (all_kinds, *parts.values()):
            assert row["perplexity_low"] < row["perplexity"] < row["perplexity_high"]


@pytest.mark.parametrize("name", READ)
def test_what_policies_cost_is_the_mean_over_kinds(name):
    """And natively a text is as surprising in a batch as alone, but for the order of sums."""
    results = content(name)
    read = [row for row in results["rows"] if row["set"] == "texts"]
    alone = {row["kind"]: row for row in results["perplexity"] if row["model"] == read[0]["model"]}
    texts = alone.pop(None)["texts"]
    tokens = {kind: row["tokens"] for kind, row in alone.items()}
    for row in read:
        assert row["questions"] == texts
        check_forced(row)
        assert row["kl"] == pytest.approx(mean_over(tokens, {kind: row[f"kl {kind}"] for kind in tokens}))
        for column in ("perplexity", "perplexity_native"):
            surprise = {kind: log(row[f"{column} {kind}"]) for kind in tokens}
            assert log(row[column]) == pytest.approx(mean_over(tokens, surprise))
        for kind, native in alone.items():
            assert row[f"perplexity_native {kind}"] == pytest.approx(native["perplexity"], rel=5e-3)


def test_what_policies_cost_in_answers_is_one_mean_over_kinds():
    """Kinds count by their tokens. These were not kept, but they are the same in every row, so rows tell them."""
    rows = [row for row in content("third_model")["rows"] if row["set"] == "questions"]
    kinds = [column.removeprefix("kl ") for column in rows[0] if column.startswith("kl ")]
    columns = [("perplexity", np.log), ("perplexity_native", np.log), ("kl", float)]
    parts = [[of(row[f"{column} {kind}"]) for kind in kinds] for row in rows for column, of in columns]
    means = [of(row[column]) for row in rows for column, of in columns]
    shares, *_ = np.linalg.lstsq(np.array(parts), np.array(means))
    assert len(means) > 2 * len(kinds)
    assert (min(shares) > 0, sum(shares)) == (True, pytest.approx(1))
    assert np.array(parts) @ shares == pytest.approx(means, rel=1e-6, abs=1e-9)
    for row in rows:
        check_answers(row, rows[0])
        check_forced(row)


@pytest.mark.parametrize("name", READ)
def test_texts_that_go_on_natively_have_the_same_tokens(name):
    """The control's all do, and are as likely."""
    rows = content(name)["rows"]
    controls = [row for row in rows if row["paper"] == "no-op control"]
    assert controls
    for row in rows:
        differing = whole(row["diverged"] * row["questions"])
        assert (row["agreement"] == 1) == (differing == 0) == (row["diverged_at"] is None)
        if row["policy"] == "native" or row in controls:
            assert (row["agreement"], row["kl"], row["perplexity_ratio"]) == (1, 0, 1)


@pytest.mark.parametrize("name", READ)
def test_weights_of_a_token_sum_to_one(name):
    for row in content(name)["choice"]:
        assert sum(row["weights"]) == pytest.approx(1, abs=1e-4)
        assert row["without_last"] == pytest.approx(1 - row["weights"][-1], abs=1e-4)


@pytest.mark.parametrize("name", [*ANSWERED, *READ, "demo"])
def test_experts_are_the_mean_over_layers(name):
    """Layers were kept to three digits."""
    rows = [row for row in content(name)["rows"] if "experts_active" in row]
    assert rows
    for row in rows:
        for column, layers in (("active", "experts_active"), ("active_native", "experts_native")):
            assert row[column] == pytest.approx(sum(row[layers]) / len(row[layers]), abs=6e-4)


@pytest.mark.parametrize("name", ["load", "nano_load", *READ])
def test_how_even_a_load_is(name):
    """Loads were kept to four digits, of an even one."""
    for row in content(name).get("load") or content(name)["rows"]:
        shares = [load / len(row["load"]) for load in row["load"]]
        assert sum(shares) == pytest.approx(1, abs=1e-4)
        entropy = -sum(share * log(share) for share in shares if share) / log(len(shares))
        assert row["entropy"] == pytest.approx(entropy, abs=1e-4)
        assert row["heaviest"] == pytest.approx(max(row["load"]), abs=1e-4)
        assert row["dead"] == pytest.approx(sum(load < 0.01 for load in row["load"]) / len(shares))


@pytest.mark.parametrize(("name", "experts"), [("curve", 32), ("nano_curve", 64), ("nano_curve_single", 64)])
def test_experts_of_independent_rows(name, experts):
    """That take 4 each."""
    for row in content(name)["rows"]:
        assert row["closed_form"] == pytest.approx(experts * (1 - (1 - 4 / experts) ** row["batch"]))


@pytest.mark.parametrize("name", EXPERTS)
def test_experts_shared_by_chance(name):
    for row in content(name).get("overlap") or content(name)["rows"]:
        assert row["chance"] == pytest.approx(row["top"] ** 2 / EXPERTS[name])


@pytest.mark.parametrize("name", ["paper_ep", "paper_ep_topk"])
def test_peaks_of_devices(name):
    """Against native routing's, at the ends that speak against a cut; bandwidths against the card's copies."""
    results = content(name)
    native = {(row["regime"], row["rows"]): row for row in results["rows"] if row["policy"] == "native"}
    for row in results["rows"]:
        base = native[row["regime"], row["rows"]]
        assert row["peak_cut"] == pytest.approx(base["peak"] / row["peak"])
        assert row["peak_cut_low"] == pytest.approx(base["peak_low"] / row["peak_high"])
        share = None if row["gbps"] is None else row["gbps"] / results["provenance"]["copy_gbps"]
        assert row["copy_share"] == (None if share is None else pytest.approx(share))


def test_products_read_the_same_bytes():
    rows = [row for row in content("cpu_decode")["rows"] if "onednn_ms" in row]
    moved = {round(row[f"{way}_gbps"] * row[f"{way}_ms"], 6) for row in rows for way in ("onednn", "without")}
    assert len(moved) == 1


# Checks of engines


def holds(check, detail):
    """Whether a check passed, by the counts in its detail; None where that has none."""
    if found := re.search(r"(\d+) of \d+ differ from native", detail):
        return int(found[1]) > 0
    if found := re.search(r"(\d+) differ\b", detail):
        return int(found[1]) == 0
    if found := re.search(r"those of (\d+) of (\d+) layers are in host memory", detail):
        return int(found[1]) == (0 if "on the GPU" in check else int(found[2]))
    if found := re.search(r"(\d+) layers of steps, (\d+) as", detail) or re.search(r"(\d+) of (\d+)", detail):
        return found[1] == found[2]
    if found := re.search(r"\[(\d+), (\d+)\] steps by stage, (\d+) as", detail):
        return int(found[1]) + int(found[2]) == int(found[3])
    if found := re.search(r"requests of replayed steps \[(.*)\], of eager ones \[(.*)\]", detail):
        some, none = found.groups() if "every decode step is a graph's" in check else found.groups()[::-1]
        return bool(some) and not none
    return None


@pytest.mark.parametrize("name", ["vllm_check", "sglang_check", "parallel_check"])
def test_checks_of_engines_pass_by_their_counts(name):
    rows = content(name)["rows"]
    held = [holds(row["check"], row["detail"]) for row in rows]
    assert all(passed in (None, row["passed"]) for passed, row in zip(held, rows, strict=True))
    assert held.count(None) < len(rows) / 2
    assert all((row["sha256"] == row["sha256_reference"]) is row["passed"] for row in rows if "sha256" in row)
