"""Per-layer policies: budgets where they keep most gating weight, weights where pruning harms most."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from xshare.policy import Policy
from xshare.tune.candidate import Candidate

LEAST, MOST = 0.75, 8.0  # limits of a layer's weight: its rho must stay above zero, and the KL of one layer is noisy


def with_budget_per_layer(policy: Policy, budgets: dict[int, int]) -> Policy:
    """The same policy with a separate m for each layer."""
    return policy.model_copy(update={"batch_budget": 0}).with_layer_budgets(budgets)


def allocate(family: Sequence[Candidate], target: float) -> list[int]:
    """One budget per layer, with at most `target` active experts on average and the most gating weight kept.

    The policies of `family` differ only in m. Every layer takes the m beyond which one more expert would keep less
    weight than a price. The price is the same for all layers and as low as the target allows.
    """
    layers = range(len(family[0].active))

    def at(price: float) -> list[int]:
        return [max(range(len(family)), key=lambda i: family[i].mass[n] - price * family[i].active[n]) for n in layers]

    low, high = 0.0, 1.0  # one expert keeps at most all the weight
    for _ in range(40):
        price = (low + high) / 2
        loaded = sum(family[i].active[n] for n, i in enumerate(at(price))) / len(layers)
        low, high = (price, high) if loaded > target else (low, price)
    return [family[i].policy.batch_budget for i in at(high)]


def prune_one_layer(layer: int, layers: Sequence[int], num_experts: int, warmup: int) -> Policy:
    """A policy that prunes one layer to its tokens' best `warmup` experts and leaves the other layers native."""
    return Policy(warmup=warmup, layer_budgets={other: num_experts for other in layers if other != layer})


def layer_weights(kl: dict[int, float], power: float) -> dict[int, float]:
    """Weights of layers relative to the median layer, from the KL of pruning each layer alone.

    If harm were quadratic in a layer's loss, losses inversely proportional to KL would spend experts best: power 1.
    But KL is measured with noise and harm is not quite quadratic, so a power below 1 follows KL less closely.
    """
    middle = median(kl.values())
    if middle <= 0:
        return {}
    weights = {layer: min(MOST, max(LEAST, (layer_kl / middle) ** power)) for layer, layer_kl in kl.items()}
    return {layer: rounded for layer, weight in weights.items() if (rounded := round(weight, 1)) != 1.0}
