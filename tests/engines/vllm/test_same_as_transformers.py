"""nano decodes the same in Transformers and in vLLM, natively and under a policy."""

import pytest

from xshare import Policy
from xshare.engines.opening import open_engine
from xshare.quality.files import built_in
from xshare.tasks import LONGEST

pytestmark = pytest.mark.engine
POLICY = Policy.parse("k0=1,m=8")


def test_the_same_tokens_and_the_same_sets():
    options = {"dtype": "float32", "max_model_len": 1024, "kv_cache_memory_bytes": 256 << 20}
    ours = open_engine("transformers", "nano", options={"lanes": 4})  # batches of 16 that go through one pass
    theirs = open_engine("vllm", "nano", policies=[POLICY], options=options)
    prompts = [ours.encode(task.prompt) for task in built_in(7, seed=7)[:50]]
    assert len(prompts) == 50
    runs = [engine.run(prompts, limit=LONGEST, batch=16) for engine in (ours, theirs)]
    assert [a.tokens for a in runs[0].answers] == [a.tokens for a in runs[1].answers]
    found = []
    for engine in (ours, theirs):  # one batch that begins and ends together: the same rows at every step
        engine.use(POLICY)
        run = engine.run([prompt[-8:] for prompt in prompts[:16]], limit=24, batch=16, to_the_end=True)
        found.append([a.tokens for a in run.answers])
    assert found[0] == found[1]
    theirs.close()
