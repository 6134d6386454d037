"""What result files conclude follows from their own samples: computed again in plain Python, not by the project's code.

Intervals of fewer than six values are their range. Of more they are quantiles of resampled medians, whose distribution
is known exactly: the file drew 2000 of them, so its ends must lie where 2.5 % are, give or take the luck of the draw.
"""

import itertools
import json
from math import comb, sqrt
from pathlib import Path
from statistics import mean, median

import pytest

EVIDENCE = Path(__file__).parent.parent / "evidence"
# Files, or columns of files that are looked at below, which hold no samples to compute them from.
NO_SAMPLES = {
    "paper_speed": "piece `presence` (no pairs were kept), active experts, and of rows of logit-sum law and prediction",
    "cost_aware": "active, votes_lost",
    "offload": "active",
    "soak": "everything but memory and what was lost or wrong",
    "frontier": "kl, agreement, tokens, active; assumptions and paper_quality too",
    "neighbours": "changed, changed_answer, distinct, kl; accuracy and flipped within bounds only",
    "backends": "everything",
    "cpu_decode": "everything", "cpu_selection": "everything", "curve": "everything", "demo": "everything",
    "fit_routing": "everything", "load": "everything",
    "kernel": "everything", "kernel_score": "everything", "nano_curve": "everything",
    "nano_curve_single": "everything", "nano_load": "everything", "nano_overlap": "everything",
    "one_launch": "everything", "one_launch_modular": "everything", "parallel_kernel": "everything",
    "overlap": "everything", "paper_ep": "everything", "paper_ep_topk": "everything",
    "replay": "everything", "replay_devices": "everything", "replay_draft": "everything", "replay_mixed": "everything",
    "replay_single": "everything", "replay_protected": "everything", "scale_8": "everything", "scale_16": "everything",
    "scale_64": "everything", "parallel_check": "everything", "sglang_check": "everything",
    "select": "everything", "vllm_check": "everything", "routing_profile": "everything",
}  # fmt: skip
ANSWERED = (
    "frontier", "paper_quality", "paper_quality_lab", "assumptions", "assumptions_lab", "further_quality"
)  # fmt: skip
FIXED = ("protected", "protected_vllm")
TIMED = (
    "paper_speed",
    "qwen3_speed",
    "qwen3_speed_first",
    "paper_speed_any",
    "paper_speed_slow_host",
    "cost_aware",
    "offload",
    "staircase",
)
BENCHED = ("online", "sglang_speed")  # written as `xshare bench` does, some with several workloads
# The paper's gains in percent, as printed, a line for each of its data sets.
PRINTED = {
    (0, 16): (
        "k0=1,m=0 k0=1,m=12 k0=1,m=16 k0=1,m=24 k0=1,m=32 k0=2,m=0 k0=2,m=12 k0=0,m=24",
        "50.0 19.2 12.8 7.1 4.0 24.1 6.1 24.8",
        "51.9 23.0 16.2 12.7 8.1 22.8 6.5 35.8",
        "48.0 20.4 14.5 8.5 5.1 22.7 7.3 28.8",
    ),
    (3, 4): (
        "k0=0,m=16,mr=4 k0=1,m=0,mr=4 k0=1,m=0,mr=5 k0=2,m=0,mr=4 k0=1,m=24 k0=1,m=32 k0=2,m=10 k0=0,m=0,mr=8",
        "7.1 14.3 10.5 4.8 2.5 1.3 4.6 7.5",
        "10.2 16.9 9.2 4.5 5.4 3.9 4.0 8.7",
        "3.0 13.3 8.6 6.2 4.5 0.8 2.3 1.6",
        "7.1 14.9 10.6 4.1 4.4 2.5 8.0 4.1",
        "9.7 13.4 8.6 3.7 5.6 1.2 4.8 9.3",
    ),
}


def content(name):
    return json.loads((EVIDENCE / f"{name}.json").read_text())


def test_every_file_is_computed_again_or_listed():
    there = {path.stem for path in EVIDENCE.glob("*.json")}
    assert there == set(NO_SAMPLES) | set(ANSWERED) | set(TIMED) | set(BENCHED) | set(FIXED) | {
        "neighbours",
        "one_model",
    }


