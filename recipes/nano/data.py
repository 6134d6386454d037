"""Text -> rows of tokens: four languages of prose, Python source, and tasks.

    python recipes/nano/data.py CORPUS tokenizer     train the tokenizer and write it beside the model

CORPUS holds `eltec_{eng,fra,deu,spa}.txt.xz`: novels of the ELTeC collection, documents separated by a line
`<|endoftext|>`. Python source is this Python's standard library. Tasks are xshare.tasks.
"""

from __future__ import annotations

import json
import lzma
import sys
import sysconfig
import zlib
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import numpy as np
from settings import ANSWER, END, HELD_OUT, NANO, PROSE, QUESTION, VOCABULARY
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from xshare.quality.task_files import nano_prompt
from xshare.tasks import Question, training_questions

Rows = np.ndarray  # uint16 [rows, length + 1]


def documents(corpus: Path, domain: str) -> Iterator[str]:
    if domain == "python":
        library = Path(sysconfig.get_path("stdlib"))
        skipped = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "encodings"}
        for path in sorted(library.rglob("*.py")):
            if not skipped & set(path.relative_to(library).parts):
                yield path.read_text(errors="ignore")
        return
    with lzma.open(corpus / f"eltec_{PROSE[domain]}.txt.xz", "rt") as file:
        yield from filter(str.strip, file.read().split(END + "\n"))


def held_out(document: str) -> bool:
    return zlib.crc32(document.encode()) % HELD_OUT == 0


def spelled(question: Question) -> str:
    return nano_prompt(question) + question.solution + END


def train_tokenizer(corpus: Path) -> Tokenizer:
    """Byte-level BPE; a digit is always a token of its own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, QUESTION, ANSWER],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=True,
    )

    def sample_texts() -> Iterator[str]:
        for domain in [*PROSE, "python"]:
            taken = 0
            for document in documents(corpus, domain):
                if taken < 6_000_000 and not held_out(document):
                    taken += len(document)
                    yield document
        for question in islice(training_questions(seed=-1), 20_000):
            yield question.text + "\n" + question.solution

    tokenizer.train_from_iterator(sample_texts(), trainer)
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)  # a third of the size
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": END,
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "padding_side": "left",
        "chat_template": "{% for message in messages %}{% if message['role'] == 'user' %}"
        f"{QUESTION}{{{{ message['content'] }}}}{ANSWER}"
        "{% else %}{{ message['content'] }}{{ eos_token }}{% endif %}{% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=2) + "\n")


def prose_rows(tokenizer: Tokenizer, texts: list[str], length: int) -> Rows:
    """Documents end to end, cut into rows."""
    pieces = [np.array([*encoded.ids, 0], np.uint16) for encoded in tokenizer.encode_batch(texts)]
    stream = np.concatenate(pieces)
    count = (len(stream) - 1) // length
    return np.stack([stream[i * length : i * length + length + 1] for i in range(count)])


def task_rows(tokenizer: Tokenizer, count: int, length: int, seed: int, trained: Mapping[str, range]) -> Rows:
    """Rows that begin with a question; the last solution of a row may be cut off."""
    rows = np.zeros((count, length + 1), np.uint16)
    questions = training_questions(seed, trained)
    filled, number = 0, 0
    while number < count:
        for encoded in tokenizer.encode_batch([spelled(question) for question in islice(questions, 1024)]):
            ids = encoded.ids[: length + 1 - filled]
            rows[number, filled : filled + len(ids)] = ids
            filled += len(ids)
            if filled > length:
                number, filled = number + 1, 0
                if number == count:
                    break
    return rows


def main() -> None:
    corpus, what = Path(sys.argv[1]), sys.argv[2]
    if what != "tokenizer":
        raise SystemExit(f"data.py makes a tokenizer, not {what!r}")
    write_tokenizer(train_tokenizer(corpus), NANO)


if __name__ == "__main__":
    main()
