"""Columns of result files, as docs/reference/files.md lists them."""

import importlib
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "tools" / "docs"))


def check_columns(command, rows):
    """Every column that a command writes has its meaning in the reference."""
    assert rows
    unknown = importlib.import_module("meanings").unknown(f"xshare {command}", {name for row in rows for name in row})
    assert not unknown, f"tools/docs/meanings.py does not know {unknown}"
