"""Texts as they are written, read under each policy: how much less the model expects what comes next.

    {"text": "The river was low that year, and nobody ...", "kind": "novels"}

The first tokens of a text are read as a prompt. Those behind are forced one by one, in the batches in which they would
be decoded, once natively and once under the policy: prose has no right answer, but it has a perplexity.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import exp
from pathlib import Path

import numpy as np

from xshare.engines.base import Divergence, Engine
from xshare.errors import XShareError
from xshare.files import parse_json, read_lines
from xshare.policy import Policy
from xshare.progress import Advance, quiet
from xshare.quality.answering import ordered
from xshare.quality.task_files import TaskError
from xshare.results import Results, Row
from xshare.statistics import FEWEST

Forced = tuple[list[int], list[int]]  # tokens that are read as a prompt, and tokens that are forced


@dataclass(frozen=True)
class Text:
    text: str
    kind: str


def read_texts(path: Path) -> list[Text]:
    numbered = read_lines(path, "text file", "texts", TaskError)
    return [_text(line, f"text file {str(path)!r}, line {number}") for number, line in numbered]


def _text(line: str, where: str) -> Text:
    fields = parse_json(line, where, TaskError)
    if not isinstance(fields, dict) or not isinstance(fields.get("text"), str) or not fields["text"]:
        raise TaskError(f"{where} must be an object with a text 'text'")
    if unknown := set(fields) - {"text", "kind"}:
        raise TaskError(f"{where} has an unknown field {sorted(unknown)[0]!r}, expected text, kind")
    return Text(fields["text"], str(fields.get("kind", "unlabelled")))


class TextStudy:
    def __init__(
        self, engine: Engine, texts: list[Text], batch: int, given: int, limit: int, seed: int, results: Results
    ) -> None:
        """given: tokens that are read as a prompt; limit: tokens that are forced, at most. `results` may hold the sums
        of an earlier run."""
        if not engine.forces:
            raise XShareError(
                "texts are forced token by token, which no server takes, nor vLLM beside drafts: name the model, with "
                "--engine transformers or --engine vllm"
            )
        self.engine, self.texts, self.batch = engine, texts, batch
        self.given, self.limit, self.seed, self.results = given, limit, seed, results

    def run(self, policies: list[Policy | None], mixed: bool, advance: Advance = quiet) -> Iterator[Row]:
        """One row per policy; None is native, which must differ from itself nowhere."""
        batches = self._batches(mixed)
        for policy in policies:
            sample = self._measured(policy, mixed, batches, advance)
            parts = [Divergence(**part) for part in sample["parts"]]
            mean = sample["mean"]
            yield {
                "policy": sample["policy"],
                "method": "native" if policy is None else policy.method,
                "texts": len(self.texts),
                "tokens": sum(part.tokens for part in parts) / len(self.texts),
                "active": mean.get("experts_active"),
                "active_native": mean.get("experts_native"),
                "mass": mean.get("mass_kept"),
                **columns_of(parts),
                "mixed": mixed,
                "batch": self.batch,
                "drafts": self.engine.about.drafts or 0,
            }

    def _batches(self, mixed: bool) -> list[list[Forced]]:
        """Of texts of all kinds, or of one kind each."""
        texts = ordered(self.texts, mixed, self.seed)
        kinds = [texts] if mixed else [[t for t in texts if t.kind == kind] for kind in {t.kind: None for t in texts}]
        forced = [[self._forced(text) for text in of_kind] for of_kind in kinds]
        return [part[i : i + self.batch] for part in forced for i in range(0, len(part), self.batch)]

    def _forced(self, text: Text) -> Forced:
        ids = self.engine.encode(text.text)
        if len(ids) < self.given + 2:
            raise TaskError(
                f"the text {text.text[:40]!r} has {len(ids)} tokens, expected {self.given + 2} or more: "
                f"{self.given} are read as a prompt (--given)"
            )
        return ids[: self.given], ids[self.given : self.given + self.limit]

    def _measured(self, policy: Policy | None, mixed: bool, batches: list[list[Forced]], advance: Advance) -> Row:
        """The sums of every batch, measured now or stored before."""
        key = {"policy": "native" if policy is None else str(policy), "mixed": mixed}
        stored = next((sample for sample in self.results.samples if key.items() <= sample.items()), None)
        if stored is not None:
            advance(len(self.texts))
            return stored
        self.engine.use(policy)
        parts = []
        for batch in batches:
            prompts, goes_on = zip(*batch, strict=True)
            parts.append(self.engine.diverge(prompts, goes_on, self.batch, advance))
        sample = key | {"parts": [asdict(part) for part in parts], "mean": self.engine.stats().mean}
        self.results.samples.append(sample)
        self.results.write()
        return sample


def columns_of(parts: list[Divergence], draws: int = 2000) -> Row:
    """KL per token, perplexities and their ratio, with bootstrap 95 % intervals over batches, whose texts share sets;
    of few batches there is none."""
    names = ("tokens", "kl", "surprise", "surprise_native", "same")
    tokens, kl, ours, native, same = np.array([[getattr(part, name) for name in names] for part in parts], float).T
    picks = np.random.default_rng(0).integers(len(parts), size=(draws, len(parts)))

    def mean(values: np.ndarray) -> tuple[float, float | None, float | None]:
        """Per token, low, high."""
        if len(parts) < FEWEST:
            return float(values.sum() / tokens.sum()), None, None
        low, high = np.quantile(values[picks].sum(1) / tokens[picks].sum(1), [0.025, 0.975])
        return float(values.sum() / tokens.sum()), float(low), float(high)

    ratio = [None if value is None else exp(value) for value in mean(ours - native)]
    return {
        **dict(zip(("kl", "kl_low", "kl_high"), mean(kl), strict=True)),
        "perplexity": exp(mean(ours)[0]),
        "perplexity_native": exp(mean(native)[0]),
        **dict(zip(("perplexity_ratio", "perplexity_ratio_low", "perplexity_ratio_high"), ratio, strict=True)),
        "same_token": mean(same)[0],
    }
