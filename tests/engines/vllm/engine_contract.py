"""What every engine must do, and `xshare bench` on it: the same in process and behind HTTP."""

import json
import re

import pytest

from xshare.cli import main
from xshare.policy import Policy

CONTROL, PRUNED = Policy.parse("k0=1,m=16"), Policy.parse("k0=1,m=0")
PLAIN = ["bench", "--batch", "4", "--prompt-tokens", "9", "--tokens", "8"]
BENCH = [*PLAIN, "--policy", "k0=1,m=0"]


def checked(engine, limit=12):
    """What every engine must do: batches, arrivals, ends; policies live; native's tokens under the control."""
    prompts = [engine.encode(f"what is {number} and {3 * number}?") for number in range(7)]

    def tokens(policy, **more):
        engine.use(policy)
        run = engine.run(prompts, **({"limit": limit, "batch": 4, "to_the_end": True} | more))
        return run, [answer.tokens for answer in run.answers]

    def met(policy):
        """On a busy machine a server may have answered one request before the next comes: then ask again."""
        for _ in range(20):
            answers = tokens(policy)[1]
            if engine.stats().mean["experts_native"] > 4:
                return answers
        pytest.fail("no two requests met in a step")

    run, native = tokens(None)
    assert [len(answer) for answer in native] == [limit] * 7
    assert all(sorted(answer.times_s) == answer.times_s for answer in run.answers)
    assert len({tuple(answer) for answer in native}) > 4
    assert engine.stats().steps_pruned == 0
    assert met(CONTROL) == native
    stats = engine.stats()
    assert stats.steps_pruned >= 11
    assert stats.mean["experts_active"] == stats.mean["experts_native"]
    assert met(PRUNED) != native
    assert engine.stats().mean["experts_active"] < engine.stats().mean["experts_native"]
    for exact in ({0, 5}, set(range(7))):  # among pruned neighbours, and all of them
        pruned = tokens(PRUNED, protected=exact)[1]
        assert [pruned[number] for number in exact] == [native[number] for number in exact]
    assert tokens(None)[1] == native  # nothing that was pruned is left
    assert engine.stats().mean == {}
    whole = run.answers[0]
    piece = max(re.findall(r"[a-z0-9]+", whole.text[len(whole.text) // 3 : -len(whole.text) // 3]), key=len)
    ended = tokens(None, stop=[piece])[0].answers[0]
    assert len(ended.tokens) < limit  # it stops with that text, or before it
    assert ended.tokens == whole.tokens[: len(ended.tokens)]
    assert whole.text[: whole.text.index(piece)] == ended.text.partition(piece)[0]
    chat = [{"role": "user", "content": "Sort 2 1"}]
    assert engine.encode_chat(chat) == engine.encode("<|question|>Sort 2 1<|answer|>")  # as nano's template has it
    late, _ = tokens(None, limit=3, batch=7, arrivals=[0.3, *[0.0] * 6])
    assert late.answers[0].first_s > 0
    assert late.answers[0].times_s[0] > 0.3 == late.answers[0].arrived_s
    return run


def bench(monkeypatch, capsys, path, *more):
    """-> exit code, standard output, rows."""
    monkeypatch.setattr("sys.argv", ["xshare", *BENCH, "--json", str(path), *more])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code or 0, capsys.readouterr().out, json.loads(path.read_text())["rows"]


def assert_compared(rows):
    native, control, pruned = rows
    assert [row["policy"] for row in rows] == ["native", "k0=1,m=16", "k0=1,m=0"]
    assert control["identical"] == 1  # token for token
    assert control["acted"] == 1
    assert native["active"] == control["active"] == control["active_native"]
    assert pruned["active"] < pruned["active_native"]
    assert pruned["ratio_low"] <= pruned["ratio"] <= pruned["ratio_high"]
