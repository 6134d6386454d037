"""Prompts that are turns of a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xshare.errors import ModelError

Messages = Sequence[Mapping[str, str]]  # role and content each


def turn(messages: Messages) -> dict[str, bool]:
    """What a chat template is told: whose turn it is, by the last message."""
    goes_on = messages[-1]["role"] == "assistant"
    return {"add_generation_prompt": not goes_on, "continue_final_message": goes_on}


def chat_ids(tokenizer: Any, messages: Messages) -> list[int]:
    """By a tokenizer in process."""
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError("this model's tokenizer has no chat template: leave --chat out")
    plain = [dict(each) for each in messages]
    ids: list[int] = tokenizer.apply_chat_template(plain, tokenize=True, return_dict=False, **turn(messages))
    return ids
