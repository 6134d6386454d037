import atexit
import gc
import os
import platform
from pathlib import Path

import pytest
import torch
from hypothesis import settings

import xshare.models

# Without a GPU the kernels run under Triton's interpreter, which must be chosen before anybody imports Triton.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

torch.set_num_threads(1)  # tests run in parallel processes, each with small tensors
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the same for the commands they start
if platform.machine() == "aarch64":  # oneDNN's small products are slow there: nano decodes 1.8 times as fast without
    torch.backends.mkldnn.enabled = False

# Servers of the tests are on this machine, whatever proxy leads out of it.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1"]))

# Fresh examples at every run, but the same ones in continuous integration: red must mean the change, not the dice.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# Files that take longest, the longest first: begun last, one of them would leave the other processes idle. Ahead of
# them what Numba compiles first for all, while the others still wait for a server and for vLLM.
LONGEST = [
    "kernels/test_random_configurations.py",
    "engines/vllm/test_server_watched.py",
    "engines/vllm/test_server.py",  # ends the server that they share
    "examples/test_examples_served.py",
    "benchmarks/test_soak.py",
    "models/test_nano.py",
    "report/test_browser.py",
    "engines/vllm/test_models.py",
    "benchmarks/test_paper_speed.py",
    "engines/vllm/test_compiled.py",
    "cli/test_tune.py",
    "engines/transformers/test_lanes.py",
    "benchmarks/test_paper_quality.py",
    "engines/vllm/test_parallel.py",
    "engines/vllm/test_drafts.py",
    "engines/vllm/test_engine.py",
    "engines/transformers/test_draft_model.py",
    "benchmarks/test_cost_aware.py",
    "test_docs.py",
    "test_site.py",
    "engines/transformers/test_apply.py",
    "recipes/test_recipe.py",
    "cli/test_doctor_command.py",
    "cli/test_commands.py",
    "benchmarks/test_assumptions.py",
    "quality/test_paired.py",
    "cli/test_quality.py",
    "test_workers.py",
    "kernels/test_reroute.py",
    "benchmarks/test_frontier.py",
    "test_routing.py",
]


def pytest_configure(config):
    if hasattr(config.option, "loadscopereorder"):  # xdist would begin with the files of the most tests instead
        config.option.loadscopereorder = False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Files stay whole (--dist loadfile), and all that run vLLM in their own process go to one of the processes: to
    import it takes longer than most of them do."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduler(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            if "engines/vllm/test_server" in file:
                return "server"  # that is a process of its own
            return "vllm" if "engines/vllm/" in file or file.endswith("models/test_nano.py") else file

    return Scheduler(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items):
    folder = Path(__file__).parent
    places = {folder / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_collection_finish():
    gc.freeze()  # what all files have imported stays: it need not be looked through for garbage again and again
    atexit.register(gc.unfreeze)  # or Triton's bindings say that they leak


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """A folder with a model in the form of nano, for what needs no trained one: two layers, and nano's tokenizer."""
    transformers = pytest.importorskip("transformers", reason="Transformers is not installed")
    torch.manual_seed(0)
    words = xshare.models.folder("nano")
    config = transformers.Qwen3MoeConfig(
        vocab_size=3072,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        num_experts=16,
        num_experts_per_tok=4,
        moe_intermediate_size=32,
        intermediate_size=64,
        norm_topk_prob=True,
        tie_word_embeddings=True,
        eos_token_id=0,
        pad_token_id=0,
    )
    model = transformers.Qwen3MoeForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embed" not in name:
                parameter.mul_(8)  # what the experts say decides, not the token that came in
    path = tmp_path_factory.mktemp("models") / "nano"
    model.save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).write_bytes((words / name).read_bytes())
    xshare.models.write_sums(path)
    return path


@pytest.fixture
def engine(small):
    """That model as an engine; a new one for every test, so that none leaves a policy behind."""
    from xshare.engines.transformers.engine import TransformersEngine
    from xshare.models.loading import load

    return TransformersEngine(*load(small, dtype="float32"), "small")
