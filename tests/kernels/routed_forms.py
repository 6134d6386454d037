"""Selections that route, in the two forms that engines read, and what a launch leaves against an oracle."""

from typing import Any, NamedTuple

import pytest
import torch
from one_selection import CASES, DEVICE, of_shape
from sorted_rows_oracle import best_first, blocks_of, chosen, tables_of

from xshare import Policy, RouterSpec

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from xshare.engines.vllm.expert_bytes import rows_unshared
from xshare.engines.vllm.routing_check import random_logits, route_both
from xshare.kernels.control import Control
from xshare.kernels.routing_blocks import Blocks
from xshare.kernels.routing_tables import Tables, most_tiles


def sorted_selection(N, rows, k=4, dtype=torch.bfloat16, **options):
    """A selection that sorts rows by expert."""
    selection = of_shape(N, rows, RouterSpec.softmax(k), mask_logits=True, routes=True, **options)
    selection.tables = Tables(selection.plan, N, k, dtype, DEVICE)
    return selection


def check_sorted(selection, logits, N, k):
    """What a launch left, against S as it left it."""
    tables, n = selection.tables, len(logits)
    S = selection.keep.cpu().tolist()
    routed = [chosen(row, S, k) for row in logits]
    ids = [row_ids for row_ids, _ in routed]
    hist, offsets, tiles, gathers, scatters = tables_of(ids, N, k)
    assert tables.hist.tolist() == hist
    assert tables.offsets[:, : N + 1].tolist() == offsets
    assert tables.tiles[:, : most_tiles(n * k, N)].tolist() == tiles
    assert tables.pairs[: n * k].tolist() == gathers
    assert tables.pairs[n * k : 2 * n * k].tolist() == scatters
    weights = torch.cat([weight for _, weight in routed])[gathers].to(logits.dtype)
    got = tables.weights[: n * k].cpu()
    assert torch.allclose(
        got.float(), weights.float(), rtol=2**-7, atol=1e-6, equal_nan=True
    )  # one bit of the last place
    return ids


def blocks_selection(N, rows, k=8, size=16, dtype=torch.bfloat16, **options):
    """A selection that routes into blocks of `size` rows."""
    selection = of_shape(N, rows, RouterSpec.softmax(k), mask_logits=True, routes=True, **options)
    unsorted = rows_unshared(N, k)
    selection.tables = Blocks(selection.plan, N, k, dtype, DEVICE, lambda rows: size, unsorted)
    return selection


def check_blocks(selection, logits, N, k, size=16):
    """What a launch left, against S as it left it."""
    tables, n = selection.tables, len(logits)
    routed = [best_first(row, selection.keep.cpu().tolist(), k) for row in logits]
    ids = [row_ids for row_ids, _ in routed]
    assert tables.ids[: n * k].view(n, k).tolist() == ids
    weights = torch.stack([weight for _, weight in routed])
    assert torch.allclose(tables.weights[: n * k].view(n, k).cpu(), weights, rtol=1e-6, atol=1e-12)
    assert tables.sorts == (tables.rows > rows_unshared(N, k))
    if tables.sorts:
        pairs, tiles = blocks_of(ids, N, k, size)
        assert tables.end.tolist() == [len(pairs)]
        assert tables.pairs[: len(pairs)].tolist() == pairs
        assert tables.tiles[: len(tiles)].tolist() == tiles
    return ids


def check_bits(path, selection, scales=(1,)):
    """Random logits of all rows, the gate open and closed, against vLLM's own routing; on a GPU."""
    n = selection.rows
    dice, control = torch.Generator("cuda").manual_seed(n), Control("cuda")
    control.set_policy(Policy.parse("k0=1,m=8"))
    control.set_step(n)
    for batch in range(CASES):
        control.set_gate(batch % 2 == 0)
        control.push()
        logits = random_logits(selection, n, dice) * scales[batch % len(scales)]
        assert path.same_bits(*route_both(path, selection, control, logits))


class Form(NamedTuple):
    selection: Any  # (N, rows, k) -> a selection that routes
    check: Any  # (selection, logits, N, k) -> the rows' experts
    k: int


FORMS = {
    "sorted": Form(sorted_selection, check_sorted, 4),
    "blocks": Form(blocks_selection, check_blocks, 8),
}
