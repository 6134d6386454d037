"""The values of a policy as text: numbers, budgets by layer, lists of layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def number_or_text(text: str) -> int | float | str:
    """`24` -> 24, `0.5` -> 0.5; anything else stays text."""
    for kind in (int, float):
        try:
            return kind(text) if "_" not in text else text
        except ValueError:
            continue
    return text


def value_text(value: Any) -> str:
    """A knob's value as the canonical string has it: `24`, `0.5`, `0:24/3:8`."""
    if isinstance(value, dict):
        return "/".join(f"{layer}:{value_text(layer_value)}" for layer, layer_value in value.items())
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def by_layer(what: str, example: str) -> Callable[[Any], Any]:
    """A reader of `0:24/3:8`, or of a mapping whose keys may be text as in JSON -> {0: 24, 3: 8}, sorted by layer."""

    def read(value: Any) -> Any:
        if isinstance(value, str):
            pairs = [pair.partition(":") for pair in value.split("/")]
            if not all(layer.isdecimal() and isinstance(number_or_text(text), int | float) for layer, _, text in pairs):
                raise ValueError(f"layer:{what} pairs as {example}")
            if len({int(layer) for layer, _, _ in pairs}) < len(pairs):
                raise ValueError(f"one {what} for each layer")
            value = {int(layer): number_or_text(text) for layer, _, text in pairs}
        if not isinstance(value, Mapping):
            raise ValueError(f"layer:{what} pairs as {example}, or a mapping of them")
        by_number = {
            int(key) if isinstance(key, str) and key.isdecimal() else key: entry for key, entry in value.items()
        }
        sortable = all(isinstance(key, int) for key in by_number)  # pydantic refuses any other key afterwards
        return dict(sorted(by_number.items())) if sortable else by_number

    return read


def ranges(numbers: Sequence[int]) -> str:
    """[0, 1, 2, 3, 5] -> `0 to 3, 5`"""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low} to {high}" for low, high in runs)


def current_policy_text(text: str) -> str:
    """A canonical string from before format 2, in today's form; any other text stays as it is. In old strings a policy
    without a score meant `score=full`."""
    if not text.startswith(("k0=", "random:")) or "score=full" in text:
        return text
    if ",score=topk" in text:
        return text.replace(",score=topk", "")
    policy, comma, seed = text.partition(",seed=")  # the knob of a random control comes last
    return f"{policy},score=full{comma}{seed}"
