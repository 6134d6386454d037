"""Counts of the experts that the dummy weights lead to."""

import torch

TOP_K = 4


def distinct(ids):
    return torch.tensor([len(layer.unique()) for layer in ids]).float().mean().item()


def shared(a, b):
    """Experts that two tokens have in common, on average over [layers, tokens, k]."""
    return (a.unsqueeze(-1) == b.unsqueeze(-2)).sum((-1, -2)).float().mean().item()
