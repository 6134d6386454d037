"""What a result file stores: answers, the finished answers of an interrupted run, and teacher-forced divergence."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from xshare.policy import Policy
from xshare.quality.answering import Outcome
from xshare.results import Row

Finished = dict[int, tuple[bool, list[int]]]  # index of the task -> whether its answer is right, and its tokens
FORCED = "forced"


@dataclass(frozen=True)
class ForcedDivergence:
    """A policy on native's answers, teacher-forced, per token; None without tokens or if the engine cannot force."""

    kl: float | None = None
    perplexity: float | None = None
    same_token: float | None = None


class Samples:
    """The samples among the `rows` of a file that belong to mixed batches, or to batches of one kind; with `task`, only
    those of that task."""

    def __init__(self, rows: list[Row], mixed: bool, task: str | None = None) -> None:
        self.rows, self.mixed, self.task = rows, mixed, task

    def answers(self, policy: Policy | None, order: int | str) -> Outcome | None:
        sample = self._find(policy, order)
        return None if sample is None else Outcome.from_sample(policy, sample)

    def add_answers(self, policy: Policy | None, order: int | str, outcome: Outcome) -> None:
        """Add the answers to all tasks; they replace those that an interrupted run finished."""
        self._drop(policy, _unfinished(order))
        self.rows.append(self._key(policy, order) | outcome.to_sample())

    def ended(self, policy: Policy | None, order: int) -> Finished:
        sample = self._find(policy, _unfinished(order))
        return {} if sample is None else {int(index): (pair[0], pair[1]) for index, pair in sample["ended"].items()}

    def add_ended(self, policy: Policy | None, order: int, finished: Finished) -> None:
        """Replace the finished answers of an interrupted run."""
        self._drop(policy, _unfinished(order))
        pairs = {str(index): list(pair) for index, pair in finished.items()}
        self.rows.append(self._key(policy, _unfinished(order)) | {"ended": pairs})

    def forced(self, policy: Policy | None) -> ForcedDivergence | None:
        sample = self._find(policy, FORCED)
        return (
            None
            if sample is None
            else ForcedDivergence(**{column.name: sample[column.name] for column in fields(ForcedDivergence)})
        )

    def add_forced(self, policy: Policy | None, divergence: ForcedDivergence) -> None:
        self.rows.append(self._key(policy, FORCED) | asdict(divergence))

    def _key(self, policy: Policy | None, order: int | str) -> Row:
        """The columns that identify a sample; `order` also says which kind of sample it is."""
        key: Row = {"policy": "native" if policy is None else str(policy), "mixed": self.mixed, "order": order}
        return key if self.task is None else key | {"task": self.task}

    def _find(self, policy: Policy | None, order: int | str) -> Row | None:
        key = self._key(policy, order)
        return next((row for row in self.rows if {column: row[column] for column in key} == key), None)

    def _drop(self, policy: Policy | None, order: int | str) -> None:
        if (sample := self._find(policy, order)) is not None:
            self.rows.remove(sample)


def _unfinished(order: int | str) -> str:
    return f"begun {order}"
