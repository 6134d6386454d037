"""Workers in processes of their own, forked from this one."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch


@contextmanager
def forked() -> Iterator[None]:
    """Engines started inside this context have forked workers: in a new interpreter each worker would import vLLM
    again, which takes longer than what the test asks of it."""
    # Each rank would compile how it looks up its part of the words. By torch's own means: a patch of pytest's leaves no
    # such setting behind, and nothing that is compiled later in this process would run.
    with torch._dynamo.config.patch(disable=True), pytest.MonkeyPatch.context() as patched:
        torch._C.set_num_threads(1)  # a fork waits for ever for threads that this process had; torch's own, not vLLM's
        ranks = "vllm.v1.executor.multiproc_executor"
        patched.setattr(f"{ranks}.get_mp_context", lambda: multiprocessing.get_context("fork"))
        patched.syspath_prepend(str(Path(__file__).parent))
        yield
