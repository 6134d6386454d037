"""The questions of `xshare tune`, in rounds: one set to search with, and an unseen one to decide with."""

from __future__ import annotations

from xshare.quality.answering import ordered
from xshare.quality.task_files import Task, nano_prompt
from xshare.tasks import ASKED, held_out_questions
from xshare.tune.search import round_span

EACH = 8  # questions of each kind in the first round of nano's
FIRST = 4  # the first round of a task file, in batches


class Questions:
    def __init__(self, tasks: list[Task] | None, batch: int) -> None:
        """`tasks` come from a task file; None: nano's own questions."""
        # Without duplicates: a question listed twice would be in both sets.
        self.tasks = None if tasks is None else list({item.prompt: item for item in tasks}.values())
        self.first = EACH * len(ASKED) if tasks is None else FIRST * batch

    def round(self, unseen: bool, number: int) -> list[Task]:
        """The questions of one round. A task file is split in half: one half to search with, the other unseen."""
        if self.tasks is None:
            return ordered(nano_questions(unseen, number), mixed=True)
        half = ordered(self.tasks, mixed=True)[int(unseen) :: 2]
        begin, length = (self.first * value for value in round_span(number))
        return half[begin : begin + length]


def nano_questions(unseen: bool, number: int) -> list[Task]:
    """One round of nano's questions. None is repeated or in both sets. Kinds that have run out are left out."""
    tasks = []
    begin, length = (2 * EACH * value for value in round_span(number))
    for kind in ASKED:
        try:
            both = held_out_questions(kind, begin + length)[begin:]
        except ValueError:
            continue
        tasks += [Task(nano_prompt(q), q.answer, kind) for q in both[int(unseen) :: 2]]
    return tasks
