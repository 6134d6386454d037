"""Several batches in one pass: each is decoded, and counted, as if it were alone."""

import pytest
import torch

from xshare.engines.by_name import open_engine
from xshare.engines.transformers.forward_pass import Pass
from xshare.engines.transformers.step_rows import Places
from xshare.errors import ModelError
from xshare.policy import Policy
from xshare.quality.answering import prompts_of
from xshare.quality.task_files import built_in, nano_prompt
from xshare.tasks import ASKED, TRAINED, held_out_questions

FIGURES = ("experts_native", "experts_active", "mass_kept")


@pytest.mark.parametrize(("drafts", "policy"), [(0, "k0=1,m=6"), (3, "k0=1,m=0,mr=2"), (0, "lynx:drop=20"), (0, None)])
def test_each_batch_is_as_if_alone(drafts, policy):
    engine = open_engine("transformers", "nano", drafts=drafts)
    prompts = prompts_of(engine, built_in(2, 0))[:12]
    policy = policy and Policy.parse(policy)
    alone, sums, steps = [], dict.fromkeys(FIGURES, 0.0), 0
    for start in range(0, 12, 5):  # two batches of five, and one of two
        engine.use(policy)
        run = engine.run(prompts[start : start + 5], limit=24, batch=5, to_the_end=True)
        alone += [answer.tokens for answer in run.answers]
        for name in FIGURES:
            sums[name] += run.steps * engine.stats().mean[name]
        steps += run.steps
    engine.use(policy)
    engine.lanes = 3
    run = engine.run(prompts, limit=24, batch=5, to_the_end=True)
    engine.close()
    # With drafts sequences end at different steps, the first after six of them, and ranks close.
    same = 6 if drafts else 24
    assert [answer.tokens[:same] for answer in run.answers] == [tokens[:same] for tokens in alone]
    if drafts == 0:
        assert run.steps == steps
        for name in FIGURES:
            assert engine.stats().mean[name] == pytest.approx(sums[name] / steps, rel=1e-5)


def test_ranks_close_when_a_sequence_ends():
    engine = open_engine("transformers", "nano", options={"lanes": 4})
    # As small as nano knows them: answers end before the limit, of many lengths.
    questions = [question for kind in ASKED for question in held_out_questions(kind, 3, size=TRAINED[kind][0])]
    prompts = [engine.encode(nano_prompt(question)) for question in questions]
    run = engine.run(prompts, limit=240, batch=4)
    assert run.decode_s == 0  # of one batch, that is not known
    tokens = [len(answer.tokens) for answer in run.answers]
    assert len(set(tokens)) > 8  # they end at different steps
    # Of n sequences under way, n // 4 batches are full: not many more steps than if none were ever short.
    assert run.steps < 1.25 * (sum(tokens) - len(tokens)) / 4
    assert engine.stats().mean["experts_active"] <= 4 * 4
    assert engine.run(prompts[:4], limit=4, batch=4).decode_s > 0
    engine.close()


@pytest.mark.parametrize("lanes", [0, True, "8", 2.0])
def test_odd_lanes_are_refused(lanes):
    with pytest.raises(ModelError, match="must be a whole number from 1 up"):
        open_engine("transformers", "nano", options={"lanes": lanes})


def test_places_of_batches_and_of_positions():
    places = Places.of_batches(3, Pass(5, 2, 7, torch.device("cpu"), None, None))
    rows = torch.arange(10).unsqueeze(1)
    by_step = places.by_step(rows).squeeze(2)
    assert by_step[0].tolist() == [0, 1, 2, 3, 4, 5]
    assert by_step[1].tolist()[:4] == [6, 7, 8, 9]
    assert places.requests(torch.arange(5).repeat_interleave(2)).tolist() == [[0, 0, 1, 1, 2, 2], [3, 3, 4, 4, -1, -1]]
    assert torch.equal(places.by_row(places.by_step(rows)), rows)

    step = Pass(3, 4, 5, torch.device("cpu"), None, None)
    rows = torch.arange(12).unsqueeze(1)
    for steps in (1, 2, 4):
        places = Places.of_positions(steps, step)
        width = 4 // steps
        want = [[s * 4 + at * width + j for s in range(3) for j in range(width)] for at in range(steps)]
        assert places.by_step(rows).squeeze(2).tolist() == want
        assert torch.equal(places.by_row(places.by_step(rows)), rows)


@pytest.mark.parametrize(("drafts", "policy"), [(0, "k0=1,m=6"), (3, "k0=1,m=0,mr=2")])
def test_no_batch_has_two_kinds(drafts, policy):
    """As if each kind were decoded alone, though the prompts of several go through one pass, in any order."""
    engine = open_engine("transformers", "nano", drafts=drafts)
    prompts = prompts_of(engine, built_in(2, 0))[:11]
    kinds = [number % 3 for number in range(11)]
    same = 6 if drafts else 24
    alone, steps = {}, 0
    for kind in range(3):
        engine.use(Policy.parse(policy))
        of_kind = [number for number in range(11) if kinds[number] == kind]
        run = engine.run([prompts[number] for number in of_kind], limit=24, batch=4, to_the_end=True)
        alone |= {number: answer.tokens[:same] for number, answer in zip(of_kind, run.answers, strict=True)}
        steps += run.steps
    engine.use(Policy.parse(policy))
    engine.lanes = 3
    run = engine.run(prompts, limit=24, batch=4, to_the_end=True, kinds=kinds)
    engine.close()
    assert [answer.tokens[:same] for answer in run.answers] == [alone[number] for number in range(11)]
    if drafts == 0:
        assert run.steps == steps == engine.stats().steps_pruned


def test_places_of_batches_of_one_kind():
    places = Places.of_batches(2, Pass(5, 2, 7, torch.device("cpu"), None, None), [4, 8, 4, 4, 8])
    rows = torch.arange(10).unsqueeze(1)
    whose = places.requests(torch.arange(5).repeat_interleave(2)).tolist()
    assert whose == [[0, 0, 2, 2], [1, 1, 4, 4], [3, 3, -1, -1]]
    assert torch.equal(places.by_row(places.by_step(rows)), rows)
