"""The values of a policy as text: numbers, budgets by layer, lists of layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def number_or_text(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text) if "_" not in text else text
        except ValueError:
            continue
    return text


def value_text(value: Any) -> str:
    if isinstance(value, dict):
        return "/".join(f"{layer}:{value_text(own)}" for layer, own in value.items())
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def by_layer(what: str, example: str) -> Callable[[Any], Any]:
    """Reads `0:24/3:8`, or a mapping whose keys may be text, as JSON's are -> {0: 24, 3: 8}, in the order of layers."""

    def read(value: Any) -> Any:
        if isinstance(value, str):
            pairs = [pair.partition(":") for pair in value.split("/")]
            if not all(layer.isdecimal() and isinstance(number_or_text(own), int | float) for layer, _, own in pairs):
                raise ValueError(f"layer:{what} pairs as {example}")
            if len({int(layer) for layer, _, _ in pairs}) < len(pairs):
                raise ValueError(f"one {what} for each layer")
            value = {int(layer): number_or_text(own) for layer, _, own in pairs}
        if not isinstance(value, Mapping):
            raise ValueError(f"layer:{what} pairs as {example}, or a mapping of them")
        numbers = {int(key) if isinstance(key, str) and key.isdecimal() else key: own for key, own in value.items()}
        in_order = all(isinstance(key, int) for key in numbers)  # anything else is refused by what comes after
        return dict(sorted(numbers.items())) if in_order else numbers

    return read


def ranges(numbers: Sequence[int]) -> str:
    """`0 to 3, 5`"""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(low) if low == high else f"{low} to {high}" for low, high in found)


def current_policy_text(text: str) -> str:
    """A policy's canonical string of before, when a policy without a score summed all scores, as it is spelled today.
    Anything else stays as it is."""
    if not text.startswith(("k0=", "random:")) or "score=full" in text:
        return text
    if ",score=topk" in text:
        return text.replace(",score=topk", "")
    policy, comma, seed = text.partition(",seed=")  # a random control's own knob comes last
    return f"{policy},score=full{comma}{seed}"
