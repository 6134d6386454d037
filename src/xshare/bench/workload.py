"""What is asked while time is taken: prompts that no run has seen, and when they come."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

from xshare.engines.base import Encodes
from xshare.errors import XShareError
from xshare.tasks import ASKED, make_question

Prompts = Sequence[Any]  # lists of token ids; text for a server that takes nothing else


@dataclass(frozen=True)
class Workload:
    """Every policy of a repeat gets the same; no two repeats the same."""

    batch: int  # decoded at a time, at most
    requests: int
    rate: float | None  # requests a second, Poisson; None: all are there at once
    prompt_tokens: int | None  # None: prompts of a file, as long as they are
    tokens: int  # of every answer
    prompts: str = "questions"  # or random, or the file that `texts` are of
    seed: int = 0
    texts: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """The setting as it stands in files: all but the texts."""
        found = asdict(self)
        del found["texts"]
        return found

    def prompts_of(self, engine: Encodes, repeat: int) -> Prompts:
        if self.texts:  # in turn, and from the first again where there are no more
            first = self.seed + repeat * self.requests
            texts = [self.texts[number % len(self.texts)] for number in range(first, first + self.requests)]
            return [_last(engine, _parts(engine, text), self.prompt_tokens) for text in texts]
        assert self.prompt_tokens is not None
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


def _questions(engine: Encodes, dice: random.Random, tokens: int) -> Any:
    """Worked questions of all kinds and a last one to answer; so many tokens, cut in front."""
    asked: list[str] = []
    while True:
        for _ in range(max(1, len(asked))):  # twice as many whenever they are too few
            kind = dice.choice(list(ASKED))
            question = make_question(kind, dice, ASKED[kind])
            asked.insert(0, f"{question.text}\n{question.solution}\n" if asked else question.text)
        found = _parts(engine, "".join(asked))
        if len(found) >= tokens:
            return _last(engine, found, tokens)


def _parts(engine: Encodes, text: str) -> list[Any]:
    """Token ids, or words for a server that takes text alone."""
    return text.split(" ") if engine.about.prompt_form == "text" else engine.encode(text)


def _last(engine: Encodes, parts: list[Any], count: int | None) -> Any:
    """A prompt of the last so many of them."""
    parts = parts if count is None else parts[-count:]
    return " ".join(parts) if engine.about.prompt_form == "text" else parts
