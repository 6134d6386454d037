"""Rows sorted by expert, by hand: the oracle of all of routing in one launch."""

import itertools
import math

import numpy as np
import torch

from xshare.kernels.routing_tables import most_tiles

TILES = (16, 32, 64, 128)


def by_bits(value):
    """A 16-bit float's place in the order of bits: -0 below 0, negative NaN first and positive NaN last."""
    bits = value.view(torch.int16).item()
    return bits if bits >= 0 else bits ^ 0x7FFF


def chosen(row, S, k):
    """The k best of a row of logits inside S, in the order of columns, and their softmax in the engine's order."""
    lowest = torch.tensor(torch.finfo(row.dtype).min, dtype=row.dtype)
    values = [
        (lowest / 2 if row[j] == -math.inf else row[j]) if S[j] else lowest for j in range(len(row))
    ]  # as they would be masked
    best = sorted(range(len(row)), key=lambda j: (-by_bits(values[j]), j))[:k]
    ids = sorted(best)
    level = torch.stack([values[j] for j in ids]).float().numpy()
    parts = np.exp(level - level.max())
    return ids, torch.from_numpy(parts / sum(parts[1:], start=parts[0]))  # one after another


def tables_of(ids, N, k):
    """Rows' experts in the order of columns -> hist, offsets, tiles, gathers, scatters, all as lists."""
    pairs = sorted(range(len(ids) * k), key=lambda pair: (ids[pair // k][pair % k], pair))
    hist = [sum(row.count(expert) for row in ids) for expert in range(N)]
    offsets = [[0, *itertools.accumulate(hist)]]
    tiles = []
    for size in TILES:
        counts = [-(-count // size) for count in hist]
        offsets.append([0, *itertools.accumulate(counts)])
        entries = [(tile << 16) + expert for expert, count in enumerate(counts) for tile in range(count)]
        tiles.append(entries + [-1] * (most_tiles(len(pairs), N) - len(entries)))
    scatters = [0] * len(pairs)
    for place, pair in enumerate(pairs):
        scatters[pair] = place
    return hist, offsets, tiles, pairs, scatters
