"""Perplexity of given texts: what is read, what is forced, and what the columns say."""

import json
import math

import pytest
import torch
from documented_columns import check_columns
from typer.testing import CliRunner

from xshare.cli import app
from xshare.engines.base import Divergence
from xshare.errors import XShareError
from xshare.quality.texts import columns_of, read_texts

KINDS = {"river": "The river was low that year, and nobody ", "law": "The court held that the parties were not "}
WORDS = ["quality", "--engine-args", '{"dtype": "float32"}', "--batch", "2", "--given", "4", "--tokens", "6"]


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.jsonl"
    lines = [{"text": f"{n}. {text} {text} {text}", "kind": kind} for kind, text in KINDS.items() for n in range(4)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def read(small, texts, *words):
    return CliRunner().invoke(app, [*WORDS, "--model", str(small), "--texts", str(texts), *words])


def test_perplexity_is_the_models_own(small, texts, tmp_path):
    out = tmp_path / "texts.json"
    words = ["--policy", "k0=1,m=2", "--policy", "k0=1,m=16", "--mix", "both", "--out", str(out)]
    result = read(small, texts, *words)
    assert result.exit_code == 0, result.output
    assert "vs native" in result.output
    rows = json.loads(out.read_text())["rows"]
    check_columns("quality", rows)
    assert [(row["policy"], row["mixed"]) for row in rows] == [
        (policy, mixed) for mixed in (True, False) for policy in ("native", "k0=1,m=2", "k0=1,m=16")
    ]
    native, pruned, noop = rows[:3]
    for row in (native, noop):
        assert (row["kl"], row["same_token"]) == (pytest.approx(0, abs=1e-9), 1)
        assert row["perplexity"] == pytest.approx(row["perplexity_native"])
    assert (pruned["texts"], pruned["tokens"]) == (8, 5)  # six are forced: nothing follows the last
    assert pruned["kl"] > 0
    assert pruned["active"] < pruned["active_native"]
    assert pruned["perplexity_ratio"] == pytest.approx(pruned["perplexity"] / pruned["perplexity_native"])
    assert pruned["perplexity_ratio_low"] is None  # four batches are too few
    assert "An interval takes six batches or more." in result.output

    # Plain perplexity of Transformers, without the project.
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(small, dtype=torch.float32).eval()
    losses = []
    for text in read_texts(texts):
        ids = torch.tensor([AutoTokenizer.from_pretrained(small)(text.text).input_ids[:10]])
        with torch.inference_mode():
            logits = model(ids).logits[0, 4:-1].double()
        losses.append(torch.nn.functional.cross_entropy(logits, ids[0, 5:], reduction="none"))
    assert native["perplexity"] == pytest.approx(math.exp(torch.cat(losses).mean()), rel=1e-4)

    # The same command reads nothing again.
    before = json.loads(out.read_text())["samples"]
    assert read(small, texts, *words).exit_code == 0
    assert json.loads(out.read_text())["samples"] == before


def test_intervals_are_over_batches():
    parts = [Divergence(10, 1.0 + i, 20.0 + i, 20.0, 5) for i in range(8)]
    columns = columns_of(parts)
    assert columns["perplexity_ratio"] == pytest.approx(math.exp(28 / 80))
    assert 1 < columns["perplexity_ratio_low"] < columns["perplexity_ratio"] < columns["perplexity_ratio_high"]
    assert columns["kl"] == pytest.approx(36 / 80)
    assert columns["kl_low"] < columns["kl"] < columns["kl_high"]
    assert columns["same_token"] == 0.5
    alike = columns_of([parts[0]] * 8)
    assert alike["kl_low"] == pytest.approx(alike["kl_high"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": ""}', "line 1 must be an object with a text 'text'"),
        ('{"text": "a", "answer": "b"}', "unknown field 'answer', expected text, kind"),
        ('{"text": "a b"}', "tokens, expected 6 or more: 4 are read as a prompt (--given)"),
        ("[1]", "line 1 must be an object"),
    ],
)
def test_what_cannot_be_read_is_named(small, tmp_path, line, message):
    path = tmp_path / "t.jsonl"
    path.write_text(line)
    result = read(small, path)
    assert isinstance(result.exception, XShareError)
    assert message in str(result.exception)


def test_texts_or_questions(small, texts):
    result = read(small, texts, "--neighbours")
    assert "--neighbours is for questions, and --texts reads texts" in str(result.exception)
