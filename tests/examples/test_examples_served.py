"""examples/*.sh, run as they stand with nano on the CPU: what they print, and that they leave nothing running.

One server, started by the first of them, serves all that take the address of one.
"""

import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NOT_THERE = ("TRITON_INTERPRET", "VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_LOGGING_LEVEL")  # of other tests' engines
PRUNED = (
    r"(\d+) steps were pruned: ([\d.]+) experts per layer and step instead of ([\d.]+), (\d+)% of the routing weight"
)


@pytest.fixture(scope="module", autouse=True)
def _engine():
    if sys.platform != "linux" or shutil.which("curl") is None or shutil.which("bash") is None:
        pytest.skip("the examples are scripts for Linux, with bash and curl")
    if importlib.util.find_spec("vllm") is None:  # to import it takes long, and is not this process's to do
        pytest.skip("vLLM is not installed")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(**more):
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_THERE}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return inherited | {"PATH": path, "PORT": str(free_port()), "ONCE": "1"} | more


def run(script, *arguments, **more):
    done = subprocess.run(
        [EXAMPLES / script, *arguments], env=environment(**more), capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_pruned(printed, least):
    """Steps were acted on, and what they loaded and kept is what a policy of that kind gives."""
    match = re.search(PRUNED, printed)
    assert match, printed
    steps, active, native, mass = map(float, match.groups())
    assert steps > 5
    assert 4 <= active < native <= 64
    assert mass >= least


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """vllm_serve.sh until it is stopped: what it printed, and its address."""
    log = tmp_path_factory.mktemp("examples") / "serve.log"
    started = environment(VLLM_SERVER_DEV_MODE="1", LIVE="any", ONCE="")
    with log.open("w") as out:
        command = [EXAMPLES / "vllm_serve.sh", "--tiny"]
        script = subprocess.Popen(command, env=started, stdout=out, stderr=out, start_new_session=True)
    try:
        end = time.monotonic() + 400
        while "until Ctrl-C" not in log.read_text():
            assert script.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.5)
        yield log.read_text(), f"http://127.0.0.1:{started['PORT']}"
        script.send_signal(signal.SIGTERM)
        assert script.wait(60) == 128 + signal.SIGTERM
        assert log.read_text().endswith("the server has stopped\n")
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", int(started["PORT"])), 5)
    finally:
        if script.poll() is None:
            os.killpg(script.pid, signal.SIGKILL)


def test_vllm_serve(server):
    printed, _ = server
    assert "xshare: k0=0,rho=0.7 on 6 layers" in printed
    assert "    11 + 30 = 41\n" in printed
    check_pruned(printed, least=70)


def test_vllm_bench_serve(server):
    printed = run("vllm_bench_serve.sh", "--tiny", URL=server[1], ROUNDS="1")
    native, shared = printed.split("round 1, native:")[1].split("round 1, balanced:")
    for part in (native, shared):
        assert re.search(r"Successful requests: +32\b", part)
        assert re.search(r"Output token throughput \(tok/s\): +[1-9]", part)
        assert "Median ITL (ms):" in part


def test_offload(server):
    """Where it was started is another test's: on a CPU there is nothing to move."""
    check_pruned(run("offload.sh", "--tiny", URL=server[1]), least=70)


def test_lm_eval(server):
    if shutil.which(os.environ.get("LM_EVAL", "lm_eval")) is None:
        pytest.skip("lm-evaluation-harness is not installed: pip install 'xshare[eval]', or name it as LM_EVAL")
    printed = run("lm_eval.sh", "--tiny", URL=server[1], LIMIT="1")
    native, shared = printed.split("native:")[1].split("balanced:")
    for part, least in ((native, 0.6), (shared, 0.4)):  # of eight questions, one of each kind
        assert float(re.search(r"exact_match\|↑ +\| *([\d.]+)\|", part)[1]) >= least


def test_guidellm(server):
    if shutil.which(os.environ.get("GUIDELLM", "guidellm")) is None:
        pytest.skip("GuideLLM is not installed, and wants an environment of its own: name its command as GUIDELLM")
    printed = run("guidellm.sh", "--tiny", URL=server[1])
    for part in printed.split("native:")[1].split("balanced:"):
        assert re.search(r"32 requests, [\d.]+ tokens/s, [\d.]+ ms between tokens", part)


SHORT = """#!{python}
from xshare.cli import main
from xshare.tune import scan, speed, tuning

tuning.TIMED, speed.REPEATS = 6, 2
scan.COVERAGES, scan.PRICES, scan.WEIGHED = (0.6, 0.7, 0.8), (0.3, 0.6, 0.9), (0.6,)
main()
"""


def test_tune_and_serve(server, tmp_path_factory, tmp_path):
    """Last of those that share the server: it goes on under the policy that was found. Looks and timings are short."""
    short = tmp_path_factory.mktemp("short")
    (short / "xshare").write_text(SHORT.format(python=sys.executable))
    (short / "xshare").chmod(0o755)
    profile, path = tmp_path / "nano.yaml", f"{short}:{environment()['PATH']}"
    printed = run("tune_and_serve.sh", "--tiny", URL=server[1], PROFILE=str(profile), PATH=path)
    assert re.search(r" holds on \d+ unseen questions", printed)
    assert "\npolicy: " in profile.read_text()
    check_pruned(printed, least=40)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["nano.json", "nano.yaml"]


def test_speculative():
    printed = run("speculative.sh", "--tiny")
    check_pruned(printed, least=70)
    accepted, drafted = map(int, re.search(r"(\d+) of (\d+) drafted tokens were accepted", printed).groups())
    assert 0.3 * drafted < accepted < drafted
    assert printed.endswith("the server has stopped\n")


def test_expert_parallel():
    printed = run("expert_parallel.sh", "--tiny")
    check_pruned(printed, least=60)
    assert "    11 + 30 = 41\n" in printed  # of two processes, each with half of the experts
    selected, load = map(
        float, re.search(r"of ([\d.]+) selected experts the fullest rank holds ([\d.]+)", printed).groups()
    )
    assert selected / 2 <= load < 0.7 * selected
    assert printed.endswith("the server has stopped\n")


def test_a_port_that_is_taken_is_not_mistaken_for_the_server():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [EXAMPLES / "vllm_serve.sh", "MODEL"]
        done = subprocess.run(command, env=environment(PORT=port), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"something listens on http://127.0.0.1:{port} already" in done.stderr
