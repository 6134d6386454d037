"""lab's held-out questions as a task file: nano's kinds at lab's sizes, or the kinds and sizes that are said.

python recipes/lab/tasks.py 40 > lab.jsonl
python recipes/lab/tasks.py 40 sums=24 letters=120 > lab.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "nano"))
from settings import HARD

from xshare.quality.files import nano_prompt
from xshare.quality.tasks import held_out_questions


def main() -> None:
    count, *said = sys.argv[1:]
    sizes = {kind: int(size) for kind, size in (each.split("=") for each in said)} or HARD
    for kind, size in sizes.items():
        for question in held_out_questions(kind, int(count), size=size):
            print(json.dumps({"question": nano_prompt(question), "answer": question.answer, "kind": kind}))


if __name__ == "__main__":
    main()
