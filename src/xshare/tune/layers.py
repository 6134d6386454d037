"""What a policy gives to each layer: budgets where they keep most, weights where pruning harms most."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from xshare.policy import Policy
from xshare.tune.candidate import Candidate

LEAST, MOST = 0.75, 8.0  # weights of layers: a layer's own rho must stay above zero, and KL of a single layer is noisy


def with_budget_per_layer(policy: Policy, budgets: dict[int, int]) -> Policy:
    """Alike but for m, which every layer has its own of."""
    return policy.model_copy(update={"batch_budget": 0}).with_layer_budgets(budgets)


def allocate(family: Sequence[Candidate], target: float) -> list[int]:
    """Budgets by layer whose mean of active experts is at most `target`, keeping the most gating weight.

    `family` differs in m alone. Every layer takes the m at which one expert more keeps less than a price; the price is
    the same for all of them, and as low as the target allows. Layers differ in how much weight a budget keeps.
    """
    layers = range(len(family[0].active))

    def at(price: float) -> list[int]:
        return [max(range(len(family)), key=lambda i: family[i].mass[n] - price * family[i].active[n]) for n in layers]

    low, high = 0.0, 1.0  # an expert never keeps more than all
    for _ in range(40):
        price = (low + high) / 2
        loaded = sum(family[i].active[n] for n, i in enumerate(at(price))) / len(layers)
        low, high = (price, high) if loaded > target else (low, price)
    return [family[i].policy.batch_budget for i in at(high)]


def prune_one_layer(layer: int, layers: Sequence[int], num_experts: int, warmup: int) -> Policy:
    """Prunes one layer, to its tokens' best `warmup` experts, and leaves the others whatever they want."""
    return Policy(warmup=warmup, layer_budgets={other: num_experts for other in layers if other != layer})


def layer_weights(kl: dict[int, float], power: float) -> dict[int, float]:
    """From the KL of pruning each layer alone: how much it matters, beside the median layer.

    Were harm quadratic in what a layer loses, losses in inverse proportion to it would spend experts best: power 1.
    A layer's KL is measured with noise, and harm is not quite quadratic: a power below 1 follows it half-heartedly.
    """
    middle = median(kl.values())
    if middle <= 0:
        return {}
    weights = {layer: min(MOST, max(LEAST, (own / middle) ** power)) for layer, own in kl.items()}
    return {layer: weight for layer, own in weights.items() if (weight := round(own, 1)) != 1.0}