@pytest.mark.parametrize("name", FIXED)
def test_fixed_batches_are_counted_again(name):
    results = content(name)
    (row,), batches = results["rows"], results["samples"]
    assert len(batches) == row["batches"] == 100
    for column in ("protected_same", "others_moved", "everybody_same", "nobody_same", "halves_same"):
        assert sum(batch[column] for batch in batches) == row[column]
    assert sum(len(batch["protected"]) for batch in batches) == row["answers_protected"]
    for column in ("active_some", "active_native", "active_nobody"):
        assert row[column] == pytest.approx(sum(batch[column] for batch in batches) / len(batches))


# Medians


def resampled(values):
    """The distribution of the median of as many draws: value -> probability."""
    x, n = sorted(values), len(values)
    chances = {}
    if n % 2:
        below = [sum(comb(n, k) * (r / n) ** k * (1 - r / n) ** (n - k) for k in range(n // 2 + 1, n + 1))
                 for r in range(n + 1)]  # fmt: skip
        return {x[r]: below[r + 1] - below[r] for r in range(n)}
    half = n // 2
    at_most = [sum(comb(n, k) * (r / n) ** k * (1 - r / n) ** (n - k) for k in range(half, n + 1))
               for r in range(n + 1)]  # fmt: skip
    for i in range(n):
        lower = at_most[i + 1] - at_most[i]  # that the lower of the two in the middle is x[i]
        for j in range(i + 1, n):
            first = ((i + 1) / n) ** half - (i / n) ** half
            second = ((n - j) / n) ** half - ((n - j - 1) / n) ** half
            apart = comb(n, half) * first * second
            lower -= apart
            chances[(x[i] + x[j]) / 2] = chances.get((x[i] + x[j]) / 2, 0) + apart
        chances[x[i]] = chances.get(x[i], 0) + lower
    return chances


def quantile(distribution, share):
    total = 0.0
    for value in sorted(distribution):
        total += distribution[value]
        if total >= share - 1e-12:
            return value
    return max(distribution)


def check_interval(values, middle, low, high, within):
    """`within`: how far samples may be off by the digits that were kept of them."""
    assert middle == pytest.approx(median(values), abs=within)
    if len(values) < 6:
        assert (low, high) == pytest.approx((min(values), max(values)), abs=within)
        return
    chances = resampled(values)
    assert sum(chances.values()) == pytest.approx(1)
    luck = 0.011  # three standard errors of 2000 draws
    assert quantile(chances, 0.025 - luck) - within <= low <= quantile(chances, 0.025 + luck) + within
    assert quantile(chances, 0.975 - luck) - within <= high <= quantile(chances, 0.975 + luck) + within


def test_ratios_of_one_model_follow_from_its_rounds():
    rows = {row["preset"]: row for row in content("one_model")["rows"]}
    native = rows["native"]["samples_tokens_per_s"]
    for row in rows.values():
        ratios = [own / base for own, base in zip(row["samples_tokens_per_s"], native, strict=True)]
        check_interval(ratios, row["ratio"], row["ratio_low"], row["ratio_high"], 1e-9)
        assert len(ratios) == row["rounds"]


def test_the_distribution_of_resampled_medians():
    for values in ([1.0, 2.0, 4.0], [1.0, 2.0, 4.0, 8.0]):
        every = [median(draw) for draw in itertools.product(values, repeat=len(values))]
        assert resampled(values) == pytest.approx({middle: every.count(middle) / len(every) for middle in set(every)})


# Speed


def cells(results, of="rows"):
    """-> (run, its rows by policy without the name of their score)"""

    def cell(record):
        return tuple(record.get(name) for name in ("piece", "regime", "batch", "layers", "start"))

    def prompt(record):
        return record.get("prompt_tokens", 8)

    for run in results["runs"]:
        own_rows = [row for row in results[of] if (cell(row), prompt(row)) == (cell(run), prompt(run))]
        yield run, {row["policy"].removesuffix(",score=full"): row for row in own_rows}


@pytest.mark.parametrize("name", ["paper_speed", "paper_speed_any", "paper_speed_slow_host"])
def test_ratios_of_speed(name):
    results = content(name)
    looked_at = 0
    for run, rows in cells(results):
        if "decodes" not in run:
            assert run["piece"] == "presence"
            continue
        assert set(rows) == {"native", *(policy.removesuffix(",score=full") for policy in run["decodes"])}
        natives = [pair[0] for pairs in run["decodes"].values() for pair in pairs]
        assert rows["native"]["step_ms"] == pytest.approx(median(natives), abs=1e-4)
        for policy, pairs in run["decodes"].items():
            row = rows[policy.removesuffix(",score=full")]
            assert row["pairs"] == len(pairs)
            assert row["step_ms"] == pytest.approx(median(pair[2] for pair in pairs), abs=1e-4)
            ends = row["ratio"], row["ratio_low"], row["ratio_high"]
            check_interval([pair[0] / pair[2] for pair in pairs], *ends, within=5e-5)
            looked_at += 1
    assert looked_at > 40


@pytest.mark.parametrize("name", ["paper_speed", "paper_speed_any"])
def test_ratios_of_several_starts(name):
    results = content(name)
    for row in (row for row in results["pooled"] if row["method"] != "native"):
        where = [row.get(name) for name in ("piece", "regime", "batch", "layers")]
        runs = [run for run in results["runs"] if [run.get(n) for n in ("piece", "regime", "batch", "layers")] == where]
        runs = [run for run in runs if run.get("prompt_tokens", 8) == row.get("prompt_tokens", 8)]
        pairs = [pair for run in runs for pair in run["decodes"][row["policy"]]]
        assert (row["pairs"], row["starts"]) == (len(pairs), len(runs))
        ends = row["ratio"], row["ratio_low"], row["ratio_high"]
        check_interval([pair[0] / pair[2] for pair in pairs], *ends, within=5e-5)


@pytest.mark.parametrize("name", BENCHED)
def test_ratios_within_repeats(name):
    results = content(name)
    for row in results["rows"]:
        samples = [
            sample
            for sample in results["samples"]
            if all(sample[column] == row[column] for column in ("rate", "tokens") if column in sample)
        ]
        native = {sample["repeat"]: sample for sample in samples if sample["policy"] == "native"}
        own = [sample for sample in samples if sample["policy"] == row["policy"]]
        assert len(own) == len(native) == row["repeats"]
        for ratio, column in (("ratio", "otps"), ("total_ratio", "otps_total")):
            ends = row[ratio], row[f"{ratio}_low"], row[f"{ratio}_high"]
            check_interval([sample[column] / native[sample["repeat"]][column] for sample in own], *ends, within=1e-9)
        for column in ("otps", "itl_ms_p50", "ttft_ms_p50"):
            assert row[column] == pytest.approx(median(sample[column] for sample in own))


def line_through(points):
    x, y = mean(point[0] for point in points), mean(point[1] for point in points)
    b = sum((p[0] - x) * (p[1] - y) for p in points) / sum((p[0] - x) ** 2 for p in points)
    return y - b * x, b


@pytest.mark.parametrize("name", ["paper_speed", "paper_speed_slow_host"])
def test_laws_and_what_they_predict(name):
    """A policy is predicted from the control and the other policies."""
    looked_at = 0
    for _, rows in cells(content(name)):
        native = rows["native"]
        points = {
            policy: (native["active"] if policy == "noop" else row["active"], native["step_ms"] / row["ratio"])
            for policy, row in rows.items()
            if policy != "native" and row["active"] is not None
        }
        for policy, row in rows.items():
            if row.get("predicted") is None or row["method"] != "xshare":
                continue
            a, b = line_through([point for other, point in points.items() if other != policy])
            assert (row["a"], row["b"]) == pytest.approx((a, b), rel=1e-3)
            left = native["step_ms"] - b * (native["active"] - row["active"])
            assert row["predicted"] == pytest.approx(native["step_ms"] / left, rel=1e-4)
            assert row["of_predicted"] == pytest.approx(row["ratio_low"] / row["predicted"])
            gain = row["predicted"] - 1
            share = None if gain <= 0.005 else pytest.approx((row["ratio_low"] - 1) / gain)
            assert row["of_gain"] == share
            looked_at += 1
    assert looked_at > 30


@pytest.mark.parametrize("name", ["paper_speed", "paper_speed_slow_host"])
def test_verdicts_on_the_papers_ranges(name):
    looked_at = 0
    for _, rows in cells(content(name)):
        for policy, row in rows.items():
            names, *lines = PRINTED.get((row["drafts"], row["batch"]), ("",))
            if row["method"] != "xshare" or policy not in names.split():
                continue
            paper = [float(line.split()[names.split().index(policy)]) for line in lines]
            ours = round(100 * (row["ratio"] - 1), 1)
            assert [round(100 * (row[end] - 1), 1) for end in ("paper_low", "paper_high")] == [min(paper), max(paper)]
            if row["regime"] == "independent":
                reached = ours > max(paper)
            else:
                reached = ours >= (max(paper) if max(paper) > 8 else min(paper))
            assert row["paper_met"] is reached
            looked_at += 1
    assert looked_at >= 40


def test_times_and_ratios_with_experts_in_host_memory():
    results = content("offload")
    native = {row["batch"]: row for row in results["rows"] if row["policy"] == "native"}
    for row in results["rows"]:
        own, base = row["samples_ms"], native[row["batch"]]
        assert row["ms"] == pytest.approx(median(own))
        ends = row["ratio"], row["ratio_low"], row["ratio_high"]
        check_interval([a / b for a, b in zip(base["samples_ms"], own, strict=True)], *ends, within=1e-9)
        assert row["expected"] == pytest.approx(base["active"] / row["active"])
        moved = row["active"] * results["provenance"]["expert_bytes"]
        assert row["gbps"] == pytest.approx(moved / median(own) / 1e6)


def never_falling(values):
    """Least squares among sequences that never fall, by its formula of smallest and largest means."""
    n = len(values)
    return [max(min(mean(values[a : b + 1]) for b in range(i, n)) for a in range(i + 1)) for i in range(n)]


def between(points, at):
    """On the line through neighbouring points."""
    for (x, y), (right, above) in itertools.pairwise(points):
        if x <= at <= right:
            return y + (above - y) * (at - x) / (right - x) if right > x else y
    raise AssertionError(at)


def test_what_costs_gain_at_equal_votes():
    rows = content("cost_aware")["rows"]
    gained = 0
    for row in rows:
        own = row["samples_ms"]
        assert row["rounds"] == len(own)
        check_interval(own, row["ms"], row["ms_low"], row["ms_high"], within=1e-9)
        curve = [r for r in rows if (r["batch"], r["family"], r["cost"]) == (row["batch"], row["family"], False)]
        lost = [point["votes_lost"] for point in curve]
        if not row["cost"] or not min(lost) <= row["votes_lost"] <= max(lost):
            assert row["gain_at_equal_votes"] is None
            continue
        curve.sort(key=lambda point: -point["votes_lost"])  # from the fewest experts to the most
        gains = []
        for number, ms in enumerate(own):
            times = never_falling([point["samples_ms"][number] for point in curve])
            points = [(-sqrt(max(0, r["votes_lost"])), time) for r, time in zip(curve, times, strict=True)]
            gains.append(between(points, -sqrt(row["votes_lost"])) / ms)
        check_interval(gains, row["gain_at_equal_votes"], row["gain_low"], row["gain_high"], within=1e-9)
        gained += 1
    assert gained


def test_times_of_a_staircase():
    """Relative to the middle of their round, times the middle of all rounds."""
    results = content("staircase")
    for row in results["rows"]:
        rounds = {}
        for sample in results["samples"]:
            if sample["batch"] == row["batch"]:
                rounds.setdefault(sample["round"], {})[sample["experts"]] = sample["ms"]
        assert row["rounds"] == len(rounds)
        middles = {number: median(times.values()) for number, times in rounds.items()}
        usual = median(middles.values())
        values = [usual * times[row["experts"]] / middles[number] for number, times in rounds.items()]
        check_interval(values, row["ms"], row["ms_low"], row["ms_high"], within=1e-9)


# Answers


def wilson(right, questions, z=1.96):
    """Solved as the quadratic that it is: the shares from which the one that was seen lies z standard errors away."""
    a, b, c = 1 + z * z / questions, -2 * right / questions - z * z / questions, (right / questions) ** 2
    root = sqrt(b * b - 4 * a * c)
    return (-b - root) / (2 * a), (-b + root) / (2 * a)


@pytest.mark.parametrize("name", ANSWERED)
def test_changes_of_answers(name):
    results = content(name)
    columns = ("model", "set", "batch", "drafts", "mixed", "policy")

    def cell(record):
        return tuple(record[column] for column in columns if column in record and column in results["samples"][0])

    right = {cell(sample): sample["right"] for sample in results["samples"]}
    assert len(right) == len(results["rows"]) == len(results["samples"])
    for row in results["rows"]:
        own, native = right[cell(row)], right[cell(row | {"policy": "native"})]
        questions = row["questions"]
        assert len(own) == len(native) == questions
        assert row["accuracy"] == pytest.approx(own.count("1") / questions)
        assert (row["accuracy_low"], row["accuracy_high"]) == pytest.approx(wilson(own.count("1"), questions))
        lost = sum(pair == ("1", "0") for pair in zip(native, own, strict=True))
        won = sum(pair == ("0", "1") for pair in zip(native, own, strict=True))
        assert (row["lost"], row["won"], row["change"]) == (lost, won, pytest.approx((won - lost) / questions))
        # Agresti and Min: half a question more in each of the four cells.
        share_lost, share_won = (lost + 0.5) / (questions + 2), (won + 0.5) / (questions + 2)
        difference = share_won - share_lost
        half = 1.959964 * sqrt((share_lost + share_won - difference**2) / (questions + 2))
        ends = max(-1, difference - half), min(1, difference + half)
        assert (row["change_low"], row["change_high"]) == pytest.approx(ends, abs=1e-6)
        tail = 2 * sum(comb(lost + won, k) for k in range(min(lost, won) + 1)) / 2 ** (lost + won)
        assert row["p"] == pytest.approx(min(1, tail))


def test_shares_of_prompts_with_other_mates():
    results = content("neighbours")
    always = {(sample["mixed"], sample["policy"]): sample["right"] for sample in results["samples"]}
    for row in results["rows"]:
        marks = always[row["mixed"], row["policy"]]  # answered whatever the mates
        assert len(marks) == row["prompts"]
        for name in ("changed", "changed_answer", "flipped"):
            count = row[name] * row["prompts"]
            assert count == pytest.approx(round(count))
            ends = wilson(round(count), row["prompts"])
            assert (row[f"{name}_low"], row[f"{name}_high"]) == pytest.approx(ends, abs=1e-9)
        sure = marks.count("1") / row["prompts"]
        assert sure <= row["accuracy_least"] <= row["accuracy"] <= row["accuracy_most"] <= sure + row["flipped"] + 1e-9
        assert row["flipped"] <= row["changed_answer"] <= row["changed"]


# The campaign


def test_what_the_campaign_lost_and_how_it_grew():
    results = content("soak")
    seconds, sent = 60 * results["provenance"]["minutes"], sum(row["sent"] for row in results["requests"])
    for name in ("lost", "wrong"):
        count = sum(row[name] for row in results["requests"])
        (check,) = [row for row in results["rows"] if name in row["check"]]
        assert check["detail"] == f"{count} of {sent} requests and calls"
        assert check["passed"] == (count == 0)
    late = [sample for sample in results["samples"] if sample["seconds"] >= 0.4 * seconds]
    window = round(0.15 * len(late))
    assert window > 10
    for row in results["memory"]:
        held = [sample[row["process"]] for sample in late]
        assert row["growth"] == pytest.approx(median(held[-window:]) / median(held[:window]) - 1, abs=1e-5)
    (check,) = [row for row in results["rows"] if "grows" in row["check"]]
    assert check["passed"] == all(row["growth"] < 0.02 for row in results["memory"])
    assert {row["process"] for row in results["memory"]} >= {"APIServer", "EngineCore", "Worker"}
