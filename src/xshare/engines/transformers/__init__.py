"""XShare on a live Transformers model: hooks on one instance, `apply` and `remove`. docs/transformers.md is the guide.

Importing this package does not import transformers.
"""

from xshare.engines.transformers.attach import Attached, apply, layout, protect, remove, stats
from xshare.engines.transformers.trace_recording import record
from xshare.trace.prompt_file import Prompt, read_prompts

__all__ = ["Attached", "Prompt", "apply", "layout", "protect", "read_prompts", "record", "remove", "stats"]
