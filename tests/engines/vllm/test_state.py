"""Which steps a kernel is there for."""

import pytest
import torch

from xshare.engines.gates import Tally
from xshare.engines.vllm.settings import settings_of
from xshare.engines.vllm.sizes import Sizes
from xshare.engines.vllm.state import State, log
from xshare.engines.vllm.step import Step

GRID = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]  # what vLLM captures by default


def state(drafts=0, requests=256, captured=GRID, **gates):
    settings = settings_of({"xshare": {"policy": "k0=1,m=24", "gates": gates, "metrics": False}})
    sizes = Sizes(min(settings.gates.max_rows, requests * (1 + drafts)), drafts, captured)
    return State(settings, settings.policy, [], Step(torch.device("cpu")), sizes, Tally(log))


@pytest.mark.parametrize("drafts", [0, 1, 2, 3, 4, 7])
@pytest.mark.parametrize("requests", [1, 3, 4, 5, 6, 10, 21, 25, 64, 256])
def test_every_step_that_is_acted_on_has_a_kernel_however_it_is_padded(drafts, requests):
    found, each = state(drafts, requests).sizes, 1 + drafts
    rounded = [-(-size // each) * each for size in GRID]
    for rows in range(1, found.max_rows + 1):
        for sizes in (GRID, rounded):
            assert min(size for size in sizes if size >= rows) <= found.buckets[-1] <= 256
    assert found.max_rows == min(256, requests * each) or found.padded(found.max_rows + 1) > 256


def test_a_step_that_is_padded_beyond_the_kernels_is_left_alone():
    found = state(captured=[1, 64, 512])
    assert found.sizes.max_rows == 64
    assert found.why_not(True, 65) == "many_rows"


def test_a_step_of_more_requests_than_were_measured_is_left_alone():
    found = state(drafts=3, max_rows=64, max_requests=16, bypass=False)
    assert found.why_not(True, 64, 16) is None
    assert found.why_not(True, 17, 17) == "many_requests"


def test_an_engine_without_graphs_pads_nothing():
    found = state(requests=48, captured=()).sizes
    assert found.max_rows == 48
    assert found.buckets == [1, 2, 4, 8, 16, 32, 64]
