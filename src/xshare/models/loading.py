"""A Transformers model and its tokenizer from a folder. Importing this does not import transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xshare.errors import ModelError
from xshare.files import is_file, quoted_path


def load(folder: Path, device: str = "cpu", dtype: str = "auto") -> tuple[Any, Any]:
    """A model and its tokenizer from a folder."""
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging
    except ImportError:
        raise ModelError("transformers is not installed: pip install 'xshare[transformers]'") from None
    if not is_file(folder / "config.json"):
        raise ModelError(f"model {quoted_path(folder)} is no folder of a Transformers model: it has no config.json")
    had_progress_bar = logging.is_progress_bar_enabled()  # commands that load for long show their own
    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
        return model.to(device).eval(), tokenizer
    except (OSError, ValueError, KeyError, RuntimeError, AttributeError, AssertionError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"model {str(folder)!r} cannot be loaded: {reason[0]}") from None
    finally:
        if had_progress_bar:
            logging.enable_progress_bar()
