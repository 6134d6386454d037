"""lab's held-out questions as a task file: nano's kinds, as long as a training row allows.

python recipes/lab/tasks.py 40 > lab.jsonl
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
    for kind, size in HARD.items():
        for question in held_out_questions(kind, int(sys.argv[1]), size=size):
            print(json.dumps({"question": nano_prompt(question), "answer": question.answer, "kind": kind}))


if __name__ == "__main__":
    main()
