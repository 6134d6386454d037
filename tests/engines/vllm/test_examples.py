"""examples/ for a GPU: what they start is what vLLM's own parser takes, and what the plugin's settings allow.

What they do is run with nano in tests/examples."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from xshare.engines.vllm.settings import settings_of
from xshare.policy import Policy

pytestmark = pytest.mark.engine
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def started_by(tmp_path, script, *arguments, **environment):
    """What a script says that it starts, where `vllm` ends at once: as vLLM's own parser reads it."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    instead = tmp_path / "vllm"
    instead.write_text("#!/bin/sh\necho no GPU here\nexit 3\n")
    instead.chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PORT": "1"} | environment  # nobody listens there
    done = subprocess.run([EXAMPLES / script, *arguments], env=os.environ | variables, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith("no GPU here\n")  # a server that does not start is shown, not waited for
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("vllm serve "))
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    options, left = parser.parse_known_args(["--model", *shlex.split(line)[2:]])
    assert options.model == "MODEL"
    return options, left


@pytest.mark.parametrize(
    ("more", "gb", "policy", "live"), [((), 60, "balanced", "budgets"), (("--uds", "U"), 8, "k0=2,m=0", "any")]
)
def test_experts_in_host_memory(tmp_path, more, gb, policy, live):
    options, left = started_by(tmp_path, "offload.sh", "MODEL", *more, GB=str(gb), POLICY=policy, LIVE=live)
    assert left == list(more)  # of the server, not the engine
    assert (options.cpu_offload_gb, set(options.cpu_offload_params)) == (gb, {"experts"})
    settings = settings_of(options.additional_config)
    assert (settings.policy, settings.live) == (Policy.parse(policy), live)


@pytest.mark.parametrize(
    ("script", "wanted"),
    [
        ("vllm_serve.sh", {}),
        ("vllm_bench_serve.sh", {"enable_prefix_caching": False}),
        ("lm_eval.sh", {"enable_prefix_caching": False}),
        ("guidellm.sh", {"enable_prefix_caching": False}),
        ("speculative.sh", {}),
        ("expert_parallel.sh", {"tensor_parallel_size": 8, "enable_expert_parallel": True}),
    ],
)
def test_what_else_is_started(tmp_path, script, wanted):
    options, left = started_by(tmp_path, script, "MODEL", DRAFT="DRAFT")
    assert left == []
    assert {name: getattr(options, name) for name in wanted} == wanted
    assert settings_of(options.additional_config).policy == Policy.parse("balanced")
    if script == "speculative.sh":
        assert options.speculative_config == {"method": "draft_model", "model": "DRAFT", "num_speculative_tokens": 3}


@pytest.mark.parametrize("script", sorted(file.name for file in EXAMPLES.glob("*.sh") if file.name != "serving.sh"))
def test_a_script_without_a_model_says_what_it_wants(script):
    done = subprocess.run([EXAMPLES / script], capture_output=True, text=True)
    assert done.returncode != 0
    assert "name a model" in done.stderr
