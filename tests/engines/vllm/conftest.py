import importlib.util
import json
import signal

import pytest
import staircase_files
from real_server import KEY, Server
from tiny_vllm_models import cleaned_up, engine, make

from xshare.profile import model_hash

POLICY = {"warmup": 1, "batch_budget": 2, "metrics": {"every": 1, "interval": 0.2}}

# Engines are dear: the tests of a file share one, and `make test` keeps files whole (--dist loadfile).


def pytest_collection_modifyitems(items):
    if importlib.util.find_spec("vllm") is None:
        for item in items:
            if item.get_closest_marker("engine") is not None:
                item.add_marker(pytest.mark.skip(reason="vLLM is not installed"))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A function from a kind of model to the folder of a tiny one."""
    folder = tmp_path_factory.mktemp("models")
    return lambda kind: make(kind, folder)


@pytest.fixture(scope="module")
def started():
    """Starts engines in process, one at a time: a new one replaces the last."""

    def start(*args, **options):
        cleaned_up()
        return engine(*args, **options)

    yield start
    cleaned_up()


# A server is dearer still: one serves all files test_server*, which go to one process.


@pytest.fixture(scope="session")
def stairs(small, tmp_path_factory):
    """A staircase for steps of one row, in which nothing is selected: it does not affect the other tests."""
    config = model_hash(json.loads((small / "config.json").read_text()))
    where = {"engine": "vllm", "device": "cpu", "dtype": "float32", "experts": 16, "top_k": 4, "layers": 2}
    path = tmp_path_factory.mktemp("stairs") / "stairs.json"
    return staircase_files.write(path, where | {"config": config, "tensor_parallel": 1}, {1: (6, 11)})


@pytest.fixture(scope="session")
def server(small, stairs, tmp_path_factory):
    tiny_server = Server(small, tmp_path_factory.mktemp("log") / "server.log", POLICY | {"cost": str(stairs)})
    try:
        tiny_server.wait_until_ready()
        tiny_server.rpc("watch")
        yield tiny_server
    finally:
        tiny_server.stop()


@pytest.fixture
def key(monkeypatch):
    """The server's key, where every client looks for it."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture
def time_limit():
    """Processes that wait for one another must not wait for ever: a test of theirs fails after four minutes."""

    def fail(*_):
        raise TimeoutError("four minutes have passed: do ranks wait for one another?")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(240)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
