"""Prompts of every domain for `xshare trace record`, from held-out documents and questions.

python recipes/nano/prompts.py CORPUS > prompts.jsonl
xshare trace record nano/xshare_nano/nano --prompts prompts.jsonl --out nano.trace.xz --tokens 64 --batch 16
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from data import documents, held_out
from settings import PROSE

from xshare.quality.task_files import nano_prompt
from xshare.tasks import ASKED, held_out_questions

EACH, CHARACTERS = 16, 160  # prompts of a domain: a batch of 16 can come from one


def prose_prompts(corpus: Path, domain: str) -> list[str]:
    """The beginnings of paragraphs, evenly over the held-out documents."""
    texts = [text for text in documents(corpus, domain) if held_out(text)]
    paragraphs = [part.strip() for text in texts for part in text.split("\n\n") if len(part) > 2 * CHARACTERS]
    if domain == "python":
        paragraphs = [text[at : at + CHARACTERS] for text in texts if (at := text.find("\ndef ") + 1)]
    return [part[:CHARACTERS] for part in paragraphs[:: max(1, len(paragraphs) // EACH)][:EACH]]


def main() -> None:
    corpus = Path(sys.argv[1])
    for domain in [*PROSE, "python"]:
        for text in prose_prompts(corpus, domain):
            print(json.dumps({"prompt": text, "domain": domain}, ensure_ascii=False))
    for kind in ASKED:
        for question in held_out_questions(kind, 2, seed=2):
            print(json.dumps({"prompt": nano_prompt(question), "domain": "tasks"}))


if __name__ == "__main__":
    main()
