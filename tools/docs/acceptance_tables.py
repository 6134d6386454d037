"""Speed with drafts, with the tokens accepted taken into account, for render.py: result files -> titles and cells.

Steps were timed with random weights, whose drafts are accepted alike under every policy. How many tokens a step yields
is measured on trained models.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from claim_evidence import DRAFTED, MODELS, SCORES, Evidence, Row
from spans import Span
from speed_tables import FULL, Table, bare, deepest
from summary_tables import row_with_policy

from xshare.policy import RECOMMENDED, Policy


def accepted(speed: Row, quality: Row) -> Table:
    """The paper's policies: acceptance is nano's. Speed by `score=topk` has columns once it was timed."""
    evidence = Evidence(Path())
    evidence.files = {"paper_speed": speed, "paper_quality": quality}
    native = row_with_policy(quality, "native", DRAFTED)
    assert native is not None
    columns: dict[str, list[str]] = {"policy": []}
    for (piece, regime, policy), row in evidence.speeds.items():
        if (piece, regime, row["method"]) != ("eagle3", "carried", "xshare"):
            continue
        columns["policy"].append(f"`{policy}`")
        for score in SCORES:
            answered = evidence.answers(policy, "nano", score, DRAFTED)
            timed = evidence.timed(policy, piece, regime, score)
            share = answered["accepted"] / native["accepted"] if answered else None
            cells = {
                "speed, drafts as before": f"{timed['ratio']:.3f}" if timed else "",
                "tokens accepted": f"{answered['accepted']:.2f}" if answered else "",
                "of native's": f"{share:.1%}" if share else "",
                "speed with acceptance": f"{timed['ratio'] * share:.3f}" if timed and share else "",
            }
            for title, cell in cells.items():
                columns.setdefault(f"`score={score}`: {title}", []).append(cell)
    filled = {title: cells for title, cells in columns.items() if any(cells)}
    return list(filled), [list(line) for line in zip(*filled.values(), strict=True)]


def mixed_speed(results: Row) -> Table:
    """Timed on nano: batches that mix kinds of questions, beside batches of one kind, by both readings of the score.
    The fastest in mixed batches comes first."""
    rows = {(row["policy"], row["mixed"]): row for row in results["rows"]}
    cells = []
    for policy in sorted({bare(row) for row in rows.values()}, key=lambda policy: -rows[policy + FULL, True]["ratio"]):
        full, topk = ([rows.get((name, mixed)) for mixed in (True, False)] for name in (policy + FULL, policy))
        line = [Span.ratio(row) if row else "" for row in (*full, *topk)]
        cells.append([f"`{policy}`", *line])
    titles = [f"`score={score}`: {batches} (95 %)" for score in SCORES for batches in ("mixed", "one kind")]
    return ["policy", *titles], cells


def accepted_presets(speed: Row, frontier: Row) -> Table:
    """The presets: acceptance is nano's and lab's, on the questions that no policy was chosen by."""
    pooled = deepest(speed, "pooled")
    timed = {
        row["policy"]: row
        for row in pooled
        if (row["piece"], row["regime"], row["batch"]) == ("presets-eagle3", "carried", 4)
    }
    columns = {"batch": 4, "drafts": 3, "mixed": True, "set": "confirming"}
    tokens = {
        (row["model"], row["policy"]): row["accepted"] for row in frontier["rows"] if columns.items() <= row.items()
    }
    cells = []
    for preset in RECOMMENDED:
        policy = str(Policy.parse(preset))
        if policy not in timed:
            continue
        line = [f"`{preset}` ({RECOMMENDED[preset]})", Span.of_starts(timed[policy], ".3f")]
        for model in MODELS:
            share = tokens[model, policy] / tokens[model, "native"]
            line += [f"{tokens[model, policy]:.2f} of {tokens[model, 'native']:.2f}"]
            line += [f"{timed[policy]['ratio'] * share:.3f}"]
        cells.append(line)
    titles = [f"{model}: {what}" for model in MODELS for what in ("tokens accepted", "speed with acceptance")]
    return ["preset", "speed, drafts as before (95 %)", *titles], cells


def tables() -> dict[str, tuple[str, Callable[..., Table]]]:
    """By marker: the result files, and the function that makes their table."""
    return {
        "accepted_speed": ("paper_speed paper_quality", accepted),
        "accepted_presets": ("paper_speed frontier", accepted_presets),
        "mixed_speed": ("mixed_speed", mixed_speed),
    }
