"""What bench, quality, doctor and tune ask of an engine, whichever it is.

An engine decodes prompts and tells when each token came. Its policy is changed live, so that one engine serves a whole
comparison; `None` is the engine as it is without XShare.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol

from xshare.engines.chat import Messages
from xshare.engines.counters import Stats
from xshare.policy import Policy
from xshare.progress import Advance, quiet

NO_STAIRS = "no sizes of sets can be weighed by what they cost: open the engine with a staircase (--cost FILE)"
UNRECORDED = ("layer_numbers", "backend", "cpu")  # of About


@dataclass
class About:
    """The regime of an engine's answers and times. None, or 0 for a size: the engine does not say."""

    engine: str
    version: str | None
    model: str
    device: str  # a server's address, where it is one
    cpu: str | None = None  # the processor's name, where that is the device; not in the record, as in earlier files
    dtype: str | None = None
    weights: str | None = None  # how they were loaded
    graphs: str | None = None
    tensor_parallel: int | None = None
    expert_parallel: bool | None = None
    devices: int | None = None  # over which experts are taken to be spread, to ask what becomes of the answers
    max_num_seqs: int | None = None
    experts: int = 0
    top_k: int = 0
    layers: int = 0  # with experts
    layer_numbers: tuple[int, ...] = ()  # the model's own, of those layers; not in the record
    expert_bytes: int | None = None  # of one expert, in all layers together
    host_layers: int = 0  # whose experts a GPU reads from host memory
    backend: str | None = None  # the kernel that computes the experts; not in the record, as earlier files lack it
    drafts: int | None = None  # per request and step
    drafter: str | None = None
    drafter_files: str | None = None
    vocab: int | None = None
    config: str | None = None  # these two tell one model from another
    files: str | None = None
    prompt_form: Literal["ids", "text"] | None = None  # a server's
    policy: str | None = None  # of a server that cannot be changed
    cost: bool | None = None  # whether such a server weighs sets by what they cost

    def record(self) -> dict[str, Any]:
        """Flat, as in result files, which can be continued only if it agrees. Unknown values are left out."""
        # These are recorded even if unknown, as in all earlier files.
        always = {"version", "drafter", "expert_bytes"} if self.engine == "vllm" else {"version"}
        sizes = {"experts", "top_k", "layers", "host_layers"}
        values = {column.name: getattr(self, column.name) for column in fields(self) if column.name not in UNRECORDED}
        return {
            name: value
            for name, value in values.items()
            if name in always or (value is not None and (value or name not in sizes))
        }


@dataclass
class Answer:
    tokens: list[int]  # its end included; empty where an engine gives text alone
    text: str
    arrived_s: float = 0.0  # when it was asked, on the run's clock
    times_s: list[float] = field(default_factory=list)  # when each token came, on the same clock

    @property
    def first_s(self) -> float:
        """Time to the first token."""
        return self.times_s[0] - self.arrived_s

    @property
    def gaps_s(self) -> list[float]:
        """Between tokens. Tokens accepted together come together."""
        return [b - a for a, b in zip(self.times_s, self.times_s[1:], strict=False)]


@dataclass(frozen=True)
class StepTime:
    seconds: float
    requests: int  # that were decoded in it


BeforeStep = Callable[[int], None]  # gets the number of pure decode steps so far in the run


@dataclass
class Run:
    answers: list[Answer]
    decode_s: float = 0.0  # seconds of pure decode steps: no prompt was read in them
    steps: int = 0  # of those
    rows: int = 0  # tokens decoded in them
    drafted: int = 0  # tokens proposed by a drafter, and how many of them were accepted
    accepted: int = 0
    timed: list[StepTime] = field(default_factory=list)  # the pure decode steps one by one; not in the record
    compiled: int = 0  # kernels, which the run waited for; 0 too where the engine does not tell; not in the record

    def __add__(self, other: Run) -> Run:
        """One after the other. Steps of which some were not timed have no time."""
        timed = all(run.decode_s > 0 or not run.steps for run in (self, other))
        return Run(
            self.answers + other.answers,
            decode_s=self.decode_s + other.decode_s if timed else 0.0,
            steps=self.steps + other.steps,
            rows=self.rows + other.rows,
            drafted=self.drafted + other.drafted,
            accepted=self.accepted + other.accepted,
            timed=self.timed + other.timed,
            compiled=self.compiled + other.compiled,
        )

    def record(self) -> dict[str, Any]:
        """All but the answers, single steps and compilations: `Run([], **record)`."""
        return {
            column.name: getattr(self, column.name)
            for column in fields(self)
            if column.name not in ("answers", "timed", "compiled")
        }


