"""What result files conclude follows from their own samples: computed again in plain Python, not by the project's code.

Intervals of fewer than six values are their range. Of more they are quantiles of resampled medians, whose distribution
is known exactly: the file drew 2000 of them, so its ends must lie where 2.5 % are, give or take the luck of the draw.
"""

import itertools
from math import comb, sqrt
from statistics import mean, median

import pytest
from evidence_files import check_accuracy, check_change, content, wilson

ANSWERED = (
    "frontier", "paper_quality", "paper_quality_lab", "assumptions", "assumptions_lab", "further_quality", "third_model"
)  # fmt: skip
FIXED = ("protected", "protected_vllm")
QWEN3 = ("qwen3_speed", "qwen3_speed_first")
SPEED = ("paper_speed", *QWEN3, "paper_speed_any", "paper_speed_slow_host")
BENCHED = ("online", "sglang_speed")  # written as `xshare bench` does, some with several workloads
EXPERT_BYTES = dict.fromkeys(SPEED, 3 * 2880 * 2880 * 17 / 32) | dict.fromkeys(
    QWEN3, 3 * 2048 * 768 * 2
)  # of one layer
RATIO = ("ratio", "ratio_low", "ratio_high")
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


@pytest.mark.parametrize("name", FIXED)
def test_fixed_batches_are_counted_again(name):
    results = content(name)
    (row,), batches = results["rows"], results["samples"]
    assert len(batches) == row["batches"] == 100
    for column in ("protected_same", "others_moved", "everybody_same", "nobody_same", "halves_same"):
        assert sum(batch[column] for batch in batches) == row[column]
    assert sum(len(batch["protected"]) for batch in batches) == row["answers_protected"]
    assert row["answers_others"] == row["batches"] * row["batch"] - row["answers_protected"]
    assert {len(batch["protected"]) for batch in batches} == {row["share"] * row["batch"]}
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
        # Of all rounds together: their tokens over their time, neither of which is kept.
        assert min(row["samples_tokens_per_s"]) <= row["tokens_per_s"] <= max(row["samples_tokens_per_s"])


def test_speeds_of_mixed_requests_follow_from_their_pairs():
    results = content("mixed_speed")
    by_number = {}
    for sample in results["samples"]:
        by_number.setdefault(sample["number"], {})[sample["policy"]] = sample
    assert sorted(by_number) == list(range(16))
    (policies,) = {frozenset(of) for of in by_number.values()}
    assert len(results["rows"]) == 2 * len(policies)
    for row in results["rows"]:
        # Batches of one kind and mixed ones take turns.
        pairs = [of[row["policy"]] for number, of in sorted(by_number.items()) if number % 2 == row["mixed"]]
        assert all(sample["mixed"] == row["mixed"] for sample in pairs)
        ratios = [sample["tokens_per_s"] / sample["native_tokens_per_s"] for sample in pairs]
        check_interval(ratios, row["ratio"], row["ratio_low"], row["ratio_high"], 1e-9)
        assert len(pairs) == row["pairs"]
        for column in ("accepted", "native_accepted"):
            assert row[column] == pytest.approx(sum(sample[column] for sample in pairs) / len(pairs))
            assert all(1 <= sample[column] <= 4 for sample in pairs)
        assert row["native_tokens_per_s"] == pytest.approx(median(sample["native_tokens_per_s"] for sample in pairs))


def test_answers_of_one_model_follow_from_their_marks():
    """Of a run that kept marks; what an older one says of them is held together in test_evidence_columns.py."""
    results = content("one_model")
    right = {sample["preset"]: sample["right"] for sample in results.get("samples", [])}
    for row in results["rows"] if right else []:
        own, native = right[row["preset"]], right["native"]
        check_accuracy(row, own.count("1"))
        if row["preset"] != "native":
            check_change(row, *lost_and_won(native, own), len(own))


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


@pytest.mark.parametrize(("name", "least"), [(name, 16 if name in QWEN3 else 40) for name in SPEED])
def test_ratios_of_speed(name, least):
    results = content(name)
    looked_at = 0
    for run, rows in cells(results):
        if "decodes" not in run:
            assert run["piece"] == "presence"
            continue
        assert set(rows) == {"native", *(policy.removesuffix(",score=full") for policy in run["decodes"])}
        natives = [pair[0] for pairs in run["decodes"].values() for pair in pairs]
        native = rows["native"]
        assert native["pairs"] == len(natives)
        assert [native[column] for column in RATIO] == [1, 1, 1]
        assert native["token_ratio"] == 1
        check_times(native, natives)
        for policy, pairs in run["decodes"].items():
            row = rows[policy.removesuffix(",score=full")]
            assert row["pairs"] == len(pairs)
            check_times(row, [pair[2] for pair in pairs])
            ratios = [pair[0] / pair[2] for pair in pairs]
            check_interval(ratios, *(row[column] for column in RATIO), within=5e-5)
            if in_step(row):
                assert row["token_ratio"] == pytest.approx(median(ratios), abs=5e-5)
            looked_at += 1
    assert looked_at >= least


