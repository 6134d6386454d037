"""The requests of a timed run: prompts that no earlier run has seen, and their arrival times."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

from xshare.engines.base import Encodes
from xshare.errors import XShareError
from xshare.tasks import ASKED, make_question

Prompts = Sequence[Any]  # lists of token ids; text for a server that takes only text


@dataclass(frozen=True)
class Workload:
    """Within a repeat every policy gets the same requests; every repeat has new ones."""

    batch: int  # requests decoded together, at most
    requests: int
    rate: float | None  # requests per second, Poisson; None: all arrive at once
    prompt_tokens: int | None  # None: prompts from a file, at full length
    tokens: int  # per answer
    prompts: str = "questions"  # or "random", or the file that `texts` were read from
    seed: int = 0
    texts: tuple[str, ...] = ()

    @property
    def most_together(self) -> int:
        """The most requests that a step can have."""
        return min(self.batch, self.requests)

    @property
    def joins(self) -> bool:
        """Whether requests start while others decode."""
        return self.rate is not None or self.requests > self.batch

    def record(self) -> dict[str, Any]:
        """The columns of a result file: everything but the texts."""
        columns = asdict(self)
        del columns["texts"]
        return columns

    def prompts_of(self, engine: Encodes, repeat: int) -> Prompts:
        if self.texts:  # in order, starting over when they run out
            first = self.seed + repeat * self.requests
            texts = [self.texts[number % len(self.texts)] for number in range(first, first + self.requests)]
            return [_prompt_of_last(engine, _parts(engine, text), self.prompt_tokens) for text in texts]
        assert self.prompt_tokens is not None
        rngs = [random.Random(f"{self.seed} {repeat} {request}") for request in range(self.requests)]
        if self.prompts == "questions":
            return [_question_prompt(engine, rng, self.prompt_tokens) for rng in rngs]
        vocab = engine.about.vocab or getattr(engine, "vocab", None)
        if not vocab:
            raise XShareError("prompts random needs the size of a vocabulary, which this engine does not tell")
        return [[rng.randrange(vocab) for _ in range(self.prompt_tokens)] for rng in rngs]

    def arrivals_of(self, repeat: int) -> list[float] | None:
        """Arrival of each request, in seconds after the first; None: all at once."""
        if self.rate is None:
            return None
        rng = random.Random(f"{self.seed} {repeat} arrivals")
        return list(accumulate((rng.expovariate(self.rate) for _ in range(self.requests - 1)), initial=0.0))


def _question_prompt(engine: Encodes, rng: random.Random, tokens: int) -> Any:
    """Worked questions of all kinds and a last one to answer, cut at the front to `tokens` tokens."""
    texts: list[str] = []
    while True:
        for _ in range(max(1, len(texts))):  # double the number until they are long enough
            kind = rng.choice(list(ASKED))
            question = make_question(kind, rng, ASKED[kind])
            texts.insert(0, f"{question.text}\n{question.solution}\n" if texts else question.text)
        parts = _parts(engine, "".join(texts))
        if len(parts) >= tokens:
            return _prompt_of_last(engine, parts, tokens)


def _parts(engine: Encodes, text: str) -> list[Any]:
    """Token ids, or words for a server that takes only text."""
    return text.split(" ") if engine.about.prompt_form == "text" else engine.encode(text)


def _prompt_of_last(engine: Encodes, parts: list[Any], count: int | None) -> Any:
    """The prompt made of the last `count` parts; None: of all."""
    parts = parts if count is None else parts[-count:]
    return " ".join(parts) if engine.about.prompt_form == "text" else parts
