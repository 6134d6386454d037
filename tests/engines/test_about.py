"""What an engine says of itself, and what of it stands in files."""

from xshare.engines.base import About
from xshare.engines.counters import layer_numbers


def test_the_record_has_what_is_known_and_not_the_layers_numbers():
    about = About("transformers", "5.0", "nano", "cpu", experts=8, top_k=2, layers=2, layer_numbers=(1, 3), drafts=0)
    about.backend = "grouped_mm"  # files of before lack it, and can still be continued
    assert about.record() == {
        "engine": "transformers", "version": "5.0", "model": "nano", "device": "cpu", "experts": 8, "top_k": 2,
        "layers": 2, "drafts": 0,
    }  # fmt: skip


def test_files_of_vllm_say_that_there_is_no_drafter():
    record = About("vllm", "0.26", "nano", "cpu", expert_parallel=False, drafts=0).record()
    assert (record["drafter"], record["expert_bytes"], record["expert_parallel"]) == (None, None, False)
    assert "experts" not in record


def test_a_servers_record_has_no_version_where_none_is_known():
    record = About("server", None, "tiny", "http://here", prompt_form="text", policy="native").record()
    assert record == {
        "engine": "server", "version": None, "model": "tiny", "device": "http://here", "prompt_form": "text",
        "policy": "native",
    }  # fmt: skip


def test_layers_are_known_by_the_models_own_numbers():
    assert layer_numbers(["model.layers.3.mlp.experts", "model.layers.12.mlp.experts"]) == (3, 12)
    assert layer_numbers(["transformer.blocks.0.ffn", "transformer.blocks.1.ffn"]) == (0, 1)
    assert layer_numbers(["experts"]) == (0,)  # no number: its place