@dataclass
class Divergence:
    """Sums over the positions of answers that were forced: native routing and a policy on the same text."""

    tokens: int = 0
    kl: float = 0.0  # of native's next-token distribution from the policy's, in nats
    surprise: float = 0.0  # of the text under the policy, and natively
    surprise_native: float = 0.0
    same: int = 0  # positions at which both would go on with the same token


@contextmanager
def leaving(answers: Callable[[BaseException], list[Answer | None]]) -> Iterator[None]:
    """Whatever breaks a run off, Ctrl-C too, carries the answers that had ended, in the order of the prompts: `left`
    reads them. None stands for the others."""
    try:
        yield
    except BaseException as error:
        vars(error)["answers"] = answers(error)
        raise


def left(error: BaseException) -> Sequence[Answer | None]:
    answers: Sequence[Answer | None] = vars(error).get("answers", ())
    return answers


class Encodes(Protocol):
    """What makes prompts of texts."""

    about: About

    def encode(self, text: str) -> list[int]: ...


class Engine(Encodes, Protocol):
    forces: bool  # whether it can `diverge`: not behind a server, nor with drafts in vLLM
    serves: Policy | None  # the policy that a server with live control ran at first
    room: int | None  # tokens that a prompt and its answer may have together, where there is a limit

    def use(self, policy: Policy | None, timed: bool = False, cost: bool | None = None) -> None:
        """From the next run on; counters start from zero. `timed`: native routing is to be the model by itself, with
        nothing attached that counts. `cost`: whether sets are weighed by the staircase that the engine was opened with;
        None: as it was opened, or as a server was found."""

    def change(self, policy: Policy) -> None:
        """In the middle of a run, after `use` of another policy: from the step that comes next. Cheap, and nothing is
        counted or waited for. A server refuses it."""

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        limit: int,
        batch: int,
        arrivals: Sequence[float] | None = None,
        to_the_end: bool = False,
        advance: Advance = quiet,
        before: BeforeStep | None = None,
        stop: Sequence[str] = (),
        protected: Collection[int] | None = None,
    ) -> Run:
        """Decode greedily, at most `batch` at a time, each up to `limit` tokens, its end, or one of the texts in
        `stop`, which the answer may then end with.

        `arrivals` are seconds after the start at which each prompt comes; all are there at once without them.
        `to_the_end`: every answer has `limit` tokens, whatever it says, so that a batch stays what it is.
        `before` is called right before each pure decode step, outside of its time, and may `change` the policy. An
        engine may schedule a step ahead: what changes is then seen one step later. A server refuses it.
        `protected`: the numbers of the prompts that keep their native experts; the others do not, whatever the engine's
        default is. Without them every prompt is what that says.
        """

    def diverge(
        self,
        prompts: Sequence[Sequence[int]],
        answers: Sequence[Sequence[int]],
        batch: int,
        advance: Advance = quiet,
    ) -> Divergence:
        """The answers under the policy in use, teacher-forced, held against native routing: `batch` of them begin
        together and are decoded side by side. Refused where `forces` is not set."""

    def encode_chat(self, messages: Messages) -> list[int]:
        """By the model's own chat template, ready for its answer; a last message of the model's is continued."""

    def stats(self) -> Stats:
        """Since `use`."""

    def count_all(self, on: bool) -> None:
        """Count experts in every step from now on, which takes time, or in as many as otherwise."""

    def close(self) -> None: ...
