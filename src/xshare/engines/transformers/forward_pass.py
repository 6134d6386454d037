"""What a forward pass is: how many new tokens after how many cached ones, and which sequences have ended.

All of it is known before the pass runs, from the arguments of the decoder and, within `generate`, of that call.
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
    new: int  # tokens per sequence; routers see sequences * new rows, those of a sequence next to each other
    past: int  # tokens in the cache, padding included
    device: torch.device
    tokens: Tensor | None  # [sequences, new], None where embeddings are given
    mask: Tensor | None  # [sequences, past + new] or wider, 0 where there is padding

    @classmethod
    def of(cls, decoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Pass:
        """From the arguments of a decoder."""
        arguments = kwargs
        if args:
            arguments = dict(zip(inspect.signature(decoder.forward).parameters, args, strict=False)) | kwargs
        tokens, embeddings, cache = (arguments.get(name) for name in ("input_ids", "inputs_embeds", "past_key_values"))
        rows = embeddings if tokens is None else tokens
        if not isinstance(rows, Tensor) or rows.ndim < 2:  # the model itself reports what is missing
            return cls(0, 0, 0, torch.device("cpu"), None, None)
        past = (
            0 if cache is None else int(cache.get_seq_length())
        )  # a static cache has it on the device: one read per pass
        mask = arguments.get("attention_mask")
        flat = isinstance(mask, Tensor) and mask.ndim == 2  # `generate` expands the mask for a static cache
        return cls(rows.shape[0], rows.shape[1], past, rows.device, tokens, mask if flat else None)

    @property
    def rows(self) -> int:
        return self.sequences * self.new

    @property
    def padded(self) -> bool:
        """Whether any of its rows is padding. This waits for the device."""
        return self.mask is not None and not bool(self._of_new(self.mask).all())

    def _of_new(self, mask: Tensor) -> Tensor:
        """The columns of a mask for the new tokens, [sequences, new]."""
        columns = mask[:, self.past : self.past + self.new]
        return columns if columns.shape[1] == self.new else mask[:, -self.new :]

    def requests(self, ends: Tensor | None) -> Tensor:
        """The request of each row, int64 [rows]: its sequence's number, or -1 for padding and for ended sequences.

        `ends`: tokens after which `generate` feeds a sequence only to keep the batch together.
        """
        numbers = torch.arange(self.sequences, device=self.device).unsqueeze(1).expand(-1, self.new)
        if self.mask is not None:
            numbers = numbers.where(self._of_new(self.mask).to(self.device) != 0, -1)
        if ends is not None and self.tokens is not None:
            ended = torch.isin(self.tokens[:, :1], ends.to(self.device))  # the first of a request's rows is no draft
            numbers = numbers.masked_fill(ended, -1)
        return numbers.reshape(-1)


@dataclass(frozen=True)
class Generation:
    """One call of `generate`."""

    prompt: int  # tokens per prompt, padding included: all passes over them are prefill
    ends: Tensor | None  # tokens that an ended sequence is fed: its end token, then padding
    drafts: bool  # whether a pass may verify drafted tokens
    answers: int = 1  # sequences per prompt, next to each other: beams, or several answers

    @classmethod
    def of(cls, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Generation:
        arguments = inspect.signature(type(model).generate).bind_partial(model, *args, **kwargs).arguments
        arguments |= arguments.pop("kwargs", {})

        def setting(name: str) -> Any:
            """As `generate` looks it up: an argument, in its generation_config, in the model's."""
            if name in arguments:
                return arguments[name]
            configs = (arguments.get("generation_config"), getattr(model, "generation_config", None))
            return next((value for c in configs if (value := getattr(c, name, None)) is not None), None)

        prompts = [arguments.get(name) for name in ("inputs", "input_ids", "inputs_embeds", "attention_mask")]
        prompt = max((p.shape[1] for p in prompts if isinstance(p, Tensor) and p.ndim > 1), default=1)
        ends: list[int] = []
        if setting("eos_token_id") is not None:  # without one no sequence ends before the others
            for token in (setting("eos_token_id"), setting("pad_token_id")):
                ends += [] if token is None else torch.as_tensor(token).flatten().tolist()
        answers = max(setting(name) or 1 for name in ("num_beams", "num_return_sequences"))
        drafts = any(setting(name) for name in DRAFTING)
        return cls(prompt, torch.tensor(ends) if ends else None, drafts, answers)
