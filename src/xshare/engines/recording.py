"""Recording a trace with whichever engine can."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xshare.models.loading import load
from xshare.trace import Trace
from xshare.trace.prompts import Prompt


def record_folder(folder: Path, prompts: Sequence[Prompt], *, device: str, dtype: str, **options: Any) -> Trace:
    """The trace of a model in a folder: Transformers decodes it. `options` are those of its `record`."""
    from xshare.engines.transformers.record import record

    return record(*load(folder, device, dtype), prompts, **options)
