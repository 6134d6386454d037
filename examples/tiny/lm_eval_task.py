"""A task for lm-evaluation-harness of nano's held-out questions: lm_eval_task.py FOLDER EACH

EACH: questions of each of the eight kinds.
"""

import json
import sys
from pathlib import Path

import yaml

from xshare.quality.task_files import built_in

folder, each = Path(sys.argv[1]), int(sys.argv[2])
lines = [{"prompt": task.prompt, "answer": task.answer} for task in built_in(each)]
data = folder / "questions.jsonl"
data.write_text("".join(json.dumps(line) + "\n" for line in lines))
task = {
    "task": "nano_questions",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": str(data)}},
    "test_split": "test",
    "output_type": "generate_until",
    "doc_to_text": "{{prompt}}",
    "doc_to_target": "{{answer}}",
    "generation_kwargs": {"until": ["<|endoftext|>"], "max_gen_toks": 400, "temperature": 0},
    "filter_list": [
        {
            "name": "answer",
            "filter": [
                {"function": "regex", "regex_pattern": r"answer (.+)", "group_select": -1},
                {"function": "take_first"},
            ],
        }
    ],
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}
(folder / "nano_questions.yaml").write_text(yaml.safe_dump(task))
