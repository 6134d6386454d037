import importlib.util

import pytest

if importlib.util.find_spec("transformers") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from tiny_models import make

    @pytest.fixture(scope="session")
    def tiny():
        """A function from a kind of model to a tiny one, the same for all tests: whoever applies must remove."""
        models = {}
        return lambda kind: models.get(kind) or models.setdefault(kind, make(kind))
