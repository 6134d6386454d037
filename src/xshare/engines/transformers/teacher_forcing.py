"""Teacher forcing: the same answers under two routings, as if they were decoded together in a batch."""

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
    """One answer: a number for each token but the last, after which nothing was decoded. All are [n]."""

    step: Tensor  # in which the token was read, counted within the pass
    kl: Tensor  # float64: of native's next-token distribution from the policy's, in nats
    surprise: Tensor  # float64: of the following token under the policy; next, natively
    surprise_native: Tensor
    same: Tensor  # bool: both would go on with the same token


class Texts:
    """Prompts and answers laid out for one pass, with the hidden states of native routing to compare policies with.

    Prompts are prefilled first, natively, as in decoding: selection acts on all rows of a step or on none.
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
        """`starts`: the step in which each answer begins; None: all begin together. `drafts`: a step reads 1 + drafts
        tokens of every answer, as if a draft model had guessed them all."""
        self.model, self.decoder, self.width = attached.model, attached.decoder, 1 + drafts
        self.answers, self.starts = answers, list(starts or [0] * len(answers))
        self.read = read_prompts([self.model], dict(enumerate(prompts)))
        device = self.read.mask.device
        self.tokens, mask, requests, when = (tensor.to(device) for tensor in lay_out(answers, self.starts, self.width))
        self.mask, self.places = torch.cat([self.read.mask, mask], dim=1), Places.of_steps(when.flatten())
        self.layout = BatchLayout(self.places.requests(requests.flatten()))
        attached.switch(False)
        self.native = self._hidden()
        attached.switch(True)

    @sdpa_kernel(ATTENTION)
    def _hidden(self) -> Tensor:
        """The hidden states, [sequences, positions, d]."""
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
        """Compare the attached policy with native routing, per answer."""
        with attached.state.laid_out(self.layout, self.places):
            ours = self._hidden()
        return [self._compared(row, ours) for row in range(len(self.answers))]

    def _compared(self, row: int, ours: Tensor) -> Compared:
        """One sequence at a time: vocabularies are large."""
        answer = torch.tensor(self.answers[row], device=ours.device)
        length = len(answer) - 1
        head: Any = self.model.get_output_embeddings()  # type: ignore[operator]
        p, q = (head(hidden[row, :length]).double().log_softmax(-1) for hidden in (self.native, ours))
        surprise, surprise_native = (-x.gather(-1, answer[1:].unsqueeze(-1)).squeeze(-1) for x in (q, p))
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
    """All prompts and answers, `batch` per pass; those of a pass begin together."""
    for start in range(0, len(prompts), batch):
        part = slice(start, start + batch)
        yield Texts(attached, prompts[part], answers[part], drafts=drafts)


def diverge(attached: Attached, laid_out: Iterable[Texts], advance: Advance = quiet) -> Divergence:
    """Sums over all answers under the attached policy and natively."""
    sums = Divergence()
    for batch in laid_out:
        for text in batch.compare(attached):
            sums.tokens += len(text.kl)
            sums.kl += float(text.kl.sum())
            sums.surprise += float(text.surprise.sum())
            sums.surprise_native += float(text.surprise_native.sum())
            sums.same += int(text.same.sum())
        advance(len(batch.answers))
    return sums


def in_turn(answers: Sequence[Sequence[int]], batch: int, drafts: int = 0) -> list[int]:
    """The step in which each answer begins, if `batch` are decoded together and the next begins when one has ended.

    Answers that begin together do not end together: most later steps would then have fewer rows than a server's.
    """
    free, starts = [0] * batch, []
    for answer in answers:
        starts.append(free[0])
        heapreplace(free, free[0] - (1 - len(answer)) // (1 + drafts))
    return starts


def lay_out(
    answers: Sequence[Sequence[int]], starts: Sequence[int], width: int = 1
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Answers from the step in which each starts, `width` tokens per step -> tokens, mask, request and step of each
    token, all [sequences, longest]; the step of padding is -1.

    Each token of an answer is read in a decode step, except the last, after which nothing was decoded.
    """
    tokens = pad_sequence([torch.tensor([*answer[:-1]], dtype=torch.long) for answer in answers], batch_first=True)
    tokens = tokens if tokens.shape[1] else tokens.new_zeros(len(answers), 1)
    lengths = torch.tensor([[len(answer) - 1] for answer in answers])
    position = torch.arange(tokens.shape[1])
    mask = position < lengths
    requests = torch.arange(len(answers)).unsqueeze(1).expand_as(tokens)
    when = torch.tensor(starts).unsqueeze(1) + position // width
    return tokens, mask.long(), requests, when.where(mask, -1)
