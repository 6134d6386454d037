"""Speculative decoding with a draft model must not change an answer, and a request's drafts must be one request."""

import copy

import pytest
import torch
from tiny_models import make

import xshare
from xshare import Policy
from xshare.engines.by_name import open_engine
from xshare.engines.transformers.decode import decode, next_tokens, read_prompts
from xshare.engines.transformers.engine import TransformersEngine
from xshare.engines.transformers.layer import FIGURES
from xshare.engines.transformers.teacher_forcing import Texts, diverge, in_turn, texts
from xshare.errors import ModelError
from xshare.models.loading import load

DRAFTS = 3


@pytest.fixture(scope="module")
def loaded(small):
    return load(small, dtype="float32")


@pytest.fixture(scope="module")
def drafter(loaded):
    """The model with some noise: it is right about the next token now and then."""
    noisy = copy.deepcopy(loaded[0])
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in noisy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * parameter.std() * 0.1)
    return noisy


@pytest.fixture(scope="module")
def prompts():
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(1, 3000, (3 + i % 9,), generator=generator).tolist() for i in range(11)]


@pytest.fixture(scope="module")
def plain(loaded, prompts):
    return decode(loaded[0], prompts, ends=-1, limit=30, batch=4).tokens


@pytest.fixture
def engine(loaded, drafter):
    return TransformersEngine(*loaded, "small", drafter, DRAFTS)


@pytest.mark.parametrize("batch", [1, 4, 32])
def test_drafts_change_no_token(loaded, drafter, prompts, plain, batch):
    ends = plain[0][7]
    wanted = [tokens[: tokens.index(ends) + 1] if ends in tokens else tokens for tokens in plain]
    ended = []
    decoded = decode(
        loaded[0], prompts, ends=ends, limit=30, batch=batch, drafter=drafter, drafts=DRAFTS, advance=ended.append
    )
    assert decoded.tokens == wanted
    assert sum(ended) == pytest.approx(len(prompts))
    assert list(map(len, decoded.times_s)) == list(map(len, wanted))
    assert decoded.rows == sum(map(len, wanted)) - len(wanted)  # the first token of each comes from its prompt
    assert 0 < decoded.accepted < decoded.drafted
    assert decoded.rows == decoded.accepted + decoded.drafted // DRAFTS  # one of the model's own per request and step


@pytest.mark.parametrize("kind", ["gpt_oss", "deepseek"])
def test_drafts_change_no_token_whatever_the_cache_holds(tiny, prompts, kind):
    """With a sliding window, which must not count rejected drafts, and with values of another width than keys."""
    model, drafter = tiny(kind), make(kind, seed=1)
    short = [[token % 60 + 3 for token in prompt] for prompt in prompts]
    options = {"ends": -1, "limit": 50, "batch": 4}
    plain = decode(model, short, **options).tokens
    noisy = copy.deepcopy(model)
    with torch.no_grad():
        for ours, other in zip(noisy.parameters(), drafter.parameters(), strict=True):
            ours.lerp_(other, 0.05)
    decoded = decode(model, short, **options, drafter=noisy, drafts=DRAFTS)
    assert decoded.tokens == plain
    assert 0 < decoded.accepted < decoded.drafted


def test_a_drafter_that_knows_all_is_always_accepted(loaded, prompts, plain):
    model = loaded[0]
    decoded = decode(model, prompts, ends=-1, limit=29, batch=4, drafter=model, drafts=DRAFTS)
    assert decoded.tokens == [tokens[:29] for tokens in plain]
    assert decoded.accepted == decoded.drafted  # 28 tokens after the first: seven steps of four
    assert decoded.drafted == 7 * DRAFTS * len(prompts)


def test_the_engine_drafts(engine, prompts, plain):
    engine.use(None)
    run = engine.run(prompts, limit=30, batch=4, to_the_end=True)
    assert [answer.tokens for answer in run.answers] == plain
    assert 0 < run.accepted < run.drafted
    assert engine.about.drafts == DRAFTS
    noop = Policy(warmup=1, batch_budget=16)
    engine.use(noop)
    assert [answer.tokens for answer in engine.run(prompts, limit=30, batch=4, to_the_end=True).answers] == plain
    assert engine.stats().steps_pruned > 0
    assert engine.stats().mean["experts_active"] == pytest.approx(engine.stats().mean["experts_native"])


def test_the_drafts_of_a_request_are_one_request(engine, prompts):
    """k0=0,mr=4 gives each of two requests four experts, whatever its four rows want."""
    engine.use(Policy(request_budget=4))
    layouts = []
    watch = engine.attached.layers[0].router.module.register_forward_hook(
        lambda *_: (
            layouts.append(engine.attached.state.layout.requests.tolist()) if engine.attached.state.gate else None
        )
    )
    engine.run(prompts[:2], limit=9, batch=2, to_the_end=True)
    watch.remove()
    assert layouts[0] == [[0, 0, 0, 0, 1, 1, 1, 1]]
    assert max(engine.attached.stats()["experts_selected"]) <= 8
    assert engine.stats().mean["experts_active"] < engine.stats().mean["experts_native"]


