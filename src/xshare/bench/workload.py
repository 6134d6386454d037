"""What is asked while time is taken: prompts that no run has seen, and when they come."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from xshare.engines.base import Engine
from xshare.errors import XShareError
from xshare.tasks import ASKED, make

Prompts = Sequence[Any]  # lists of token ids; text for a server that takes nothing else


@dataclass(frozen=True)
class Workload:
    """Every policy of a repeat gets the same; no two repeats the same."""

    batch: int  # decoded at a time, at most
    requests: int
    rate: float | None  # requests a second, Poisson; None: all are there at once
    prompt_tokens: int
    tokens: int  # of every answer
    prompts: Literal["questions", "random"] = "questions"
    seed: int = 0

    def prompts_of(self, engine: Engine, repeat: int) -> Prompts:
        dice = [random.Random(f"{self.seed} {repeat} {request}") for request in range(self.requests)]
        if self.prompts == "questions":
            return [_questions(engine, each, self.prompt_tokens) for each in dice]
        vocab = engine.about.vocab or getattr(engine, "vocab", None)
        if not vocab:
            raise XShareError("prompts random needs the size of a vocabulary, which this engine does not tell")
        return [[each.randrange(vocab) for _ in range(self.prompt_tokens)] for each in dice]

    def arrivals_of(self, repeat: int) -> list[float] | None:
        """Seconds after the first at which each request comes."""
        if self.rate is None:
            return None
        dice = random.Random(f"{self.seed} {repeat} arrivals")
        return list(accumulate((dice.expovariate(self.rate) for _ in range(self.requests - 1)), initial=0.0))


def _questions(engine: Engine, dice: random.Random, tokens: int) -> Any:
    """Worked questions of all kinds and a last one to answer; so many tokens, cut in front."""
    asked: list[str] = []
    as_text = engine.about.prompt_form == "text"
    while True:
        for _ in range(max(1, len(asked))):  # twice as many whenever they are too few
            kind = dice.choice(list(ASKED))
            question = make(kind, dice, ASKED[kind])
            asked.insert(0, f"{question.text}\n{question.solution}\n" if asked else question.text)
        text = "".join(asked)
        found: list[Any] = text.split(" ") if as_text else engine.encode(text)
        if len(found) >= tokens:
            return " ".join(found[-tokens:]) if as_text else found[-tokens:]
