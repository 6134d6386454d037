"""Speed with drafts, with the tokens accepted taken into account, for render.py: result files -> titles and cells."""

from __future__ import annotations

from pathlib import Path

from claim_evidence import DRAFTED, Evidence, Row
from speed_tables import Table
from summary_tables import row_with_policy


def accepted(speed: Row, quality: Row) -> Table:
    """Speed with drafts, with the tokens accepted taken into account: speed is of random weights, acceptance is
    nano's."""
    evidence = Evidence(Path())
    evidence.files = {"paper_speed": speed, "paper_quality": quality}
    native = row_with_policy(quality, "native", DRAFTED)
    assert native is not None
    cells = []
    for (piece, regime, policy), row in evidence.speeds.items():
        answered = evidence.answers(policy, setting=DRAFTED) if row["method"] == "xshare" else None
        if (piece, regime) == ("eagle3", "carried") and answered is not None:
            accepted_share = answered["accepted"] / native["accepted"]
            line = [f"`{row['policy']}`", f"{row['ratio']:.3f}", f"{answered['accepted']:.2f}"]
            cells.append([*line, f"{native['accepted']:.2f}", f"{row['ratio'] * accepted_share:.3f}"])
    return ["policy", "speed, drafts as before", "tokens accepted", "natively", "speed with acceptance"], cells
