"""One launch that counts a sampled step, against the reference's report."""

import pytest
import torch

from xshare import BatchLayout, Placement, Policy, RouterSpec, route

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from xshare.kernels.sampled_layers import Sampled

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize(
    "router",
    [
        RouterSpec.softmax(4),
        RouterSpec.softmax(2, renormalize=False),
        RouterSpec.sigmoid(4, correction_bias=torch.linspace(-0.3, 0.3, 24)),
        RouterSpec.sigmoid(2, correction_bias=torch.linspace(0.3, -0.3, 32), n_group=4, topk_group=2),
    ],
    ids=["softmax", "not renormalised", "bias", "groups"],
)
def test_counts_equal_the_report(router):
    N = 24 if router.correction_bias is None else len(router.correction_bias)
    placement = Placement.round_robin(N, 3)
    layers, most, sums = 3, 8, torch.zeros(7, 3, dtype=torch.float64, device=DEVICE)
    want = torch.zeros(7, 3, dtype=torch.float64)
    bias = torch.zeros(N) if router.correction_bias is None else router.correction_bias
    for step, rows in enumerate((5, 8, 1)):
        logits = torch.randn(layers, most, N, generator=torch.Generator().manual_seed(step)) * 2
        if step == 1:
            logits[1, 2] = torch.nan  # a row that cannot vote
        layout = BatchLayout.one_per_row(rows)
        routings = [
            route(logits[i, :rows], router, Policy.parse("k0=0,m=2"), layout=layout, placement=placement)
            for i in range(3)
        ]
        keep = torch.stack([routing.selected for routing in routings])
        for i, routing in enumerate(routings):
            counts = (routing.active_native.sum(), routing.selected.sum(), routing.active.sum(), routing.mass)
            counts += (routing.below_half, routing.smallest_kept, routing.max_load)
            want[:, i] += torch.stack([count.double() for count in counts])
        sampled = Sampled(
            seen=logits.to(DEVICE),
            keep=keep.to(DEVICE),
            router=router,
            bias=bias.expand(layers, N).contiguous().to(DEVICE),
            devices=placement.devices.int().expand(layers, N).contiguous().to(DEVICE),
            num_devices=3,
        )
        sampled.count(rows, sums)
    torch.testing.assert_close(sums.cpu(), want, rtol=1e-5, atol=1e-6)
