"""What goes wrong, in one sentence that names the field and what was expected."""

from typing import Any


class XShareError(ValueError):
    """Every error a user can cause; the command line prints its sentence and exits with code 2."""


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


def shown(value: Any, most: int = 80) -> str:
    """A value that is refused, as the sentence shows it: cut short where it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python spells no number of more than 4300 digits
        text = f"a number of {value.bit_length()} bits" if isinstance(value, int) else f"such a {type(value).__name__}"
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"
