"""Task files for any model: JSON lines with a question, its answer, and how to compare.

    {"question": "What is 6 * 7?", "answer": "42", "compare": "number", "kind": "sums"}

`compare` is one of
  exact     what follows the last "answer" is the answer ("answer 42", "Answer: 42", "the answer is 42."), or all of the
            text where there is no such word (the default)
  contains  the answer stands somewhere in the text
  number    the last number in the text equals the answer
  choice    the last capital letter that stands alone is the answer: A, B, C ...
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from xshare.errors import XShareError
from xshare.files import read_lines
from xshare.tasks import ASKED, Question, given_answer, held_out_questions

NUMBER = re.compile(r"(?:(?<!\d)-)?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")


class TaskError(XShareError):
    """A task file that cannot be read."""


@dataclass(frozen=True)
class Task:
    """One question as a model is asked it."""

    prompt: str
    answer: str
    kind: str
    compare: str = "exact"

    @property
    def messages(self) -> list[dict[str, str]] | None:
        """Of a question that is asked as a chat."""
        return None

    def is_right(self, text: str) -> bool:
        return COMPARE[self.compare](text, self.answer)


@dataclass(frozen=True)
class QuestionSet:
    """Questions that are asked and counted together."""

    tasks: list[Task]
    tokens: int  # of an answer, at most
    name: str | None = None  # where results have several
    metric: str | None = None  # what says whether an answer is right, where that is not `compare`
    stop: tuple[str, ...] = ()  # texts that end an answer


def _exact(text: str, answer: str) -> bool:
    given = given_answer(text)
    if (text.strip() if given is None else given) == answer.strip():
        return True
    said = re.split(r"\banswer\b(?: is\b)?[ :=]*", text, flags=re.IGNORECASE)[-1]
    return said.strip().removesuffix(".") == answer.strip()


def _number(text: str, answer: str) -> bool:
    found = NUMBER.findall(text)  # a minus sign is one if no digit stands before it
    return bool(found) and float(found[-1].replace(",", "")) == float(answer.replace(",", ""))


def _choice(text: str, answer: str) -> bool:
    found = re.findall(r"\b[A-Z]\b", text)
    return bool(found) and found[-1] == answer.strip()


COMPARE: dict[str, Callable[[str, str], bool]] = {
    "exact": _exact,
    "contains": lambda text, answer: answer in text,
    "number": _number,
    "choice": _choice,
}


def nano_prompt(question: Question) -> str:
    """As nano was trained to be asked."""
    return f"<|question|>{question.text}<|answer|>"


def built_in(each: int, seed: int = 0) -> list[Task]:
    """Held-out questions of all kinds that nano is asked, kind by kind."""
    asked = [question for kind in ASKED for question in held_out_questions(kind, each, seed)]
    return [Task(nano_prompt(question), question.answer, question.kind) for question in asked]


def read_tasks(path: Path) -> list[Task]:
    numbered = read_lines(path, "task file", "tasks", TaskError)
    return [_task(line, f"task file {str(path)!r}, line {number}") for number, line in numbered]


def _task(line: str, where: str) -> Task:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{where} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise TaskError(f"{where} must be an object with a 'question' and an 'answer'")
    for name in ("question", "answer"):
        if not isinstance(found.get(name), str) or not found[name]:
            raise TaskError(f"{where} must have a text {name!r}")
    if unknown := set(found) - {"question", "answer", "kind", "compare"}:
        raise TaskError(
            f"{where} has an unknown field {sorted(unknown)[0]!r}, expected question, answer, kind, compare"
        )
    compare = found.get("compare", "exact")
    if not isinstance(compare, str) or compare not in COMPARE:
        raise TaskError(f"{where} compares by {compare!r}, expected one of {', '.join(COMPARE)}")
    if compare == "number" and not NUMBER.fullmatch(found["answer"].strip()):
        raise TaskError(f"{where} compares by number, and its answer {found['answer']!r} is none")
    if compare == "choice" and not re.fullmatch(r"[A-Z]", found["answer"].strip()):
        raise TaskError(f"{where} compares by choice, and its answer {found['answer']!r} is no capital letter")
    return Task(found["question"], found["answer"], str(found.get("kind", "unlabelled")), compare)