def in_step(row):
    """Every step gave a token to every request, so steps say what tokens do; with drafts, tokens were not kept."""
    return row["drafts"] == row["short_steps"] == 0


def check_times(row, step_ms):
    assert row["step_ms"] == pytest.approx(median(step_ms), abs=1e-4)
    if in_step(row):
        assert row["otps"] == pytest.approx(median(1000 / ms for ms in step_ms), rel=5e-5)


@pytest.mark.parametrize("name", SPEED)
def test_floors_and_bandwidths(name):
    """Of reading the active experts, by the card's own copy bandwidth; of one more expert, by the law."""
    for run, rows in cells(content(name)):
        moved = EXPERT_BYTES[name] * run["layers"]
        for row in rows.values():
            floor = None if row["active"] is None else row["active"] * moved / run["copy_gb_s"] / 1e6
            assert row["floor_ms"] == (None if floor is None else pytest.approx(floor))
            assert row["law_gb_s"] == (None if row["b"] is None else pytest.approx(moved / row["b"] / 1e6))


MEANS = ("otps", "step_ms", "token_ratio", "active_native", "active", "predicted", "a", "b", "floor_ms", "law_gb_s")


@pytest.mark.parametrize("name", ["paper_speed", *QWEN3, "paper_speed_any"])
def test_ratios_of_several_starts(name):
    """Ratios over the pairs of all starts; of other columns means, weighted with the pairs, and sums."""
    results = content(name)

    def of_cell(row, records):
        where = ("piece", "regime", "batch", "layers")
        records = [record for record in records if [record.get(n) for n in where] == [row.get(n) for n in where]]
        return [r for r in records if r.get("prompt_tokens", 8) == row.get("prompt_tokens", 8) and "start" in r]

    assert results["pooled"]
    for row in results["pooled"]:
        starts = [start for start in of_cell(row, results["rows"]) if start["policy"] == row["policy"]]
        runs = of_cell(row, results["runs"])
        assert len(starts) == len(runs) == row["starts"]
        if row["method"] == "native":
            assert [row[column] for column in RATIO] == [1, 1, 1]
        else:
            pairs = [pair for run in runs for pair in run["decodes"][row["policy"]]]
            assert row["pairs"] == len(pairs)
            ratios = [pair[0] / pair[2] for pair in pairs]
            check_interval(ratios, *(row[column] for column in RATIO), within=5e-5)
        for column in MEANS:
            weighted = [(start["pairs"], start[column]) for start in starts if start[column] is not None]
            whole = sum(n * value for n, value in weighted) / row["pairs"] if len(weighted) == len(starts) else None
            assert row[column] == (None if whole is None else pytest.approx(whole))
        for column in ("pairs", "short_steps", "steps_pruned", "steps_decoded"):
            values = [start[column] for start in starts]
            assert row[column] == (None if None in values else sum(values))
        check_of_predicted(row)


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
        pairs = [(native[sample["repeat"]], sample) for sample in own]
        for ratio, column in (("ratio", "otps"), ("total_ratio", "otps_total"), ("step_ratio", "step_ms")):
            ends = row[ratio], row[f"{ratio}_low"], row[f"{ratio}_high"]
            known = [(base[column], other[column]) for base, other in pairs if other[column] is not None]
            values = [base / other if column == "step_ms" else other / base for base, other in known]
            if values:
                check_interval(values, *ends, within=1e-9)
            else:
                assert ends == (None, None, None)
        for column in MEDIANS:
            values = [sample[column] for sample in own if sample[column] is not None]
            assert row[column] == (pytest.approx(median(values)) if values else unmeasured(row, column, results))


MEDIANS = [f"{time}_ms_{place}" for time in ("ttft", "itl") for place in ("p50", "p99")]
MEDIANS += ["otps", "otps_total", "step_ms", "rows_per_step", "accepted_length", "active", "active_native"]
MEDIANS += ["mass", "mass_shared", "acted", "acted_all", "identical"]


