import pytest


@pytest.fixture(scope="session")
def engine(small):
    """The small model in the form of nano, as an engine."""
    from xshare.engines.transformers.engine import TransformersEngine
    from xshare.engines.transformers.record import load

    return TransformersEngine(*load(small, dtype="float32"), "small")
