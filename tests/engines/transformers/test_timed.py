"""Where time is taken, native routing is the model by itself."""

from xshare import Policy

PROMPTS = [[5, 6, 7], [8, 9]]


def hooked(engine):
    return any(module._forward_hooks or module._forward_pre_hooks for module in engine.model.modules())


def test_natively_nothing_is_attached_and_nothing_counted(engine):
    counted = engine.run(PROMPTS, limit=6, batch=2)
    assert hooked(engine)
    assert engine.stats().mean["experts_active"] > 0
    engine.use(None, timed=True)
    assert not hooked(engine)
    alone = engine.run(PROMPTS, limit=6, batch=2)
    assert [answer.tokens for answer in alone.answers] == [answer.tokens for answer in counted.answers]
    assert (alone.steps, alone.rows) == (counted.steps, counted.rows)
    assert engine.stats().mean == {}
    engine.use(Policy.parse("k0=1,m=1"), timed=True)
    engine.run(PROMPTS, limit=6, batch=2)
    assert 0 < engine.stats().mean["experts_active"] <= engine.stats().mean["experts_native"]
    engine.use(None, timed=True)
    engine.use(None, timed=True)
    answers = [answer.tokens for answer in alone.answers]
    assert engine.diverge(PROMPTS, answers, batch=2).kl == 0
    engine.close()
    assert not hooked(engine)
