"""The file of prompts that a trace is recorded from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from xshare.errors import TraceError
from xshare.files import parse_json, read_lines


@dataclass(frozen=True)
class Prompt:
    text: str
    domain: str = "unlabelled"


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file: one per line, or in a .jsonl file one object per line with `prompt` and perhaps `domain`.
    Empty lines are skipped."""
    numbered = read_lines(path, "prompts file", "prompts", TraceError)
    if path.suffix != ".jsonl":
        return [Prompt(line) for _, line in numbered]
    return [_prompt(line, f"prompts file {str(path)!r}, line {number}") for number, line in numbered]


def _prompt(line: str, where: str) -> Prompt:
    record = parse_json(line, where, TraceError)
    if not isinstance(record, dict) or not isinstance(record.get("prompt"), str) or not record["prompt"]:
        raise TraceError(f"{where} must be an object with a text 'prompt' and, if you like, a 'domain'")
    return Prompt(record["prompt"], str(record.get("domain", "unlabelled")))
