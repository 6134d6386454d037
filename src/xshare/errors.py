"""Errors that a user can cause: one sentence names the field and what was expected."""

from typing import Any

MOST_SPELLED = 1 << 18  # values and characters that a refused value may have to be spelled out
BEGIN, END = 600, 300  # characters kept from the two ends of a longer sentence


class XShareError(ValueError):
    """Every error a user can cause; the command line prints its sentence and exits with code 2.

    A name from a file may have any length and any characters: the sentence is always one printable line.
    """

    def __init__(self, sentence: object = "") -> None:
        text = " ".join(str(sentence).splitlines()).encode(errors="backslashreplace").decode()
        super().__init__(text if len(text) <= BEGIN + END else f"{text[:BEGIN]} … {text[-END:]}")


class PolicyError(XShareError):
    """A policy that cannot be parsed, or whose knobs contradict each other."""


class RouterError(XShareError):
    """A router description that contradicts itself or does not fit the logits."""


class LayoutError(XShareError):
    """Rows, requests or a placement that do not fit the batch."""


class TraceError(XShareError):
    """A trace file that cannot be read, or lacks what a command needs from it."""


class ModelError(XShareError):
    """A model that cannot be acted on, or cannot be loaded."""


def short_repr(value: Any, most: int = 80) -> str:
    """A refused value as an error message shows it: its repr, cut after `most` characters."""
    try:
        text = repr(value) if _has_bounded_repr(value) else f"such a {type(value).__name__}"
    except (ValueError, RecursionError):  # Python has no repr for a number of more than 4300 digits
        text = f"a number of {value.bit_length()} bits" if isinstance(value, int) else f"such a {type(value).__name__}"
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def _has_bounded_repr(value: Any) -> bool:
    """Whether the repr stays under MOST_SPELLED: a few lines of YAML with aliases can describe nested lists whose repr
    would fill any memory."""
    pending, left = [value], MOST_SPELLED
    while pending and left > 0:
        item = pending.pop()
        left -= 1
        if isinstance(item, str | bytes):
            left -= len(item)
        elif isinstance(item, dict):
            pending += [part for pair in item.items() for part in pair]
        elif isinstance(item, list | tuple | set | frozenset):
            pending += item
    return not pending
