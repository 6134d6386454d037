"""examples/: what they start is what vLLM's own parser takes, and what the plugin's settings allow."""

import os
import subprocess
from pathlib import Path

import pytest

from xshare.engines.vllm.settings import settings_of
from xshare.policy import Policy

pytestmark = pytest.mark.engine
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def started_by(tmp_path, *command, **environment):
    """What a script would start in place of `vllm`: its arguments."""
    instead = tmp_path / "vllm"
    instead.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    instead.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(command, env=os.environ | {"PATH": path} | environment, capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize(
    ("more", "gb", "policy", "live"),
    [((), 60, "balanced", "budgets"), (("8", "k0=2,m=0", "--port", "8765"), 8, "k0=2,m=0", "any")],
)
def test_experts_in_host_memory(tmp_path, more, gb, policy, live):
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    script = EXAMPLES / "offload" / "serve.sh"
    status, arguments, _ = started_by(tmp_path, script, "MODEL", *more, LIVE=live)
    assert status == 0
    assert arguments[:2] == ["serve", "MODEL"]
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    found, left = parser.parse_known_args(["--model", *arguments[1:]])
    assert left == list(more[2:])  # of the server, not the engine
    assert (found.cpu_offload_gb, set(found.cpu_offload_params)) == (gb, {"experts"})
    settings = settings_of(found.additional_config)
    assert (settings.policy, settings.live) == (Policy.parse(policy), live)


def test_a_script_without_a_model_says_what_it_wants(tmp_path):
    status, _, said = started_by(tmp_path, EXAMPLES / "offload" / "serve.sh")
    assert status != 0
    assert "name a model" in said
