"""The questions of a tuning, in rounds: one set to search with, and one that nobody looks at until it decides."""

from __future__ import annotations

from xshare.quality.answering import ordered
from xshare.quality.task_files import Task, nano_prompt
from xshare.tasks import ASKED, held_out_questions
from xshare.tune.search import round_span

EACH = 8  # questions of each kind in the first round of nano's
FIRST = 4  # the first round of a task file, in batches


class Questions:
    def __init__(self, given: list[Task] | None, batch: int) -> None:
        """`given` are those of a task file; nano's own without one."""
        # A question that stands there twice would be in both sets.
        self.given = None if given is None else list({task.prompt: task for task in given}.values())
        self.first = EACH * len(ASKED) if given is None else FIRST * batch

    def round(self, unseen: bool, number: int) -> list[Task]:
        """Of a task file, one half is for searching and one for deciding."""
        if self.given is None:
            return ordered(nano_questions(unseen, number), mixed=True)
        half = ordered(self.given, mixed=True)[int(unseen) :: 2]
        begin, length = (self.first * each for each in round_span(number))
        return half[begin : begin + length]


def nano_questions(unseen: bool, number: int) -> list[Task]:
    """Nano's, a round of them: no question comes twice or is in both sets. Kinds that are used up are left out."""
    found = []
    begin, length = (2 * EACH * each for each in round_span(number))
    for kind in ASKED:
        try:
            both = held_out_questions(kind, begin + length)[begin:]
        except ValueError:
            continue
        found += [Task(nano_prompt(q), q.answer, kind) for q in both[int(unseen) :: 2]]
    return found
