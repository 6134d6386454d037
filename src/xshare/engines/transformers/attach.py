"""apply, remove, stats and layout: XShare on one model instance. No class and no other model changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import nn

from xshare.batch import BatchLayout, Placement
from xshare.engines.counters import FIGURES
from xshare.engines.gates import Gates
from xshare.engines.transformers.forward_pass import Generation, Pass
from xshare.engines.transformers.layer import Layer
from xshare.engines.transformers.routers import Router, find_routers, staircase_conditions
from xshare.engines.transformers.state import State
from xshare.errors import ModelError, PolicyError, short_repr
from xshare.policy import MOST, Policy
from xshare.policy_text import ranges
from xshare.routing import check_policy
from xshare.staircase import Stairs, read_stairs

KEY = "_xshare"  # the decoder's attribute that holds its Attached


class Attached:
    """What `apply` returns: the policy at work on a model."""

    def __init__(self, model: nn.Module, decoder: nn.Module, state: State, layers: list[Layer]) -> None:
        self.model, self.decoder, self.state, self.layers = model, decoder, state, layers
        # All hooks are bound methods, so that a deep copy of the model has hooks of its own.
        self._hooks = [decoder.register_forward_pre_hook(self._before, with_kwargs=True)]
        self._hooks += [layer.router.module.register_forward_hook(layer.after) for layer in self.layers]
        self._hooks += [decoder.register_forward_hook(self._after)]
        self._native_generate = vars(model).get("generate")  # where other code has replaced it on the instance
        if hasattr(model, "generate"):
            model.generate = MethodType(_generate, model)  # type: ignore[assignment]
        setattr(decoder, KEY, self)
        torch.compiler.reset()  # code that was compiled without the hooks would skip them

    @property
    def policy(self) -> Policy:
        return self.state.policy

    def __repr__(self) -> str:
        state, layers = self.state, ranges([layer.router.number for layer in self.layers])
        done = f"{state.tally.pruned} steps pruned, {sum(state.tally.bypassed.values())} left alone"
        on = "" if state.on else ", switched off"
        return f"<XShare {state.policy} on {type(self.model).__name__}, layers {layers}{on}: {done}>"

    @torch.compiler.disable
    def _before(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.state.begin(Pass.of(module, args, kwargs))

    @torch.compiler.disable
    def _after(self, module: Any, args: Any, output: Any) -> None:
        if self.state.gate and not self.state.router_called:
            raise ModelError(
                f"{type(self.model).__name__} does not ask its routers, which a kernel has replaced: load it without "
                f"use_kernels, and quantised weights with dequantize=True"
            )
        self.state.gate = False  # a layer that is called outside a pass routes natively

    def stats(self) -> dict[str, Any]:
        """The counters, per layer and overall. This waits for the device."""
        means = [layer.means() for layer in self.layers]
        by_figure = dict(zip(FIGURES, map(list, zip(*means, strict=True)), strict=True))
        steps = [layer.steps for layer in self.layers]
        weight = max(1, sum(steps))
        total = {
            name: sum(value * count for value, count in zip(values, steps, strict=True)) / weight
            for name, values in by_figure.items()
        }
        names = [layer.router.name for layer in self.layers]
        return self.state.snapshot() | {"layers": names, "layer_steps": steps, **by_figure, "mean": total}

    def clear(self) -> None:
        """Count from zero."""
        self.state.tally.clear()
        for layer in self.layers:
            layer.clear()

    def switch(self, on: bool) -> None:
        """Off: every step is left alone. On: selection acts again with the same policy."""
        if not isinstance(on, bool):
            raise PolicyError(f"switch takes True or False, not {on!r}")
        self.state.on = on

    def change(self, policy: Policy) -> None:
        """Use another policy from the next pass on. It is cheap, and counters stay."""
        policies = layer_policies(policy, self.state.placement, [layer.router for layer in self.layers])
        self.state.policy, self.state.within = policy, rows_within(policies, [layer.router for layer in self.layers])
        for layer, layer_policy in zip(self.layers, policies, strict=True):
            layer.set_policy(layer_policy)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        native = self._native_generate or MethodType(type(self.model).generate, self.model)  # type: ignore[attr-defined]
        with self.state.generating(Generation.of(self.model, args, kwargs)):
            return native(*args, **kwargs)

    def detach(self) -> None:
        for hook in self._hooks:
            hook.remove()
        if self._native_generate is not None:
            self.model.generate = self._native_generate
        else:
            vars(self.model).pop("generate", None)
        vars(self.decoder).pop(KEY, None)
        torch.compiler.reset()


def _generate(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return attached(model).generate(*args, **kwargs)


def attached(model: Any) -> Attached:
    decoder, _ = find_routers(model)
    policy = vars(decoder).get(KEY)
    if not isinstance(policy, Attached):
        raise ModelError(f"{type(model).__name__} has no policy at work: call xshare.apply(model, policy) first")
    return policy


def apply(
    model: Any,
    policy: Policy | str | Mapping[str, Any],
    *,
    placement: Placement | None = None,
    layers: Sequence[int] | None = None,
    min_rows: int = 2,
    max_rows: int | None = None,
    bypass: bool = True,
    drafts: int = 0,
    cost: Stairs | Path | str | None = None,
) -> Attached:
    """Put a policy to work on a Transformers model, in place of any other.

    placement   which device holds each expert: device_budget (mg) needs one
    layers      MoE layers to act on, counted from 0; all by default
    min_rows, max_rows   act on steps of that many voting rows
    bypass      False: act even where nothing can be saved, as a no-op control must
    drafts      in a decode loop of your own, drafted tokens a sequence may have beside its one; `generate` says itself
    cost        a file of `xshare doctor --stairs`, or what was read of it: sizes of sets are weighed by what they cost
    """
    policy = Policy.of(policy)
    decoder, routers = find_routers(model)
    counts = [("min_rows", min_rows, 1), ("drafts", drafts, 0)]
    for name, value, least in counts + ([] if max_rows is None else [("max_rows", max_rows, 1)]):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise PolicyError(f"{name} must be a whole number from {least} up, not {value!r}")
        if value > MOST:
            raise PolicyError(f"{name} must be at most {MOST}, not {short_repr(value)}")
    if max_rows is not None and min_rows > max_rows:
        raise PolicyError(f"min_rows ({min_rows}) must be at most max_rows ({max_rows})")
    if layers is not None:
        if not layers or not set(layers) <= set(range(len(routers))):
            raise PolicyError(f"layers must be numbers from 0 to {len(routers) - 1}, one at least, not {list(layers)}")
        routers = [router for number, router in enumerate(routers) if number in layers]
    policies = layer_policies(policy, placement, routers)
    stairs = None
    if cost is not None:
        if policy.method != "xshare":
            raise PolicyError(f"cost is weighed by XShare's own policies, not by {policy}: leave it out")
        stairs = cost if isinstance(cost, Stairs) else read_stairs(Path(cost))
        stairs.check_conditions(staircase_conditions(model, routers))
    if KEY in vars(decoder):
        attached(model).detach()
    gates = Gates.model_validate({"min_rows": min_rows, "max_rows": max_rows, "bypass": bypass})
    state = State(policy, placement, gates, rows_within(policies, routers), drafts, stairs)
    return Attached(model, decoder, state, [Layer(state, *pair) for pair in zip(routers, policies, strict=True)])


def layer_policies(policy: Policy, placement: Placement | None, routers: Sequence[Router]) -> list[Policy]:
    """Each layer's policy; refuses one that cannot be followed."""
    policies = policy.by_layer([router.number for router in routers])
    for layer_policy in policies:
        check_policy(layer_policy, placement, routers[0].num_experts)
    return policies


