"""A Transformers model as an engine: continuous batching in this process, on the CPU or a GPU."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from importlib import metadata
from typing import Any

from xshare.batch import Placement
from xshare.engines.base import NO_STAIRS, About, Answer, BeforeStep, Divergence, Run, leaving
from xshare.engines.chat import Messages, chat_ids
from xshare.engines.counters import FIGURES, Stats
from xshare.engines.transformers.attach import Attached, apply, remove
from xshare.engines.transformers.decode import Decoded, decode
from xshare.engines.transformers.routers import Router, find, where
from xshare.engines.transformers.teacher_forcing import Texts, diverge, texts
from xshare.errors import ModelError
from xshare.policy import Policy
from xshare.progress import Advance, quiet
from xshare.staircase import Stairs

NATIVE = Policy(method="native")
TAIL = 16  # tokens that come in one step, at most, or make no character of their own
AGAIN = 8  # batches that are kept, read natively, for the next policy to be compared with


def expert_bytes(model: Any, routers: list[Router]) -> int:
    """What a step reads for one expert in every layer: the weights of all experts, over their number."""
    blocks = [model.get_submodule(router.name.rpartition(".")[0]) for router in routers]
    weights = [int(weight.nbytes) for block in blocks for weight in block.experts.parameters()]
    return sum(weights) // routers[0].num_experts


class TransformersEngine:
    forces = True
    serves: Policy | None = None
    room: int | None = None

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        name: str,
        drafter: Any = None,
        drafts: int = 0,
        lanes: int = 1,
        stairs: Stairs | None = None,
        devices: int | None = None,
    ) -> None:
        """`drafter`: a model with the same tokens, which proposes `drafts` of them a request and step. `lanes`: batches
        that go through one pass: no way to serve, but to find out sooner what becomes of many answers. `devices`: over
        how many the experts are taken to be spread, for policies with a budget per device; all compute here."""
        self.model, self.tokenizer, self.lanes, self.stairs = model, tokenizer, lanes, stairs
        self.drafter, self.drafts = drafter, drafts
        self.hooked = False  # whether anything is attached
        self._forced: tuple[object, list[Texts]] = (None, [])
        _, routers = find(model)
        self.vocab = int(model.config.get_text_config().vocab_size)
        if drafts and drafter.config.vocab_size != model.config.get_text_config().vocab_size:
            raise ModelError(
                f"a draft model must have the model's own tokens: it has {drafter.config.vocab_size}, "
                f"the model {model.config.get_text_config().vocab_size}"
            )
        self.about = About(
            **where(model, routers),
            version=metadata.version("transformers"),
            model=name,
            layer_numbers=tuple(router.number for router in routers),
            drafts=drafts,
            expert_bytes=expert_bytes(model, routers),
            devices=devices,
        )
        self.placement = None if devices is None else Placement.contiguous(self.about.experts, devices)
        if stairs is not None:
            stairs.check_conditions(where(model, routers))
        self.use(None)

    def use(self, policy: Policy | None, timed: bool = False, cost: bool | None = None) -> None:
        if cost and self.stairs is None:
            raise ModelError(NO_STAIRS)
        self._share(True)
        self.counted = policy is not None or not timed
        if not self.counted:
            self._detach()
            return
        # Natively too the layers are counted: a policy that leaves all as it is.
        acting = NATIVE if policy is None else policy
        weighed = cost if cost is not None else acting.method == "xshare"  # a rival knows no costs
        stairs = self.stairs if weighed and policy is not None else None
        self.attached: Attached = apply(
            self.model, acting, placement=self.placement, bypass=False, drafts=self.drafts, cost=stairs
        )
        self.hooked = True

    def change(self, policy: Policy) -> None:
        self.attached.change(policy)

    def _detach(self) -> None:
        if self.hooked:
            remove(self.model)
        self.hooked = False

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        limit: int,
        batch: int,
        arrivals: Sequence[float] | None = None,
        to_the_end: bool = False,
        advance: Advance = quiet,
        kinds: Sequence[int] | None = None,
        before: BeforeStep | None = None,
        stop: Sequence[str] = (),
        protected: Collection[int] | None = None,
    ) -> Run:
        """`kinds`: of each prompt. No batch of a pass has two of them; for lanes."""
        ends = -1 if to_the_end else int(self.tokenizer.eos_token_id)
        state = self.attached.state  # nobody asks it where nothing is attached
        found, due = Decoded.of(prompts), arrivals or [0.0] * len(prompts)
        ended = partial(self._ended, found, due, ends, limit)

        def arrange(present: list[int], kinds: list[int]) -> None:
            state.arrange(kinds, [row for row, who in enumerate(present) if who in (protected or ())])

        with leaving(ended), state.in_batches(batch if self.lanes > 1 else None):
            decode(
                self.model,
                prompts,
                ends=ends,
                limit=limit,
                batch=batch,
                arrivals=arrivals,
                drafter=self.drafter,
                drafts=self.drafts,
                advance=advance,
                lanes=self.lanes,
                kinds=kinds,
                arrange=arrange,
                into=found,
                before=before,
                stops=partial(self._stops, stop) if stop else None,
            )
        answers = self._answers(found, due)
        # Where batches share passes, what one of them took is not known.
        seconds = 0.0 if self.lanes > 1 and len(prompts) > batch else found.seconds
        return Run(answers, seconds, found.steps, found.rows, found.drafted, found.accepted, found.timed)

    def _answers(self, found: Decoded, due: Sequence[float]) -> list[Answer]:
        texts = self.tokenizer.batch_decode(found.tokens, skip_special_tokens=True)
        return [Answer(*each) for each in zip(found.tokens, texts, due, found.times_s, strict=True)]

    def _stops(self, stop: Sequence[str], tokens: Sequence[int]) -> bool:
        """Whether one of the texts is among the last of the tokens: none is longer than so many."""
        last = max(map(len, stop)) + TAIL
        text = self.tokenizer.decode(tokens[-last:], skip_special_tokens=True)
        return any(each in text for each in stop)

    def _ended(
        self, found: Decoded, due: Sequence[float], ends: int, limit: int, error: BaseException
    ) -> list[Answer | None]:
        """Of a run that broke off: None for those that were under way, or had not begun."""
        return [
            answer if answer.tokens[-1:] == [ends] or len(answer.tokens) == limit else None
            for answer in self._answers(found, due)
        ]

    def diverge(
        self,
        prompts: Sequence[Sequence[int]],
        answers: Sequence[Sequence[int]],
        batch: int,
        advance: Advance = quiet,
    ) -> Divergence:
        if not self.hooked:
            self.use(None)
        how = (prompts, answers, batch, self.drafts)
        if len(prompts) > AGAIN * batch:
            return diverge(self.attached, texts(self.attached, *how), advance)
        if self._forced[0] != how:
            self._forced = how, list(texts(self.attached, *how))
        return diverge(self.attached, self._forced[1], advance)

    def stats(self) -> Stats:
        if not self.counted:
            return Stats()
        found = self.attached.stats()
        by_layer = {name: found[name] for name in FIGURES}
        return Stats(found["steps_pruned"], found["steps_bypassed"], by_layer=by_layer, mean=found["mean"])

    def count_all(self, on: bool) -> None:
        """It does so anyway."""

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text).input_ids
        return ids

    def encode_chat(self, messages: Messages) -> list[int]:
        return chat_ids(self.tokenizer, messages)

    def close(self) -> None:
        self._forced = (None, [])
        self._detach()
        self._share(False)

    def _share(self, on: bool) -> None:
        from xshare.engines.transformers.attention import share

        for model in [self.model, self.drafter] if self.drafts else [self.model]:
            share(model, on)
