"""The tests of evidence/*.json notice what they should: every altered column fails one, unless it is listed here."""

from fnmatch import fnmatch

import evidence_files
import pytest
import test_evidence_columns
import test_evidence_samples

# Numbers that were asked for, or that tell records apart: they follow from nothing.
SETTINGS = """
    batch bytes devices domains draft drafts each experts fit k layer layers mg mixed n paper_active paper_peak
    prompt_tokens protected ranks rate requests rows seed sets shared stamp start tokens top top_k
"""
STEPS = "means over steps that an engine counted, of which it keeps the sums"
TOKENS = "it takes every answer's tokens or probabilities; `diverged` is held within bounds"
BATCHES = "means over batches of a trace, which `make evidence` replays again"
RANKS = "means over batches of random routing, which are not kept"
LAUNCHES = "medians of launches, which are not kept"
REPEATS = "medians of repeats, which are not kept"
REPLAYED = "rows.active* rows.mass* rows.max_load rows.top1_kept rows.batches"
OF_ANSWERS = "rows.mass rows.kl_* rows.diverged_at"
OF_TOKENS = "overlap.overlap* overlap.pairs layers.* correlation.* points.*"

# By file: columns of which an altered one is not noticed, as patterns of `list.column`, and why.
NO_SAMPLES = {
    "assumptions": (f"{OF_ANSWERS} calibration.* {OF_TOKENS}", TOKENS),
    "assumptions_lab": (f"{OF_ANSWERS} rows.kl calibration.* {OF_TOKENS}", TOKENS),
    "frontier": (f"{OF_ANSWERS} rows.kl rows.accepted", TOKENS),
    "further_quality": (OF_ANSWERS, TOKENS),
    "paper_quality": (f"{OF_ANSWERS} calibration.* undrafted.*", TOKENS),
    "paper_quality_lab": (f"{OF_ANSWERS} rows.kl rows.accepted undrafted.*", TOKENS),
    **dict.fromkeys(
        test_evidence_columns.READ,
        (
            """rows.mass rows.kl_active rows.kl_high rows.perplexity_ratio_high rows.diverged_at calibration.*
            perplexity.perplexity_high perplexity.parameters overlap.overlap* overlap.pairs choice.company""",
            TOKENS,
        ),
    ),
    "neighbours": ("rows.active* rows.kl* rows.distinct rows.control", f"{TOKENS}, and so are accuracy and flipped"),
    "neighbours_presets": ("rows.active* rows.kl* rows.distinct rows.control", TOKENS),
    "one_model": (
        "rows.active* rows.acted* rows.mass rows.diverged_at",
        f"{STEPS}. This run kept no marks of answers: accuracy, change, lost and won are held against each other",
    ),
    "demo": (
        "rows.mass rows.diverged_at rows.expert_mb rows.tokens_per_s rows.step_ms rows.ratio* rows.repeats",
        f"{REPEATS}, nor are marks of answers: accuracy, change, lost and won are held against each other",
    ),
    "cost_aware": ("rows.active", STEPS),
    "offload": ("rows.active_native", STEPS),
    "paper_speed_slow_host": ("rows.short_steps", "steps of a decode are not kept"),
    "backends": ("rows.*", REPEATS),
    "cpu_decode": ("rows.active* rows.ms rows.times* rows.repeats", REPEATS),
    "cpu_selection": ("rows.*", REPEATS),
    "select": ("rows.*", REPEATS),
    "kernel": ("rows.*", LAUNCHES),
    "kernel_score": ("rows.*", LAUNCHES),
    "kernel_code": ("rows.*", "what a compiler wrote is not kept"),
    "parallel_kernel": ("rows.*", LAUNCHES),
    "one_launch": ("rows.*", LAUNCHES),
    "one_launch_modular": ("rows.*", LAUNCHES),
    "routing_profile": ("rows.*", LAUNCHES),
    "paper_ep": (
        "rows.active* rows.mass* rows.max_load* rows.peak_above_rounds rows.layer_us* rows.ratio* rows.gbps_*",
        "means and medians of steps, which are not kept",
    ),
    "paper_ep_topk": ("rows.active* rows.mass* rows.max_load* rows.peak_above_rounds", RANKS),
    "scale_8": ("rows.*", RANKS),
    "scale_16": ("rows.*", RANKS),
    "scale_64": ("rows.*", RANKS),
    "fit_routing": ("rows.* fit.*", "the simulation is not kept"),
    "overlap": ("rows.overlap* rows.pairs", BATCHES),
    "nano_overlap": ("rows.overlap* rows.pairs", BATCHES),
    **dict.fromkeys(("curve", "nano_curve", "nano_curve_single"), (REPLAYED, BATCHES)),
    **dict.fromkeys(("replay", "replay_devices", "replay_draft", "replay_mixed"), ("rows.*", BATCHES)),
    **dict.fromkeys(("replay_presets", "replay_single", "replay_protected"), ("rows.*", BATCHES)),
}
# The same of columns of which some values are noticed and others are not.
PARTLY = {
    "assumptions": ("rows.kl rows.agreement", "known for rivals that were matched; 1 where no answer changed"),
    "further_quality": ("rows.kl rows.agreement", "known for rivals that were matched; 1 where no answer changed"),
    "paper_quality": ("rows.kl rows.agreement rows.accepted", "the same"),
    "paper_quality_lab": ("rows.agreement", "1 where no answer changed"),
    "assumptions_lab": ("rows.agreement", "1 where no answer changed"),
    "frontier": ("rows.agreement", "1 where no answer changed"),
    **dict.fromkeys(test_evidence_columns.READ, ("rows.agreement", "1 where no text changed")),
    "one_model": ("rows.agreement", "1 where no answer changed"),
    "demo": ("rows.agreement rows.active rows.active_native", "the rows of speed have no experts by layer"),
    "cost_aware": ("rows.cost rows.votes_lost", "only on the curve do they decide what is gained"),
    "paper_ep": ("rows.peak_low", "of native routing only"),
    "paper_ep_topk": ("rows.peak_low", "of native routing only"),
    "paper_speed": (
        "rows.otps rows.token_ratio rows.short_steps",
        "tokens of decodes with drafts were not kept; nor the pairs of `presence`, nor the law of `logit-sum`",
    ),
    "paper_speed_slow_host": ("rows.otps rows.token_ratio", "tokens of decodes with drafts were not kept"),
    "parallel_check": ("rows.passed", "some details have no counts"),
    "vllm_check": ("rows.passed", "some details have no counts"),
}


