"""What a model really did, seen from outside: its decoder's inputs, its routers' results, what its experts got."""

from contextlib import contextmanager
from dataclasses import dataclass, field

import oracle
import torch
from random_cases import as_oracle
from tiny_models import rule

import xshare
from xshare.engines.transformers import layer as engine


@dataclass
class Routed:
    logits: torch.Tensor
    native: tuple[torch.Tensor, torch.Tensor]  # ids and weights by the model's own router
    used: tuple[torch.Tensor, torch.Tensor] = None  # by its experts
    selected: list[set[int]] | None = None  # S of each step in the pass; None where the layer was left alone

    @property
    def untouched(self):
        return all(torch.equal(own, used) for own, used in zip(self.native, self.used, strict=True))


@dataclass
class Step:
    tokens: torch.Tensor
    past: int
    layers: list[Routed] = field(default_factory=list)

    @property
    def acted(self):
        return any(routed.selected is not None for routed in self.layers)


@contextmanager
def watched(model):
    """Yields the list of passes. Enter it before `apply`: hooks run in the order in which they were made."""
    steps, hooks = [], []
    decoder = model.model
    route, call, one = engine.route, engine.cpu.Steps.__call__, engine.cpu.Steps.route_single

    def begin(module, args, kwargs):
        cache = kwargs.get("past_key_values")
        tokens = kwargs.get("input_ids") if kwargs.get("input_ids") is not None else kwargs["inputs_embeds"][..., 0]
        steps.append(Step(tokens.clone(), 0 if cache is None else int(cache.get_seq_length())))

    def routed(module, args, output):
        logits, weights, ids = (tensor.detach().clone() for tensor in output)
        steps[-1].layers.append(Routed(logits, (ids, weights)))

    def experts(module, args, kwargs):
        _, ids, weights = args
        steps[-1].layers[-1].used = (ids.clone(), weights.detach().clone())

    def selecting(*args, **kwargs):
        routing = route(*args, **kwargs)
        steps[-1].layers[-1].selected = [set(S.nonzero().flatten().tolist()) for S in routing.selected]
        return routing

    def selecting_compiled(*args, **kwargs):
        routing = call(*args, **kwargs)
        steps[-1].layers[-1].selected = [set(S.nonzero()[0].tolist()) for S in routing.selected]
        return routing

    def selecting_at_once(compiled, *args):
        routing = one(compiled, *args)
        if routing is not None:
            steps[-1].layers[-1].selected = [set(compiled.sets[0, 0].nonzero()[0].tolist())]
        return routing

    hooks.append(decoder.register_forward_pre_hook(begin, with_kwargs=True))
    for block in (layer.mlp for layer in decoder.layers):
        router = getattr(block, "router", None) or getattr(block, "gate", None)
        if router is not None:
            hooks.append(router.register_forward_hook(routed))
            hooks.append(block.experts.register_forward_pre_hook(experts, with_kwargs=True))
    engine.route, engine.cpu.Steps.__call__ = selecting, selecting_compiled
    engine.cpu.Steps.route_single = selecting_at_once
    try:
        yield steps
    finally:
        engine.route, engine.cpu.Steps.__call__, engine.cpu.Steps.route_single = route, call, one
        for hook in hooks:
            hook.remove()


def dense(ids, weights, num_experts):
    """Weights by expert, [n, N], whatever order a row's experts came in."""
    return torch.zeros(len(ids), num_experts).scatter_add_(1, ids.long(), weights.float())


def check(model, step, requests, policy, cost=None):
    """Set, ids and weights of every layer in one step are the oracle's, which has the logits alone."""
    parsed = xshare.Policy.parse(policy)
    for number, routed in enumerate(step.layers):
        wanted = oracle.route(
            routed.logits.double().tolist(),
            rule(model, number),
            requests=requests,
            score=parsed.score,
            policy=as_oracle(parsed),
            cost=cost,
        )
        assert routed.selected == [wanted["selected"]]
        ids, weights = routed.used
        assert ids.dtype == routed.native[0].dtype
        assert weights.dtype == routed.native[1].dtype
        assert set(ids.flatten().tolist()) <= wanted["selected"]
        N = routed.logits.shape[-1]
        expected = dense(torch.tensor(wanted["ids"]), torch.tensor(wanted["weights"]), N)
        torch.testing.assert_close(dense(ids, weights, N), expected, rtol=1e-5, atol=1e-6)
