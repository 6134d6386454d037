"""What a forward pass is: how many new tokens, after how many cached ones, and which sequences have ended.

Known before it runs: from what the decoder is called with and, within `generate`, from what that was called with.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

DRAFTING = ("assistant_model", "prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp")


@dataclass(frozen=True)
class Pass:
    sequences: int
    new: int  # tokens a sequence; the routers see sequences * new rows, a sequence's next to each other
    past: int  # tokens in the cache, padding included
    device: torch.device
    tokens: Tensor | None  # [sequences, new], None where embeddings are given
    mask: Tensor | None  # [sequences, past + new] or wider, 0 where there is padding

    @classmethod
    def of(cls, decoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Pass:
        """From what a decoder is called with."""
        given = kwargs
        if args:
            given = dict(zip(inspect.signature(decoder.forward).parameters, args, strict=False)) | kwargs
        tokens, embeddings, cache = (given.get(name) for name in ("input_ids", "inputs_embeds", "past_key_values"))
        rows = embeddings if tokens is None else tokens
        if not isinstance(rows, Tensor) or rows.ndim < 2:  # the model will say what it misses
            return cls(0, 0, 0, torch.device("cpu"), None, None)
        past = 0 if cache is None else int(cache.get_seq_length())  # a static cache's is on the device: one read a pass
        mask = given.get("attention_mask")
        flat = isinstance(mask, Tensor) and mask.ndim == 2  # otherwise it is made already, as `generate` does for those
        return cls(rows.shape[0], rows.shape[1], past, rows.device, tokens, mask if flat else None)

    @property
    def rows(self) -> int:
        return self.sequences * self.new

    @property
    def padded(self) -> bool:
        """Whether any of its rows is padding: this waits for the device."""
        return self.mask is not None and not bool(self._here(self.mask).all())

    def _here(self, mask: Tensor) -> Tensor:
        """Of a mask what is about the new tokens, [sequences, new]."""
        here = mask[:, self.past : self.past + self.new]
        return here if here.shape[1] == self.new else mask[:, -self.new :]

    def requests(self, ends: Tensor | None) -> Tensor:
        """Whose each row is, int64 [rows]: the sequence's number, or -1 for padding and for sequences that have ended.

        `ends` are the tokens after which `generate` feeds a sequence only to keep the batch together.
        """
        numbers = torch.arange(self.sequences, device=self.device).unsqueeze(1).expand(-1, self.new)
        if self.mask is not None:
            numbers = numbers.where(self._here(self.mask).to(self.device) != 0, -1)
        if ends is not None and self.tokens is not None:
            ended = torch.isin(self.tokens[:, :1], ends.to(self.device))  # of a request's rows, the first is accepted
            numbers = numbers.masked_fill(ended, -1)
        return numbers.reshape(-1)


@dataclass(frozen=True)
class Generation:
    """One call of `generate`."""

    prompt: int  # tokens of a prompt, padding included: passes over them are prefill, however many there are
    ends: Tensor | None  # tokens that a sequence which has ended is fed: its end, then padding
    drafts: bool  # whether a pass may verify drafted tokens
    answers: int = 1  # sequences of a prompt, next to each other: beams, or several answers

    @classmethod
    def of(cls, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Generation:
        given = inspect.signature(type(model).generate).bind_partial(model, *args, **kwargs).arguments
        given |= given.pop("kwargs", {})

        def setting(name: str) -> Any:
            """As `generate` finds it: an argument, its generation_config's, the model's own."""
            if name in given:
                return given[name]
            configs = (given.get("generation_config"), getattr(model, "generation_config", None))
            return next((value for c in configs if (value := getattr(c, name, None)) is not None), None)

        prompts = [given.get(name) for name in ("inputs", "input_ids", "inputs_embeds", "attention_mask")]
        prompt = max((p.shape[1] for p in prompts if isinstance(p, Tensor) and p.ndim > 1), default=1)
        ends: list[int] = []
        if setting("eos_token_id") is not None:  # without one no sequence ends before the others
            for token in (setting("eos_token_id"), setting("pad_token_id")):
                ends += [] if token is None else torch.as_tensor(token).flatten().tolist()
        answers = max(setting(name) or 1 for name in ("num_beams", "num_return_sequences"))
        drafts = any(setting(name) for name in DRAFTING)
        return cls(prompt, torch.tensor(ends) if ends else None, drafts, answers)
