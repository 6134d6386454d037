"""Tasks of lm-evaluation-harness as questions: its documents and prompts, its stop words, its scores.

They are asked as any other question is, so that a policy is held against native routing on the same documents in the
same batches. A document counts as right where its score is 1. Selection acts while decoding alone: tasks that are
scored by the likelihood of given answers are read, not decoded, and no policy could change them.
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

from xshare.errors import shown
from xshare.files import is_file, is_folder, named
from xshare.quality.task_files import QuestionSet, Task, TaskError

FEW_SHOTS = 1234  # the seed of the examples in a prompt, and the tokens of an answer, as the harness has them
TOKENS = 256


@dataclass(frozen=True, eq=False)
class Document(Task):
    instance: Any = None  # the harness's own
    task: Any = None
    filter_name: str = ""
    metric: str = ""
    stop: tuple[str, ...] = ()
    chat: bool = False  # the prompt is messages, as JSON

    @property
    def messages(self) -> list[dict[str, str]] | None:
        return json.loads(self.prompt) if self.chat else None

    def is_right(self, text: str) -> bool:
        """By the harness's own filter and metric, of the text before the first stop word."""
        ends = [text.find(each) for each in self.stop if each in text]
        return bool(
            scores(self.task, self.instance, self.filter_name, text[: min(ends, default=None)])[self.metric] == 1
        )


def harness_tasks(names: str, folder: Path | None, most: int | None, chat: bool = False) -> list[QuestionSet]:
    """`gsm8k,ifeval`, or `gsm8k:flexible-extract` with a filter that is not its first. `folder` holds tasks of one's
    own (YAML). At most so many documents of each. `chat`: by the model's chat template, examples as turns."""
    if find_spec("lm_eval") is None:
        raise TaskError(
            f"tasks {names!r} are none of a file, and lm-evaluation-harness, which may know them, is not installed: "
            "pip install 'xshare[eval]', or name a file of questions (.jsonl)"
        )
    if folder is not None and not is_folder(folder):
        raise TaskError(f"folder of tasks {named(folder)} does not exist or is no folder")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it tells of every task's settings otherwise
    words = [word.strip().partition(":") for word in names.split(",")]
    manager = task_manager({name for name, _, _ in words}, folder)
    found: list[QuestionSet] = []
    for name, _, wanted in words:
        if name not in manager.all_tasks:
            raise TaskError(f"task {name!r} is not known to lm-evaluation-harness {version('lm_eval')}, and is no file")
        try:
            loaded = manager.load([name])["tasks"]
        except Exception as error:  # of datasets, of the network, of a task's own code
            raise TaskError(f"task {name!r} cannot be loaded: {_first_line(error)}") from None
        found += [question_set(task, wanted, most, chat) for task in loaded.values()]
    return found


def task_manager(names: set[str], folder: Path | None) -> Any:
    """What knows tasks by name. It reads its own 14,000 only where the folder does not have them all."""
    from lm_eval.tasks import TaskManager

    if folder is not None:
        own = TaskManager(include_path=str(folder), include_defaults=False)
        if names <= set(own.all_tasks):
            return own
    return TaskManager(include_path=None if folder is None else str(folder))


def question_set(task: Any, wanted: str, most: int | None, chat: bool = False) -> QuestionSet:
    """A task's documents as it would have them asked."""
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
    how = dict(first.args[1])
    if how.get("do_sample") and how.get("temperature", 1) != 0:
        logging.getLogger("xshare").warning("task %s would sample its answers: they are decoded greedily here", name)
    until = how.get("until") or []
    stop = tuple(each for each in ([until] if isinstance(until, str) else until) if each)
    filters = [each.name for each in task._filters]
    if wanted and wanted not in filters:
        raise TaskError(f"task {name!r} has no filter {wanted!r}: expected one of {', '.join(filters)}")
    chosen = wanted or filters[0]
    metric = next(iter(scores(task, first, chosen, "")))
    how_scored = (task, chosen, metric, stop, chat)
    documents: list[Task] = [
        Document(str(each.args[0]), str(task.doc_to_target(each.doc)), name, "harness", each, *how_scored)
        for each in task.instances
    ]
    tokens, as_asked = int(how.get("max_gen_toks") or TOKENS), f"{name}:{wanted}" if wanted else name
    return QuestionSet(documents, tokens, as_asked, f"{metric},{chosen}", stop)


def as_messages(messages: list[dict[str, str]], **_: Any) -> str:
    """In place of a chat template: the engine's own is asked when the prompt is needed."""
    return json.dumps(messages)


def check_task(task: Any, name: str) -> None:
    """Refuse a task which selection cannot change, or which cannot be asked here."""
    if task.OUTPUT_TYPE != "generate_until":
        raise TaskError(
            f"task {name!r} is scored by the likelihood of given answers, which are read and not decoded: selection "
            "never acts on it, take a task that generates"
        )
    if getattr(task, "UNSAFE_CODE", False):
        raise TaskError(f"task {name!r} runs code that the model writes, which is not done here")
    if getattr(task, "MULTIMODAL", False):
        raise TaskError(f"task {name!r} shows pictures or sounds, and engines are asked in text here")


def scores(task: Any, instance: Any, chosen: str, text: str) -> dict[str, Any]:
    """What the harness gives an answer, by metric."""
    instance.resps = [text]
    next(each for each in task._filters if each.name == chosen).apply([instance])
    found: dict[str, Any] = task.process_results(instance.doc, [instance.filtered_resps[chosen]])
    return found


def is_harness(tasks: str) -> bool:
    """Whether `--tasks` names tasks of the harness, and no file."""
    return not is_file(Path(tasks)) and "/" not in tasks and not tasks.endswith((".jsonl", ".json"))


def task_fingerprint(asked: QuestionSet) -> str:
    """Its name, and what tells it from another of that name: prompts and answers."""
    text = "\n".join(f"{each.prompt}\n{each.answer}" for each in asked.tasks)
    return f"{asked.name} ({asked.metric}) {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return shown(text.splitlines()[0], 200)
