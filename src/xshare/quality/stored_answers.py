"""What a result file keeps of a study: answers, those of a run that broke off, and how far forced ones diverge."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from xshare.policy import Policy
from xshare.quality.answering import Outcome
from xshare.results import Row

Finished = dict[int, tuple[bool, list[int]]]  # answers of a run that broke off, by place: whether right, and the tokens
FORCED = "forced"


@dataclass(frozen=True)
class ForcedDivergence:
    """Of native's answers under a policy, a token: None where there was none to force, or the engine cannot."""

    kl: float | None = None
    perplexity: float | None = None
    same_token: float | None = None


class Samples:
    """The samples of batches of one kind, mixed or not, among the `rows` of a file; where those are of several tasks,
    of one of them."""

    def __init__(self, rows: list[Row], mixed: bool, task: str | None = None) -> None:
        self.rows, self.mixed, self.task = rows, mixed, task

    def answers(self, policy: Policy | None, order: int | str) -> Outcome | None:
        found = self._find(policy, order)
        return None if found is None else Outcome.from_sample(policy, found)

    def add_answers(self, policy: Policy | None, order: int | str, found: Outcome) -> None:
        """All of them: what a run before had of them is in here."""
        self._drop(policy, _unfinished(order))
        self.rows.append(self._key(policy, order) | found.to_sample())

    def ended(self, policy: Policy | None, order: int) -> Finished:
        found = self._find(policy, _unfinished(order))
        return {} if found is None else {int(place): (pair[0], pair[1]) for place, pair in found["ended"].items()}

    def add_ended(self, policy: Policy | None, order: int, ended: Finished) -> None:
        """In place of those that were there."""
        self._drop(policy, _unfinished(order))
        pairs = {str(place): list(pair) for place, pair in ended.items()}
        self.rows.append(self._key(policy, _unfinished(order)) | {"ended": pairs})

    def forced(self, policy: Policy | None) -> ForcedDivergence | None:
        found = self._find(policy, FORCED)
        return (
            None
            if found is None
            else ForcedDivergence(**{each.name: found[each.name] for each in fields(ForcedDivergence)})
        )

    def add_forced(self, policy: Policy | None, found: ForcedDivergence) -> None:
        self.rows.append(self._key(policy, FORCED) | asdict(found))

    def _key(self, policy: Policy | None, order: int | str) -> Row:
        """What a sample is known by: its `order` also says what it is of."""
        key: Row = {"policy": "native" if policy is None else str(policy), "mixed": self.mixed, "order": order}
        return key if self.task is None else key | {"task": self.task}

    def _find(self, policy: Policy | None, order: int | str) -> Row | None:
        key = self._key(policy, order)
        return next((each for each in self.rows if {field: each[field] for field in key} == key), None)

    def _drop(self, policy: Policy | None, order: int | str) -> None:
        if (found := self._find(policy, order)) is not None:
            self.rows.remove(found)


def _unfinished(order: int | str) -> str:
    return f"begun {order}"
