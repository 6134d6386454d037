import json

import pytest

from xshare.quality.task_files import Task, TaskError, built_in, read_tasks
from xshare.tasks import ASKED


@pytest.mark.parametrize(
    ("compare", "answer", "right", "wrong"),
    [
        ("exact", "42", "6 * 7 = 42\nanswer 42", "answer 43"),
        ("exact", "42", " 42\n", "it is 42"),
        ("contains", "blue", "the sky is blue.", "the sky is red"),
        ("number", "1234.5", "first 7, then 1,234.5 it is", "1234.5 or 7"),
        ("number", "-3", "so x = -3", "so x = 3"),
        ("choice", "B", "A is wrong. The answer is B.", "B is wrong, so A"),
        ("choice", "B", "(B)", "BB"),
    ],
)
def test_how_answers_are_compared(compare, answer, right, wrong):
    task = Task("?", answer, "some", compare)
    assert task.is_right(right)
    assert not task.is_right(wrong)
    assert not task.is_right("")


def test_a_file_is_read(tmp_path):
    path = tmp_path / "tasks.jsonl"
    lines = [
        {"question": "1 + 1?", "answer": "2", "compare": "number", "kind": "sums"},
        {"question": "é", "answer": "x"},
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    assert read_tasks(path) == [Task("1 + 1?", "2", "sums", "number"), Task("é", "x", "unlabelled", "exact")]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "line 1 is not JSON"),
        ("[]", "must be an object with a 'question' and an 'answer'"),
        ('{"question": "q"}', "must have a text 'answer'"),
        ('{"question": "q", "answer": 4}', "must have a text 'answer'"),
        ('{"question": "q", "answer": "a", "score": 1}', "unknown field 'score'"),
        ('{"question": "q", "answer": "a", "compare": "about"}', "compares by 'about', expected one of exact"),
        ('{"question": "q", "answer": "a", "compare": "number"}', "its answer 'a' is none"),
        ("", "holds no tasks"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path, line, sentence):
    path = tmp_path / "tasks.jsonl"
    path.write_text(line)
    with pytest.raises(TaskError, match=sentence):
        read_tasks(path)
    with pytest.raises(TaskError, match="does not exist"):
        read_tasks(tmp_path / "none.jsonl")


def test_the_built_in_tasks_are_of_all_kinds_and_held_out():
    tasks = built_in(3)
    assert len(tasks) == 3 * len(ASKED)
    assert {task.kind for task in tasks} == set(ASKED)
    assert all(task.prompt.startswith("<|question|>") and task.prompt.endswith("<|answer|>") for task in tasks)
    assert built_in(3, seed=1) != tasks
