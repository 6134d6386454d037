"""torch.compile traces vLLM's layers on a CPU: selection must be what it is without."""

import pytest
from tiny_vllm_models import generate, prompts

from xshare.engines.serving.cpu_selector import ReferenceSelector

pytestmark = pytest.mark.engine

SETTINGS = {"policy": "k0=1,m=2", "gates": {"bypass": False}}
PROMPTS = [prompts(1, length=3 + 5 * i % 19, seed=i)[0] for i in range(12)]
LENGTHS = [4 + 7 * i % 17 for i in range(12)]


def answers(llm):
    """Tokens and sets under selection, with all experts, and switched off."""
    sets = []

    def decide(self, logits):
        routing = native(self, logits)
        if routing is not None:
            sets.append((self.name, tuple(routing.selected.nonzero().flatten().tolist())))
        return routing

    native = ReferenceSelector.decide
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ReferenceSelector, "decide", decide)
        tokens = [generate(llm, PROMPTS, LENGTHS)]
    llm.collective_rpc("xshare_set", args=("k0=1,m=32",))
    tokens.append(generate(llm, PROMPTS, LENGTHS))
    llm.collective_rpc("xshare_switch", args=(False,))
    tokens.append(generate(llm, PROMPTS, LENGTHS))
    return tokens, sets


def test_compiled_layers_choose_the_same_sets_and_tokens(checkpoint, started, monkeypatch, tmp_path):
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))  # really compiled, and nothing left behind
    # Plain loops: to find out how wide this machine's vectors are would take longer, and says nothing about sets.
    monkeypatch.setattr("torch._inductor.cpu_vec_isa.valid_vec_isa_list", list)
    llm = started(checkpoint("qwen3"), SETTINGS)
    eager, eager_sets = answers(llm)
    del llm
    llm = started(checkpoint("qwen3"), SETTINGS, enforce_eager=False)
    assert llm.llm_engine.vllm_config.compilation_config.mode.name == "DYNAMO_TRACE_ONCE"
    compiled, compiled_sets = answers(llm)
    assert compiled == eager
    assert compiled_sets == eager_sets
    assert len(eager_sets) > 20
    del llm
    llm = started(checkpoint("qwen3"), SETTINGS, enforce_eager=False)  # may take the graph that the last one compiled
    assert answers(llm) == (eager, eager_sets)
    assert eager[1] == eager[2]
    assert eager[0] != eager[2]
