from types import SimpleNamespace

from xshare.engines.vllm.drafter import FixedDrafter
from xshare.engines.vllm.dummy_weights import BLOCK


def drafter(length=3, vocab=1000, seed=0):
    return FixedDrafter(
        SimpleNamespace(
            speculative_config=SimpleNamespace(num_speculative_tokens=length),
            model_config=SimpleNamespace(get_vocab_size=lambda: vocab, seed=seed),
        )
    )


def test_drafts_are_fixed_in_number_repeat_and_stay_in_the_block():
    sampled = [[5], [1, 2, 700], [], [999]]
    drafts = drafter().propose(sampled, None, None, slot_mappings=None)
    assert [len(d) for d in drafts] == [3, 3, 0, 3]
    assert all(t // BLOCK == s[-1] // BLOCK and t < 1000 for s, d in zip(sampled, drafts, strict=True) for t in d)
    assert drafts == drafter().propose(sampled)
    assert drafts != drafter(seed=1).propose(sampled)
    assert len({tuple(d) for d in drafter().propose([[t] for t in range(50)])}) == 50
