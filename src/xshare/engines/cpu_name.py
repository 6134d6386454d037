"""The processor's name: a result of one CPU says nothing about another."""

from __future__ import annotations

import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
ARM = ("CPU implementer", "CPU part")  # what Linux says of an Arm processor in place of a name


def cpu_name() -> str | None:
    """`Intel(R) Xeon(R) Platinum 8480C`, or `aarch64 0x41 0xd0c`; None if nobody says."""
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}
    if facts.get("model name"):
        return facts["model name"]
    if all(name in facts for name in ARM):
        return " ".join([platform.machine(), *(facts[name] for name in ARM)])
    return platform.processor() or None
