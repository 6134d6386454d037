"""Recording: the trace holds the logits of the decoded rows, and replays."""

import json

import pytest
import torch
from model_probes import watched
from tiny_models import make
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import xshare
from xshare.cli import main
from xshare.engines.transformers import Prompt, record
from xshare.trace import Trace, one_pass, replay

WORDS = ["<unk>", "<end>", "<pad>", *(f"w{number}" for number in range(3, 64))]
LINES = ["w3 w4 w5", "", "w6 w7", "w8 w9 w10 w11 w12", "w13", "w20 w21"]


def tokenizer(**special):
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, **({"eos_token": "<end>", "pad_token": "<pad>"} | special))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny-deepseek"
    make("deepseek").save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


@pytest.fixture
def command(monkeypatch, capsys):
    def run(*words):
        monkeypatch.setattr("sys.argv", ["xshare", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        out = capsys.readouterr()
        return end.value.code or 0, out.out, out.err

    return run


@pytest.mark.parametrize("kind", ["gpt_oss", "olmoe", "deepseek"])
def test_the_logits_are_those_of_the_text_that_was_decoded(tiny, kind):
    model, prompts = tiny(kind), [Prompt(line) for line in LINES if line]
    texts, generate = [], model.generate
    model.generate = lambda **options: texts.append((options, generate(**options))) or texts[-1][1]
    done = []
    trace = record(model, tokenizer(), prompts, name=kind, tokens=9, batch=2, advance=done.append)
    del model.generate
    assert done == [2, 2, 1]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    sequences = [(mask, row) for inputs, out in texts for mask, row in zip(inputs["attention_mask"], out, strict=True)]
    start = number = 0
    for mask, row in sequences:
        first, fed = int(mask.argmax()), row[:-1]  # the last token is not fed any more
        live = [at - first for at in range(len(mask), len(fed)) if fed[at] not in (1, 2)]
        if not live:
            continue
        with watched(model) as steps, torch.no_grad():
            model(fed[first:].unsqueeze(0))  # without its padding, in one pass
        wanted = torch.stack([routed.logits for routed in steps[0].layers], dim=1)  # [tokens, layers, N]
        assert trace.lengths[number] == len(live)
        torch.testing.assert_close(trace.logits[start : start + len(live)], wanted[live], rtol=1e-3, atol=1e-3)
        start, number = start + len(live), number + 1
    assert number == len(trace.lengths)
    assert trace.header.layers == ([1, 2] if kind == "deepseek" else [0, 1])


def test_record_show_replay(folder, tmp_path, command):
    prompts = tmp_path / "p.jsonl"
    lines = [{"prompt": line, "domain": "even" if number % 2 else "odd"} for number, line in enumerate(LINES) if line]
    prompts.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    out = tmp_path / "t.safetensors"
    code, output, _ = command(
        "trace", "record", folder, "--prompts", prompts, "--out", out, "--tokens", 6, "--batch", 3
    )
    assert code == 0
    assert "tiny-deepseek" in output
    trace = Trace.load(out)
    assert trace.header.score == "full"
    assert trace.header.provenance["source"] == "p.jsonl"
    assert set(trace.header.domains) == {"odd", "even"}
    router = trace.router()
    assert (router.scoring, router.n_group, router.routed_scaling_factor) == ("sigmoid", 4, 2.5)
    assert router.correction_bias.shape == (2, 16)
    native, pruned = replay(trace, [xshare.Policy.parse(p) for p in ("native", "k0=1,m=1")], one_pass(trace, 4))
    assert pruned.metrics["active"].mean() < native.metrics["active"].mean()
    assert command("trace", "show", out)[0] == 0
    code, output, _ = command("replay", out, "--policy", "k0=1,m=2", "--batch", 3)
    assert code == 0
    assert "k0=1,m=2" in output


@pytest.mark.parametrize("prompts", ["questions", "random"])
def test_prompts_by_a_keyword(small, tmp_path, command, prompts):
    out = tmp_path / "t.trace.xz"
    words = ["--prompts", prompts, "--prompt-tokens", 5, "--requests", 3, "--tokens", 4, "--batch", 2]
    code, _, errors = command("trace", "record", "--model", small, *words, "--dtype", "float32", "--out", out)
    assert code == 0, errors
    trace = Trace.load(out)
    assert trace.header.domains == [prompts] * len(trace.lengths)
    assert trace.header.provenance["source"] == prompts


@pytest.mark.parametrize(
    ("files", "words", "message"),
    [
        ({}, {"prompts": "missing.txt"}, "does not exist"),
        ({"p.txt": "\n \n"}, {}, "holds no prompts"),
        ({"p.jsonl": '{"prompt": "w3"}\n{"text": "w4"}'}, {"prompts": "p.jsonl"}, "line 2 must be an object"),
        ({"p.jsonl": "w3"}, {"prompts": "p.jsonl"}, "line 1 is not JSON"),
        ({"p.txt": "w3"}, {"model": "nowhere"}, "has no config.json"),
        ({"p.txt": "w3"}, {"output": "no/folder/t"}, "does not exist"),
        ({"p.txt": "w3"}, {"more": ["--chat"]}, "has no chat template"),
        ({"p.txt": "w3"}, {"more": ["--device", "nowhere"]}, "cannot be loaded"),
        ({"p.txt": "w3"}, {"more": ["--dtype", "float23"]}, "cannot be loaded"),
        ({"p.txt": "w3", "m/config.json": "{}"}, {"model": "m"}, "cannot be loaded"),
    ],
)
def test_mistakes_end_with_a_sentence_and_leave_no_file(folder, tmp_path, command, files, words, message):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    before = sorted(tmp_path.rglob("*"))
    model = tmp_path / words["model"] if "model" in words else folder
    prompts, output = (tmp_path / words.get(key, name) for key, name in (("prompts", "p.txt"), ("output", "t")))
    code, _, errors = command("trace", "record", model, "--prompts", prompts, "--out", output, *words.get("more", []))
    assert code == 2
    assert message in errors
    assert errors.splitlines()[-1].startswith("error: ")  # after Transformers' own bar, if it came to loading
    assert "Traceback" not in errors
    assert sorted(tmp_path.rglob("*")) == before


def test_a_chat_template_is_used_as_it_is(tiny):
    template = "{% for turn in messages %}w9 {{ turn.content }}{% endfor %}{% if add_generation_prompt %} w8{% endif %}"
    model, words = tiny("mixtral"), tokenizer(chat_template=template)
    with watched(model) as steps:
        record(model, words, [Prompt("w3 w4"), Prompt("w5")], name="m", tokens=3, chat=True)
    assert steps[0].tokens.tolist() == [[9, 3, 4, 8], [2, 9, 5, 8]]
    assert words.padding_side == "right"  # the caller's own is left alone


def test_a_model_with_a_policy_at_work_and_one_that_ends_at_once(tiny):
    model = tiny("mixtral")
    xshare.apply(model, "k0=1,m=1")
    with pytest.raises(xshare.ModelError, match="has a policy at work"):
        record(model, tokenizer(), [Prompt("w3")], name="m")
    xshare.remove(model)
    with pytest.raises(xshare.TraceError, match="no prompt was decoded further"):
        record(model, tokenizer(pad_token=None), [Prompt("w3")], name="m", tokens=1)
    with pytest.raises(xshare.ModelError, match="neither a padding nor an end token"):
        record(model, tokenizer(pad_token=None, eos_token=None), [Prompt("w3")], name="m")
