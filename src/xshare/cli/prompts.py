"""What --prompts asks for: worked questions, random tokens, or the prompts of a file."""

from __future__ import annotations

from pathlib import Path

from xshare.errors import XShareError
from xshare.files import is_file, quoted_path
from xshare.results import sha256
from xshare.trace.prompt_file import Prompt, read_prompts

KEYWORDS = ("questions", "random")
TOKENS = 64  # per generated prompt


def prompts_from_file(prompts: str) -> list[Prompt]:
    """The prompts of a file; empty if `prompts` is a keyword."""
    if prompts in KEYWORDS:
        return []
    if not is_file(Path(prompts)):
        path = quoted_path(Path(prompts))
        raise XShareError(f"prompts must be {', '.join(KEYWORDS)} or a file, and {path} does not exist or is none")
    return read_prompts(Path(prompts))


def resolve_prompts(prompts: str, tokens: int | None) -> tuple[str, int | None, tuple[str, ...]]:
    """-> the keyword, or the file as results name it; tokens per prompt; the texts of the file."""
    if texts := tuple(prompt.text for prompt in prompts_from_file(prompts)):
        return f"{Path(prompts).name} {sha256(Path(prompts))[:12]}", tokens, texts
    return prompts, tokens or TOKENS, ()