def rows_within(policies: Sequence[Policy], routers: Sequence[Router]) -> int:
    """Rows that natively load no more experts than any layer's budget: see Gates.why_not."""
    return min(policy.batch_budget for policy in policies) // max(router.spec().top_k for router in routers)


def remove(model: Any) -> None:
    """Leave the model as it was before `apply`."""
    attached(model).detach()


def stats(model: Any) -> dict[str, Any]:
    """What the policy at work on a model did: steps, and by layer the experts and the gating weight kept."""
    return attached(model).stats()


def layout(model: Any, layout: BatchLayout) -> AbstractContextManager[None]:
    """Within this context the caller says whose each row is, and every pass is acted on, prompts included.

    [rows]          one step: a request for each row of the pass, in the order of its tokens [sequences, new]
    [new, sequences]  a step a position: teacher forcing, all sequences decoding side by side
    [steps, n]      a step so many positions of every sequence, sequence by sequence: the same with drafts
    """
    return attached(model).state.laid_out(layout)


def protect(model: Any, sequences: Sequence[int]) -> AbstractContextManager[None]:
    """Within this context some sequences of a batch, by number, keep their native experts, whatever the others do.

    Around `generate` they are prompts: all beams or answers of one are protected. In a loop of your own, the rows of
    input_ids.
    """
    return attached(model).state.protecting(sequences)
