"""Questions with one right answer, worked out step by step: ten kinds, any number of each, and a held-out split.

Selection acts only while decoding, so an answer must take many tokens: every kind writes its work before its answer, as
a model trained on them does. A checksum of the text decides whether a question is held out, whatever its seed.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

ANSWER = "answer "
HELD_OUT = 16  # one question in 16 is never trained on
LEGS = {"ants": 6, "bees": 6, "cats": 4, "cows": 4, "crabs": 10, "dogs": 4, "ducks": 2, "hens": 2, "spiders": 8}


@dataclass(frozen=True)
class Question:
    kind: str
    text: str
    work: str
    answer: str

    @property
    def solution(self) -> str:
        """What a model should write."""
        return f"{self.work}\n{ANSWER}{self.answer}"

    @property
    def held_out(self) -> bool:
        return zlib.crc32(self.text.encode()) % HELD_OUT == 0


def extract_answer(output: str) -> str | None:
    """The answer in a model's output: the rest of the line after the last `answer`, or None."""
    _, marker, rest = output.rpartition(ANSWER)
    return rest.split("\n")[0].strip() if marker else None


def is_right(question: Question, output: str) -> bool:
    return extract_answer(output) == question.answer


Maker = Callable[[random.Random, int], tuple[str, str, str]]  # (rng, size) -> text, work, answer
KINDS: dict[str, Maker] = {}
# Size makes a question longer, not different. Nano is trained on all sizes in `TRAINED` and asked at the size in
# `ASKED`, where native routing is sometimes wrong: a model that is always right shows little. Two kinds that nano
# always answers right at such sizes are not asked.
TRAINED: dict[str, range] = {}
ASKED: dict[str, int] = {}
LONGEST = 520  # max_tokens where an answer may be of any length


def kind(trained: range, asked: int | None = None) -> Callable[[Maker], Maker]:
    """Register a maker as a kind of question, by its function's name."""

    def add(maker: Maker) -> Maker:
        name = maker.__name__
        KINDS[name], TRAINED[name] = maker, trained
        if asked is not None:
            ASKED[name] = asked
        return maker

    return add


def make_question(name: str, rng: random.Random, size: int) -> Question:
    return Question(name, *KINDS[name](rng, size))


def training_questions(seed: int, trained: Mapping[str, range] = TRAINED) -> Iterator[Question]:
    """An endless stream: kinds in equal parts, sizes at random, none held out."""
    rng = random.Random(seed)
    names = list(KINDS)
    while True:
        name = rng.choice(names)
        question = make_question(name, rng, rng.choice(trained[name]))
        if not question.held_out:
            yield question


def held_out_questions(name: str, count: int, seed: int = 0, size: int | None = None) -> list[Question]:
    """`count` different held-out questions of one kind."""
    rng = random.Random(f"{name} {seed}")
    questions: dict[str, Question] = {}
    for _ in range(100 * HELD_OUT * count):
        question = make_question(name, rng, ASKED[name] if size is None else size)
        if question.held_out:
            questions[question.text] = question
        if len(questions) == count:
            return list(questions.values())
    raise ValueError(f"of the kind {name} there are fewer than {count} questions of that size held out")


def word(rng: random.Random, letters: int) -> str:
    """A made-up word: consonants and vowels in turn."""
    sounds = ("bcdfghjklmnprstvwz", "aeiou")
    return "".join(rng.choice(sounds[i % 2]) for i in range(letters))


@kind(trained=range(3, 21), asked=20)
def sums(rng: random.Random, size: int) -> tuple[str, str, str]:
    """Running totals of `size` numbers, none of them below zero."""
    total = rng.randrange(10, 1000)
    text, lines = str(total), []
    for _ in range(size - 1):
        number = rng.randrange(1, 1000)
        plus = rng.random() < 0.6 or number > total
        after = total + number if plus else total - number
        text += f" {'+' if plus else '-'} {number}"
        lines.append(f"{total} {'+' if plus else '-'} {number} = {after}")
        total = after
    return f"Compute {text}", "\n".join(lines), str(total)


@kind(trained=range(4, 13), asked=12)
def sorting(rng: random.Random, size: int) -> tuple[str, str, str]:
    """Take the smallest, write down what is left, until nothing is."""
    left = rng.sample(range(10, 1000), size)
    text, done, lines = " ".join(map(str, left)), [], []
    while left:
        smallest = min(left)
        done.append(smallest)
        left.remove(smallest)
        lines.append(" ".join(["take", str(smallest), "leave", *map(str, left)]))
    return f"Sort {text}", "\n".join(lines), " ".join(map(str, done))


@kind(trained=range(6, 41), asked=26)
def backwards(rng: random.Random, size: int) -> tuple[str, str, str]:
    """Letters numbered, then read from the last to the first."""
    letters = word(rng, size)
    numbered = [f"{i} {letter}" for i, letter in enumerate(letters, 1)]
    return f"Spell {letters} backwards", " ".join(numbered) + "\n" + " ".join(numbered[::-1]), letters[::-1]


