"""What the profile makes of kernels' names, as an H200 has shown them."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from routing_profile import part_of


@pytest.mark.parametrize(
    ("kernel", "part"),
    [
        ("_topk_forward", "routing"),
        ("_sum_bitmatrix_rows", "routing"),
        ("_combined_routing_compute", "routing"),
        ("void vllm::moe::moe_align_block_size_small_batch_expert_kernel<int, 256>", "routing"),
        ("void vllm::moe::topkGating<8, 128, 4, 16, 32, int, __nv_bfloat16>", "routing"),
        ("select_in_blocks", "selection"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1_swiglu", "experts"),
        ("fused_moe_kernel", "experts"),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90", "attention"),
        ("nvjet_sm90_tst_64x16_64x16_4x1_v_bz_bias_TNT", "other"),
    ],
)
def test_kernels_are_told_apart(kernel, part):
    assert part_of(kernel) == part
