"""One registry, one signature: every method is a function (Step, Policy) -> Selection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from xshare.algorithms import top_up
from xshare.errors import PolicyError
from xshare.methods.step import Selection, Step
from xshare.policy import METHOD_KNOBS, Knobs, Policy

Function = Callable[[Step, Policy], Selection]
Needs = Literal["scores", "router", "logits"]  # what a step must hold: scores; native routing too; logits too


@dataclass(frozen=True)
class Method:
    name: str
    summary: str
    knobs: Knobs
    needs: Needs
    tables: tuple[str, ...]  # per-layer tables that a calibrated method needs
    function: Function


METHODS: dict[str, Method] = {}


def register(
    name: str, summary: str, *, knobs: Knobs | None = None, needs: Needs = "scores", tables: tuple[str, ...] = ()
) -> Callable[[Function], Function]:
    """Register a method. Without `knobs` it must already be in METHOD_KNOBS."""

    def add(function: Function) -> Function:
        if knobs is not None:
            METHOD_KNOBS[name] = knobs
        METHODS[name] = Method(name, summary, METHOD_KNOBS[name], needs, tables, function)
        return function

    return add


def decide(step: Step, policy: Policy) -> Selection:
    """The selection of the policy's method, without top-up."""
    method = METHODS[policy.method]
    if step.native is None:
        if method.needs != "scores":
            raise PolicyError(
                f"method {method.name!r} needs the model's router: call route() with logits, not select()"
            )
        if policy.coverage is not None:
            raise PolicyError("coverage (rho) is of the model's own weights: call route() with logits, not select()")
    if method.needs == "logits" and step.logits is None:
        raise PolicyError(f"method {method.name!r} needs the router's logits, and only the chosen experts are known")
    for table in method.tables:
        if table not in step.tables:
            raise PolicyError(f"method {method.name!r} needs the table {table!r}: pass tables={{{table!r}: ...}}")
    return method.function(step, policy)


def decide_routing(step: Step, policy: Policy) -> Selection:
    """The selection for routing: a shared set is topped up to k, and without any voting row all experts are allowed."""
    assert step.native is not None
    selection = decide(step, policy)
    nobody = ~step.voting.any(dim=-1, keepdim=True)  # [..., 1]
    keep, rows = selection.keep, selection.rows
    if rows is None and selection.routed is None:  # a method that limits each row intends to use fewer experts
        keep = top_up(keep, step.sums(*policy.votes), step.native.top_k)
    return replace(selection, keep=keep | nobody, rows=None if rows is None else rows | nobody.unsqueeze(-1))