def test_forced_steps_read_several_tokens_of_each(engine, prompts, plain):
    """Forced in one pass, the rows of a step are those of a pass of four tokens on top of a cache."""
    policy = Policy.parse("k0=0,m=0,mr=3")
    answers = [tokens[:9] for tokens in plain[:3]]  # eight tokens are read: two steps of four
    engine.use(policy)
    Texts(engine.attached, prompts[:3], answers, drafts=DRAFTS).compare(engine.attached)
    forced = engine.attached.layers[0].latest[FIGURES.index("experts_selected")]
    forced = forced[forced > 0].tolist()
    engine.use(policy)
    sizes = []
    tokens = torch.tensor(answers)
    with torch.inference_mode():
        batch = read_prompts([engine.model], dict(enumerate(prompts[:3])))
        for start in (0, 4):
            batch.mask = torch.nn.functional.pad(batch.mask, (0, 4), value=1)
            next_tokens(engine.model, batch.caches[0], tokens[:, start : start + 4], batch.mask)
            sizes.append(float(engine.attached.layers[0].latest[FIGURES.index("experts_selected"), 0]))
    assert forced == sizes
    assert all(size <= 9 for size in sizes)


def test_forced_with_drafts_natively_nothing_diverges(engine, prompts, plain):
    engine.use(None)
    divergence = engine.diverge(prompts, plain, batch=4)
    assert divergence.tokens == 29 * len(prompts)
    assert divergence.kl == pytest.approx(0, abs=1e-9)
    assert divergence.same == divergence.tokens
    engine.use(Policy(warmup=1))
    assert engine.diverge(prompts, plain, batch=4).kl > 0


def test_answers_begin_when_a_place_is_free(engine, prompts, plain):
    answers = [tokens[: 5 + 4 * i] for i, tokens in enumerate(plain[:6])]
    assert in_turn([[0] * n for n in (5, 9, 3)], batch=2) == [0, 0, 4]
    assert in_turn([[0] * n for n in (5, 9, 3)], batch=2, drafts=3) == [0, 0, 1]
    starts = in_turn(answers, batch=2)
    engine.use(Policy(warmup=1))
    texts = Texts(engine.attached, prompts[:6], answers, starts=starts)
    voting = texts.layout.voting.sum(-1)
    assert int(voting.max()) == 2
    assert int(voting.sum()) == sum(map(len, answers)) - len(answers)
    steps = torch.cat([text.step for text in texts.compare(engine.attached)])
    assert torch.equal(steps.bincount(minlength=len(voting)), voting)  # every token is where it is said to be
    engine.use(None)
    assert float(sum(text.kl.sum() for text in texts.compare(engine.attached))) == pytest.approx(0, abs=1e-9)


def test_a_method_that_looks_at_one_token_knows_no_neighbours(engine, prompts, plain):
    """Neither their answers nor when they come: prompts are read natively, whoever decodes beside them."""
    answers = [tokens[: 5 + 4 * i] for i, tokens in enumerate(plain[:6])]
    engine.use(Policy.parse("topk:k=2"))
    alone, together = (
        diverge(engine.attached, texts(engine.attached, prompts[:6], answers, batch)) for batch in (1, 6)
    )
    pairs = Texts(engine.attached, prompts[:6], answers, starts=in_turn(answers, batch=2)).compare(engine.attached)
    assert alone.kl > 0
    assert together.kl == pytest.approx(alone.kl, rel=1e-4)
    assert sum(float(text.kl.sum()) for text in pairs) == pytest.approx(alone.kl, rel=1e-4)
    assert sum(float(text.surprise.sum()) for text in pairs) == pytest.approx(alone.surprise, rel=1e-4)


def test_opened_with_a_draft_model(small, loaded):
    opened = open_engine("transformers", str(small), drafts=2, options={"dtype": "float32", "draft": str(small)})
    run = opened.run([[5, 6, 7]], limit=10, batch=1, to_the_end=True)
    assert run.accepted == run.drafted == 6
    assert opened.about.drafter == str(small)
    opened.close()
    with pytest.raises(ModelError, match="name its folder"):
        open_engine("transformers", str(small), drafts=2)
    other = copy.deepcopy(loaded[0])
    other.config.vocab_size = 97
    with pytest.raises(ModelError, match="the model's own tokens: it has 97, the model 3072"):
        TransformersEngine(*loaded, "small", other, 2)


def test_a_layout_that_does_not_fit_is_refused(engine):
    with (
        torch.inference_mode(),
        pytest.raises(xshare.LayoutError, match=r"layout must hold \[12\] requests"),
        xshare.layout(engine.model, xshare.BatchLayout(torch.zeros(4, 3, dtype=torch.long))),
    ):
        engine.model(torch.ones(2, 6, dtype=torch.long))
