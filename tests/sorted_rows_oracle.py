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
    values = masked(row, S)
    best = sorted(range(len(row)), key=lambda j: (-by_bits(values[j]), j))[:k]
    ids = sorted(best)
    level = torch.stack([values[j] for j in ids]).float().numpy()
    parts = np.exp(level - level.max())
    return ids, torch.from_numpy(parts / sum(parts[1:], start=parts[0]))  # one after another


def best_first(row, S, k):
    """The k best of a row of logits inside S by softmax score, best first, ties by column, and their weights."""
    level = masked(row, S).float().numpy()
    with np.errstate(invalid="ignore"):
        parts = np.exp(level - np.fmax.reduce(level))
        scores = parts * (np.float32(1) / sum_by_lanes(parts))
    scores = np.where(np.isfinite(scores), scores, np.float32(0))
    ids = sorted((j for j in range(len(row)) if S[j]), key=lambda j: (-scores[j], j))[:k]
    total = sum((scores[j] for j in ids[1:]), start=scores[ids[0]])
    return ids, torch.from_numpy(scores[ids] * (np.float32(1) / (total if total > 0 else np.float32(1))))


def masked(row, S):
    lowest = torch.tensor(torch.finfo(row.dtype).min, dtype=row.dtype)
    return torch.stack([(lowest / 2 if row[j] == -math.inf else row[j]) if S[j] else lowest for j in range(len(row))])


def sum_by_lanes(parts):
    """Lanes of 8 neighbours, or twice 8 half a row apart, one after another; then lane i and lane i + half."""
    loads = -(-len(parts) // 256)
    lanes = parts.reshape(loads, -1, 8).transpose(1, 0, 2).reshape(-1, 8 * loads)
    sums = lanes[:, 0]
    for place in range(1, 8 * loads):
        sums = sums + lanes[:, place]
    while len(sums) > 1:
        sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
    return sums[0]


def blocks_of(ids, N, k, size):
    """Rows' experts -> the pairs at the positions of blocks of `size` rows, and each block's expert."""
    pairs, tiles = [], []
    for expert in range(N):
        own = [row * k + slot for row, chosen_ids in enumerate(ids) for slot in range(k) if chosen_ids[slot] == expert]
        blocks = -(-len(own) // size)
        pairs += own + [len(ids) * k] * (blocks * size - len(own))
        tiles += [expert] * blocks
    return pairs, tiles


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
