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

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from xshare.errors import XShareError
from xshare.files import parse_json, read_lines
from xshare.tasks import ASKED, Question, extract_answer, held_out_questions

NUMBER = re.compile(r"(?:(?<!\d)-)?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")


class TaskError(XShareError):
    """A task file that cannot be read."""


@dataclass(frozen=True)
class Task:
    """One question: its prompt, the right answer and how to compare."""

    prompt: str
    answer: str
    kind: str
    compare: str = "exact"

    @property
    def messages(self) -> list[dict[str, str]] | None:
        """The messages of a question that is asked as a chat, otherwise None."""
        return None

    def is_right(self, text: str) -> bool:
        return COMPARE[self.compare](text, self.answer)


@dataclass(frozen=True)
class QuestionSet:
    """Questions that run and are scored together."""

    tasks: list[Task]
    tokens: int  # per answer, at most
    name: str | None = None  # if a result file holds several sets
    metric: str | None = None  # decides whether an answer is right, in place of `compare`
    stop: tuple[str, ...] = ()  # texts that end an answer


def _exact(text: str, answer: str) -> bool:
    extracted = extract_answer(text)
    if (text.strip() if extracted is None else extracted) == answer.strip():
        return True
    stated = re.split(r"\banswer\b(?: is\b)?[ :=]*", text, flags=re.IGNORECASE)[-1]
    return stated.strip().removesuffix(".") == answer.strip()


def _number(text: str, answer: str) -> bool:
    numbers = NUMBER.findall(text)  # "-" is a minus sign unless a digit stands before it
    return bool(numbers) and float(numbers[-1].replace(",", "")) == float(answer.replace(",", ""))


def _choice(text: str, answer: str) -> bool:
    letters = re.findall(r"\b[A-Z]\b", text)
    return bool(letters) and letters[-1] == answer.strip()


COMPARE: dict[str, Callable[[str, str], bool]] = {
    "exact": _exact,
    "contains": lambda text, answer: answer in text,
    "number": _number,
    "choice": _choice,
}


def nano_prompt(question: Question) -> str:
    """The prompt format nano was trained on."""
    return f"<|question|>{question.text}<|answer|>"


def built_in(per_kind: int, seed: int = 0) -> list[Task]:
    """Held-out questions for nano, `per_kind` of every kind, kind by kind."""
    questions = [question for kind in ASKED for question in held_out_questions(kind, per_kind, seed)]
    return [Task(nano_prompt(question), question.answer, question.kind) for question in questions]


def read_tasks(path: Path) -> list[Task]:
    numbered = read_lines(path, "task file", "tasks", TaskError)
    return [_task(line, f"task file {str(path)!r}, line {number}") for number, line in numbered]


def _task(line: str, where: str) -> Task:
    fields = parse_json(line, where, TaskError)
    if not isinstance(fields, dict):
        raise TaskError(f"{where} must be an object with a 'question' and an 'answer'")
    for name in ("question", "answer"):
        if not isinstance(fields.get(name), str) or not fields[name]:
            raise TaskError(f"{where} must have a text {name!r}")
    if unknown := set(fields) - {"question", "answer", "kind", "compare"}:
        raise TaskError(
            f"{where} has an unknown field {sorted(unknown)[0]!r}, expected question, answer, kind, compare"
        )
    compare = fields.get("compare", "exact")
    if not isinstance(compare, str) or compare not in COMPARE:
        raise TaskError(f"{where} compares by {compare!r}, expected one of {', '.join(COMPARE)}")
    if compare == "number" and not NUMBER.fullmatch(fields["answer"].strip()):
        raise TaskError(f"{where} compares by number, and its answer {fields['answer']!r} is none")
    if compare == "choice" and not re.fullmatch(r"[A-Z]", fields["answer"].strip()):
        raise TaskError(f"{where} compares by choice, and its answer {fields['answer']!r} is no capital letter")
    return Task(fields["question"], fields["answer"], str(fields.get("kind", "unlabelled")), compare)
