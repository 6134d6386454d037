"""Which steps a kernel is there for."""

import pytest
import torch

from xshare.engines.gates import Tally
from xshare.engines.vllm.settings import SettingsError, settings_of
from xshare.engines.vllm.sizes import Sizes
from xshare.engines.vllm.state import State, log
from xshare.engines.vllm.step import Step
from xshare.kernels.control import Control
from xshare.kernels.words import Word
from xshare.stairs import Stairs

GRID = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]  # what vLLM captures by default


def state(drafts=0, requests=256, captured=GRID, stairs=None, control=None, **gates):
    settings = settings_of({"xshare": {"policy": "k0=1,m=24", "gates": gates, "metrics": False}})
    sizes = Sizes(min(settings.gates.max_rows, requests * (1 + drafts)), drafts, captured)
    now = Step(torch.device("cpu"), control)
    return State(settings, settings.policy, [], now, sizes, Tally(log), stairs=stairs)


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


def test_the_kernels_are_told_which_cost_table_counts():
    """By the rows of the step, as long as costs count; the words are those that a captured graph reads."""
    times = {rows: {1: 1.0, 64: 1.0 + rows} for rows in (8, 32)}
    control = Control("cpu", 256)
    found = state(stairs=Stairs({"experts": 64}, times), control=control, bypass=False)

    def told(rows):
        found.step(True, found.one_row_each(rows))
        return int(control.words[Word.COST])

    assert [told(rows) for rows in (2, 8, 9, 32, 33, 4)] == [0, 0, 1, 1, -1, 0]
    assert found.weigh_costs(False)
    assert [told(4), told(16)] == [-1, -1]
    assert found.weigh_costs(True)
    assert [told(16), told(16)] == [1, 1]
    with pytest.raises(SettingsError, match="needs an engine that was started with cost"):
        state().weigh_costs(True)
