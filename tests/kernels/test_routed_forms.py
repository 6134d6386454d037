"""All of routing in one launch, in both forms that engines read."""

import pytest
import torch
from one_selection import DEVICE, GPU, fused
from routed_forms import FORMS

from xshare import Policy

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from xshare.kernels.control import Control


@pytest.fixture(params=FORMS)
def form(request):
    return FORMS[request.param]


def test_requests_of_several_rows(form):
    for n, k, starts in ((24, 4, [0, 4, 6, 10, 14, 15, 19, 22]), (16, form.k, [0, 4, 6, 10, 14, 15])):
        logits = torch.randn(n, 64, generator=torch.Generator().manual_seed(3)).bfloat16()
        selection = form.selection(64, n, k, rows_per_request=4)
        fused(None, Policy.parse("k0=1,mr=3"), logits, starts, selection)
        form.check(selection, logits, 64, k)


def test_a_closed_gate_routes_natively(form):
    for n in (16, 48):
        logits = torch.randn(n, 64, generator=torch.Generator().manual_seed(4)).bfloat16()
        selection, control = form.selection(64, n, form.k), Control(DEVICE)
        control.set_policy(Policy.parse("k0=1,m=0"))
        control.push()
        assert selection.launch(logits.to(DEVICE), control)
        assert selection.keep.all()
        form.check(selection, logits, 64, form.k)


def test_fewer_rows_than_it_was_made_for(form):
    for rows, n in ((32, 9), (64, 41)):
        selection = form.selection(128, rows, form.k)
        for seed in range(2):  # the second finds what the first left
            logits = torch.randn(n + seed, 128, generator=torch.Generator().manual_seed(seed)).bfloat16()
            fused(None, Policy.parse(f"k0=1,m={form.k}"), logits, range(n + seed + 1), selection)
            form.check(selection, logits, 128, form.k)


def test_one_expert_takes_every_row(form):
    n = 200 if GPU else 70
    logits = torch.full((n, 16), -4.0).bfloat16()
    logits[:, 3] = 5.0
    logits[:, 7:10] = 1.0
    selection = form.selection(16, n, 4)
    fused(None, Policy.parse("k0=1,m=16"), logits, range(n + 1), selection)
    ids = form.check(selection, logits, 16, 4)
    assert all(row_ids == [3, 7, 8, 9] for row_ids in ids)
