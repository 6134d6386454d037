"""The prompts that a trace is recorded from, as a file has them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from xshare.errors import TraceError
from xshare.files import read_lines


@dataclass(frozen=True)
class Prompt:
    text: str
    domain: str = "unlabelled"


def read_prompts(path: Path) -> list[Prompt]:
    """One prompt a line, or in a .jsonl file an object with `prompt` and perhaps `domain`. Empty lines are left out."""
    numbered = read_lines(path, "prompts file", "prompts", TraceError)
    if path.suffix != ".jsonl":
        return [Prompt(line) for _, line in numbered]
    return [_prompt(line, f"prompts file {str(path)!r}, line {number}") for number, line in numbered]


def _prompt(line: str, where: str) -> Prompt:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where} is not JSON: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("prompt"), str) or not found["prompt"]:
        raise TraceError(f"{where} must be an object with a text 'prompt' and, if you like, a 'domain'")
    return Prompt(found["prompt"], str(found.get("domain", "unlabelled")))