def unmeasured(row, column, results):
    """Native routing counts no experts: the control, which keeps them all, has counted them."""
    if row["policy"] != "native" or column not in ("active", "active_native", "mass"):
        return None
    (control,) = (
        other
        for other in results["rows"]
        if other["method"] == "noop" and (other["rate"], other["tokens"]) == (row["rate"], row["tokens"])
    )
    return 1.0 if column == "mass" else control["active_native"]


def line_through(points):
    x, y = mean(point[0] for point in points), mean(point[1] for point in points)
    b = sum((p[0] - x) * (p[1] - y) for p in points) / sum((p[0] - x) ** 2 for p in points)
    return y - b * x, b


def law(points):
    """(a, b), or None where the points are too close for a slope."""
    active = {experts for experts, _ in points}
    if len(active) < 3 or max(active) - min(active) < 2:
        return None
    a, b = line_through(points)
    return (a, b) if b > 0 else None


def check_of_predicted(row):
    """The lower bound over the prediction, as a ratio and as a share of the gain."""
    if row["predicted"] is None:
        assert row.get("of_predicted") is row.get("of_gain") is None
        return
    assert row["of_predicted"] == pytest.approx(row["ratio_low"] / row["predicted"])
    gain = row["predicted"] - 1
    assert row["of_gain"] == (None if gain <= 0.005 else pytest.approx((row["ratio_low"] - 1) / gain))


@pytest.mark.parametrize(
    ("name", "least"),
    [("paper_speed", 30), ("paper_speed_slow_host", 30), ("paper_speed_any", 9), *((name, 9) for name in QWEN3)],
)
def test_laws_and_what_they_predict(name, least):
    """A policy is predicted from the control and the other policies; native routing and the control from all."""
    looked_at = 0
    for run, rows in cells(content(name)):
        native = rows["native"]
        assert {row["active_native"] for row in rows.values()} == {native["active"]}
        points = {
            policy: (native["active"] if policy == "noop" else row["active"], native["step_ms"] / row["ratio"])
            for policy, row in rows.items()
            if policy != "native" and row["active"] is not None
        }
        for policy, row in rows.items():
            others = policy if row["method"] == "xshare" else None
            fitted = law([point for other, point in points.items() if other != others])
            if run["piece"] == "logit-sum":  # it borrowed the law of rows that were measured again since
                fitted = row["a"], row["b"]
            else:
                assert (row["a"], row["b"]) == (pytest.approx(fitted) if fitted else (None, None))
            if row["method"] not in ("xshare", "logit-sum") or fitted is None or row["active"] is None:
                assert row["predicted"] is None
            else:
                left = native["step_ms"] - fitted[1] * (native["active"] - row["active"])
                assert row["predicted"] == pytest.approx(native["step_ms"] / left)
                looked_at += 1
            check_of_predicted(row)
    assert looked_at >= least


PULL_REQUEST = {4: 1.054, 8: 1.162, 16: 1.368, 32: 1.530}  # vLLM 35551 as it is printed: throughput, by requests


@pytest.mark.parametrize(
    ("name", "least"),
    [("paper_speed", 40), ("paper_speed_slow_host", 40), ("paper_speed_any", 0), *((name, 0) for name in QWEN3)],
)
def test_verdicts_on_the_papers_ranges(name, least):
    """Rows of single cells and of several starts. What the paper has no figure for has no verdict."""
    results = content(name)
    looked_at = 0
    for row in [*results["rows"], *results.get("pooled", [])]:
        policy = row["policy"].removesuffix(",score=full")
        policies, *lines = PRINTED.get((row["drafts"], row["batch"]), ("",))
        if row["method"] != "xshare" or policy not in policies.split() or row["piece"] == "budgets":
            pull_request = PULL_REQUEST[row["batch"]] if row["method"] == "logit-sum" else None
            assert row["paper_low"] == row["paper_high"] == pull_request
            assert row.get("paper_met") is None
            continue
        paper = [float(line.split()[policies.split().index(policy)]) for line in lines]
        ours = round(100 * (row["ratio"] - 1), 1)
        assert [round(100 * (row[end] - 1), 1) for end in ("paper_low", "paper_high")] == [min(paper), max(paper)]
        if row["regime"] == "independent":
            reached = ours > max(paper)
        else:
            reached = ours >= (max(paper) if max(paper) > 8 else min(paper))
        assert row["paper_met"] is reached
        looked_at += 1
    assert looked_at >= least


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
    means = {(a, b): sum(values[a:b]) / (b - a) for a in range(n) for b in range(a + 1, n + 1)}
    return [max(min(means[a, b + 1] for b in range(i, n)) for a in range(i + 1)) for i in range(n)]


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