def is_number(value):
    return isinstance(value, bool | int | float)


def altered(value):
    return not value if isinstance(value, bool) else value + 3 if isinstance(value, int) else 1.37 * value + 1


def cases():
    """The tests that look at files, each with its parameters."""
    for module in (test_evidence_samples, test_evidence_columns):
        for name, function in vars(module).items():
            if name.startswith("test_"):
                marks = getattr(function, "pytestmark", [])
                if not marks:
                    yield function, {}
                for of, values in (mark.args for mark in marks):
                    for value in values:
                        yield function, {of: value} if isinstance(of, str) else dict(zip(of, value, strict=True))


@pytest.fixture(scope="module")
def tests_of():
    """By file: the tests that look at it."""
    by_file = {name: [] for name in evidence_files.names()}
    for function, parameters in cases():
        evidence_files.ASKED.clear()
        function(**parameters)
        for name in evidence_files.ASKED:
            by_file[name].append((function, parameters))
    return by_file


def is_noticed(tests):
    for function, parameters in tests:
        try:
            function(**parameters)
        except Exception:  # an altered column may lead to any
            return True
    return False


def is_listed(column, lists, name):
    return any(fnmatch(column, pattern) for pattern in lists.get(name, ("", ""))[0].split())


@pytest.mark.parametrize("name", evidence_files.names())
def test_an_altered_column_is_noticed_unless_it_is_listed(name, tests_of, monkeypatch):
    """Altered in all of its records, and in the one in the middle."""
    results = evidence_files.stored(name)
    everywhere, in_one = {}, {}
    for part, records in results.items():
        if part in ("samples", "runs", "stamps") or not isinstance(records, list):
            continue
        for column in {key for record in records for key in record} - set(SETTINGS.split()):
            places = [place for place, record in enumerate(records) if is_number(record.get(column))]
            for seen, chosen in ((everywhere, places), (in_one, places[len(places) // 2 :][:1])):
                changed = [
                    record | {column: altered(record[column])} if place in chosen else record
                    for place, record in enumerate(records)
                ]
                monkeypatch.setitem(evidence_files.ALTERED, name, results | {part: changed})
                if places and everywhere.get(f"{part}.{column}", True):
                    seen[f"{part}.{column}"] = is_noticed(tests_of[name])
    for column, noticed in everywhere.items():
        assert noticed is not is_listed(column, NO_SAMPLES, name), f"{column} is listed, or is noticed: one of them"
    for column, noticed in in_one.items():
        assert noticed or is_listed(column, PARTLY, name), f"{column} is noticed in some records only"


@pytest.mark.parametrize("lists", [NO_SAMPLES, PARTLY], ids=["not noticed", "partly"])
def test_what_is_listed_is_there(lists):
    for name, (patterns, why) in lists.items():
        results = evidence_files.stored(name)
        lists_of_records = {part: records for part, records in results.items() if isinstance(records, list)}
        columns = {f"{part}.{column}" for part, records in lists_of_records.items() for r in records for column in r}
        assert why
        assert all(any(fnmatch(column, pattern) for column in columns) for pattern in patterns.split()), name
