"""How well does nano's draft model predict it? Tokens per step with three drafts, by kind of question, really decoded.

python recipes/nano/accepted.py > recipes/nano/accepted.json
"""

from __future__ import annotations

import json

from xshare.engines.by_name import open_engine
from xshare.quality.answering import answer
from xshare.quality.task_files import built_in
from xshare.tasks import ASKED, LONGEST

QUESTIONS, BATCH, DRAFTS = 8, 4, 3


def main() -> None:
    engine = open_engine("transformers", "nano", drafts=DRAFTS)
    results = {"questions": QUESTIONS, "batch": BATCH, "drafts": DRAFTS, "accepted": {}}
    for kind in ASKED:
        tasks = [task for task in built_in(QUESTIONS) if task.kind == kind]
        run = answer(engine, None, tasks, batch=BATCH, limit=LONGEST).run
        results["accepted"][kind] = round(1 + DRAFTS * run.accepted / run.drafted, 2)
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
