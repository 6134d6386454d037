"""lab's held-out questions as a task file: nano's kinds, each at the largest size that lab answers well.

python recipes/lab/tasks.py 100 OUT/evaluation-lab.json > lab.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from xshare.quality.task_files import nano_prompt
from xshare.tasks import held_out_questions

WELL = 0.75  # of the questions of a size; a kind of which it answers no size well is not asked


def sizes(evaluation: Path) -> dict[str, int]:
    accuracy = json.loads(evaluation.read_text())["accuracy"]
    good = {kind: [int(size) for size, right in by.items() if right >= WELL] for kind, by in accuracy.items()}
    return {kind: max(answered) for kind, answered in good.items() if answered}


def main() -> None:
    for kind, size in sizes(Path(sys.argv[2])).items():
        for question in held_out_questions(kind, int(sys.argv[1]), size=size):
            print(json.dumps({"question": nano_prompt(question), "answer": question.answer, "kind": kind}))


if __name__ == "__main__":
    main()
