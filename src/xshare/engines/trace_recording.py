"""Recording a trace with whichever engine can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from xshare.engines.base import About
from xshare.models.loading import load
from xshare.trace import Trace
from xshare.trace.prompt_file import Prompt


class Tokens:
    """A tokenizer in the form that makers of prompts take."""

    def __init__(self, tokenizer: Any, vocab: int) -> None:
        self.tokenizer = tokenizer
        self.about = About("transformers", None, "", "", vocab=vocab)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text).input_ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids))


def record_folder(
    folder: Path, prompts: Callable[[Tokens], Sequence[Prompt]], *, device: str, dtype: str, **options: Any
) -> Trace:
    """The trace of a model in a folder, decoded with Transformers. `prompts` makes the prompts from the model's
    tokenizer; `options` are those of `record`."""
    from xshare.engines.transformers.trace_recording import record

    model, tokenizer = load(folder, device, dtype)
    made_prompts = prompts(Tokens(tokenizer, int(model.config.get_text_config().vocab_size)))
    return record(model, tokenizer, made_prompts, **options)
