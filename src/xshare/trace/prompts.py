"""The prompts that a trace is recorded from, as a file has them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from xshare.errors import TraceError


@dataclass(frozen=True)
class Prompt:
    text: str
    domain: str = "unlabelled"


def read_prompts(path: Path) -> list[Prompt]:
    """One prompt a line, or in a .jsonl file an object with `prompt` and perhaps `domain`. Empty lines are left out."""
    if not path.is_file():
        raise TraceError(f"prompts file {str(path)!r} does not exist or is not a file")
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise TraceError(f"prompts file {str(path)!r} is not text in UTF-8") from None
    numbered = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise TraceError(f"prompts file {str(path)!r} holds no prompts")
    if path.suffix != ".jsonl":
        return [Prompt(line) for _, line in numbered]
    return [_prompt(line, f"prompts file {str(path)!r}, line {number}") for number, line in numbered]


def _prompt(line: str, where: str) -> Prompt:
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise TraceError(f"{where} is not JSON: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("prompt"), str) or not found["prompt"]:
        raise TraceError(f"{where} must be an object with a text 'prompt' and, if you like, a 'domain'")
    return Prompt(found["prompt"], str(found.get("domain", "unlabelled")))