def test_what_sizes_of_a_staircase_cost():
    """In experts: times that never fall, in units of their slope from the smallest size on."""
    results = content("staircase")
    active = {(count["batch"], count["experts"]): count["active"] for count in results["counts"]}
    for batch in {row["batch"] for row in results["rows"]}:
        rows = sorted((row for row in results["rows"] if row["batch"] == batch), key=lambda row: row["experts"])
        sizes, level = [row["experts"] for row in rows], never_falling([row["ms"] for row in rows])
        _, slope = line_through(list(zip(sizes, level, strict=True)))
        assert [row["cost"] for row in rows] == pytest.approx([(ms - level[0]) / slope + sizes[0] for ms in level])
        assert [row["active"] for row in rows] == [active[batch, size] for size in sizes]


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


def lost_and_won(native, own):
    pairs = list(zip(native, own, strict=True))
    return pairs.count(("1", "0")), pairs.count(("0", "1"))


@pytest.mark.parametrize("name", ANSWERED)
def test_changes_of_answers(name):
    results = content(name)
    columns = ("model", "set", "batch", "drafts", "mixed", "policy")

    def cell(record):
        return tuple(record[column] for column in columns if column in record and column in results["samples"][0])

    right = {cell(sample): sample["right"] for sample in results["samples"]}
    assert len(right) == len(results["rows"]) == len(results["samples"])
    asked = [row for row in results["rows"] if row["accuracy"] is not None]  # others are texts, which were only read
    for row in asked:
        own, native = right[cell(row)], right[cell(row | {"policy": "native"})]
        questions = row["questions"]
        assert len(own) == len(native) == questions
        check_accuracy(row, own.count("1"))
        check_change(row, *lost_and_won(native, own), questions)


@pytest.mark.parametrize("name", ["paper_quality", "assumptions", "further_quality"])
def test_rivals_on_the_same_questions(name):
    results = content(name)

    def cell(record):
        return tuple(record[column] for column in ("batch", "drafts", "mixed", "policy"))

    right = {cell(sample): sample["right"] for sample in results["samples"]}
    rows = {cell(row): row for row in results["rows"]}
    assert results["matched"]
    for pair in results["matched"]:
        rival, reference = cell(pair), cell(pair | {"policy": pair["reference"]})
        for column in ("active", "accuracy", "kl", "agreement", "accepted"):
            assert (pair[column], pair[f"{column}_reference"]) == (rows[rival][column], rows[reference][column])
        lost, won = lost_and_won(right[reference], right[rival])
        check_change(pair, lost, won, len(right[rival]), ("low", "high"))


@pytest.mark.parametrize("name", ["neighbours", "neighbours_presets"])
def test_shares_of_prompts_with_other_mates(name):
    results = content(name)
    always = {(sample["mixed"], sample["policy"]): sample["right"] for sample in results["samples"]}
    for row in results["rows"]:
        marks = always[row["mixed"], row["policy"]]  # answered whatever the mates
        assert len(marks) == row["prompts"]
        for column in ("changed", "changed_answer", "flipped"):
            count = row[column] * row["prompts"]
            assert count == pytest.approx(round(count))
            ends = wilson(round(count), row["prompts"])
            assert (row[f"{column}_low"], row[f"{column}_high"]) == pytest.approx(ends, abs=1e-9)
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
    assert all(row["sent"] == row["right"] + row["lost"] + row["wrong"] for row in results["requests"])
    assert all(row["passed"] for row in results["rows"]) == (
        results["provenance"]["verdict"] == f"all {len(results['rows'])} checks hold"
    )
    late = [sample for sample in results["samples"] if sample["seconds"] >= 0.4 * seconds]
    window = round(0.15 * len(late))
    assert window > 10
    for row in results["memory"]:
        held = [sample[row["process"]] for sample in late]
        ends = median(held[:window]), median(held[-window:])
        assert (row["bytes_warm"], row["bytes_end"]) == ends
        assert row["growth"] == pytest.approx(median(held[-window:]) / median(held[:window]) - 1, abs=1e-5)
    (check,) = [row for row in results["rows"] if "grows" in row["check"]]
    assert check["passed"] == all(row["growth"] < 0.02 for row in results["memory"])
    assert {row["process"] for row in results["memory"]} >= {"APIServer", "EngineCore", "Worker"}
