"""What goes wrong, in one sentence that names the field and what was expected."""

from typing import Any

MOST_SPELLED = 1 << 18  # values and characters of what a sentence may show the beginning of
BEGIN, END = 600, 300  # characters of a sentence that are kept where it is longer than both


class XShareError(ValueError):
    """Every error a user can cause; the command line prints its sentence and exits with code 2.

    Names from a file may be of any length and any characters: the sentence stays one line that can be printed.
    """

    def __init__(self, sentence: object = "") -> None:
        text = " ".join(str(sentence).splitlines()).encode(errors="backslashreplace").decode()
        super().__init__(text if len(text) <= BEGIN + END else f"{text[:BEGIN]} … {text[-END:]}")


class PolicyError(XShareError):
    """A policy that cannot be read or cannot mean anything."""


class RouterError(XShareError):
    """A router description that does not fit itself or the logits."""


class LayoutError(XShareError):
    """Rows, requests or a placement that do not fit the batch."""


class TraceError(XShareError):
    """A trace file that cannot be read, or does not hold what was asked of it."""


class ModelError(XShareError):
    """A model that cannot be acted on, or cannot be loaded."""


def short_repr(value: Any, most: int = 80) -> str:
    """A value that is refused, as the sentence shows it: cut short where it is long."""
    try:
        text = repr(value) if _can_be_spelled(value) else f"such a {type(value).__name__}"
    except (ValueError, RecursionError):  # Python spells no number of more than 4300 digits
        text = f"a number of {value.bit_length()} bits" if isinstance(value, int) else f"such a {type(value).__name__}"
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def _can_be_spelled(value: Any) -> bool:
    """Whether its spelling has an end in sight: in YAML a few lines can name a list that holds itself ten times, ten
    times over, and would fill any memory."""
    waiting, left = [value], MOST_SPELLED
    while waiting and left > 0:
        each = waiting.pop()
        left -= 1
        if isinstance(each, str | bytes):
            left -= len(each)
        elif isinstance(each, dict):
            waiting += [part for pair in each.items() for part in pair]
        elif isinstance(each, list | tuple | set | frozenset):
            waiting += each
    return not waiting
