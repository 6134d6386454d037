"""Tasks of lm-evaluation-harness, where it is installed: a task of one's own, asked for real."""

import json

import pytest
from typer.testing import CliRunner

from xshare.cli import app
from xshare.errors import ModelError, XShareError
from xshare.quality import harness
from xshare.quality.answering import prompts_of
from xshare.quality.task_files import TaskError
from xshare.tasks import held_out_questions

TASK = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {folder}/sums.jsonl
output_type: generate_until
test_split: test
doc_to_text: "{text}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["<|question|>", "{stop}"], max_gen_toks: 99, do_sample: false}}
filter_list:
  - name: said
    filter: [{{function: regex, regex_pattern: "answer (.+)"}}, {{function: take_first}}]
  - name: first-number
    filter: [{{function: regex, regex_pattern: "([0-9]+)"}}, {{function: take_first}}]
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""
LIKELY = """
task: likely
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/sums.jsonl}}}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_target: 0
doc_to_choice: ["1", "2"]
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Tasks of nano's sums: as nano answers, with a stop at the first line, for a chat, and by likelihood."""
    pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    rows = [
        {"question": question.text, "answer": question.answer} for question in held_out_questions("sums", 6, size=4)
    ]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prompt = "<|question|>{{question}}<|answer|>"
    for name, stop, text in (("whole", "@@", prompt), ("line", "\\n", prompt), ("chat", "@@", "{{question}}")):
        (tmp_path / f"{name}.yaml").write_text(TASK.format(name=name, stop=stop, text=text, folder=tmp_path))
    (tmp_path / "likely.yaml").write_text(LIKELY.format(folder=tmp_path))
    return tmp_path


def quality(*words):
    return CliRunner().invoke(app, ["quality", "--engine", "transformers", "--batch", "4", *map(str, words)])


def test_paired_with_native_by_task(folder, tmp_path):
    path = tmp_path / "h.json"
    words = ["--tasks", "whole,line", "--task-folder", folder, "--policy", "k0=0,rho=0.7", "--questions", 4]
    result = quality(*words, "--out", path)
    assert result.exit_code == 0, result.output
    content = json.loads(path.read_text())
    rows = {(row["task"], row["policy"]): row for row in content["rows"]}
    assert [*rows] == [(task, policy) for task in ("whole", "line") for policy in ("native", "k0=0,rho=0.7")]
    assert {row["metric"] for row in content["rows"]} == {"exact_match,said"}
    assert rows["whole", "native"]["accuracy"] == 1  # nano can add four numbers
    assert rows["line", "native"]["accuracy"] == 0  # which it does not in one line
    assert rows["line", "native"]["tokens"] < rows["whole", "native"]["tokens"] / 2
    pruned = rows["whole", "k0=0,rho=0.7"]
    assert pruned["change_low"] <= pruned["change"] <= pruned["change_high"]
    assert pruned["change"] == pruned["accuracy"] - 1
    assert pruned["active"] < pruned["active_native"]
    assert "task" in result.output
    again = quality(*words, "--out", path)
    assert json.loads(path.read_text())["samples"] == content["samples"]  # nothing was asked again
    assert again.exit_code == 0
    other = quality(*words[:-1], 3, "--out", path).exception
    assert "was measured with other settings" in str(other)


def test_a_document_is_scored_as_the_harness_does(folder):
    (first,) = harness.harness_tasks("whole", folder, None)
    (second,) = harness.harness_tasks("whole:first-number", folder, 2)
    assert (len(first.tasks), len(second.tasks), first.tokens, first.stop) == (6, 2, 99, ("<|question|>", "@@"))
    assert (first.name, second.name, second.metric) == ("whole", "whole:first-number", "exact_match,first-number")
    answer = first.tasks[0].answer
    for text, said, number in [
        (f"answer {answer}", True, True),
        (f"1 + 1\nanswer {answer}", True, False),
        (f"{answer} and 1", False, True),
        (f"7 @@ answer {answer}", False, False),  # behind a stop word
        (f"answer {answer}<|question|>answer 1", True, True),
        ("", False, False),
    ]:
        assert (first.tasks[0].is_right(text), second.tasks[0].is_right(text)) == (said, number), text
    assert first.tasks[0].prompt.startswith("<|question|>Compute ")


def test_by_the_models_chat_template(folder, engine):
    """Nano's puts the marks around a question that the other tasks bring with them."""
    (chat,), (text,) = harness.harness_tasks("chat", folder, 2, chat=True), harness.harness_tasks("whole", folder, 2)
    assert chat.tasks[0].messages == [
        {"role": "user", "content": text.tasks[0].prompt[len("<|question|>") : -len("<|answer|>")]}
    ]
    assert prompts_of(engine, chat.tasks) == prompts_of(engine, text.tasks)
    encoded = engine.encode_chat([*chat.tasks[0].messages, {"role": "assistant", "content": "12 +"}])
    assert encoded == engine.encode(text.tasks[0].prompt + "12 +")  # gone on with
    engine.tokenizer.chat_template = None
    with pytest.raises(ModelError, match="no chat template: leave --chat out"):
        prompts_of(engine, chat.tasks)


@pytest.mark.parametrize(
    ("tasks", "sentence"),
    [
        ("likely", "'likely' is scored by the likelihood of given answers, .* take a task that generates"),
        ("whole:none", "task 'whole' has no filter 'none': expected one of said, first-number"),
    ],
)
def test_tasks_that_cannot_be_asked(folder, tasks, sentence):
    with pytest.raises(TaskError, match=sentence):
        harness.harness_tasks(tasks, folder, None)


def test_a_data_set_that_is_not_there(folder):
    (folder / "sums.jsonl").unlink()
    with pytest.raises(TaskError, match="task 'whole' cannot be loaded: "):
        harness.harness_tasks("whole", folder, None)


def test_where_it_is_not_installed(monkeypatch, tmp_path):
    monkeypatch.setattr(harness, "find_spec", lambda name: None)
    sentence = (
        r"lm-evaluation-harness, which may know them, is not installed: pip install 'xshare\[eval\]', or name a file"
    )
    with pytest.raises(TaskError, match=sentence):
        raise quality("--tasks", "gsm8k,ifeval").exception
    with pytest.raises(TaskError, match=r"task file 'gsm8k.jsonl' does not exist"):
        raise quality("--tasks", "gsm8k.jsonl").exception
    with pytest.raises(XShareError, match="--chat is for tasks of lm-evaluation-harness"):
        raise quality("--chat", "--tasks", "q.jsonl").exception
    with pytest.raises(XShareError, match="--task-folder is for tasks of lm-evaluation-harness"):
        raise quality("--task-folder", tmp_path).exception
