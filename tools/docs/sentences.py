"""The sentences with which the code refuses or skips something, collected from its source: for docs/troubleshooting/.

A sentence is shown as in the source, with `…` where a value stands.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from xshare.engines.gates import Reason

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "xshare"
GAP = "…"
# By page: the files whose errors it explains, and functions that return a reason in words.
PAGES: dict[str, tuple[str, ...]] = {
    "troubleshooting/start.md": (
        "engines/serving/settings.py",
        "engines/serving/signatures.py",
        "engines/vllm/settings.py",
        "engines/vllm/compatibility.py",
        "engines/vllm/find_layers.py",
        "engines/vllm/staircase_conditions.py",
        "engines/serving/hooks.py",
        "engines/vllm/hooks.py",
        "engines/vllm/plugin.py",
        "engines/vllm/runner.py",
        "engines/gates.py",
        "kernels/limits.py",
    ),
    "troubleshooting/files.md": ("profile.py", "staircase.py", "results/file.py", "results/resumable.py", "files.py"),
    "troubleshooting/calls.md": (
        "engines/serving/state.py",
        "engines/vllm/control.py",
        "engines/serving/protection.py",
        "engines/vllm/protection.py",
        "engines/vllm/private_folder.py",
        "kernels/launch.py",
    ),
    "troubleshooting/policies.md": ("policy.py", "policy_text.py"),
    "troubleshooting/commands.md": (
        "engines/by_name.py",
        "engines/client.py",
        "engines/server.py",
        "engines/remote_control.py",
        "engines/vllm/engine.py",
        "engines/vllm/backends.py",
        "engines/vllm/teacher_forcing.py",
        "engines/vllm/dummy_weights.py",
    ),
    "troubleshooting/sglang.md": (
        "engines/serving/signatures.py",
        "engines/sglang/settings.py",
        "engines/sglang/compatibility.py",
        "engines/sglang/find_layers.py",
        "engines/sglang/refused_start.py",
        "engines/sglang/wrapped_functions.py",
        "engines/sglang/layer.py",
        "engines/sglang/plugin.py",
        "engines/sglang/runner.py",
        "engines/sglang/control.py",
        "engines/sglang/protection.py",
        "engines/sglang/routers.py",
        "engines/sglang/site.py",
    ),
    "troubleshooting.md": (
        "engines/vllm/routers.py",
        "engines/vllm/site.py",
        "engines/vllm/one_launch.py",
        "engines/vllm/one_launch_modular.py",
        "engines/vllm/routing_check.py",
    ),
}


def reasons() -> tuple[str, ...]:
    """Why a step is left alone, as it is counted."""
    return get_args(Reason)


def sentences(page: str) -> list[str]:
    """The sentences of the code that this page explains."""
    messages = [sentence for file in PAGES[page] for sentence in _messages(ast.parse((SOURCE / file).read_text()))]
    return [
        sentence for sentence in dict.fromkeys(messages) if re.search("[a-z]{2}", sentence)
    ]  # not `…, …`, which others fill


def missing(page: str, text: str) -> list[str]:
    """The sentences that the page does not show. Backticks are ignored."""
    return [sentence for sentence in sentences(page) if sentence.replace("`", "") not in text.replace("`", "")]


def _messages(tree: ast.Module) -> Iterator[str]:
    """Messages that are raised, and reasons that functions return."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            yield from _text(node.exc.args[0])
        elif isinstance(node, ast.FunctionDef) and _gives_a_reason(node):
            returned = [
                part.value for part in ast.walk(node) if isinstance(part, ast.Return) and part.value is not None
            ]
            yield from (sentence for value in returned for sentence in _text(value))


def _gives_a_reason(function: ast.FunctionDef) -> bool:
    """Whether a function returns text or something else, such as None: then the text is a reason."""
    if function.returns is None:
        return False
    kinds = {part.strip() for part in ast.unparse(function.returns).split("|")}
    return "str" in kinds and len(kinds) > 1


def _text(node: ast.expr) -> list[str]:
    """The string of a node, with gaps for its expressions; empty if it is no string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values)]
    return []
