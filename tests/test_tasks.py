import random
import re
from itertools import islice
from math import gcd, prod

import pytest

from xshare.tasks import (
    ASKED,
    HELD_OUT,
    KINDS,
    LEGS,
    TRAINED,
    extract_answer,
    held_out_questions,
    is_right,
    make_question,
    training_questions,
)


def numbers(text):
    return [int(digits) for digits in re.findall(r"\d+", text)]


# Each answer worked out again from the question's text alone.
SOLVERS = {
    "sums": lambda text: str(eval(text.removeprefix("Compute "))),
    "sorting": lambda text: " ".join(map(str, sorted(numbers(text)))),
    "backwards": lambda text: text.split()[1][::-1],
    "letters": lambda text: str(text.split()[3].count(text.split()[1])),
    "divisor": lambda text: str(gcd(*numbers(text))),
    "legs": lambda text: str(sum(int(n) * LEGS[animal] for n, animal in re.findall(r"(\d+) (\w+)", text))),
    "ones": lambda text: str(numbers(text)[0].bit_count()),
    "product": lambda text: str(prod(numbers(text))),
}


def in_base(text):
    number, base = numbers(text)
    digits = ""
    while number:
        number, digit = divmod(number, base)
        digits = str(digit) + digits
    return digits


def solved(text):
    left, right = text.removeprefix("Solve ").split(" = ")
    (a, b), (c, *rest) = numbers(left), numbers(right)
    return str((sum(rest) - b) // (a - c))


SOLVERS |= {"base": in_base, "equation": solved}


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_right_at_every_size(kind):
    rng = random.Random(1)
    for size in {*TRAINED[kind], ASKED.get(kind, TRAINED[kind][-1])}:
        for _ in range(50):
            question = make_question(kind, rng, size)
            assert question.answer == SOLVERS[kind](question.text), question
            assert is_right(question, question.solution)
            lines = [line for line in question.work.splitlines() if "x" not in line]
            for left, right in re.findall(r"(\d+(?: [+*-] \d+)*) = (\d+(?: [+*-] \d+)*)", "\n".join(lines)):
                assert eval(left) == eval(right), question  # every step of the work holds


@pytest.mark.parametrize("kind", ASKED)
def test_held_out_questions_are_different_repeatable_and_of_one_size(kind):
    questions = held_out_questions(kind, 40)
    assert len({question.text for question in questions}) == 40
    assert questions == held_out_questions(kind, 40)
    assert questions != held_out_questions(kind, 40, seed=1)
    assert all(question.held_out and question.kind == kind for question in questions)
    assert ASKED[kind] in range(
        TRAINED[kind][-1] // 2, TRAINED[kind][-1] + 3
    )  # long, and hardly longer than trained on


def test_training_never_meets_a_held_out_question():
    trained = list(islice(training_questions(0), 5000))
    assert not any(question.held_out for question in trained)
    assert {question.kind for question in trained} == set(KINDS)
    texts = {question.text for kind in ASKED for question in held_out_questions(kind, 50)}
    assert not texts & {question.text for question in trained}


def test_about_one_question_in_so_many_is_held_out():
    rng = random.Random(0)
    share = sum(make_question("sums", rng, 6).held_out for _ in range(4000)) / 4000
    assert 0.8 / HELD_OUT < share < 1.2 / HELD_OUT


def test_too_few_held_out_questions_are_refused():
    with pytest.raises(ValueError, match="fewer than 100"):
        held_out_questions("ones", 100, size=8)


def test_the_answer_is_what_stands_last():
    assert extract_answer("1 + 1 = 2\nanswer 2") == "2"
    assert extract_answer("answer 3\nanswer 1 2 \nmore") == "1 2"
    assert extract_answer("1 + 1 = 2") is None
