"""Every claim of the paper beside what was measured here, for render.py: result files -> titles and cells.

The paper's answers are those of gpt-oss-120b and DeepSeek-R1, whose weights nobody here has. Its claims about
answers are judged on nano and lab, and say so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from claim_evidence import Claim, Evidence
from claims_assumed import assumptions, threshold
from claims_devices import expert_parallel
from claims_drafts import with_drafts
from claims_experts import bound_by_experts, number_of_experts
from claims_mixed import mixed_requests
from claims_plain import without_drafts
from speed_tables import Table

COMMANDS = {
    "paper_quality_lab": "benchmarks/paper_quality.py",
    "paper_ep_topk": "benchmarks/paper_ep.py",
    "assumptions_lab": "benchmarks/assumptions.py",
    "replay": "make evidence",
    "overlap": "make evidence",
}  # by result file, where it is not the benchmark of its name
PARTS: dict[str, list[Callable[[Evidence], list[Claim]]]] = {
    "claims_experts": [number_of_experts, bound_by_experts],
    "claims_plain": [without_drafts],
    "claims_drafts": [with_drafts],
    "claims_mixed": [mixed_requests],
    "claims_devices": [expert_parallel],
    "claims_assumed": [assumptions, threshold],
}  # by table


def claims(folder: Path, table: str) -> Table:
    evidence = Evidence(folder)
    cells = [
        [claim.said, claim.paper, claim.ours, claim.verdict, commands(claim.files.split())]
        for part in PARTS[table]
        for claim in part(evidence)
    ]
    return ["claim", "paper", "ours", "verdict", "command"], cells


def commands(files: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in dict.fromkeys(COMMANDS.get(f, f"benchmarks/{f}.py") for f in files))
