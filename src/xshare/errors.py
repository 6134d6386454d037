"""What goes wrong, in one sentence that names the field and what was expected."""


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