@kind(trained=range(12, 91), asked=74)
def letters(rng: random.Random, size: int) -> tuple[str, str, str]:
    """How often a vowel occurs, counted letter by letter."""
    text = word(rng, size)
    vowel = rng.choice("aeiou")
    count, steps = 0, []
    for letter in text:
        count += letter == vowel
        steps.append(f"{letter} {count}")
    return f"Count {vowel} in {text}", " ".join(steps), str(count)


@kind(trained=range(2, 7), asked=5)
def divisor(rng: random.Random, size: int) -> tuple[str, str, str]:
    """Euclid's algorithm on numbers of `size` digits, with every quotient."""
    common = rng.randrange(1, 10 ** (size - 1))
    a, b = (common * rng.randrange(1, max(2, 10**size // common)) for _ in range(2))
    text, lines = f"Greatest common divisor of {a} and {b}", []
    while b:
        lines.append(f"{a} = {a // b} * {b} + {a % b}")
        a, b = b, a % b
    return text, "\n".join(lines), str(a)


@kind(trained=range(2, 13), asked=14)
def equation(rng: random.Random, size: int) -> tuple[str, str, str]:
    """A linear equation with x on both sides; terms on the right grow with `size`."""
    x, extra = rng.randrange(2, 100), [rng.randrange(1, 100) for _ in range(size - 1)]
    right = rng.randrange(2, 10)
    left = right + rng.randrange(2, 10)
    total = (left - right) * x
    constant = rng.randrange(1, 100)
    rest = constant + total - sum(extra)
    if rest < 0:  # every term on the right must be zero or more
        constant, rest = constant - rest, 0
    text = f"Solve {left} x + {constant} = {right} x + " + " + ".join(map(str, [rest, *extra]))
    lines, known = [], rest
    for number in extra:
        lines.append(f"{known} + {number} = {known + number}")
        known += number
    lines += [
        f"{known} - {constant} = {total}",
        f"{left} x - {right} x = {left - right} x",
        f"{left - right} x = {total}",
        f"x = {total} / {left - right} = {x}",
    ]
    return text, "\n".join(lines), str(x)


@kind(trained=range(2, 10))
def legs(rng: random.Random, size: int) -> tuple[str, str, str]:
    """Legs of several kinds of animals, added up; beyond nine kinds some come twice."""
    animals = rng.sample(sorted(LEGS), min(size, len(LEGS)))
    animals += rng.choices(sorted(LEGS), k=size - len(animals))
    herd = [(rng.randrange(2, 40), animal) for animal in animals]
    total, lines = 0, []
    for count, animal in herd:
        legs = count * LEGS[animal]
        lines.append(f"{count} {animal} {count} * {LEGS[animal]} = {legs} total {total} + {legs} = {total + legs}")
        total += legs
    return "Legs of " + " and ".join(f"{count} {animal}" for count, animal in herd), "\n".join(lines), str(total)


@kind(trained=range(2, 9))
def base(rng: random.Random, size: int) -> tuple[str, str, str]:
    """A number of `size` digits in another base, by remainders."""
    number, to = rng.randrange(10 ** (size - 1), 10**size), rng.randrange(3, 8)
    text, lines, digits = f"Write {number} in base {to}", [], ""
    while number:
        lines.append(f"{number} = {number // to} * {to} + {number % to}")
        digits = str(number % to) + digits
        number //= to
    return text, "\n".join(lines), digits


@kind(trained=range(8, 23), asked=23)
def ones(rng: random.Random, size: int) -> tuple[str, str, str]:
    """The ones in a number of `size` bits, halving it."""
    number = rng.randrange(2 ** (size - 1), 2**size)
    text, lines, count = f"Count ones in binary {number}", [], 0
    while number:
        count += number % 2
        lines.append(f"{number} = 2 * {number // 2} + {number % 2} ones {count}")
        number //= 2
    return text, "\n".join(lines), str(count)


@kind(trained=range(3, 8), asked=7)
def product(rng: random.Random, size: int) -> tuple[str, str, str]:
    """Two numbers of `size` digits together, digit by digit."""
    a, b = (rng.randrange(10 ** (digits - 1), 10**digits) for digits in (size - size // 2, size // 2))
    total, lines = 0, []
    for high, x in _parts(a):
        for low, y in _parts(b):
            part = x * y * high * low
            lines.append(f"{x * high} * {y * low} = {part} total {total} + {part} = {total + part}")
            total += part
    return f"Multiply {a} by {b}", "\n".join(lines), str(total)


def _parts(number: int) -> list[tuple[int, int]]:
    """305 -> (100, 3), (1, 5): powers of ten and digits, without zeros."""
    digits = str(number)
    return [(10 ** (len(digits) - 1 - i), int(digit)) for i, digit in enumerate(digits) if digit != "0"]
