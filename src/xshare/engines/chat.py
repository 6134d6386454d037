"""Prompts that are turns of a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xshare.errors import ModelError

Messages = Sequence[Mapping[str, str]]  # role and content each


def turn(messages: Messages) -> dict[str, bool]:
    """Options of a chat template: a last message of the assistant is continued, else an answer begins."""
    continues = messages[-1]["role"] == "assistant"
    return {"add_generation_prompt": not continues, "continue_final_message": continues}


def chat_ids(tokenizer: Any, messages: Messages) -> list[int]:
    """The prompt's token ids, by a tokenizer in this process."""
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError("this model's tokenizer has no chat template: leave --chat out")
    plain = [dict(message) for message in messages]
    ids: list[int] = tokenizer.apply_chat_template(plain, tokenize=True, return_dict=False, **turn(messages))
    return ids
