import importlib.util

import pytest


def pytest_collection_modifyitems(items):
    if importlib.util.find_spec("sglang") is None:
        for item in items:
            if item.get_closest_marker("sglang") is not None:
                item.add_marker(pytest.mark.skip(reason="SGLang is not installed: make test-sglang"))
