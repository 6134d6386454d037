"""Tasks of lm-evaluation-harness as questions: its documents and prompts, its stop words, its scores.

They run like any other question, so that a policy is compared with native routing on the same documents in the same
batches. A document counts as right where its score is 1. Selection acts on decode steps only: a task that scores the
likelihood of given answers runs as prefill, and no policy can change its result.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from xshare.errors import short_repr
from xshare.files import is_file, is_folder, quoted_path
from xshare.quality.task_files import QuestionSet, Task, TaskError

# The harness's own defaults: the seed of few-shot examples, and the tokens per answer.
FEW_SHOTS = 1234
TOKENS = 256


@dataclass(frozen=True, eq=False)
class Document(Task):
    instance: Any = None  # the harness's object
    task: Any = None
    filter_name: str = ""
    metric: str = ""
    stop: tuple[str, ...] = ()
    chat: bool = False  # the prompt is a JSON list of messages

    @property
    def messages(self) -> list[dict[str, str]] | None:
        return json.loads(self.prompt) if self.chat else None

    def is_right(self, text: str) -> bool:
        """Judged by the harness's filter and metric, on the text before the first stop word."""
        ends = [text.find(word) for word in self.stop if word in text]
        return bool(
            scores(self.task, self.instance, self.filter_name, text[: min(ends, default=None)])[self.metric] == 1
        )


def harness_tasks(names: str, folder: Path | None, most: int | None, chat: bool = False) -> list[QuestionSet]:
    """One question set per task. `names` is `gsm8k,ifeval`, or `gsm8k:flexible-extract` to choose a filter other than
    the task's first. `folder` holds the user's own tasks (YAML). `most` limits the documents per task. `chat` applies
    the model's chat template, with few-shot examples as turns."""
    if find_spec("lm_eval") is None:
        raise TaskError(
            f"tasks {names!r} are none of a file, and lm-evaluation-harness, which may know them, is not installed: "
            "pip install 'xshare[eval]', or name a file of questions (.jsonl)"
        )
    if folder is not None and not is_folder(folder):
        raise TaskError(f"folder of tasks {quoted_path(folder)} does not exist or is no folder")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it would log every task's settings
    words = [word.strip().partition(":") for word in names.split(",")]
    manager = task_manager({name for name, _, _ in words}, folder)
    question_sets: list[QuestionSet] = []
    for name, _, filter_name in words:
        if name not in manager.all_tasks:
            raise TaskError(f"task {name!r} is not known to lm-evaluation-harness {version('lm_eval')}, and is no file")
        try:
            loaded = manager.load([name])["tasks"]
        except Exception as error:  # from datasets, the network, or the task's own code
            raise TaskError(f"task {name!r} cannot be loaded: {_first_line(error)}") from None
        question_sets += [question_set(task, filter_name, most, chat) for task in loaded.values()]
    return question_sets


def task_manager(names: set[str], folder: Path | None) -> Any:
    """The harness's index of tasks. It reads its own 14,000 tasks only if the folder lacks one of `names`."""
    from lm_eval.tasks import TaskManager

    if folder is not None:
        folder_only = TaskManager(include_path=str(folder), include_defaults=False)
        if names <= set(folder_only.all_tasks):
            return folder_only
    return TaskManager(include_path=None if folder is None else str(folder))


def question_set(task: Any, filter_name: str, most: int | None, chat: bool = False) -> QuestionSet:
    """The documents of a task, with its own prompts, stop words and metric. `filter_name` '' means its first."""
    name = str(task.task_name)
    check_task(task, name)
    if task.get_config("num_fewshot") is None:
        task.set_config(key="num_fewshot", value=0)
    task.set_fewshot_seed(seed=FEW_SHOTS)
    as_chat = {"apply_chat_template": True, "fewshot_as_multiturn": True, "chat_template": as_messages} if chat else {}
    try:
        task.build_all_requests(limit=most, **as_chat)
    except Exception as error:
        raise TaskError(f"task {name!r} cannot make its prompts: {_first_line(error)}") from None
    first = task.instances[0]
    generation = dict(first.args[1])
    if generation.get("do_sample") and generation.get("temperature", 1) != 0:
        logging.getLogger("xshare").warning("task %s would sample its answers: they are decoded greedily here", name)
    until = generation.get("until") or []
    stop = tuple(entry for entry in ([until] if isinstance(until, str) else until) if entry)
    filters = [entry.name for entry in task._filters]
    if filter_name and filter_name not in filters:
        raise TaskError(f"task {name!r} has no filter {filter_name!r}: expected one of {', '.join(filters)}")
    chosen = filter_name or filters[0]
    metric = next(iter(scores(task, first, chosen, "")))
    scoring = (task, chosen, metric, stop, chat)
    documents: list[Task] = [
        Document(str(entry.args[0]), str(task.doc_to_target(entry.doc)), name, "harness", entry, *scoring)
        for entry in task.instances
    ]
    tokens, full_name = int(generation.get("max_gen_toks") or TOKENS), f"{name}:{filter_name}" if filter_name else name
    return QuestionSet(documents, tokens, full_name, f"{metric},{chosen}", stop)


def as_messages(messages: list[dict[str, str]], **_: Any) -> str:
    """Stands in for a chat template: the engine applies its own when it encodes the prompt."""
    return json.dumps(messages)


def check_task(task: Any, name: str) -> None:
    """Refuse a task whose result selection cannot change, or which XShare cannot run."""
    if task.OUTPUT_TYPE != "generate_until":
        raise TaskError(
            f"task {name!r} is scored by the likelihood of given answers, which are read and not decoded: selection "
            "never acts on it, take a task that generates"
        )
    if getattr(task, "UNSAFE_CODE", False):
        raise TaskError(f"task {name!r} runs code that the model writes, which is not done here")
    if getattr(task, "MULTIMODAL", False):
        raise TaskError(f"task {name!r} shows pictures or sounds, and engines are asked in text here")


def scores(task: Any, instance: Any, filter_name: str, text: str) -> dict[str, Any]:
    """The scores the harness gives an answer, by metric."""
    instance.resps = [text]
    next(ensemble for ensemble in task._filters if ensemble.name == filter_name).apply([instance])
    by_metric: dict[str, Any] = task.process_results(instance.doc, [instance.filtered_resps[filter_name]])
    return by_metric


def is_harness(tasks: str) -> bool:
    """Whether `--tasks` names tasks of the harness rather than a file."""
    return not is_file(Path(tasks)) and "/" not in tasks and not tasks.endswith((".jsonl", ".json"))


def task_fingerprint(questions: QuestionSet) -> str:
    """The name of the questions, with a hash of their prompts and answers."""
    text = "\n".join(f"{task.prompt}\n{task.answer}" for task in questions.tasks)
    return f"{questions.name} ({questions.metric}) {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return short_repr(text.splitlines()[0], 200)
