from importlib import metadata

import pytest

from xshare import models
from xshare.models.untied_output import write_untied_copy


def pytest_collection_modifyitems(items):
    if not any(metadata.distributions(name="sglang")):  # to import it is no way to ask: this folder has its name
        for item in items:
            if item.get_closest_marker("sglang") is not None:
                item.add_marker(pytest.mark.skip(reason="SGLang is not installed: make test-sglang"))


@pytest.fixture(scope="session")
def nano(tmp_path_factory):
    """Nano, as SGLang can load it."""
    return write_untied_copy(models.folder("nano"), tmp_path_factory.mktemp("models") / "nano")
