"""Held-out texts with their continuations: pieces of novels in four languages, and of Python's library.

python recipes/smol/texts.py CORPUS 64 > OUT/texts.jsonl
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "nano"))
from data import documents, held_out
from settings import PROSE

GIVEN, GOES_ON = 320, 720  # characters


def pieces(text: str, count: int) -> Iterator[tuple[str, str]]:
    """Pieces from all over a text, cut between words."""
    room = len(text) - GIVEN - GOES_ON
    for number in range(count):
        begin = text.find(" ", max(0, room) * number // count) + 1
        cut = text.rfind(" ", begin, begin + GIVEN)
        if cut > begin and text[cut : begin + GIVEN + GOES_ON].strip():
            yield text[begin:cut], text[cut : begin + GIVEN + GOES_ON]


def main() -> None:
    corpus, count = Path(sys.argv[1]), int(sys.argv[2])
    for domain in [*PROSE, "python"]:
        texts = [text for text in documents(corpus, domain) if held_out(text) and len(text) > 2 * (GIVEN + GOES_ON)]
        per_text = -(-count // max(1, len(texts)))
        chosen = [piece for text in texts for piece in pieces(text, per_text)][:count]
        for beginning, goes_on in chosen:
            print(json.dumps({"question": beginning, "answer": goes_on, "kind": domain}))


if __name__ == "__main__":
    main()
