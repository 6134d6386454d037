"""Teacher forcing: the same text under two routings, as if its sequences were decoded side by side."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapreplace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import sdpa_kernel
from torch.nn.utils.rnn import pad_sequence

from xshare.batch import BatchLayout
from xshare.engines.base import Divergence
from xshare.engines.transformers.attach import Attached
from xshare.engines.transformers.decode import ATTENTION, read_prompts
from xshare.engines.transformers.step_rows import Places
from xshare.progress import Advance, quiet


@dataclass(frozen=True)
class Compared:
    """One answer, a number for each of its tokens but the last, after which nothing was decoded. All [n]."""

    step: Tensor  # the step in which it was read, counted within the pass
    kl: Tensor  # float64: of native's next-token distribution from the policy's, in nats
    surprise: Tensor  # float64: of the token that follows, under the policy and natively
    surprise_native: Tensor
    same: Tensor  # bool: both would go on with the same token


class Texts:
    """Prompts and answers laid out for one pass, and what native routing makes of them: to be compared with policies.

    Prompts are read first, natively, as they are in decoding: in a step that is acted on, every row is.
    """

    @torch.inference_mode()
    def __init__(
        self,
        attached: Attached,
        prompts: Sequence[Sequence[int]],
        answers: Sequence[Sequence[int]],
        *,
        starts: Sequence[int] | None = None,
        drafts: int = 0,
    ) -> None:
        """`starts`: the step in which each answer begins; together if None. `drafts`: a step reads 1 + drafts tokens of
        every answer, as if a draft model had guessed them all."""
        self.model, self.decoder, self.width = attached.model, attached.decoder, 1 + drafts
        self.answers, self.starts = answers, list(starts or [0] * len(answers))
        self.read = read_prompts([self.model], dict(enumerate(prompts)))
        device = self.read.mask.device
        self.tokens, mask, whose, when = (each.to(device) for each in lay_out(answers, self.starts, self.width))
        self.mask, self.places = torch.cat([self.read.mask, mask], dim=1), Places.of_steps(when.flatten())
        self.layout = BatchLayout(self.places.requests(whose.flatten()))
        attached.switch(False)
        self.native = self._hidden()
        attached.switch(True)

    @sdpa_kernel(ATTENTION)
    def _hidden(self) -> Tensor:
        """[sequences, positions, d]"""
        hidden: Tensor = self.decoder(
            input_ids=self.tokens,
            attention_mask=self.mask,
            position_ids=(self.mask.cumsum(1) - 1)[:, -self.tokens.shape[1] :],
            past_key_values=copy.deepcopy(self.read.caches[0]),
            use_cache=True,
        ).last_hidden_state
        return hidden

    @torch.inference_mode()
    def compare(self, attached: Attached) -> list[Compared]:
        """Under the policy at work."""
        with attached.state.laid_out(self.layout, self.places):
            ours = self._hidden()
        return [self._compared(row, ours) for row in range(len(self.answers))]

    def _compared(self, row: int, ours: Tensor) -> Compared:
        """One sequence at a time: vocabularies are large."""
        answer = torch.tensor(self.answers[row], device=ours.device)
        length = len(answer) - 1
        head: Any = self.model.get_output_embeddings()  # type: ignore[operator]
        p, q = (head(hidden[row, :length]).double().log_softmax(-1) for hidden in (self.native, ours))
        surprise, surprise_native = (-each.gather(-1, answer[1:].unsqueeze(-1)).squeeze(-1) for each in (q, p))
        step = self.starts[row] + torch.arange(length, device=p.device) // self.width
        kl, same = (p.exp() * (p - q)).sum(-1), p.argmax(-1) == q.argmax(-1)
        return Compared(step, kl, surprise, surprise_native, same)


def texts(
    attached: Attached,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    batch: int,
    drafts: int = 0,
) -> Iterator[Texts]:
    """All of them, `batch` in a pass, which begin together."""
    for start in range(0, len(prompts), batch):
        some = slice(start, start + batch)
        yield Texts(attached, prompts[some], answers[some], drafts=drafts)


def diverge(attached: Attached, laid_out: Iterable[Texts], advance: Advance = quiet) -> Divergence:
    """Score answers under the policy at work and natively."""
    found = Divergence()
    for some in laid_out:
        for text in some.compare(attached):
            found.tokens += len(text.kl)
            found.kl += float(text.kl.sum())
            found.surprise += float(text.surprise.sum())
            found.surprise_native += float(text.surprise_native.sum())
            found.same += int(text.same.sum())
        advance(len(some.answers))
    return found


def in_turn(answers: Sequence[Sequence[int]], batch: int, drafts: int = 0) -> list[int]:
    """The step in which each answer begins if `batch` of them are decoded together, the next as soon as one has ended.

    Answers that begin together do not end together: most of the later steps would have fewer rows than are served.
    """
    free, starts = [0] * batch, []
    for answer in answers:
        starts.append(free[0])
        heapreplace(free, free[0] - (1 - len(answer)) // (1 + drafts))
    return starts


def lay_out(
    answers: Sequence[Sequence[int]], starts: Sequence[int], width: int = 1
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Answers from the step in which each starts, `width` tokens a step -> tokens, mask, whose each is and in which
    step it is read, -1 for padding: [sequences, longest].

    A token of an answer is read in a decode step, all but the last, after which nothing was decoded.
    """
    tokens = pad_sequence([torch.tensor([*answer[:-1]], dtype=torch.long) for answer in answers], batch_first=True)
    tokens = tokens if tokens.shape[1] else tokens.new_zeros(len(answers), 1)
    lengths = torch.tensor([[len(answer) - 1] for answer in answers])
    position = torch.arange(tokens.shape[1])
    mask = position < lengths
    whose = torch.arange(len(answers)).unsqueeze(1).expand_as(tokens)
    when = torch.tensor(starts).unsqueeze(1) + position // width
    return tokens, mask.long(), whose, when.where(mask, -1)
