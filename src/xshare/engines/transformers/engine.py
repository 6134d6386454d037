"""A Transformers model as an engine: continuous batching in this process, on the CPU or a GPU."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from xshare.batch import Placement
from xshare.engines.base import NO_STAIRS, About, Answer, BeforeStep, Divergence, Run, leaving
from xshare.engines.chat import Messages, chat_ids
from xshare.engines.counters import FIGURES, Stats
from xshare.engines.transformers.attach import Attached, apply, remove
from xshare.engines.transformers.decode import Decoded, decode
from xshare.engines.transformers.routers import Router, find_routers, staircase_conditions
from xshare.engines.transformers.teacher_forcing import Texts, diverge, texts
from xshare.errors import ModelError
from xshare.policy import Policy
from xshare.progress import Advance, quiet
from xshare.staircase import Stairs

NATIVE = Policy(method="native")
TAIL = 16  # further tokens to look at for a stop text: of one step, or without a character of their own
KEPT_BATCHES = 8  # natively read batches that are kept to compare further policies with


def expert_bytes(model: Any, routers: list[Router]) -> int:
    """Bytes of one expert, summed over all layers: the weights of all experts over their number."""
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
        """`drafter`: a model with the same tokens, which proposes `drafts` of them per request and step. `lanes`: how
        many batches share a pass, to measure many answers sooner; it is no way to serve. `devices`: the simulated
        number of devices that hold the experts, for policies with a budget per device."""
        self.model, self.tokenizer, self.lanes, self.stairs = model, tokenizer, lanes, stairs
        self.drafter, self.drafts = drafter, drafts
        self.hooked = False  # whether anything is attached
        self._forced: tuple[object, list[Texts]] = (None, [])
        _, routers = find_routers(model)
        self.vocab = int(model.config.get_text_config().vocab_size)
        if drafts and drafter.config.vocab_size != model.config.get_text_config().vocab_size:
            raise ModelError(
                f"a draft model must have the model's own tokens: it has {drafter.config.vocab_size}, "
                f"the model {model.config.get_text_config().vocab_size}"
            )
        self.about = About(
            **staircase_conditions(model, routers),
            model=name,
            layer_numbers=tuple(router.number for router in routers),
            drafts=drafts,
            expert_bytes=expert_bytes(model, routers),
            devices=devices,
        )
        self.placement = None if devices is None else Placement.contiguous(self.about.experts, devices)
        if stairs is not None:
            stairs.check_conditions(staircase_conditions(model, routers))
        self.use(None)

    def use(self, policy: Policy | None, timed: bool = False, cost: bool | None = None) -> None:
        if cost and self.stairs is None:
            raise ModelError(NO_STAIRS)
        self._share(True)
        self.counted = policy is not None or not timed
        if not self.counted:
            self._detach()
            return
        # Layers are counted natively too: under a policy that changes nothing.
        acting = NATIVE if policy is None else policy
        uses_cost = cost if cost is not None else acting.method == "xshare"  # other methods know no costs
        stairs = self.stairs if uses_cost and policy is not None else None
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
        """`kinds`: of each prompt; with lanes, no batch mixes kinds."""
        ends = -1 if to_the_end else int(self.tokenizer.eos_token_id)
        state = self.attached.state  # unused where nothing is attached
        decoded, due = Decoded.of(prompts), arrivals or [0.0] * len(prompts)
        finished = partial(self._finished_answers, decoded, due, ends, limit)

        def arrange(present: list[int], kinds: list[int]) -> None:
            state.arrange(kinds, [row for row, prompt in enumerate(present) if prompt in (protected or ())])

        with leaving(finished), state.in_batches(batch if self.lanes > 1 else None):
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
                into=decoded,
                before=before,
                stops=partial(self._stops, stop) if stop else None,
            )
        answers = self._answers(decoded, due)
        # Where batches share passes, the time of one batch is not known.
        seconds = 0.0 if self.lanes > 1 and len(prompts) > batch else decoded.seconds
        return Run(answers, seconds, decoded.steps, decoded.rows, decoded.drafted, decoded.accepted, decoded.timed)

    def _answers(self, decoded: Decoded, due: Sequence[float]) -> list[Answer]:
        texts = self.tokenizer.batch_decode(decoded.tokens, skip_special_tokens=True)
        return [Answer(*parts) for parts in zip(decoded.tokens, texts, due, decoded.times_s, strict=True)]

    def _stops(self, stop: Sequence[str], tokens: Sequence[int]) -> bool:
        """Whether one of the stop texts is in the last tokens. A text has at most one token per character."""
        last = max(map(len, stop)) + TAIL
        text = self.tokenizer.decode(tokens[-last:], skip_special_tokens=True)
        return any(stop_text in text for stop_text in stop)

    def _finished_answers(
        self, decoded: Decoded, due: Sequence[float], ends: int, limit: int, error: BaseException
    ) -> list[Answer | None]:
        """The answers of an interrupted run: None for requests that were running or had not begun."""
        return [
            answer if answer.tokens[-1:] == [ends] or len(answer.tokens) == limit else None
            for answer in self._answers(decoded, due)
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
        key = (prompts, answers, batch, self.drafts)
        if len(prompts) > KEPT_BATCHES * batch:
            return diverge(self.attached, texts(self.attached, *key), advance)
        if self._forced[0] != key:
            self._forced = key, list(texts(self.attached, *key))
        return diverge(self.attached, self._forced[1], advance)

    def stats(self) -> Stats:
        if not self.counted:
            return Stats()
        stats = self.attached.stats()
        by_layer = {name: stats[name] for name in FIGURES}
        return Stats(stats["steps_pruned"], stats["steps_bypassed"], by_layer=by_layer, mean=stats["mean"])

    def count_all(self, on: bool) -> None:
        """Nothing to do: every step is counted."""

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
