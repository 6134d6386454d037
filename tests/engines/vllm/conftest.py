import importlib.util
import signal

import pytest
from models import cleaned_up, engine, make

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
