"""Records a trace: decodes prompts natively, and keeps every router's logits of the decoded rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from xshare.engines.transformers.attach import KEY
from xshare.engines.transformers.forward_pass import Generation, Pass
from xshare.engines.transformers.routers import Router, find_routers
from xshare.errors import ModelError, TraceError
from xshare.results import provenance
from xshare.trace import Header, Trace
from xshare.trace.file import RouterFields
from xshare.trace.prompt_file import Prompt


class Recorder:
    """Hooks that keep the logits of rows that `generate` decodes, for sequences that have not ended."""

    def __init__(self, decoder: Any, routers: list[Router]) -> None:
        self.generation: Generation | None = None
        self.live: Tensor | None = None  # bool [sequences], in a decode pass
        self.steps: list[Tensor] = []  # bool [sequences]
        self.logits: list[list[Tensor]] = [[] for _ in routers]  # by layer and step, [sequences, N]
        self.hooks = [decoder.register_forward_pre_hook(self._before, with_kwargs=True)]
        for router, kept in zip(routers, self.logits, strict=True):
            self.hooks.append(router.module.register_forward_hook(self._keeper(kept)))

    def _before(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        step, now = Pass.of(module, args, kwargs), self.generation
        assert now is not None
        self.live = step.requests(now.ends) >= 0 if step.past >= now.prompt and step.new == 1 else None
        if self.live is not None:
            self.steps.append(self.live.cpu())

    def _keeper(self, kept: list[Tensor]) -> Callable[..., None]:
        def after(module: Any, args: Any, output: tuple[Tensor, Tensor, Tensor]) -> None:
            if self.live is not None:
                kept.append(output[0].detach().to("cpu", copy=True))

        return after

    def take(self) -> list[Tensor]:
        """The logits of each sequence of the last call, [its tokens, layers, N]."""
        if self.steps and not all(len(kept) == len(self.steps) for kept in self.logits):
            raise ModelError("the model does not ask its routers, which a kernel has replaced: load it without kernels")
        if not self.steps:
            return []
        live = torch.stack(self.steps)  # [steps, sequences]
        logits = torch.stack([torch.stack(kept) for kept in self.logits], dim=2)  # [steps, sequences, layers, N]
        self.steps.clear()
        for kept in self.logits:
            kept.clear()
        return [logits[live[:, number], number] for number in range(live.shape[1])]

    def remove(self) -> None:
        for hook in self.hooks:
            hook.remove()


def record(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    *,
    name: str,
    tokens: int = 64,
    batch: int = 8,
    chat: bool = False,
    advance: Callable[[int], None] = lambda prompts: None,
    source: dict[str, Any] | None = None,
) -> Trace:
    """Greedy text of up to `tokens` tokens after each prompt, in batches; its full logits as a trace.

    The first token comes from the prompt's own pass, so a sequence leaves one row less than it has tokens, and none if
    it ends at once. `advance` is told how many prompts are done; `source` is added to the provenance.
    """
    decoder, routers = find_routers(model)
    if KEY in vars(decoder):
        raise ModelError(f"{type(model).__name__} has a policy at work: call xshare.remove(model) before recording")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token_id is None:
        raise ModelError("the model's tokenizer has neither a padding nor an end token, and prompts must be padded")
    recorder = Recorder(decoder, routers)
    rows: list[Tensor] = []
    domains: list[str] = []
    try:
        for start in range(0, len(prompts), batch):
            group = prompts[start : start + batch]
            inputs = _encode(tokenizer, [prompt.text for prompt in group], chat).to(model.device)
            options = {**inputs, "max_new_tokens": tokens, "do_sample": False, "num_beams": 1, "use_cache": True}
            options["pad_token_id"] = tokenizer.pad_token_id
            recorder.generation = Generation.of(model, (), options)
            model.generate(**options)
            for prompt, logits in zip(group, recorder.take(), strict=False):
                if len(logits):
                    rows.append(logits)
                    domains.append(prompt.domain)
            advance(len(group))
    except torch.OutOfMemoryError:
        raise ModelError(f"{batch} prompts of {tokens} tokens do not fit into memory: record smaller batches") from None
    finally:
        recorder.remove()
    if not rows:
        raise TraceError("no prompt was decoded further than its first token: ask for more tokens")
    router = routers[0].spec()
    biases = [bias for layer in routers if (bias := layer.spec().correction_bias) is not None]
    header = Header(
        model=name,
        num_experts=routers[0].num_experts,
        top_k=router.top_k,
        score="full",
        router=RouterFields.of(router),
        layers=[layer.number for layer in routers],
        domains=domains,
        provenance=provenance(transformers=metadata.version("transformers"), **(source or {})),
    )
    lengths = torch.tensor([len(logits) for logits in rows])
    bias = torch.stack(biases).float().cpu() if biases else None
    return Trace(header, lengths, logits=torch.cat(rows), correction_bias=bias)


def _encode(tokenizer: Any, texts: list[str], chat: bool) -> Any:
    if chat:
        if not tokenizer.chat_template:
            raise ModelError("the model's tokenizer has no chat template: record plain prompts instead")
        turns = [[{"role": "user", "content": text}] for text in texts]
        texts = [tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False) for turn in turns]
    options = {"padding": True, "padding_side": "left", "return_tensors": "pt", "return_token_type_ids": False}
    return tokenizer(texts, add_special_tokens=not chat, **options)  # a chat template writes them itself
