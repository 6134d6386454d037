"""Layers that are left out where data-parallel ranks choose together, and parallel layouts that vLLM itself builds and
that are refused with the reason."""

from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
import torch
from vllm.config import ParallelConfig
from vllm.config.parallel import All2AllBackend

from xshare import Policy, RouterSpec
from xshare.engines.serving.settings import SettingsError
from xshare.engines.vllm.compatibility import check_config
from xshare.engines.vllm.settings import settings_of
from xshare.engines.vllm.site import Site

pytestmark = pytest.mark.engine

CPU = torch.device("cpu")
BIASED = RouterSpec.sigmoid(4, correction_bias=torch.zeros(16))


def site(router, monolithic=True, ranks=2, dispatched=False):
    method = SimpleNamespace(is_monolithic=monolithic)
    runner = SimpleNamespace(
        routed_experts=SimpleNamespace(quant_method=method),
        moe_config=SimpleNamespace(dp_size=ranks),
        do_naive_dispatch_combine=dispatched,
    )
    return Site(0, "layer", runner, router, 16, None)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (site(BIASED), "routes the rows of all data-parallel ranks by one bias"),
        (site(BIASED, ranks=1), None),
        (site(BIASED, monolithic=False), None),
        (site(RouterSpec.softmax(4)), None),  # masked logits travel with their rows
        (site(RouterSpec.softmax(4), dispatched=True), "handed the logits of all data-parallel ranks"),
    ],
)
def test_a_kernel_that_sees_the_rows_of_all_ranks_by_one_bias_is_left_out(found, reason):
    refusal = found.unservable(Policy(warmup=1, batch_budget=4), CPU)
    assert refusal is None if reason is None else reason in refusal


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"data_parallel_size": 2, "tensor_parallel_size": 2, "enable_expert_parallel": True},
            "sequence-parallel MoE, in which a rank sees a part of the rows only",
        ),
        ({"enable_dbo": True}, "dual batch overlap, which splits a step in two"),
        ({"ubatch_size": 3}, "dual batch overlap, which splits a step in two"),
        ({"prefill_context_parallel_size": 2}, "prefill context parallelism: set its size to 1"),
    ],
)
def test_layouts_as_vllm_configures_them_are_refused(options, sentence):
    config = SimpleNamespace(
        parallel_config=ParallelConfig(distributed_executor_backend="mp", **options),
        model_config=SimpleNamespace(enable_sleep_mode=False),
        device_config=SimpleNamespace(device_type="cpu"),
    )
    with pytest.raises(SettingsError, match=sentence):
        check_config(config, settings_of({"xshare": {"warmup": 1, "batch_budget": 2}}))


def test_the_page_has_every_backend_of_this_vllm():
    page = (Path(__file__).parents[3] / "docs" / "scale.md").read_text()
    assert [name for name in get_args(All2AllBackend) if f"`{name}`" not in page] == []
